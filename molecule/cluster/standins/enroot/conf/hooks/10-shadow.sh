#!/usr/bin/env bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: the container knows root, nobody, and the user with his group and home directory, before those that its
# image brings.
set -eu
# shellcheck source=/dev/null
source "$ENROOT_LIBRARY_PATH/common.sh"
common::checkcmd awk getent sed
nobody=$(< /proc/sys/kernel/overflowuid) nogroup=$(< /proc/sys/kernel/overflowgid)
IFS=: read -r user _ uid _ gecos home shell <<< "$(common::getpwent)"
IFS=: read -r group _ gid _ <<< "$(common::getgrent)"
[ -x "$ENROOT_ROOTFS$shell" ] || shell=/bin/sh
install_first() {  # file, with our lines before those of other names
  local file=$ENROOT_ROOTFS/etc/$1 lines
  mkdir -p "$ENROOT_ROOTFS/etc"
  touch "$file"
  lines=$(cat - "$file" | awk -F: '$1 != "_apt" && NF > 2 && !seen[$1]++')
  rm -f "$file"
  echo "$lines" > "$file"
}
{
  # Inside, a user who is mapped to root is root.
  [ -n "${ENROOT_REMAP_ROOT-}" ] || echo "$user:x:$uid:$gid:$gecos:$home:$shell"
  echo "root:x:0:0:root:/root:$shell"
  echo "nobody:x:$nobody:$nogroup:nobody:/:/sbin/nologin"
} | install_first passwd
{
  [ -n "${ENROOT_REMAP_ROOT-}" ] || echo "$group:x:$gid:"
  echo "root:x:0:"
  echo "nogroup:x:$nogroup:"
} | install_first group

if [ ! -e "$ENROOT_ROOTFS$home" ]; then
  (umask 077 && mkdir -p "$ENROOT_ROOTFS$home")
  [ ! -d "$ENROOT_ROOTFS/etc/skel" ] || cp -r "$ENROOT_ROOTFS/etc/skel/." "$ENROOT_ROOTFS$home"
fi
