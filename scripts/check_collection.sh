#!/usr/bin/env bash
# Checks the collection as Galaxy would take it: ansible-test sanity, ansible-galaxy build, galaxy-importer.
set -euo pipefail
cd "$(dirname "$0")/.."

# ansible-test insists on a path that ends like this, and lists files through git.
copy=.venv/check/ansible_collections/pcluster/postboot
rm -rf .venv/check && mkdir -p "$copy"
git ls-files --cached --others --exclude-standard -z CHANGELOG.rst LICENSE README.md changelogs docs galaxy.yml inventory meta playbooks plugins requirements roles |
  while IFS= read -r -d '' file; do
    if [ -e "$file" ]; then cp --parents -P "$file" "$copy"; fi
  done
# ansible-test would download pip's bootstrap script for the environments of its tests; Python's own ensurepip does the same offline.
for version in 24_2 25_2; do # of ansible-core 2.19, and of 2.21
  shim=$HOME/.ansible/test/cache/get_pip_$version.py
  [ -e "$shim" ] || { mkdir -p "$(dirname "$shim")" && echo 'import ensurepip; ensurepip.bootstrap(upgrade=True, default_pip=True)' > "$shim"; }
done

cd "$copy"
git init --quiet . && git add --all
log=../../../sanity.log
# From 2.21 on its pylint wants every program started by AnsibleModule.run_command. The helpers here have no AnsibleModule.
skip=()
[[ $(ansible --version) == *"core 2.19."* ]] || skip=(--skip-test pylint)
if ! ansible-test sanity "${skip[@]}" --python "$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" > "$log" 2>&1; then
  grep -E '^(ERROR|FATAL|See)|^[a-z-]+$' "$log" || cat "$log"
  exit 1
fi
echo "ansible-test sanity: $(grep -c '^Running sanity test' "$log") tests passed"

ansible-galaxy collection build --output-path ../../.. > /dev/null
cd ../../..
if ! python3 -m galaxy_importer.main pcluster-postboot-*.tar.gz > importer.log 2>&1; then
  tail -n 5 importer.log
  exit 1
fi
grep -E '^(ERROR|WARNING)' importer.log || echo "galaxy-importer: $(basename pcluster-postboot-*.tar.gz) imported without a warning"
