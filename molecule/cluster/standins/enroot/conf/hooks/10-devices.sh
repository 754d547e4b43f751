#!/usr/bin/env bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: with ENROOT_RESTRICT_DEV, a /dev that has only the devices that every program needs.
set -eu
[ -n "${ENROOT_RESTRICT_DEV-}" ] || exit 0
{
  echo 'none /dev none x-detach,nofail,silent'
  echo 'tmpfs /dev tmpfs x-create=dir,rw,nosuid,noexec,mode=755,slave'
  for device in zero null full urandom random tty log; do
    echo "/dev/$device /dev/$device none x-create=file,bind,rw,nosuid,noexec,private,nofail,silent"
  done
  echo 'devpts /dev/pts devpts x-create=dir,rw,nosuid,noexec,newinstance,ptmxmode=0666,mode=620,slave'
  for directory in shm mqueue hugepages; do
    echo "/dev/$directory /dev/$directory none x-create=dir,bind,rw,nosuid,noexec,nodev,rslave,nofail,silent"
  done
} | enroot-mount --root "$ENROOT_ROOTFS" -
ln -s /proc/self/fd "$ENROOT_ROOTFS/dev/fd"
ln -s /dev/pts/ptmx "$ENROOT_ROOTFS/dev/ptmx"
number=0
for stream in stdin stdout stderr; do
  ln -s "/proc/self/fd/$number" "$ENROOT_ROOTFS/dev/$stream"
  number=$((number + 1))
done
