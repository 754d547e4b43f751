# shellcheck shell=bash disable=SC2034,SC2154  # top, work and the like are from lib.sh, which reads description
# efa-installer.amazonaws.com: a stand-in for AWS' installer with the packages of both systems, signed with the mirror's
# key; and an older one, as an AMI may have it. libfabric is the distribution's own.
description='a stand-in'
efa_site=$top/efa-installer.amazonaws.com
efa_pinned=1.50.0 efa_older=1.49.0
efa_standin=/standins/efa

# What a program is built and linked against, and what libfabric itself needs, where the packages of a system have it.
efa_libfabric() {  # lib or lib64
  local to=$work/stage/opt/amazon/efa package
  stage && mkdir -p "$to/$1"
  for package in "$work"/ibverbs-providers \
    "$work"/lib{fabric1,ibverbs1,rdmacm1*,psm2-2,psm-infinipath1,nl-3-200*,nl-route-3-200*}; do
    if [ -d "$package" ]; then find "$package" -name '*.so.*' -not -path '*/libibverbs/*' -not -path '*-compat/*' \
      -exec cp -a -t "$to/$1" {} +; fi
  done
  ln -s libfabric.so.1 "$to/$1/libfabric.so"
  cp -r "$work/libfabric-dev/usr/include" "$to/include"
}

efa_plugin() {  # version lib
  local to=$work/stage/opt/amazon/ofi-nccl/lib name
  stage && mkdir -p "$to" "$work/stage/etc/ld.so.conf.d"
  for name in libnccl-net.so libnccl-net-ofi.so libnccl-ofi-tuner.so libnccl-tuner-ofi.so; do
    gcc -std=gnu11 -O2 -fPIC -shared -Wl,-soname,$name -DPACKAGE_STRING="\"aws-ofi-nccl $1\"" \
      -I"$work/libfabric-dev/usr/include" -o "$to/$name" \
      /standins/aws-ofi-nccl/src/plugin.c -L"$work/efa_link" -lfabric
  done
  echo /opt/amazon/ofi-nccl/lib > "$work/stage/etc/ld.so.conf.d/100_ofinccl.conf"
  after_install ldconfig
}

efa_openmpi() {  # folder version lib
  local to=$work/stage/opt/amazon/$1
  stage && mkdir -p "$to/bin" "$to/include" "$to/$3"
  cp "$efa_standin/openmpi/mpi.h" "$to/include/"
  sed "s/@VERSION@/$2/" "$efa_standin/openmpi/mpirun.sh" > "$to/bin/mpirun" && chmod 0755 "$to/bin/mpirun"
  gcc -O2 -fPIC -shared -Wl,-soname,libmpi.so.40 -o "$to/$3/libmpi.so.40" "$efa_standin/openmpi/mpi.c"
  ln -s libmpi.so.40 "$to/$3/libmpi.so"
}

efa_profile() {
  stage && mkdir -p "$work/stage/etc/profile.d" "$work/stage/etc/ld.so.conf.d"
  cp "$efa_standin/zippy_efa.sh" "$work/stage/etc/profile.d/"
  printf '%s\n' /opt/amazon/efa/lib /opt/amazon/efa/lib64 /opt/amazon/openmpi/lib \
    /opt/amazon/openmpi/lib64 > "$work/stage/etc/ld.so.conf.d/000_efa.conf"
  after_install ldconfig
}

efa_program() {  # version
  stage && mkdir -p "$work/stage/opt/amazon/efa/bin"
  sed "s/@VERSION@/$1/" "$efa_standin/fi_info.sh" > "$work/stage/opt/amazon/efa/bin/fi_info" &&
    chmod 0755 "$work/stage/opt/amazon/efa/bin/fi_info"
  install -m 0755 "$efa_standin/fi_pingpong.py" "$work/stage/opt/amazon/efa/bin/fi_pingpong"
}

efa_driver() {  # version
  stage && mkdir -p "$work/stage/usr/src/efa-$1" && echo "PACKAGE_NAME=efa" > "$work/stage/usr/src/efa-$1/dkms.conf"
}

