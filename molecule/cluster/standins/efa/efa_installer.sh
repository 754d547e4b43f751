#!/bin/bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# A stand-in for AWS' efa_installer.sh, for the sandbox: see README.md.
set -u
note=/opt/amazon/efa_installed_packages
fail() { echo "$*" >&2; exit 1; }

if [ ! -e env.sh ]; then fail 'Please cd into the installer directory.'; fi
# shellcheck source=/dev/null
. ./env.sh
echo '= Starting Amazon Elastic Fabric Adapter Installation Script ='
echo "= EFA Installer Version: $EFA_INSTALLER_VERSION ="
echo

usage='usage: efa_installer.sh [options]'
long='debug-packages,uninstall,yes,no-verify,skip-limit-conf,skip-kmod,enable-gdr,minimal,mpi:,skip-mpi,check-signatures,disable-ngc,disable-build-ngc,build-ngc,skip-plugin,skip-rdma-core'
arguments=$(getopt -o :duynlkgm --long "$long" -- "$@") || fail "$usage"
eval set -- "$arguments"
debug=no uninstall='' yes='' verify=yes limits=yes kmod=yes minimal='' mpi=all signatures='' plugin=yes
while [ $# -gt 0 ]; do
  case $1 in
    -d | --debug-packages) debug=yes ;;
    -u | --uninstall) uninstall=yes ;;
    -y | --yes) yes=yes ;;
    -n | --no-verify) verify='' ;;
    -l | --skip-limit-conf) limits='' ;;
    -k | --skip-kmod) kmod='' ;;
    -m | --minimal) minimal=yes ;;
    --mpi) mpi=$2; shift ;;
    --skip-mpi) mpi=none ;;
    --check-signatures) signatures=yes ;;
    --skip-plugin) plugin='' ;;
  esac
  shift
done
case $mpi in all | none | openmpi4 | openmpi5) ;; *) fail "Error: unknown MPI $mpi" ;; esac
if [ "$(id -u)" != 0 ]; then fail 'Error: root privileges are required, exiting.'; fi

# shellcheck source=/dev/null
. /etc/os-release
case $ID-$VERSION_ID in
  ubuntu-2[24].04) kind=deb packages=DEBS/UBUNTU${VERSION_ID/./}/$(uname -m) ;;
  amzn-2023) kind=rpm packages=RPMS/ALINUX2023/$(uname -m) ;;
  *) fail 'Unsupported operating system.
