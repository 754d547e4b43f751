#!/usr/bin/env bash
# Runs ansible-test sanity of one ansible-core on what git has of the collection, in the layout that ansible-test wants.
#
#   sanity.sh 2.19|2.20|2.21|devel [OPTION...]      options of ansible-test, such as --docker default
#
# With --docker every Python that the ansible-core knows is tested; without, the one that runs here. PYTHON names it; by
# default it is .venv's, or Debian 13's of `make setup-node` where ansible-core needs a newer one.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
version=$1
shift
case $version in
  2.[0-9]*) core="ansible-core==$version.*" ;;
  devel) core=https://github.com/ansible/ansible/archive/devel.tar.gz ;;
  *) echo "ANSIBLE is '$version'; needed: an ansible-core such as 2.21, or devel" >&2; exit 2 ;;
esac

newer=$PWD/.venv/python/bin/python3.13 python=${PYTHON:-}
[ "$python" ] || { [ "$version" != 2.19 ] && [ -x "$newer" ] && python=$newer || python=$PWD/.venv/bin/python; }
environment=$PWD/.venv/sanity-$version tree=$PWD/.venv/sanity-$version.tree
"$python" -m venv --clear "$environment"
"$environment/bin/pip" install --quiet --disable-pip-version-check "$core"

rm -rf "$tree"
copy=$tree/ansible_collections/pcluster/postboot
mkdir -p "$copy"
scripts/copy_collection.sh "$copy"
cd "$copy"
options=("$@")
case " $* " in
  *" --docker"*) ;;
  *) options+=(--python "$("$environment/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')") ;;
esac
# From 2.21 on its pylint wants every program started by AnsibleModule.run_command. The helpers here have no
# AnsibleModule.
[ "$version" = 2.19 ] || [ "$version" = 2.20 ] || options+=(--skip-test pylint)
env PATH="$environment/bin:$PATH" ansible-test sanity --color no "${options[@]}"
