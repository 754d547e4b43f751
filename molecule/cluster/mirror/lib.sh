# shellcheck shell=bash disable=SC2034,SC2154  # its variables are used in the sites, or come from them
# What the sites' files share: sourced by fill.sh, in a container of the base image. /debs holds the distribution's
# packages, /standins the stand-ins.
top=/srv/mirror work=$(mktemp -d) architecture=$(dpkg --print-architecture)
for deb in /debs/*.deb; do dpkg-deb -x "$deb" "$work/$(dpkg-deb -f "$deb" Package)"; done
version_of() { dpkg-deb -f /debs/"$1"_*.deb Version | sed -E 's/^[0-9]+://; s/[-+~].*//'; }

# Amazon Linux's own repository, to which several sites add.
amazonlinux=$top/cdn.amazonlinux.com/al2023/core/mirrors/latest/$(uname -m)

# The source of a project: upstream's own, where SANDBOX_UPSTREAM has it, or the stand-in's; and in words.
take_source() {  # project directory
  if [ -d "/upstream/$1" ]; then cp -r "/upstream/$1" "$2" && rm -rf "$2/.git"; else cp -r "/standins/$1" "$2"; fi
}
origin_of() { if [ -d "/upstream/$1" ]; then echo "upstream's own source"; else echo 'a stand-in'; fi; }

# What a site leaves to be done when all of them are done.
at_end=()

# What pins.json says of a component.
pins='{}'
pin() { pins=$(jq -c --arg name "$1" --argjson value "$2" '.[$name] = $value' <<< "$pins"); }

# A directory as a tarball that is the same each time.
pack() {  # parent member file
  tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --directory "$1" "$2" |
    gzip --no-name -1 > "$3"
}

# A release tarball as the Prometheus project lays it out, with its sha256sums.txt.
tarball() {  # project version directory
  local path=$top/github.com/prometheus/$1/releases/download/v$2 name=$1-$2.linux-$architecture
  mkdir -p "$path" && mv "$3" "$work/$name"
  echo "The Apache License 2.0 applies; see https://github.com/prometheus/$1" > "$work/$name/LICENSE"
  pack "$work" "$name" "$path/$name.tar.gz"
  (cd "$path" && sha256sum "$name.tar.gz" > sha256sums.txt)
  pin "$1" "$(jq -nc --arg version "$2" --arg sha256 "$(cut -d' ' -f1 "$path/sha256sums.txt")" '{$version, $sha256}')"
}

# One signing key for all the package repositories of the mirror; each "site" publishes it at its own path. It is kept,
# so that nodes which know it can go on when the mirror is filled anew.
export GNUPGHOME=/signing-key GPG_TTY=none
gpg --batch --quiet --list-secret-keys --with-colons 2> /dev/null | grep -q ^sec ||
  gpg --batch --quiet --pinentry-mode loopback --passphrase '' \
  --quick-generate-key 'Sandbox mirror (not the real upstream)' rsa3072 sign never
fingerprint=$(gpg --batch --quiet --with-colons --list-keys | awk -F: '$1 == "fpr" { print $10; exit }')
gpg --batch --armor --export > "$work/key.asc"
pin signing_key "$(jq -nc --arg fingerprint "$fingerprint" '{$fingerprint}')"

# A package's files are laid out in $work/stage, which `stage` empties; `deb` and `rpm_package` leave it as it was.
stage() { rm -rf "$work/stage" "$work/after_install" &&
  mkdir -p "$work/stage/usr/bin" "$work/stage/usr/lib/systemd/system"; }
stage_nothing() { stage; mkdir -p "$work/stage/usr/share/doc/$1"; echo "A package without its program." > "$work/stage/usr/share/doc/$1/sandbox"; }
# The lines that a staged package runs once it is installed.
after_install() { printf '%s\n' "$@" > "$work/after_install"; }

