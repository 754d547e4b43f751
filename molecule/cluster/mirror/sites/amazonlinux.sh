# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# Amazon Linux's own repository: what other sites add to it, and by name what an AMI has already (the look-alike's rpm
# database is empty, and does not know the programs that its image carries).
for name in coreutils-9.4 curl-8.11.1 gawk-5.1.0 gcc-11.5.0 glibc-2.34 grep-3.8 jq-1.7.1 make-4.3 ncurses-6.2 \
  parallel-20240522 pigz-2.5 sed-4.8 \
  shadow-utils-4.9 squashfs-tools-4.6.1 tar-1.34 util-linux-2.37.4 xz-5.2.5 zstd-1.5.5; do
  stage_nothing "${name%-*}"; rpm_package "${name%-*}" "${name##*-}" "" "$amazonlinux"
done
stage_nothing bash; rpm_package bash 5.2 "" "$amazonlinux" "Provides: /bin/sh"

amazonlinux_lists() {
  rpm_sign "$amazonlinux"
  rpm_repository "$amazonlinux"
  cp "$work/key.asc" "$amazonlinux/RPM-GPG-KEY-amazon-linux-2023"
}
at_end+=(amazonlinux_lists)
