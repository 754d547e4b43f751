#!/usr/bin/env bash
# Fills the mirror's directory with what each upstream site would serve, at /<host>/<path>, made from this
# distribution's real programs, and from ../standins where there is none. sites/ has one file for each site; the key
# that signs their packages is kept in the cache beside the mirror.
#
#   build.sh MIRROR_DIR BASE_IMAGE
#
# The image may still be built meanwhile: a line on standard input says that it is there.
#
# Newest versions come from Debian's unstable suite (their binaries need glibc 2.34 only); what starts the containers
# from the base's own suite. The signatures count, not their age: a machine's distribution mirror may be a snapshot.
# SANDBOX_UPSTREAM names a directory with source trees of upstream's, such as enroot and pyxis, which take the place of
# the stand-ins of these names. What only a package index has, sandbox.py has put into the cache, at /<host>/<path>: it
# is served as it is.
# With SANDBOX_SOURCES=internet, internet.py then puts upstream's own releases in the place of these.
# pins.json says which versions and sha256 resulted: the sandbox's variables read it, as a user's group_vars would hold
# `make pins`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mirror=$(realpath -m "$1") image=$2
key=$(dirname "$mirror")/cache/signing-key
downloads=$(dirname "$mirror")/cache/downloads
upstream=() sources=${SANDBOX_UPSTREAM:+$(realpath "$SANDBOX_UPSTREAM")}
if [ "$sources" ]; then
  [ -d "$sources/enroot" ] || [ -d "$sources/pyxis" ] ||
    { echo "SANDBOX_UPSTREAM: found $sources; needed: a directory with upstream's source in enroot or pyxis" >&2; exit 1; }
  upstream=(--volume "$sources:/upstream:ro")
fi
stamp=$( (cd "$here/.." && find mirror standins -type f -not -name '*.pyc' | sort |
  xargs sha256sum; cd "$downloads" && find . -type f | sort
  [ -z "$sources" ] || (cd "$sources" && find . -type f -not -path '*/.git/*' -print0 | sort -z |
    xargs -0 sha256sum)) | sha256sum | cut -c1-16)-$image-${SANDBOX_SOURCES:=standins}
[ "$(cat "$mirror/.stamp" 2> /dev/null)" = "$stamp" ] && exit 0
rm -rf "$mirror" && mkdir -p "$mirror" "$key" && chmod 0700 "$key"
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists/partial,cache/archives/partial,sources.d,debs}

# shellcheck source=/dev/null
. /etc/os-release
# shellcheck disable=SC2016  # $(SITE) and the like are apt's
site=$(apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)|$(RELEASE)' 'Created-By: Packages' |
  awk -F'|' -v id="$ID" -v suite="$VERSION_CODENAME" 'tolower($1) == id && $3 == suite { print $2; exit }')
newest=$([ "$ID" = debian ] && echo unstable || echo "$VERSION_CODENAME")
component=$([ "$ID" = debian ] && echo main || echo universe)
echo "deb $site $newest $component" > "$work/sources.list"
cat > "$work/apt.conf" << EOF
Dir::State "$work"; Dir::State::lists "$work/lists"; Dir::State::status "/dev/null"; Dir::Cache "$work/cache";
Dir::Etc::sourcelist "$work/sources.list"; Dir::Etc::sourceparts "$work/sources.d"; Acquire::Languages "none"; APT::Sandbox::User "root";
Acquire::Check-Valid-Until "false";
EOF
cd "$work/debs"
APT_CONFIG="$work/apt.conf" apt-get update -qq
# Debian has Docker's client in a package of its own.
# shellcheck disable=SC2046
APT_CONFIG="$work/apt.conf" apt-get download -qq prometheus promtool prometheus-alertmanager \
  prometheus-node-exporter docker.io \
  $([ "$ID" != debian ] || echo docker-cli)
apt-get download -qq -o APT::Sandbox::User=root containerd runc tini busybox-static
# libfabric with its headers, and what it needs that a node has not.
apt-cache depends --recurse --important libfabric1 |
  grep -oE '^(ibverbs-providers|lib(fabric1|ibverbs1|rdmacm1|psm2-2|psm-infinipath1|nl(-route)?-3-200)(t64)?)$' |
  sort -u |
  xargs apt-get download -qq -o APT::Sandbox::User=root libfabric-dev
apt-cache depends --important libopenmpi-dev | grep -oE '(libopenmpi[0-9][0-9t]*|openmpi-common)$' | sort -u |
  xargs apt-get download -qq -o APT::Sandbox::User=root libopenmpi-dev
# The tools of login nodes, with what they need that a node has not.
{ printf '%s\n' htop tmux tree; apt-cache depends --important htop tmux tree | sed -n 's/^ *Depends: //p'; } |
  grep -v '^libc6$' | sort -u > tools.list
xargs --arg-file tools.list apt-get download -qq -o APT::Sandbox::User=root
read -r
podman run --rm --network none --volume "$work/debs:/debs:ro" --volume "$mirror:/srv/mirror" \
  --volume "$here:/mirror:ro" \
  --volume "$here/../standins:/standins:ro" --volume "$downloads:/downloads:ro" --volume "$key:/signing-key" \
  "${upstream[@]}" "$image" bash /mirror/fill.sh
echo "$stamp" > "$mirror/.stamp"
echo "filled the mirror: $(jq -r 'to_entries | map("\(.key) \(.value.version // "")") | join(", ")' "$mirror/pins.json")"
