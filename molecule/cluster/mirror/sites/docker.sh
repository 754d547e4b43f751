# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# Docker's packages, wrapping the distribution's dockerd, containerd and runc; which program goes where is upstream's.
# They are in download.docker.com, for Ubuntu and for RHEL, and `docker` itself in Amazon Linux's own repository.
docker_version=$(version_of docker.io) containerd_version=$(version_of containerd)
# Debian's unit, without the variable that Debian adds to the command line.
docker_units() {
  # shellcheck disable=SC2016  # the variable is systemd's
  sed -e 's#/usr/sbin/dockerd#/usr/bin/dockerd#' -e 's# \$DOCKER_OPTS##' -e /^EnvironmentFile=/d \
    "$work"/docker.io/usr/lib/systemd/system/docker.service \
    > "$work/stage/usr/lib/systemd/system/docker.service"
  cp "$work"/docker.io/usr/lib/systemd/system/docker.socket "$work/stage/usr/lib/systemd/system/"
}
# In Amazon Linux 2023, as public copies of its files show them, dockerd has flags from files besides, and a program
# that finds runtimes.
docker_amazonlinux_units() {
  # shellcheck disable=SC2016  # the variables are systemd's
  sed -i '/^ExecStart=/ {
    i EnvironmentFile=-/etc/sysconfig/docker
    i EnvironmentFile=-/etc/sysconfig/docker-storage
    i EnvironmentFile=-/run/docker/runtimes.env
    i ExecStartPre=/bin/mkdir -p /run/docker
    i ExecStartPre=/usr/libexec/docker/docker-setup-runtimes.sh
    s/$/ $OPTIONS $DOCKER_STORAGE_OPTIONS $DOCKER_ADD_RUNTIMES/
  }' "$work/stage/usr/lib/systemd/system/docker.service"
  mkdir -p "$work"/stage/{etc/sysconfig,usr/libexec/docker}
  # Amazon Linux says 32768:65536; a container of the sandbox may not have more files than the machine allows.
  printf '%s\n' DAEMON_MAXFILES=1048576 'OPTIONS="--default-ulimit nofile=1024:4096"' \
    DAEMON_PIDFILE_TIMEOUT=10 > "$work/stage/etc/sysconfig/docker"
  echo DOCKER_STORAGE_OPTIONS= > "$work/stage/etc/sysconfig/docker-storage"
  cat > "$work/stage/usr/libexec/docker/docker-setup-runtimes.sh" << 'END'
#!/bin/sh
# Each program in /etc/docker-runtimes.d is a runtime of its name.
flags=
for program in /etc/docker-runtimes.d/*; do
  if [ -f "$program" ] && [ -x "$program" ]; then flags="$flags--add-runtime ${program##*/}=$program "; fi
done
echo "DOCKER_ADD_RUNTIMES=\"$flags\"" > /run/docker/runtimes.env
END
  chmod 0755 "$work/stage/usr/libexec/docker/docker-setup-runtimes.sh"
}
docker_group='getent group docker > /dev/null || groupadd --system docker'
stage_engine() {
  stage
  cp "$work/docker.io/usr/sbin/dockerd" "$work"/docker.io/usr/*bin/docker-proxy "$work/stage/usr/bin/"
  cp "$work/tini/usr/bin/tini-static" "$work/stage/usr/bin/docker-init"
  docker_units
  after_install "$docker_group"
}
stage_cli() { stage; cp "$work"/docker*/usr/bin/docker "$work/stage/usr/bin/"; }
stage_runc() { stage; cp "$work"/runc/usr/sbin/runc "$work/stage/usr/bin/"; }
stage_containerd() {
  stage
  cp "$work"/containerd/usr/bin/* "$work/stage/usr/bin/"
  cp "$work"/containerd/lib/systemd/system/containerd.service "$work/stage/usr/lib/systemd/system/"
  sed -i 's#/usr/sbin/#/usr/bin/#' "$work/stage/usr/lib/systemd/system/containerd.service"
}
stage_containerd_io() { stage_containerd; cp "$work"/runc/usr/sbin/runc "$work/stage/usr/bin/"; }

docker_ubuntu() {
  local site=$top/download.docker.com/linux/ubuntu version="5:$docker_version-1~ubuntu.24.04~noble" pool plugin
  pool=$site/dists/noble/pool/stable/$architecture
  stage_engine
  # It and containerd's enable all their units. The start may fail, as in upstream's own package: that fails the
  # service, not the installation, and the role then says why.
  after_install "$docker_group" 'if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi' \
    'systemctl enable --quiet docker.service docker.socket' \
    'if [ -d /run/systemd/system ]; then systemctl start docker.service || true; fi' # the installation goes on, as upstream's does
  deb docker-ce "$version" "docker-ce-cli, containerd.io, iptables" "$pool"
  stage_cli; deb docker-ce-cli "$version" "libc6" "$pool"
  stage_containerd_io
  after_install 'if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi' \
    'systemctl enable --quiet containerd.service'
  deb containerd.io "$containerd_version-1" "libc6" "$pool"
  for plugin in buildx compose; do
    stage_nothing "docker-$plugin-plugin"; deb "docker-$plugin-plugin" "0.0.1-1~sandbox" "docker-ce-cli" "$pool"
  done
  apt_suite "$site" noble dists/noble/pool Docker 'Docker CE'
  cp "$work/key.asc" "$site/gpg"
}

# Where containerd.io and runc exclude each other.
docker_rhel() {
  local site=$top/download.docker.com/linux/rhel stable plugin
  stable=$site/9/$(uname -m)/stable
  stage_engine; rpm_package docker-ce "$docker_version" "docker-ce-cli, containerd.io" "$stable" "Conflicts: docker"
  stage_cli; rpm_package docker-ce-cli "$docker_version" "" "$stable" "Conflicts: docker"
  stage_containerd_io; rpm_package containerd.io "$containerd_version" "" "$stable" "Conflicts: containerd, runc"
  for plugin in buildx compose; do
    stage_nothing "docker-$plugin-plugin"; rpm_package "docker-$plugin-plugin" 0.0.1 "docker-ce-cli" "$stable"
  done
  rpm_sign "$stable"
  rpm_repository "$stable"
  cp "$work/key.asc" "$site/gpg"
}

docker_amazonlinux() {
  stage_engine; docker_amazonlinux_units; cp "$work"/docker*/usr/bin/docker "$work/stage/usr/bin/"
  rpm_package docker "$docker_version" "containerd, runc" "$amazonlinux"
  stage_containerd; rpm_package containerd "$containerd_version" "" "$amazonlinux"
  stage_runc; rpm_package runc "$(version_of runc)" "" "$amazonlinux"
}

docker_ubuntu
docker_rhel
docker_amazonlinux
pin docker "$(jq -nc --arg version "$docker_version" --arg key "$fingerprint" '{$version, key_fingerprints: [$key]}')"