deb() {  # name version depends directory [further lines of its control file]
  rm -rf "$work/deb" && cp -a "$work/stage" "$work/deb" && mkdir -p "$work/deb/DEBIAN" "$4"
  cat > "$work/deb/DEBIAN/control" << END
Package: $1
Version: $2
Architecture: $architecture
Maintainer: Sandbox mirror <sandbox@example.org>
${3:+Depends: $3}
${5:-}
Description: $1 ($description)
END
  sed -i '/^$/d' "$work/deb/DEBIAN/control"
  if [ -e "$work/after_install" ]; then
    (printf '#!/bin/sh\nset -e\n' && cat "$work/after_install") > "$work/deb/DEBIAN/postinst"
    chmod 0755 "$work/deb/DEBIAN/postinst"
  fi
  # What lies in /etc is a person's to change.
  if [ -d "$work/deb/etc" ]; then
    (cd "$work/deb" && find etc -type f -printf '/%p\n') > "$work/deb/DEBIAN/conffiles"
  fi
  dpkg-deb --build --root-owner-group -Znone "$work/deb" "$4/$1_${2#*:}_$architecture.deb" > /dev/null
}

rpm_package() {  # name version[-release] requires directory [further lines of its header]
  local version=${2%%-*} release=1.amzn2023
  case $2 in *-*) release=${2#*-} ;; esac
  rm -rf "$work/buildroot" && cp -a "$work/stage" "$work/buildroot" && mkdir -p "$4" "$work/rpmbuild"
  (cd "$work/buildroot" && find . -type f -o -type l | sed -E 's#^\.##; s#^(/etc/)#%config(noreplace) \1#'
    find . -mindepth 1 -type d -empty | sed 's#^\.#%dir #') > "$work/files"
  cat > "$work/$1.spec" << END
Name: $1
Version: $version
Release: $release
Summary: $1 ($description)
License: Apache-2.0
AutoReqProv: no
${3:+Requires: $3}
${5:-}
%description
$1
%files -f $work/files
END
  if [ -e "$work/after_install" ]; then (echo %post && cat "$work/after_install") >> "$work/$1.spec"; fi
  rpmbuild --quiet -bb --buildroot "$work/buildroot" --define "_topdir $work/rpmbuild" --define "_rpmdir $4" \
    --define '_binary_payload w.ufdio' \
    --define '_build_id_links none' --define '__os_install_post %{nil}' --define '%_dbpath /tmp/rpmdb' "$work/$1.spec"
}

# Makes and signs the lists of an apt repository with a suite and components, as Docker's is.
apt_suite() {  # directory suite pool origin label [component]
  local component=${6:-stable}
  local lists=$1/dists/$2/$component/binary-$architecture
  mkdir -p "$lists"
  (cd "$1" && dpkg-scanpackages --multiversion "$3" 2> /dev/null > "$lists/Packages")
  gzip --keep --no-name "$lists/Packages"
  apt_release "$1/dists/$2" Origin="$4" Label="$5" Suite="$2" Codename="$2" Architectures="$architecture" \
    Components="$component"
  rm "$1/dists/$2/Release.gpg"  # that site has an InRelease only
}

# Makes and signs the lists of an apt repository that is one flat directory, as NVIDIA's is.
apt_flat() {  # directory
  (cd "$1" && dpkg-scanpackages --multiversion . 2> /dev/null > Packages)
  gzip --keep --no-name "$1/Packages"
  apt_release "$1" Architectures="$architecture"
}

apt_release() {  # directory, then fields of the Release file
  local directory=$1 field options=()
  shift
  for field; do options+=(-o "APT::FTPArchive::Release::$field"); done
  (cd "$directory" && apt-ftparchive "${options[@]}" release . > "$work/Release" && mv "$work/Release" Release)
  gpg --batch --quiet --clearsign --output "$directory/InRelease" "$directory/Release"
  gpg --batch --quiet --armor --detach-sign --output "$directory/Release.gpg" "$directory/Release"
}

# Signs the packages of a dnf repository.
rpm_sign() {  # directory
  find "$1" -name '*.rpm' -exec rpm --define "_gpg_name $fingerprint" --define '_gpg_digest_algo sha256' \
    --define "__gpg /usr/bin/gpg" --addsign {} + > /dev/null
}

# Makes and signs the lists of a dnf repository.
rpm_repository() {  # directory
  createrepo_c --quiet --no-database "$1"
  gpg --batch --quiet --armor --detach-sign "$1/repodata/repomd.xml"
}
