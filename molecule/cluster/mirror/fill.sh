#!/usr/bin/env bash
# Runs in a container of the base image: turns /debs and /standins into upstream's layouts under /srv/mirror. A program
# from /debs is the real one, and only its packaging is a stand-in.
# shellcheck disable=SC1091,SC2034,SC2154  # what comes from lib.sh, and what the sites read
set -euo pipefail
here=$(dirname "$0")
. "$here/lib.sh"
for site in "$here"/sites/*.sh; do
  description="the distribution's program in upstream's packaging"
  # shellcheck source=/dev/null
  . "$site"
done
for last in "${at_end[@]}"; do "$last"; done
jq -S . <<< "$pins" > "$top/pins.json"
chmod -R a+rX "$top"
