#!/usr/bin/env bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: with ENROOT_MOUNT_HOME, the user's home directory is the container's too.
set -eu
[ -n "${ENROOT_MOUNT_HOME-}" ] || exit 0
# shellcheck source=/dev/null
source "$ENROOT_LIBRARY_PATH/common.sh"
common::checkcmd getent
home=${HOME:-$(common::getpwent | cut -d : -f 6)}
inside=$home
[ -z "${ENROOT_REMAP_ROOT-}" ] || inside=/root
echo "$home $inside none x-create=dir,bind,rw,nosuid" >> "$ENROOT_MOUNTS"
echo "HOME=$inside" >> "$ENROOT_ENVIRON"
