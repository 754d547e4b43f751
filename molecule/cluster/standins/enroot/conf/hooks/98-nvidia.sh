#!/usr/bin/env bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: gives a container whose NVIDIA_VISIBLE_DEVICES says so the GPUs, with libnvidia-container's program.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin
# shellcheck source=/dev/null
source "$ENROOT_LIBRARY_PATH/common.sh"
# What the host sets outranks the image, and in the image the last line counts.
while IFS='=' read -r key value; do
  [ -v "$key" ] || export "$key=$value"
done < <(tac "$ENROOT_ENVIRON" | grep '^NVIDIA_' || true) # most images set none
devices=${NVIDIA_VISIBLE_DEVICES:-void}
[ "$devices" != void ] || exit 0
ldconfig=$(command -v ldconfig.real || command -v ldconfig) || common::err "Command not found: ldconfig"
options=(--no-cgroups "--ldconfig=@$ldconfig")
[ "$devices" = none ] || options+=("--device=$devices")
IFS=, read -r -a capabilities <<< "${NVIDIA_DRIVER_CAPABILITIES:-utility}"
for capability in "${capabilities[@]}"; do
  case $capability in
    all) options+=(--compute --compat32 --display --graphics --utility --video); break ;;
    compute | compat32 | display | graphics | utility | video) options+=("--$capability") ;;
    *) common::err "Unknown NVIDIA driver capability: $capability" ;;
  esac
done
if [ -z "${NVIDIA_DISABLE_REQUIRE-}" ]; then
  for name in $(compgen -e NVIDIA_REQUIRE_ || true); do # compgen fails where no variable has such a name
    options+=("--require=${!name}") # most images require nothing
  done
fi
command -v nvidia-container-cli > /dev/null ||
  common::err "Command not found: nvidia-container-cli, see https://github.com/NVIDIA/libnvidia-container"
grep -q nvidia_uvm /proc/modules ||
  common::log WARN "Kernel module nvidia_uvm is not loaded. Make sure the NVIDIA device driver is installed and loaded."
exec nvidia-container-cli --user ${NVIDIA_DEBUG_LOG+--debug=/dev/stderr} configure "${options[@]}" "$ENROOT_ROOTFS"
