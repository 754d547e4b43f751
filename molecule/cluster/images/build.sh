#!/usr/bin/env bash
# Builds the sandbox's images from the distribution that this machine itself runs, or from a registry's images.
#
#   build.sh CACHE_DIR all        print the tags "base=… ubuntu=… el=…", building what is not there yet
#   build.sh CACHE_DIR base       the same of base alone, from which the mirror is filled
#   build.sh CACHE_DIR tag        print the tag of base
#
# SANDBOX_IMAGES=registry takes real Ubuntu 24.04 and Amazon Linux 2023 images instead (needs a container registry).
# An image's tag is a hash of what it is made from, so a change of inputs rebuilds it and nothing else does.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=$(realpath -m "$1")
mkdir -p "$cache"
log() { printf '%s  %s\n' "$(date +%T)" "$*" >&2; }
have() { podman image exists "$1"; }
hash_of() { cat "$@" | sha256sum | cut -c1-12; }

repository=$(realpath "$here/../../..")
debian13=$repository/scripts/debian13.sh
# ParallelCluster brings a Python of its own, which is newer than Debian 12's.
python=(python3.13 python3.13-minimal python3-minimal libpython3.13-minimal libpython3.13-stdlib python3.13-venv \
  python3-pip-whl)
# Its release 3.16 tells scontrol the nodes' instance ids, which Slurm takes from 23.02.5 on; Debian 12 has 22.05.
slurm=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins libslurm-dev libpmix2t64)
# The releases of ParallelCluster whose daemons the nodes have.
declare -A daemons=([ubuntu]=3.16 [el]=3.13)

# shellcheck source=/dev/null
. /etc/os-release
packages=$(grep -v '^#' "$here/packages.txt" | tr -s ' \n' ',' | sed 's/^,//; s/,$//')

# shellcheck disable=SC2016  # $(SITE) and the like are apt's
# The distribution's own repositories, as this machine's apt is configured to reach them.
host_sources() {
  apt-get indextargets --format '$(SITE)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)' 'Created-By: Packages' |
    awk -F'|' -v id="$ID" 'tolower($5) == id { print "deb " $2 " " $3 " " $4 }' | sort -u
}

# Unpacks Debian 13's packages below $newer, and prints where. Ubuntu 24.04 needs none: its Slurm is 23.11, its Python
# 3.12.
newer=$cache/newer
unpack_newer() {  # destination packages...
  [ "$VERSION_CODENAME" != bookworm ] || DESTDIR=$newer "$debian13" "$cache/debian13" "$@"
}

build_base() {
  local tag=$1 tar="$cache/base.tar" sources="$cache/sources.list" home memory hooks=()
  host_sources > "$sources"
  [ -s "$sources" ] || { log "no $ID repository in this machine's apt: run apt-get update"; exit 1; }
  log "building $tag from $PRETTY_NAME (about a minute, once)"
  rm -rf "$newer"
  home=$(unpack_newer /opt/parallelcluster/pyenv/versions/%v "${python[@]}")
  # shellcheck disable=SC2016  # the hooks' $1 is mmdebstrap's
  [ -z "$home" ] || hooks+=(--customize-hook="copy-in $newer/opt /" \
    --customize-hook='chroot "$1" '"$home/bin/python3 -m compileall -q $home/lib")
  # What it unpacks lies in memory, about 1 GB: half of its time would go to the disk.
  memory=$(mktemp --directory)
  # shellcheck disable=SC2016
  TMPDIR=$memory unshare --mount sh -c 'mount -t tmpfs tmpfs "$TMPDIR" && exec "$@"' sh \
    mmdebstrap --variant=apt --include="$packages" --aptopt='Acquire::Languages "none"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/lib/python3/dist-packages/awscli/examples/*' \
    "${hooks[@]}" --customize-hook='rm -f "$1"/etc/machine-id "$1"/etc/ssh/ssh_host_*' \
    "$VERSION_CODENAME" "$tar" - < "$sources" > "$cache/base.log" 2>&1 || { tail -20 "$cache/base.log" >&2; exit 1; }
  podman import --quiet --message "packages of $PRETTY_NAME" "$tar" "$tag" > /dev/null
  rm -rf "$tar" "$newer" "$memory"
}

build_node() {  # family base_image tag
  log "building $3"
  rm -rf "$newer" && mkdir "$newer"
  if [ "$1 $2" = "ubuntu $base" ]; then unpack_newer /opt/slurm "${slurm[@]}" > /dev/null; fi
  for version in 3.11 3.12 3.13; do # what the images' Pythons are, whichever they are made from
    "$repository/.venv/bin/pip" download \
      --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: --python-version $version \
      --dest "$cache/wheels" --requirement "$repository/requirements/cookbook.txt" \
      --requirement "$repository/requirements/daemons-${daemons[$1]}.txt" \
      2> "$cache/wheels.log" || { cat "$cache/wheels.log" >&2; exit 1; }
  done
  # Its cache knows nothing of what is in volumes.
  podman build --quiet --no-cache --volume "$newer:/sandbox/newer:ro" --volume "$cache/wheels:/sandbox/wheels:ro" \
    --volume "$repository:/sandbox/repository:ro" \
    --build-arg BASE="$2" --build-arg FAMILY="$1" --build-arg DAEMONS="${daemons[$1]}" --tag "$3" \
    --file "$here/Containerfile" "$here" > /dev/null
  rm -rf "$newer"
}

base=localhost/postboot-base:$(hash_of "$here/packages.txt" "$here/build.sh" "$debian13" /etc/os-release)
[ "$2" = tag ] || have "$base" || build_base "$base"
echo "base=$base"
[ "$2" = all ] || exit 0
for family in ubuntu el; do
  from=$base
  if [ "${SANDBOX_IMAGES:-}" = registry ]; then
    case $family in
      ubuntu) from=docker.io/library/ubuntu:24.04 ;;
      el) from=docker.io/library/amazonlinux:2023 ;;
    esac
  fi
  inputs=("$here/Containerfile" "$here/setup.sh" "$here/rootfs" "$here/../standins/scontrol/scontrol" \
    "$repository"/requirements/{cookbook,"daemons-${daemons[$family]}"}.txt)
  tag=localhost/postboot-$family:$( (echo "$from"; find "${inputs[@]}" -type f | sort | xargs cat) | sha256sum |
    cut -c1-12)
  have "$tag" || build_node "$family" "$from" "$tag"
  echo "$family=$tag"
done