# Which version of each an installer has: AWS' release notes say so.
efa_debs() {  # driver libfabric plugin
  rm -rf "$work/efa_deb"
  efa_driver "$1"; deb efa "$1-1" "" "$work/efa_deb"
  stage && mkdir -p "$work/stage/etc/security/limits.d" &&
    cp "$efa_standin/efa.conf" "$work/stage/etc/security/limits.d/01_efa.conf"
  deb efa-config 1.18 "" "$work/efa_deb"
  efa_profile; deb efa-profile 1.7 "" "$work/efa_deb"
  efa_libfabric lib; deb libfabric1-aws "$2" libc6 "$work/efa_deb"
  efa_program "$2"; deb libfabric-aws-bin "$2" "libfabric1-aws (= $2)" "$work/efa_deb"
  efa_plugin "$3"; deb libnccl-ofi "$3-1" libfabric1-aws "$work/efa_deb"
  efa_openmpi openmpi 4.1.8 lib; deb openmpi40-aws 4.1.8-1 "" "$work/efa_deb"
  efa_openmpi openmpi5 5.0.9 lib; deb openmpi50-aws 5.0.9-11 "" "$work/efa_deb"
}

efa_rpms() {  # driver libfabric plugin
  rm -rf "$work/efa_rpm"
  efa_driver "$1"; rpm_package efa "$1" "" "$work/efa_rpm"
  stage && mkdir -p "$work/stage/etc/security/limits.d" &&
    cp "$efa_standin/efa.conf" "$work/stage/etc/security/limits.d/01_efa.conf"
  rpm_package efa-config 1.18 "" "$work/efa_rpm"
  efa_profile; rpm_package efa-profile 1.7 "" "$work/efa_rpm"
  efa_program "$2"; cp -r "$work/stage/opt" "$work/efa_bin"
  efa_libfabric lib64; cp -r "$work/efa_bin/." "$work/stage/opt/" && rm -r "$work/efa_bin"
  rpm_package libfabric-aws "$2" "" "$work/efa_rpm"
  efa_plugin "$3"; rpm_package libnccl-ofi "$3" libfabric-aws "$work/efa_rpm"
  efa_openmpi openmpi 4.1.8 lib64; rpm_package openmpi40-aws 4.1.8 "" "$work/efa_rpm"
  efa_openmpi openmpi5 5.0.9 lib64; rpm_package openmpi50-aws 5.0.9 "" "$work/efa_rpm"
}

efa_installer() {  # version driver libfabric plugin
  local tree=$work/efa-$1/aws-efa-installer machine; machine=$(uname -m)
  mkdir -p "$tree/DEBS/UBUNTU2404/$machine" "$tree/RPMS/ALINUX2023/$machine" "$efa_site"
  install -m 0755 "$efa_standin/efa_installer.sh" "$efa_standin/efa_test.sh" "$tree/"
  echo "EFA_INSTALLER_VERSION=$1" > "$tree/env.sh"
  efa_debs "${@:2}"; mv "$work"/efa_deb/*.deb "$tree/DEBS/UBUNTU2404/$machine/"
  efa_rpms "${@:2}"; mv "$work/efa_rpm/$machine"/*.rpm "$tree/RPMS/ALINUX2023/$machine/"
  pack "$work/efa-$1" aws-efa-installer "$efa_site/aws-efa-installer-$1.tar.gz"
  gpg --batch --quiet --detach-sign --output "$efa_site/aws-efa-installer-$1.tar.gz.sig" \
    "$efa_site/aws-efa-installer-$1.tar.gz"
}
efa_sha256() { sha256sum "$efa_site/$1" | cut -d' ' -f1; }

mkdir "$work/efa_link" && find "$work"/libfabric1 -name 'libfabric.so.1*' -exec cp -a -t "$work/efa_link" {} + &&
  ln -s libfabric.so.1 "$work/efa_link/libfabric.so"
efa_installer "$efa_pinned" 3.3.0 2.6.0amzn1.0 1.21.1
efa_installer "$efa_older" 3.2.0 2.5.0amzn1.0 1.20.0
cp "$work/key.asc" "$efa_site/aws-efa-installer.key"
pin efa "$(jq -nc --arg version "$efa_pinned" --arg sha256 "$(efa_sha256 "aws-efa-installer-$efa_pinned.tar.gz")" \
  --arg signature "$(efa_sha256 "aws-efa-installer-$efa_pinned.tar.gz.sig")" \
  --arg key "$(efa_sha256 aws-efa-installer.key)" \
  --arg older_version "$efa_older" --arg older_sha256 "$(efa_sha256 "aws-efa-installer-$efa_older.tar.gz")" \
  '{$version, $sha256, signature_sha256: $signature, key_sha256: $key, older: {version: $older_version, sha256: $older_sha256}}')"