Refer EFA documentation (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa.html#efa-amis) for more details on supported OSes.' ;;
esac

install_them() { if [ $kind = deb ]; then apt-get install -y "$@"; else dnf install -y "$@"; fi; }
remove_them() { if [ $kind = deb ]; then apt-get remove -y "$@"; else dnf remove -y "$@"; fi; }
name_of() { if [ $kind = deb ]; then dpkg-deb -f "$1" Package; else rpm -qp --qf '%{NAME}' "$1"; fi; }
version_of() { if [ $kind = deb ]; then dpkg-deb -f "$1" Version; else rpm -qp --qf '%{VERSION}-%{RELEASE}' "$1"; fi; }
# The version that is there, if a package manager has finished with it.
there() {
  if [ $kind = deb ]; then dpkg-query -W -f '${Status} ${Version}' "$1" 2> /dev/null | sed -n 's/^.* ok installed //p'
  elif rpm -q --quiet "$1"; then rpm -q --qf '%{VERSION}-%{RELEASE}' "$1"; fi
}
at_least() { [ -n "$1" ] && [ "$(printf '%s\n' "$1" "$2" | sort --version-sort | tail -n 1)" = "$1" ]; }

reboot=''
unload() {
  if [ ! -e /sys/module/efa ]; then return; fi
  echo 'Unloading EFA kernel module'
  if [ -e /run/sandbox-efa-busy ]; then
    echo 'rmmod: ERROR: Module efa is in use' >&2
    echo 'Failed to unload EFA kernel module.'
    echo 'Reboot is needed!' >&2
    reboot=yes
  fi
}

confirm() {
  [ -n "$yes" ] && return
  read -r -p "$1 (y/n) " answer && [ "$answer" = y ] || exit 1
}

if [ -n "$uninstall" ]; then
  [ -e $note ] || fail 'Error: EFA is not installed, exiting.'
  confirm 'Please confirm that you would like to uninstall EFA'
  echo '== Uninstalling EFA packages =='
  unload
  names=()
  for package in "$packages"/*."$kind"; do names+=("$(name_of "$package")"); done
  remove_them "${names[@]}" || fail 'Error: failed to uninstall EFA packages, please remove them manually.'
  rm -f $note
  echo
  echo 'EFA uninstall complete.'
  exit 0
fi

confirm 'This script will install the EFA kernel driver and required user space packages. Do you wish to continue?'
if [ ! -d "$packages" ]; then fail "Error: package directory $packages does not exist."; fi
if [ -n "$signatures" ]; then
  [ -r "${EFA_INSTALLER_KEY:-}" ] || fail 'Error: EFA_INSTALLER_KEY does not name the public key, exiting.'
  echo 'All package signatures are verified.'
fi

echo '== Installing EFA dependencies =='
if ! command -v lspci > /dev/null && ! install_them pciutils; then
  fail 'Error: failed to install third-party dependencies, exiting'
fi

echo '== Installing EFA packages =='
listed=() wanted=()
for package in "$packages"/*."$kind"; do
  name=$(name_of "$package") version=$(version_of "$package")
  if [ "$name" = libnccl-ofi ] && [ -z "$plugin" ]; then continue; fi
  case $name in
    efa) if [ -z "$kmod" ]; then continue; fi ;;
    efa-config) if [ -z "$limits" ]; then continue; fi ;;
    libfabric* | openmpi* | efa-profile | libnccl-ofi)
      if [ -n "$minimal" ]; then echo "skipping $name because of minimal installation"; continue; fi ;;
  esac
  case $name-$mpi in openmpi40*-openmpi5 | openmpi50*-openmpi4 | openmpi*-none) continue ;; esac
  file=${package##*/} listed+=("${file%."$kind"}")
  if at_least "$(there "$name")" "$version"; then echo "$name already installed"; continue; fi
  if [ "$name" = efa ]; then unload; fi
  wanted+=("./$package")
done
if [ ${#wanted[@]} -gt 0 ]; then
  echo "Installing ${wanted[0]}"
  if ! install_them "${wanted[@]}"; then
    echo 'Error: Failed to install packages.' >&2
    fail 'Error: failed to install EFA packages, exiting'
  fi
fi
# As upstream: before the kernel module is loaded.
mkdir -p /opt/amazon
printf '%s\n' "# EFA installer version: $EFA_INSTALLER_VERSION" "# Debug packages installed: $debug" \
  '# Packages installed:' "${listed[*]}" > $note
if [ -n "$kmod" ]; then echo 'Updating boot ramdisk'; fi

verified() { if [ -e "$2" ]; then echo "$1 is verified to install $2"; fi; }
for path in /opt/amazon/efa/lib*/libfabric.so; do verified libfabric1-aws "$path"; done
for path in /opt/amazon/openmpi/lib*/libmpi.so; do verified openmpi40-aws "$path"; done
for path in /opt/amazon/openmpi5/lib*/libmpi.so; do verified openmpi50-aws "$path"; done
verified efa-profile /etc/ld.so.conf.d/000_efa.conf
verified efa-profile /etc/profile.d/zippy_efa.sh
if [ -n "$kmod" ]; then
  unload
  echo 'Reloading EFA kernel module'
fi

if [ -n "$verify" ] && [ -z "$minimal" ]; then
  if lspci -n 2> /dev/null | grep -q 1d0f:efa; then
    echo '== Testing EFA device =='
    ./efa_test.sh || fail 'EFA installation is complete and an EFA device has
been detected but a ping test failed. Please consult
the EFA documentation to verify your configuration.'
  else
    echo 'EFA device not detected, skipping test.'
  fi
fi

line='==================================================='
echo "$line"
echo 'EFA installation complete.'
echo "- Please $([ -n "$reboot" ] && echo reboot || echo logout/login) to complete the installation."
if [ -z "$minimal" ]; then echo '- Libfabric was installed in /opt/amazon/efa'; fi
if [ -d /opt/amazon/openmpi ]; then echo '- Open MPI 4 was installed in /opt/amazon/openmpi'; fi
if [ -d /opt/amazon/openmpi5 ]; then echo '- Open MPI 5 was installed in /opt/amazon/openmpi5'; fi
echo "$line"
