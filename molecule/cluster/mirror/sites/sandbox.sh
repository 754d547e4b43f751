# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# A root file system small enough to run anywhere, which tests import into Docker as an image.
mkdir -p "$work/rootfs/bin" "$top/sandbox" && cp "$work/busybox-static/bin/busybox" "$work/rootfs/bin/busybox"
for name in sh echo cat ls uname sleep; do ln -s busybox "$work/rootfs/bin/$name"; done
tar --create --sort=name --owner=0 --group=0 --mtime=@0 --directory "$work/rootfs" . > "$top/sandbox/busybox.tar"

# Open MPI, the distribution's own, which tests put where nodes share it. What sends by libfabric or UCX is left out,
# to be like AWS' Open MPI: that has no UCX, and sends by libfabric only with an EFA device, which the sandbox lacks.
mkdir "$work/openmpi" && cp -a "$work"/{libopenmpi[0-9]*,libopenmpi-dev,openmpi-common}/usr/. "$work/openmpi/"
find "$work/openmpi" \( -name 'mca_*_ofi.so' -o -name 'mca_*_ucx.so' -o -path '*/share/doc/*' \) -delete
pack "$work" openmpi "$top/sandbox/openmpi.tar.gz"
