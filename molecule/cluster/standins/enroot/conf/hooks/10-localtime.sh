#!/usr/bin/env bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: the host's time zone.
set -eu
[ -L /etc/localtime ] || exit 0
zone=$(readlink -f /etc/localtime)
mkdir -p "$ENROOT_ROOTFS/etc" "$ENROOT_ROOTFS${zone%/*}"
cp --no-dereference --remove-destination /etc/localtime "$ENROOT_ROOTFS/etc/localtime"
[ -e "$ENROOT_ROOTFS$zone" ] || cp "$zone" "$ENROOT_ROOTFS$zone"
