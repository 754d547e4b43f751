#!/usr/bin/env bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: would give a container InfiniBand devices, of which a sandbox has none.
set -eu
# shellcheck source=/dev/null
source "$ENROOT_LIBRARY_PATH/common.sh"
devices=${MELLANOX_VISIBLE_DEVICES:-$(sed -n 's/^MELLANOX_VISIBLE_DEVICES=//p' "$ENROOT_ENVIRON" | tail -n 1)}
case ${devices:-void} in
  void | none | all) ;;
  *) common::err "Unknown MELLANOX device id: ${devices%%,*}" ;;
esac
