#!/bin/bash
# Says which role the instance metadata service of a sandbox's node answers with.
#
#   imds.sh role [NAME]    without a name, the instance has no role
#   imds.sh reset          the role that every node has, as at its boot
#   imds.sh address        gives the node the service's address; the service itself calls this
set -eu
address=169.254.169.254
case $1 in
  address)
    ip address replace $address/32 dev lo
    # As if it were another machine: a refusal would be refused itself on its way back from this address to this
    # address.
    ip route change local $address dev lo table local src "$(hostname --ip-address | cut -d ' ' -f 1)"
    exit
    ;;
  role) echo "ROLE=${2:-}" > /run/sandbox-imds ;;
  reset) rm -f /run/sandbox-imds ;;
esac
systemctl restart sandbox-imds
until curl --silent --output /dev/null http://$address; do sleep 0.1; done
