#!/bin/bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# A stand-in for NVIDIA's nvidia-container-cli, for the sandbox. `info`, `list` and `configure` answer from nvidia-smi
# and the device nodes; `configure` binds those nodes and nvidia-smi into a root file system. Not here: libraries,
# requirements, capabilities, control groups.
set -u
version=@VERSION@
fail() { echo "nvidia-container-cli: $*" >&2; exit 1; }

control_devices() {
  local path
  for path in /dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia-modeset; do [ -e "$path" ] &&
    echo "$path"; done
}

# One line for each GPU: index, uuid, bus, name.
gpus() {
  command -v nvidia-smi > /dev/null ||
    fail "initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory"
  nvidia-smi --query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader 2> /dev/null ||
    fail "initialization error: nvml error: driver not loaded"
}

info() {
  local lines index uuid bus name
  lines=$(gpus) || exit
  printf 'NVRM version:   %s\nCUDA version:   13.3\n' \
    "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)"
  while IFS=, read -r index uuid bus name; do
    printf '\nDevice Index:   %s\nDevice Minor:   %s\nModel:          %s\nBrand:          Nvidia\nGPU UUID:       %s\nBus Location:   %s\nArchitecture:   9.0\n' \
      "$index" "$index" "${name# }" "${uuid# }" "${bus# }"
  done <<< "$lines"
}

# The device nodes of "all", or of a comma-separated list of indices and UUIDs.
device_nodes() {
  local lines wanted index uuid found
  lines=$(gpus) || exit
  for wanted in ${1//,/ }; do
    found=
    while IFS=', ' read -r index uuid _; do
      if [ "$wanted" = all ] || [ "$wanted" = "$index" ] || [ "$wanted" = "$uuid" ]; then
        echo "/dev/nvidia$index"; found=yes
      fi
    done <<< "$lines"
    [ -n "$found" ] || fail "device error: $wanted: unknown device"
  done
}

list() {
  local nodes; nodes=$(device_nodes "${device:-all}") || exit
  control_devices
  printf '%s\n' "$nodes" /usr/bin/nvidia-smi
}

configure() {
  local root=${rest[0]:-} nodes='' enter=() path
  [ -n "$root" ] || fail "usage: configure [OPTION...] ROOTFS"
  [ -d "$root" ] || fail "mount error: stat failed: $root: no such file or directory"
  gpus > /dev/null || exit
  if [ -n "$device" ]; then nodes=$(device_nodes "$device") || exit; fi
  [ -n "$pid" ] && enter=(nsenter --target "$pid" --mount)
  for path in $(control_devices) $nodes /usr/bin/nvidia-smi; do
    # By the system call, as upstream: mount(8) is set-uid, and refuses ordinary users in a namespace of their own.
    "${enter[@]}" python3 -c '
import ctypes, os, sys
source, target = sys.argv[1:]
if not (os.path.exists(target) and os.path.samefile(source, target)):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    open(target, "a").close()
    libc = ctypes.CDLL(None, use_errno=True)
    MS_BIND = 4096
    if libc.mount(source.encode(), target.encode(), None, MS_BIND, None):
        sys.exit(os.strerror(ctypes.get_errno()))
' "$path" "$root$path" || fail "mount error: mount operation failed: $root$path"
  done
}

command='' device='' pid='' rest=()
while [ $# -gt 0 ]; do
  case $1 in
    -V | --version) printf 'cli-version: %s\nlib-version: %s\nbuild flags: a stand-in\n' "$version" \
      "$version"; exit 0 ;;
    --device=*) device=${1#*=} ;;
    -d | --device) device=$2; shift ;;
    --pid=*) pid=${1#*=} ;;
    -p | --pid) pid=$2; shift ;;
    -*) ;;  # --user, --no-cgroups, --ldconfig=, --compute, --utility and the like
    *) if [ -z "$command" ]; then command=$1; else rest+=("$1"); fi ;;
  esac
  shift
done
case $command in
  info | list | configure) "$command" ;;
  *) fail "unrecognized command: ${command:-none}" ;;
esac
