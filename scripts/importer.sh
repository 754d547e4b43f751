#!/usr/bin/env bash
# Has galaxy-importer look at a collection that was built, as Galaxy will: an error and a warning fail.
#
#   importer.sh FILE.tar.gz
set -euo pipefail
cd "$(dirname "$1")"
# `make lint` runs ansible-lint, and with more rules than the importer's.
GALAXY_IMPORTER_RUN_ANSIBLE_LINT=false python3 -m galaxy_importer.main "$(basename "$1")" > importer.log 2>&1 ||
  { tail -n 5 importer.log; exit 1; }
if grep -E '^(ERROR|WARNING)' importer.log; then exit 1; fi
echo "galaxy-importer: $(basename "$1") imported without a warning"
