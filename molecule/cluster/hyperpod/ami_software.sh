#!/bin/bash
# Installs what an AMI-based cluster has in its image: HyperPod's own plugin of Slurm, and Enroot and Pyxis from the
# mirror, as the lifecycle scripts do on each node (install_enroot_pyxis.sh), which add their line to the others.
#
#   ami_software.sh ENROOT_VERSION PYXIS_VERSION
set -eu
slurm=/opt/slurm work=$(mktemp -d)
cd "$work"
release=http://mirror/github.com/NVIDIA/enroot/releases/download/v$1 suffix=$1-1_$(dpkg --print-architecture).deb
for package in enroot enroot+caps; do curl --silent --fail --remote-name "$release/${package}_$suffix"; done
dpkg --install ./*.deb
curl --silent --fail "http://mirror/github.com/NVIDIA/pyxis/archive/refs/tags/v$2.tar.gz" | tar --extract --gzip
rm -rf $slurm/pyxis && mv pyxis-* $slurm/pyxis
CPPFLAGS="-I $slurm/include/" make --silent --directory $slurm/pyxis install
gcc -shared -fPIC -I $slurm/include -o $slurm/lib/slurm/spank_auto_resume.so /usr/libexec/sandbox-spank-auto-resume.c
mkdir -p $slurm/etc/plugstack.conf.d /run/pyxis
printf '%s\n' "required spank_auto_resume.so" "include $slurm/etc/plugstack.conf.d/pyxis.conf" > $slurm/etc/plugstack.conf
ln -fs /usr/local/share/pyxis/pyxis.conf $slurm/etc/plugstack.conf.d/pyxis.conf
# On the instance store, or else on the second volume; imports of all nodes are kept on FSx.
disk=/opt/sagemaker
if mountpoint --quiet /opt/dlami/nvme; then disk=/opt/dlami/nvme; fi
mkdir -p $disk/tmp/enroot/data /fsx/enroot
chmod 1777 $disk/tmp $disk/tmp/enroot $disk/tmp/enroot/data /fsx/enroot
cat > /etc/enroot/enroot.conf << END
ENROOT_RUNTIME_PATH        $disk/tmp/enroot/user-\$(id -u)
ENROOT_CONFIG_PATH         \${HOME}/enroot
ENROOT_CACHE_PATH          /fsx/enroot
ENROOT_DATA_PATH           $disk/tmp/enroot/data/user-\$(id -u)
ENROOT_TEMP_PATH           $disk/tmp
ENROOT_SQUASH_OPTIONS -comp lzo -noI -noD -noF -noX -no-duplicates
ENROOT_ROOTFS_WRITABLE     yes
ENROOT_MOUNT_HOME          no
ENROOT_RESTRICT_DEV        no
END
rm -rf "$work"
