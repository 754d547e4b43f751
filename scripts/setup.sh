#!/usr/bin/env bash
# Prepares .venv and, with --sandbox, the programs that the sandbox needs. Does nothing that is done already.
set -euo pipefail
cd "$(dirname "$0")/.."
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

packages=(python3-venv openssh-client ca-certificates git mount)
packages+=(gcc libc6-dev make gpg gpg-agent gpgv openssl zstd) # unit tests compile, sign and pack
[ "${1:-}" = --sandbox ] && packages+=(podman runc netavark aardvark-dns iptables mmdebstrap patchelf jq)
missing=()
for package in "${packages[@]}"; do
  dpkg-query --show --showformat '${Status}\n' "$package" 2> /dev/null | grep -q '^install ok installed$' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}"
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

# The collection must be reachable as ansible_collections/pcluster/postboot, and Python's packages are those of the lock files.
stamp=$(cat requirements/{dev,uv}.txt "$0" | sha256sum | cut -d' ' -f1)
[ "$(cat .venv/.stamp 2> /dev/null)" = "$stamp" ] && exit 0
echo "preparing .venv"
/usr/bin/python3 -m venv --clear .venv
.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt
# uv does not read pip's configuration; the index that this machine uses is passed on.
for option in index-url extra-index-url; do
  value=$(.venv/bin/pip config get "global.$option" 2> /dev/null || .venv/bin/pip config get "install.$option" 2> /dev/null || true)
  case $option:$value in
    *:) ;;
    index-url:*) export UV_DEFAULT_INDEX=$value ;;
    extra-index-url:*) : ;; # every package of the lock is found in the index itself
  esac
done
.venv/bin/uv pip sync --quiet --python .venv/bin/python --require-hashes requirements/dev.txt requirements/uv.txt
mkdir -p .venv/collections/ansible_collections/pcluster
ln -sfn ../../../.. .venv/collections/ansible_collections/pcluster/postboot
echo "$stamp" > .venv/.stamp
