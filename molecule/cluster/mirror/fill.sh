#!/usr/bin/env bash
# Runs in a container of the base image: turns /debs into upstream's layouts under /srv/mirror. Everything here is a stand-in in its
# packaging only; the programs are the real ones.
set -euo pipefail
top=/srv/mirror work=$(mktemp -d) architecture=$(dpkg --print-architecture)
for deb in /debs/*.deb; do dpkg-deb -x "$deb" "$work/$(dpkg-deb -f "$deb" Package)"; done
version_of() { dpkg-deb -f /debs/"$1"_*.deb Version | sed -E 's/^[0-9]+://; s/[-+~].*//'; }

pins='{}'
pin() { pins=$(jq -c --arg name "$1" --argjson value "$2" '.[$name] = $value' <<< "$pins"); }

# A release tarball as the Prometheus project lays it out, with its sha256sums.txt.
tarball() {  # project version directory
  local path=$top/github.com/prometheus/$1/releases/download/v$2 name=$1-$2.linux-$architecture
  mkdir -p "$path" && mv "$3" "$work/$name"
  echo "The Apache License 2.0 applies; see https://github.com/prometheus/$1" > "$work/$name/LICENSE"
  tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --directory "$work" "$name" | gzip --no-name -1 > "$path/$name.tar.gz"
  (cd "$path" && sha256sum "$name.tar.gz" > sha256sums.txt)
  pin "$1" "$(jq -nc --arg version "$2" --arg sha256 "$(cut -d' ' -f1 "$path/sha256sums.txt")" '{$version, $sha256}')"
}

mkdir "$work/node" && cp "$work/prometheus-node-exporter/usr/bin/prometheus-node-exporter" "$work/node/node_exporter"
tarball node_exporter "$(version_of prometheus-node-exporter)" "$work/node"
mkdir "$work/prom" && cp "$work/prometheus/usr/bin/prometheus" "$work/promtool/usr/bin/promtool" "$work/prom/"
tarball prometheus "$(version_of prometheus)" "$work/prom"

# One signing key for all the package repositories of the mirror; each "site" publishes it at its own path.
export GNUPGHOME=$work/gnupg && mkdir -m 0700 "$GNUPGHOME"
gpg --batch --quiet --pinentry-mode loopback --passphrase '' --quick-generate-key 'Sandbox mirror (not the real upstream)' rsa3072 sign never
fingerprint=$(gpg --batch --with-colons --list-keys | awk -F: '$1 == "fpr" { print $10; exit }')
gpg --batch --armor --export > "$work/key.asc"

