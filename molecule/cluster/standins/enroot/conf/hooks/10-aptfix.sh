#!/usr/bin/env bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: apt gives up root for a user that a container does not have.
set -eu
if [[ -f $ENROOT_ROOTFS/etc/debian_version && -n ${ENROOT_REMAP_ROOT-} ]]; then
  mkdir -p "$ENROOT_ROOTFS/etc/apt/apt.conf.d"
  echo 'APT::Sandbox::User "root";' > "$ENROOT_ROOTFS/etc/apt/apt.conf.d/enroot"
fi
