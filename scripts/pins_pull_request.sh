#!/usr/bin/env bash
# Commits a patch of `make pins` on the branch pins, and opens its pull request, or renews the one that is open.
#
#   pins_pull_request.sh PATCH REPORT      GH_TOKEN and GITHUB_REPOSITORY as GitHub sets them; the report is the text
set -euo pipefail
[ $# = 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
[ -s "$1" ] || { echo "PATCH is '$1'; needed: a file with the changes of make pins" >&2; exit 2; }
title="Pins: what publishers have since last week"
base=$(git rev-parse --abbrev-ref HEAD)
git switch --quiet --force-create pins
git apply --index "$1"
git -c user.name='github-actions[bot]' -c user.email='41898282+github-actions[bot]@users.noreply.github.com' \
  commit --quiet --message "$title" --message "$(cat "$2")"
# The token is given to this one command, and stands in no argument.
# shellcheck disable=SC2016  # git's shell reads the variable
git -c credential.helper= -c credential.helper='!f() { echo username=x-access-token; echo "password=$GH_TOKEN"; }; f' \
  push --quiet --force "${PINS_REMOTE:-https://github.com/$GITHUB_REPOSITORY.git}" HEAD:refs/heads/pins
if [ "$(gh pr list --head pins --state open --json number --jq length)" = 0 ]; then
  gh pr create --head pins --base "$base" --title "$title" --body-file "$2"
else
  gh pr edit pins --title "$title" --body-file "$2"
fi