# Docker's packages, wrapping the distribution's dockerd, containerd and runc. `which program goes where` is upstream's.
docker_version=$(version_of docker.io) containerd_version=$(version_of containerd)
stage() { rm -rf "$work/stage" && mkdir -p "$work/stage/usr/bin" "$work/stage/usr/lib/systemd/system"; }
docker_units() {
  sed -e 's#/usr/sbin/dockerd#/usr/bin/dockerd#' "$work"/docker.io/lib/systemd/system/docker.service > "$work/stage/usr/lib/systemd/system/docker.service"
  cp "$work"/docker.io/lib/systemd/system/docker.socket "$work/stage/usr/lib/systemd/system/"
}
stage_engine() { stage; cp "$work/docker.io/usr/sbin/dockerd" "$work/docker.io/usr/sbin/docker-proxy" "$work/stage/usr/bin/"; cp "$work/tini/usr/bin/tini-static" "$work/stage/usr/bin/docker-init"; docker_units; }
stage_cli() { stage; cp "$work/docker.io/usr/bin/docker" "$work/stage/usr/bin/"; }
stage_nothing() { stage; mkdir -p "$work/stage/usr/share/doc/$1"; echo "A package without its program." > "$work/stage/usr/share/doc/$1/sandbox"; }
stage_runc() { stage; cp "$work"/runc/usr/sbin/runc "$work/stage/usr/bin/"; }
stage_containerd() { stage; cp "$work"/containerd/usr/bin/* "$work/stage/usr/bin/"; cp "$work"/containerd/lib/systemd/system/containerd.service "$work/stage/usr/lib/systemd/system/"; sed -i 's#/usr/sbin/#/usr/bin/#' "$work/stage/usr/lib/systemd/system/containerd.service"; }
stage_containerd_io() { stage_containerd; cp "$work"/runc/usr/sbin/runc "$work/stage/usr/bin/"; }

deb() {  # name version depends pool
  mkdir -p "$work/stage/DEBIAN" "$4"
  cat > "$work/stage/DEBIAN/control" << EOF
Package: $1
Version: $2
Architecture: $architecture
Maintainer: Sandbox mirror <sandbox@example.org>
Depends: $3
Description: $1 (the distribution's program in upstream's packaging)
EOF
  if [ "$1" = docker-ce ]; then
    # As upstream's own package does: a Docker that does not start fails its service, not the installation. The role then says why.
    printf '#!/bin/sh\nset -e\ngetent group docker > /dev/null || groupadd --system docker\nif [ -d /run/systemd/system ]; then systemctl daemon-reload; systemctl enable --quiet docker.service; systemctl start docker.service || true; else systemctl enable --quiet docker.service; fi\n' > "$work/stage/DEBIAN/postinst"
    chmod 0755 "$work/stage/DEBIAN/postinst"
  fi
  dpkg-deb --build --root-owner-group -Zgzip -z1 "$work/stage" "$4/$1_$2_$architecture.deb" > /dev/null
}

rpm_package() {  # name version requires destination [further lines of its header]
  mkdir -p "$4" "$work/rpmbuild"
  (cd "$work/stage" && find . -type f -o -type l | sed 's#^\.##') > "$work/files"
  cat > "$work/$1.spec" << EOF
Name: $1
Version: $2
Release: 1.amzn2023
Summary: $1 (the distribution's program in upstream's packaging)
License: Apache-2.0
AutoReqProv: no
${3:+Requires: $3}
${5:-}
%description
$1
%files -f $work/files
EOF
  if [ "$1" = docker ] || [ "$1" = docker-ce ]; then printf '%%post\ngetent group docker > /dev/null || groupadd --system docker\n' >> "$work/$1.spec"; fi
  rpmbuild --quiet -bb --buildroot "$work/stage" --define "_topdir $work/rpmbuild" --define "_rpmdir $4" --define '_binary_payload w1.gzdio' --define '_build_id_links none' --define '__os_install_post %{nil}' --define '%_dbpath /tmp/rpmdb' "$work/$1.spec"
}

site=$top/download.docker.com/linux/ubuntu pool=$site/dists/noble/pool/stable/$architecture
stage_engine; deb docker-ce "5:$docker_version-1~ubuntu.24.04~noble" "docker-ce-cli, containerd.io, libdevmapper1.02.1, iptables" "$pool"
stage_cli; deb docker-ce-cli "5:$docker_version-1~ubuntu.24.04~noble" "libc6" "$pool"
stage_containerd_io; deb containerd.io "$containerd_version-1" "libc6" "$pool"
for plugin in buildx compose; do stage_nothing "docker-$plugin-plugin"; deb "docker-$plugin-plugin" "0.0.1-1~sandbox" "docker-ce-cli" "$pool"; done
cp /debs/libdevmapper*.deb "$pool/"
# The ':' of an epoch does not belong into a file name.
for file in "$pool"/*:*; do mv "$file" "${file/5:/}"; done
binary=$site/dists/noble/stable/binary-$architecture && mkdir -p "$binary"
(cd "$site" && dpkg-scanpackages --multiversion dists/noble/pool 2> /dev/null > "$binary/Packages")
gzip --keep --no-name "$binary/Packages"
(cd "$site/dists/noble" && apt-ftparchive -o APT::FTPArchive::Release::Origin=Docker -o APT::FTPArchive::Release::Label='Docker CE' -o APT::FTPArchive::Release::Suite=noble \
  -o APT::FTPArchive::Release::Codename=noble -o APT::FTPArchive::Release::Architectures="$architecture" -o APT::FTPArchive::Release::Components=stable release . > Release.new && mv Release.new Release)
gpg --batch --quiet --clearsign --output "$site/dists/noble/InRelease" "$site/dists/noble/Release"
cp "$work/key.asc" "$site/gpg"

# Signs the packages of a dnf repository, and its lists.
rpm_repository() {  # directory
  find "$1" -name '*.rpm' -exec rpm --define "_gpg_name $fingerprint" --define '_gpg_digest_algo sha256' --define "__gpg /usr/bin/gpg" --addsign {} + > /dev/null
  createrepo_c --quiet --no-database "$1"
  gpg --batch --quiet --armor --detach-sign "$1/repodata/repomd.xml"
}

# Amazon Linux's own repository, which carries `docker` itself. bash is what the node has already; its rpm database, which is empty, does not know.
core=$top/cdn.amazonlinux.com/al2023/core/mirrors/latest/$(uname -m)
stage_engine; cp "$work/docker.io/usr/bin/docker" "$work/stage/usr/bin/"
rpm_package docker "$docker_version" "containerd, runc, device-mapper-libs" "$core"
stage_containerd; rpm_package containerd "$containerd_version" "" "$core"
stage_runc; rpm_package runc "$(version_of runc)" "" "$core"
stage; cp "$work"/libdevmapper1.02.1/lib/*/libdevmapper.so.1.02.1 "$work/stage/usr/lib/"; rpm_package device-mapper-libs 1.02 "" "$core"
stage_nothing bash; rpm_package bash 5.2 "" "$core" "Provides: /bin/sh"
rpm_repository "$core"
cp "$work/key.asc" "$core/RPM-GPG-KEY-amazon-linux-2023"

# Docker's repository for RHEL, where containerd.io and runc exclude each other.
rhel=$top/download.docker.com/linux/rhel stable=$top/download.docker.com/linux/rhel/9/$(uname -m)/stable
stage_engine; rpm_package docker-ce "$docker_version" "docker-ce-cli, containerd.io, device-mapper-libs" "$stable" "Conflicts: docker"
stage_cli; rpm_package docker-ce-cli "$docker_version" "" "$stable" "Conflicts: docker"
stage_containerd_io; rpm_package containerd.io "$containerd_version" "" "$stable" "Conflicts: containerd, runc"
for plugin in buildx compose; do stage_nothing "docker-$plugin-plugin"; rpm_package "docker-$plugin-plugin" 0.0.1 "docker-ce-cli" "$stable"; done
rpm_repository "$stable"
cp "$work/key.asc" "$rhel/gpg"

# A root file system small enough to run anywhere: what tests import into Docker as an image.
mkdir -p "$work/rootfs/bin" "$top/sandbox" && cp "$work/busybox-static/bin/busybox" "$work/rootfs/bin/busybox" && for name in sh echo cat ls uname sleep; do ln -s busybox "$work/rootfs/bin/$name"; done
tar --create --sort=name --owner=0 --group=0 --mtime=@0 --directory "$work/rootfs" . > "$top/sandbox/busybox.tar"

pin signing_key "$(jq -nc --arg fingerprint "$fingerprint" '{$fingerprint}')"
pin docker "$(jq -nc --arg version "$docker_version" '{$version}')"
jq -S . <<< "$pins" > "$top/pins.json"
chmod -R a+rX "$top"
