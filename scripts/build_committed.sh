#!/usr/bin/env bash
# Builds the collection from what is committed into a directory, and prints the file's path: a clone has files that git
# does not know, which ansible-galaxy would take along.
#
#   build_committed.sh DIRECTORY
set -euo pipefail
mkdir -p "$1"
directory=$(realpath "$1")
cd "$(dirname "$0")/.."
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
git archive HEAD | tar --extract --directory "$source"
rm -f "$directory"/pcluster-postboot-*.tar.gz
ansible-galaxy collection build --output-path "$directory" "$source" > /dev/null
echo "$directory"/pcluster-postboot-*.tar.gz
