# shellcheck shell=bash disable=SC2034,SC2154  # top, work and the like are from lib.sh, which reads description
# github.com/NVIDIA/enroot: a stand-in, built and packaged as upstream's. Its packages are not signed, as upstream's are not.
description='a stand-in'
enroot_version=4.1.2
enroot_release=$top/github.com/NVIDIA/enroot/releases/download/v$enroot_version
# What lets everybody import images, where the +caps package is installed.
enroot_capabilities=('setcap cap_sys_admin+pe /usr/bin/enroot-mksquashovlfs' 'setcap cap_sys_admin,cap_mknod+pe /usr/bin/enroot-aufs2ovlfs')

enroot_stage() {
  stage
  make --silent --directory "$work/enroot" install prefix= exec_prefix=/usr datarootdir=/usr/share DESTDIR="$work/stage"
}
enroot_stage_caps() { stage_nothing enroot+caps; after_install "${enroot_capabilities[@]}"; }

enroot_debs() {
  # Upstream says bsdmainutils, which the newest distributions have under the other name.
  enroot_stage
  mkdir "$work/stage/etc/apparmor.d" && mv "$work/stage/usr/share/enroot/apparmor.profile" "$work/stage/etc/apparmor.d/enroot"
  deb enroot "$enroot_version-1" "libc6, bash (>= 4.2), curl, gawk | mawk, jq (>= 1.5), parallel, passwd, squashfs-tools, zstd, bsdmainutils | bsdextrautils" \
    "$enroot_release" $'Recommends: pigz\nSuggests: libnvidia-container-tools, squashfuse, fuse-overlayfs'
  enroot_stage_caps; deb enroot+caps "$enroot_version-1" "enroot (= $enroot_version-1), libcap2-bin" "$enroot_release"
}

enroot_rpms() {
  local name
  enroot_stage
  rpm_package enroot "$enroot_version-1.el8" "bash >= 4.2, curl, gawk, jq >= 1.5, parallel, shadow-utils, squashfs-tools, coreutils, grep, findutils, gzip, \
glibc-common, sed, tar, util-linux, zstd" "$work/enroot_rpm"
  enroot_stage_caps; rpm_package enroot+caps "$enroot_version-1.el8" "enroot = $enroot_version-1.el8, libcap" "$work/enroot_rpm"
  mv "$work/enroot_rpm/$(uname -m)"/*.rpm "$enroot_release/"
  # What Amazon Linux has of these beyond what its site makes already.
  for name in findutils-4.8.0 glibc-common-2.34 gzip-1.12 libcap-2.73; do
    stage_nothing "${name%-*}"; rpm_package "${name%-*}" "${name##*-}" "" "$amazonlinux"
  done
}

enroot_sha256() { sha256sum "$enroot_release/$1" | cut -d' ' -f1; }

cp -r /standins/enroot "$work/enroot"
enroot_debs
enroot_rpms
pin enroot "$(jq -nc --arg version "$enroot_version" \
  --arg deb "$(enroot_sha256 "enroot_$enroot_version-1_$architecture.deb")" --arg caps_deb "$(enroot_sha256 "enroot+caps_$enroot_version-1_$architecture.deb")" \
  --arg rpm "$(enroot_sha256 "enroot-$enroot_version-1.el8.$(uname -m).rpm")" --arg caps_rpm "$(enroot_sha256 "enroot+caps-$enroot_version-1.el8.$(uname -m).rpm")" \
  '{$version, sha256: {$deb, $caps_deb, $rpm, $caps_rpm}}')"
