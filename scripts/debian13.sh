#!/usr/bin/env bash
# Unpacks programs of Debian 13 into a directory of their own, with every library that they need, so that they start on
# Debian 12.
#
#   debian13.sh CACHE DEST PACKAGE...      print DEST, once the packages are there
#
# DEST is the absolute path at which they are used: DEST/bin, DEST/lib and so on are the packages' /usr/bin and
# /usr/lib. "%v" in it stands for the version of the first package. With DESTDIR set they are written to $DESTDIR$DEST,
# as `make install` does it. A former DEST is replaced. Of a package that is needed without being named, only the
# libraries are taken.
#
# CACHE keeps apt's lists and the downloaded packages. They come from the mirror that this machine's apt is configured
# to reach, and Debian's keyring verifies them; the machine's own apt and dpkg are not changed. It needs patchelf, and
# no root.
# On Ubuntu 24.04, whose Python is 3.12 and whose Slurm is 23.11, none of it is needed.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
cache=$(cd "$1" && pwd) dest=$2
shift 2

exec 9> "$cache/lock"
flock 9
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

# shellcheck source=/dev/null
. /etc/os-release
# shellcheck disable=SC2016  # $(REPO_URI) and the like are apt's
apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)' 'Created-By: Packages' |
  awk -v from="${VERSION_CODENAME:-}" '$4 == "Debian" && sub("^" from, "trixie", $2) {
    print "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]", $1, $2, $3
  }' | sort -u > "$work/sources.list"
if [ ! -s "$work/sources.list" ]; then
  echo "this machine's apt has no Debian repository, which Debian 13's packages would come from: run apt-get update" >&2
  exit 1
fi

mkdir -p "$cache"/{state/lists,archives}/partial
: > "$work/status"
{
  apt-config dump | awk '/^Acquire::(https?|Retries)/'
  cat << END
Acquire::Languages "none";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Dir::Cache "$cache";
Dir::Etc::Parts "/dev/null";
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Log "/dev/null";
Dir::State "$cache/state";
Dir::State::Status "$work/status";
Debug::pkgDpkgPm "true"; // dpkg is not run: what it would have installed is written down
DPkg::Pre-Install-Pkgs:: "cat > $work/packages";
END
} > "$work/apt.conf"
export APT_CONFIG=$work/apt.conf
apt-get update -qq
apt-get install -qq "$@" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

while read -r file; do
  package=${file##*/} into=needed
  package=${package%%_*}
  for named in "$@"; do [ "$package" != "$named" ] || into=named; done
  if [ "$package" = "$1" ]; then
    version=$(dpkg-deb --field "$file" Version)
    version=${version#*:} dest=${dest//%v/${version%-*}}
  fi
  dpkg-deb --extract "$file" "$work/$into"
done < "$work/packages"

tree=$work/named/usr libraries=$(cd "$work/needed/usr" && echo lib/*-linux-gnu)
mkdir -p "$tree/$libraries"
find "$work/needed/usr/$libraries" -maxdepth 1 -name '*.so*' -exec cp -a --target-directory="$tree/$libraries" {} +

# A program's DT_RPATH, unlike DT_RUNPATH, holds for every library that it ever loads, and stands above the caller's
# LD_LIBRARY_PATH: Debian 13's loader does not start with the C library of another release.
grep --recursive --files-without-match --binary-files=without-match . "$tree" | while read -r file; do
  rpath=$(patchelf --print-rpath "$file" 2> /dev/null) || continue # not an ELF file, or a static one
  rpath=$(sed -E "s#(^|:)/usr/#\1$dest/#g" <<< "$rpath")
  if loader=$(patchelf --print-interpreter "$file" 2> /dev/null) && [[ $file != *.so.* ]]; then
    patchelf --set-interpreter "$dest/$libraries/${loader##*/}" \
      --force-rpath --set-rpath "${rpath:+$rpath:}$dest/$libraries" "$file"
  elif [ "$rpath" ]; then
    patchelf --force-rpath --set-rpath "$rpath:$dest/$libraries" "$file"
  fi
done
# `python3 -m venv` looks for its wheels at an absolute path.
find "$tree/lib" -name '_sysconfigdata_*.py' -exec sed -i "s#'/usr/share/python-wheels#'$dest/share/python-wheels#" {} +

rm -rf "${DESTDIR:-}$dest"
mkdir -p "$(dirname "${DESTDIR:-}$dest")"
mv "$tree" "${DESTDIR:-}$dest"
echo "$dest"
