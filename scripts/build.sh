#!/usr/bin/env bash
# Builds the collection from what is committed into build/, and has galaxy-importer look at it, as Galaxy will.
set -euo pipefail
cd "$(dirname "$0")/.."
built=$(scripts/build_committed.sh build)
scripts/importer.sh "$built"
cd build
sha256sum "$(basename "$built")" | tee SHA256SUMS
