#!/usr/bin/env bash
# Brings this node of SageMaker HyperPod up to date with a bundle of pcluster.postboot. `publish` puts it beside
#
#   bootstrap.sh    which does the work
#   arguments       of bootstrap.sh, one a line
#   hyperpod.json   what the API tells of the instance groups, and no file of HyperPod's on the node does
#
# HyperPod downloads these and runs this, as root and without arguments: LifeCycleConfig.OnInitComplete. Lifecycle
# scripts run it at the end of on_create.sh. PCLUSTER_POSTBOOT_ROOT is internal: tests put it before every path.
set -Eeuo pipefail
root=${PCLUSTER_POSTBOOT_ROOT:-}
export PATH=${root:+$root/bin:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mine=$root/etc/pcluster-postboot
parameters=provisioning_parameters.json # lifecycle scripts are started beside theirs

mkdir -p "$mine"
install -m 0644 "$here/hyperpod.json" "$mine/hyperpod.json"
if [ ! -e "$root/opt/ml/config/$parameters" ] && [ -e "$parameters" ]; then
  install -m 0644 "$parameters" "$mine/$parameters"
fi
mapfile -t arguments < "$here/arguments"
if bash "$here/bootstrap.sh" "${arguments[@]}"; then exit 0; fi
# The creation of the instance fails now: HyperPod's own scripts give its logs this time to reach CloudWatch, too.
sleep 60
exit 1
