#!/bin/bash
# Gives a head node of the sandbox an instance metadata service, locked as ParallelCluster locks it (Imds/Secured), or takes it away again.
#
#   imds.sh start [ROLE]    without a role, the instance has none
#   imds.sh stop
set -eu
address=169.254.169.254 tool=/opt/parallelcluster/scripts/imds/imds-access.sh saved=/etc/parallelcluster/sysconfig
systemctl stop sandbox-imds 2> /dev/null || echo "no metadata service was running"
if [ "$1" = start ]; then
  ip address replace $address/32 dev lo
  # As if it were another machine: a refusal would be refused itself on its way back from this address to this address.
  ip route change local $address dev lo table local src "$(hostname --ip-address | cut -d ' ' -f 1)"
  systemd-run --quiet --unit sandbox-imds /usr/bin/python3 "$(dirname "$0")/imds.py" ${2:+--role "$2"}
  bash $tool --flush && bash $tool --allow "root,pcluster-admin,$(id -nu 1000)"
  mkdir -p $saved && iptables-save > $saved/iptables.rules && ip6tables-save > $saved/ip6tables.rules
  until curl --silent --output /dev/null http://$address; do sleep 0.1; done
else
  bash $tool --flush
  ip address delete $address/32 dev lo
  rm -r $saved
fi
