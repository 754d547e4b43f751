#!/usr/bin/env bash
# Copies what git has of the collection, with changes that are not committed yet, into a directory, as a git repository
# of its own: ansible-test insists on a path that ends with ansible_collections/<namespace>/<name>, and lists files
# through git.
#
#   copy_collection.sh DIRECTORY
set -euo pipefail
copy=$(realpath "$1")
cd "$(dirname "$0")/.."
git ls-files --cached --others --exclude-standard -z CHANGELOG.rst LICENSE README.md bindep.txt changelogs docs \
  galaxy.yml inventory meta playbooks plugins requirements requirements.txt roles examples CONTRIBUTING.md SECURITY.md |
  while IFS= read -r -d '' file; do
    if [ -e "$file" ]; then cp --parents -P "$file" "$copy"; fi
  done
git init --quiet "$copy"
git -C "$copy" add --all
# ansible-test would download pip's bootstrap script for the environments of its tests; Python's own ensurepip does the
# same offline.
for version in 24_2 25_2; do # of ansible-core 2.19, and of 2.21
  shim=$HOME/.ansible/test/cache/get_pip_$version.py
  [ -e "$shim" ] || { mkdir -p "$(dirname "$shim")" &&
    echo 'import ensurepip; ensurepip.bootstrap(upgrade=True, default_pip=True)' > "$shim"; }
done
