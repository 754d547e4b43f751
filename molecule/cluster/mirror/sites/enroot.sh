# shellcheck shell=bash disable=SC2034,SC2154  # top, work and the like are from lib.sh, which reads description
# github.com/NVIDIA/enroot: a stand-in, or upstream's own source, built and packaged as upstream's. Its packages are not
# signed, as upstream's are not.
description=$(origin_of enroot)
take_source enroot "$work/enroot"
enroot_version=$(sed -n 's/^VERSION *:= *//p' "$work/enroot/Makefile")
enroot_release=$top/github.com/NVIDIA/enroot/releases/download/v$enroot_version
# What lets everybody import images, where the +caps package is installed.
enroot_capabilities=('setcap cap_sys_admin+pe /usr/bin/enroot-mksquashovlfs' \
  'setcap cap_sys_admin,cap_mknod+pe /usr/bin/enroot-aufs2ovlfs')

# Upstream's source without its submodules, whose musl libc and kernel headers the distribution's stand in for, and
# whose makeself serves `bundle` alone. What a C library before 2.38 has not is in a header. The stand-in needs none of
# it.
enroot_prepare() {
  local deps=$work/enroot/deps
  mkdir -p "$deps"/{makeself,linux-headers,dist/makeself/bin}
  touch "$deps"/{makeself,linux-headers}/.stamp
  printf '%s\n' '#!/bin/sh' 'echo "enroot bundle is not there: it was built without makeself" >&2' \
    'exit 1' > "$deps/dist/makeself/bin/enroot-makeself"
  cat > "$work/strl.h" << 'END'
#define _GNU_SOURCE
#include <features.h>
#if !defined(__ASSEMBLER__) && !__GLIBC_PREREQ(2, 38)
#include <string.h>
static inline __attribute__((unused)) size_t strlcpy(char *to, const char *from, size_t room) {
  size_t length = strlen(from), copied = length < room ? length : room - 1;
  if (room) { memcpy(to, from, copied); to[copied] = 0; }
  return length;
}
static inline __attribute__((unused)) size_t strlcat(char *to, const char *from, size_t room) {
  size_t length = strnlen(to, room);
  return length == room ? length + strlen(from) : length + strlcpy(to + length, from, room - length);
}
#endif
END
}

enroot_make() {
  CPPFLAGS="-include $work/strl.h" make --silent --directory "$work/enroot" FORCE_GLIBC=1 prefix= exec_prefix=/usr \
    datarootdir=/usr/share "$@" \
    > "$work/enroot.log" 2>&1 || { cat "$work/enroot.log" >&2; exit 1; }
}

enroot_stage() {
  stage
  enroot_make install DESTDIR="$work/stage"
}
enroot_stage_caps() { stage_nothing enroot+caps; after_install "${enroot_capabilities[@]}"; }

enroot_debs() {
  # Upstream says bsdmainutils, which the newest distributions have under the other name.
  enroot_stage
  mkdir "$work/stage/etc/apparmor.d" &&
    mv "$work/stage/usr/share/enroot/apparmor.profile" "$work/stage/etc/apparmor.d/enroot"
  deb enroot "$enroot_version-1" "libc6, bash (>= 4.2), curl, gawk | mawk, jq (>= 1.5), parallel, passwd, squashfs-tools, zstd, bsdmainutils | bsdextrautils" \
    "$enroot_release" $'Recommends: pigz\nSuggests: libnvidia-container-tools, squashfuse, fuse-overlayfs'
  enroot_stage_caps; deb enroot+caps "$enroot_version-1" "enroot (= $enroot_version-1), libcap2-bin" "$enroot_release"
}

enroot_rpms() {
  local name
  enroot_stage
  rpm_package enroot "$enroot_version-1.el8" \
    "bash >= 4.2, curl, gawk, jq >= 1.5, parallel, shadow-utils, squashfs-tools, coreutils, grep, findutils, gzip, \
glibc-common, sed, tar, util-linux, zstd" "$work/enroot_rpm"
  enroot_stage_caps; rpm_package enroot+caps "$enroot_version-1.el8" "enroot = $enroot_version-1.el8, libcap" \
    "$work/enroot_rpm"
  mv "$work/enroot_rpm/$(uname -m)"/*.rpm "$enroot_release/"
  # What Amazon Linux has of these beyond what its site makes already.
  for name in findutils-4.8.0 glibc-common-2.34 gzip-1.12 libcap-2.73; do
    stage_nothing "${name%-*}"; rpm_package "${name%-*}" "${name##*-}" "" "$amazonlinux"
  done
}

enroot_sha256() { sha256sum "$enroot_release/$1" | cut -d' ' -f1; }

enroot_prepare
enroot_make # before any installation, whose DESTDIR would be in what is written
enroot_debs
enroot_rpms
pin enroot "$(jq -nc --arg version "$enroot_version" \
  --arg deb "$(enroot_sha256 "enroot_$enroot_version-1_$architecture.deb")" \
  --arg caps_deb "$(enroot_sha256 "enroot+caps_$enroot_version-1_$architecture.deb")" \
  --arg rpm "$(enroot_sha256 "enroot-$enroot_version-1.el8.$(uname -m).rpm")" --arg caps_rpm "$(enroot_sha256 "enroot+caps-$enroot_version-1.el8.$(uname -m).rpm")" \
  '{$version, sha256: {$deb, $caps_deb, $rpm, $caps_rpm}}')"
