#!/usr/bin/env bash
# Shows on the running sandbox what a first run on a real cluster does. `make demo` calls it, with the sandbox's settings.
set -euo pipefail
cd "$(dirname "$0")/.."
inventory=.sandbox/inventory

show() { # as people would type it
  printf '\n$ %s\n' "$*"
  "$@"
}

echo "The clusters main and el run; the inventory warns of an instance of the cluster decoys, which does not answer."
show ansible-inventory -i "$inventory" --graph
show ansible-playbook -i "$inventory" pcluster.postboot.site --check --limit head,gpu-st-p5-1
show ansible-playbook -i "$inventory" pcluster.postboot.verify --limit head -e verify_partitions=static

cat << 'END'

On a real cluster these were the same commands. To look around in this one:
  verify's report     verify-main.html
  Prometheus          http://10.115.0.10:9090 (the dashboards as pictures: docs/dashboards.md)
  a command           make node NODE=head CMD='sinfo'
  the main job again  make play PLAYBOOK=site
  the end             make sandbox-down
END
