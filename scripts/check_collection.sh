#!/usr/bin/env bash
# Checks the collection as Galaxy would take it: ansible-test sanity, ansible-galaxy build, galaxy-importer.
# With --quick, without those tests of sanity that take most of the time and find what others do: pylint and pep8 (Ruff),
# and import (the nodes of the sandbox run all modules with no package but Python's own).
set -euo pipefail
cd "$(dirname "$0")/.."
quick=${1:-}

copy=.venv/check/ansible_collections/pcluster/postboot
rm -rf .venv/check && mkdir -p "$copy"
scripts/copy_collection.sh "$copy"
cd "$copy"
log=../../../sanity.log
# From 2.21 on its pylint wants every program started by AnsibleModule.run_command. The helpers here have no
# AnsibleModule.
skip=()
[[ $(ansible --version) == *"core 2.19."* ]] || skip=(--skip-test pylint)
[ "$quick" != --quick ] || skip=(--skip-test pylint --skip-test pep8 --skip-test import)
if ! ansible-test sanity "${skip[@]}" \
  --python "$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" > "$log" 2>&1; then
  grep -E '^(ERROR|FATAL|See)|^[a-z-]+$' "$log" || cat "$log"
  exit 1
fi
echo "ansible-test sanity: $(grep -c '^Running sanity test' "$log") tests passed"

ansible-galaxy collection build --output-path ../../.. > /dev/null
cd "$OLDPWD"
scripts/importer.sh .venv/check/pcluster-postboot-*.tar.gz
