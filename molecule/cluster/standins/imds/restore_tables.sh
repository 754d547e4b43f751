#!/bin/bash
# A stand-in. Puts the saved rules in the place of all that the tables have, another's chains among them. SANDBOX_TAKES:
# seconds that it takes.
sleep "${SANDBOX_TAKES:-0}"
for family in iptables ip6tables; do
  saved=/etc/parallelcluster/sysconfig/$family.rules
  if [ -f "$saved" ]; then
    $family-restore < "$saved"
    echo "iptables rules restored from file: $saved"
  else
    echo "iptables rules left unchanged as file was not found: $saved"
  fi
done
