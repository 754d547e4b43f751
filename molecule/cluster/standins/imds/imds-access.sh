#!/bin/bash
# A stand-in of ParallelCluster's tool that says which users may ask the instance metadata service. The same options,
# the same chain and the same rules in the same order: what --allow names is added to what is there, and whoever is not
# named stays refused. It does not save them.
set -eu
chain=PARALLELCLUSTER_IMDS
allow='' deny='' unset='' flush=''
while [ $# -gt 0 ]; do
  case $1 in
    --allow) allow=$2; shift ;;
    --deny) deny=$2; shift ;;
    --unset) unset=$2; shift ;;
    --flush) flush=true ;;
    *) echo "[ERROR] Unrecognized option '$1'" >&2; exit 1 ;;
  esac
  shift
done
if [ -z "$allow$deny$unset$flush" ]; then
  echo "[ERROR] Missing at least one mandatory option: '--allow', '--deny', '--unset', '--flush'" >&2
  exit 1
fi

gone() { while "$@" 2> /dev/null; do :; done; }
last() {  # program chain rule: exactly once, and at the end
  local program=$1 in=$2
  shift 2
  gone "$program" -D "$in" "$@"
  "$program" -A "$in" "$@"
  echo "[INFO] Rule in chain $in: $*"
}
each() { tr , '\n' <<< "$1" | sed '/^$/d'; }

for family in iptables:169.254.169.254 ip6tables:fd00:ec2::254; do
  program=${family%%:*} address=${family#*:}
  "$program" --new "$chain" 2> /dev/null || echo "[INFO] ParallelCluster chain exists: $chain"
  last "$program" OUTPUT --destination "$address" -j "$chain"
  if [ -n "$flush" ]; then
    "$program" --flush "$chain"
    echo "[INFO] ParallelCluster chain flushed"
    exit 0
  fi
  for user in $(each "$unset"); do
    gone "$program" -D "$chain" --destination "$address" -j ACCEPT -m owner --uid-owner "$user"
    gone "$program" -D "$chain" --destination "$address" -j REJECT -m owner --uid-owner "$user"
  done
  for user in $(each "$allow"); do
    last "$program" "$chain" --destination "$address" -j ACCEPT -m owner --uid-owner "$user"
  done
  for user in $(each "$deny"); do
    last "$program" "$chain" --destination "$address" -j REJECT -m owner --uid-owner "$user"
  done
  last "$program" "$chain" --destination "$address" -j REJECT
done
