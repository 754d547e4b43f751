#!/bin/bash
# A stand-in of the program that mounts the disks of an instance's store. See README.md beside it.
#
#   SANDBOX_TAKES   how many seconds it takes to set up disks that are not mounted (default: 2)
#   SANDBOX_FAILS   anything: it fails instead of mounting them
. /etc/parallelcluster/cfnconfig
store=/sandbox/instance-store at=$cfn_ephemeral_dir

log() { echo "ParallelCluster - $1"; }

if [ -z "$at" ]; then
  log "[INFO] Mount point not specified"
elif [ ! -d "$store" ]; then
  log "[INFO] This instance type doesn't have instance store"
elif mountpoint -q "$at"; then
  log "LVM (stand-in) already mounted on ($at)"
else
  log "This instance type has (1) device(s) for instance store: ($store)"
  sleep "${SANDBOX_TAKES:-2}"
  if [ ! -d "$store/lost+found" ]; then
    log "Formatting LVM (stand-in) with FS type (ext4)"
    mkdir -m 0700 "$store/lost+found"
  fi
  mkdir -p "$at"
  if [ -n "$SANDBOX_FAILS" ] || ! mount --bind "$store" "$at"; then
    log "[ERROR] Failed to mount LVM"
    exit 1
  fi
  chmod 1777 "$at"
fi
