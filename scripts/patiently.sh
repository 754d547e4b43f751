#!/usr/bin/env bash
# Runs a command, and says every ten seconds how long it has taken: scripts/patiently.sh WHAT COMMAND…
set -uo pipefail
what=$1
shift
(
  # Without its output, which a pipe would wait for when the command has ended.
  while sleep "${PATIENCE:-10}" > /dev/null 2>&1; do echo "$what: $SECONDS s"; done
) &
beside=$!
trap 'kill $beside 2> /dev/null' EXIT
"$@"
