#!/bin/sh
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# A stand-in for libfabric's fi_info, for the sandbox: the EFA devices are those in /sys/class/infiniband whose driver
# is efa, each for two fabrics, as from libfabric 2 on. Known: -p efa, -t FI_EP_RDM or FI_EP_DGRAM, --version.
version=@VERSION@
provider='' type=''
while [ $# -gt 0 ]; do
  case $1 in
    -p) provider=$2; shift ;;
    -t) type=$2; shift ;;
    --version) printf '/opt/amazon/efa/bin/fi_info: %s\nlibfabric: %s\nlibfabric api: 2.5\n' "$version" \
      "$version"; exit 0 ;;
    *) echo "Usage: fi_info [OPTIONS]" >&2; exit 1 ;;
  esac
  shift
done

entry() {  # fabric domain type
  [ -z "$type" ] || [ "$type" = "$3" ] || return 0
  found=yes
  printf 'provider: efa\n    fabric: %s\n    domain: %s\n    version: 206.0\n    type: %s\n    protocol: FI_PROTO_EFA\n' "$1" "$2" "$3"
}
found=''
for device in /sys/class/infiniband/*; do
  if [ "${provider:-efa}" != efa ] || [ "$(basename "$(readlink -f "$device/device/driver")")" != efa ]; then
    continue
  fi
  name=${device##*/}
  entry efa-direct "$name-rdm" FI_EP_RDM
  entry efa "$name-rdm" FI_EP_RDM
  entry efa "$name-dgrm" FI_EP_DGRAM
done
[ -n "$found" ] || { echo 'fi_getinfo: -61 (No data available)' >&2; exit 61; }
