#!/usr/bin/env bash
# Prepares .venv; with --node also .venv/node, what newer nodes run the collection with; with --website also
# .venv/website, what builds the site of the documentation; with --sandbox also what the sandbox needs: programs, the AWS
# CLI, and an environment for each ParallelCluster.
# Does nothing that is done already.
#
# PYTHON names the Python of .venv, by default this machine's own; with a PYTHON that is named there is no .venv/node.
set -euo pipefail
cd "$(dirname "$0")/.."
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

packages=(python3-venv openssh-client ca-certificates git mount)
packages+=(gcc libc6-dev make gpg gpg-agent gpgv openssl zstd squashfs-tools) # unit tests compile, sign and pack
packages+=(squashfuse) # a benchmark mounts an image
[ "${1:-}" = --sandbox ] && packages+=(podman netavark aardvark-dns iptables mmdebstrap patchelf jq nodejs)
# Docker's containerd.io has a runc, and the package runc would take Docker away.
[ "${1:-}" = --sandbox ] && ! command -v runc > /dev/null && packages+=(runc)
[ "${1:-}" = --node ] && packages+=(patchelf)
missing=()
for package in "${packages[@]}"; do
  dpkg-query --show --showformat '${Status}\n' "$package" 2> /dev/null | grep -q '^install ok installed$' ||
    missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing ${missing[*]}"
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-remove --no-install-recommends \
    "${missing[@]}"
fi

# Whether the environment $1 is not yet what the lock files after it say.
outdated() {
  local at=$1
  shift
  stamp=$( (cat "$@" "$0"; [ "$at" != .venv ] || echo "${PYTHON:-}") | sha256sum | cut -d' ' -f1)
  [ "$(cat "$at/.stamp" 2> /dev/null)" != "$stamp" ]
}

# Makes the environment $1 hold exactly what the lock files after it say.
synchronise() {
  local at=$1 option value
  shift
  # uv does not read pip's configuration; the index that this machine uses is passed on.
  for option in index-url extra-index-url; do
    value=$(.venv/bin/pip config get "global.$option" 2> /dev/null ||
      .venv/bin/pip config get "install.$option" 2> /dev/null || true)
    case $option:$value in
      *:) ;;
      index-url:*) export UV_DEFAULT_INDEX=$value ;;
      extra-index-url:*) : ;; # every package of the lock is found in the index itself
    esac
  done
  .venv/bin/uv pip sync --quiet --python "$at/bin/python" --require-hashes "$@"
}

# The collection must be reachable as ansible_collections/pcluster/postboot, and Python's packages are those of the lock
# files.
if outdated .venv requirements/{dev,uv}.txt scripts/debian13.sh; then
  echo "preparing .venv"
  "${PYTHON:-/usr/bin/python3}" -m venv --clear .venv
  .venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt
  synchronise .venv requirements/{dev,uv}.txt
  mkdir -p .venv/collections/ansible_collections/pcluster
  ln -sfn ../../../.. .venv/collections/ansible_collections/pcluster/postboot
  echo "$stamp" > .venv/.stamp
fi

# From Python 3.12 on, .venv itself has the ansible-core of newer nodes.
if [ "${1:-}" = --node ] && [ ! -e .venv/node/.complete ] && [ -z "${PYTHON:-}" ] &&
  .venv/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then
  echo "preparing .venv/node"
  python=$(scripts/debian13.sh .venv/debian13 "$PWD/.venv/python" python3.13-minimal libpython3.13-minimal \
    libpython3.13-stdlib python3.13-venv python3-pip-whl)
  "$python/bin/python3.13" -m venv --clear .venv/node
  synchronise .venv/node requirements/{dev,uv}.txt
  rm -rf .venv/debian13
  touch .venv/node/.complete
fi

if [ "${1:-}" = --website ] && outdated .venv/website requirements/website.txt; then
  echo "preparing .venv/website"
  /usr/bin/python3 -m venv --clear --without-pip .venv/website
  synchronise .venv/website requirements/website.txt
  echo "$stamp" > .venv/website/.stamp
fi
[ "${1:-}" = --sandbox ] || exit 0

# ParallelCluster's versions and the AWS CLI, whose packages exclude each other: an environment for each.
for lock in requirements/{parallelcluster-*,awscli}.txt; do
  environment=.sandbox/cache/$(sed -n 's/^\(aws-\)\?\(parallelcluster\|awscli\)==\([0-9.]*\).*/\2-\3/p' "$lock")
  if outdated "$environment" "$lock"; then
    echo "preparing $environment"
    as_root install --directory --owner "$(id -u)" "$environment"
    /usr/bin/python3 -m venv --clear --without-pip "$environment"
    synchronise "$environment" "$lock"
    echo "$stamp" > "$environment/.stamp"
  fi
done
