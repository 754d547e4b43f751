# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# The sandbox's own: a root file system small enough to run anywhere, which tests import into Docker as an image.
mkdir -p "$work/rootfs/bin" "$top/sandbox" && cp "$work/busybox-static/bin/busybox" "$work/rootfs/bin/busybox"
for name in sh echo cat ls uname sleep; do ln -s busybox "$work/rootfs/bin/$name"; done
tar --create --sort=name --owner=0 --group=0 --mtime=@0 --directory "$work/rootfs" . > "$top/sandbox/busybox.tar"
