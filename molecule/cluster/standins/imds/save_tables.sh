#!/bin/bash
# A stand-in. Saves all the rules that there are, whoever made them.
mkdir -p /etc/parallelcluster/sysconfig
for family in iptables ip6tables; do
  $family-save > "/etc/parallelcluster/sysconfig/$family.rules"
  echo "iptables rules saved to file: /etc/parallelcluster/sysconfig/$family.rules"
done
