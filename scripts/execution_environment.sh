#!/usr/bin/env bash
# Writes the build context of the execution environment into build/ee/context, with the collection as it is committed.
#
#   execution_environment.sh [--build]      with --build podman makes the image of it: localhost/pcluster-postboot-ee
#
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf build/ee
mv "$(scripts/build_committed.sh build/ee)" build/ee/pcluster-postboot.tar.gz
ansible-builder create --output-filename Containerfile --context build/ee/context
[ "${1:-}" != --build ] ||
  podman build --tag localhost/pcluster-postboot-ee --file build/ee/context/Containerfile build/ee/context
