#!/usr/bin/env bash
# Runs ansible-test sanity on a copy of the tree at the path that it insists on.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=.venv/sanity/ansible_collections/pcluster/postboot
rm -rf "$copy" && mkdir -p "$copy"
git ls-files --cached --others --exclude-standard -z | grep -zvE '^(molecule|scripts|requirements|\.ci|Makefile)' | while IFS= read -r -d '' file; do
  if [ -e "$file" ]; then mkdir -p "$copy/$(dirname "$file")" && cp -P "$file" "$copy/$file"; fi
done
# ansible-test would download pip's bootstrap script for the environments of its tests; Python's own ensurepip does the same offline.
shim=$HOME/.ansible/test/cache/get_pip_24_2.py
[ -e "$shim" ] || { mkdir -p "$(dirname "$shim")" && echo 'import ensurepip; ensurepip.bootstrap(upgrade=True, default_pip=True)' > "$shim"; }
cd "$copy" && git init --quiet . && git add --all # ansible-test lists files through git
exec ansible-test sanity --color yes --python "$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" "$@"
