#!/usr/bin/env bash
# Gives an image its family: "ubuntu" (apt, user ubuntu) or "el" (dnf and rpm, user ec2-user). Run once, while the image
# is built.
set -euo pipefail
family=$1

real_image() { ! grep -q '^ID=debian' /etc/os-release; }

install_packages() {  # only on a registry's image; the look-alike's packages are in its base already
  if [ "$family" = ubuntu ]; then
    apt-get update -q
    grep -v '^#' "$2" | tr ' ' '\n' |
      grep -vE '^(python3-dnf|dnf|rpm|nginx-light|createrepo-c|docker-registry|init|awscli)$' |
      DEBIAN_FRONTEND=noninteractive xargs apt-get install -q -y --no-install-recommends
  else
    dnf install -y systemd dbus python3 python3.11 openssh-server sudo iproute iptables procps-ng psmisc pciutils kmod \
      ca-certificates jq less unzip xz zstd tar awscli-2 \
      gcc make squashfs-tools parallel pigz gawk util-linux ncurses shadow-utils
  fi
}

# ParallelCluster's Slurm lives in /opt/slurm, which the head node shares, with the headers that a SPANK plugin is built
# from. Its sysconfdir is /opt/slurm/etc.
move_slurm() {
  command -v slurmctld > /dev/null || return 0
  local lib; lib=$(echo /usr/lib/*-linux-gnu/slurm-wlm)
  mkdir -p /opt/slurm/bin /opt/slurm/sbin /opt/slurm/lib /opt/slurm/etc
  for program in sacct sacctmgr salloc sattach sbatch sbcast scancel scontrol sdiag sinfo sprio squeue sreport srun \
    sshare sstat strigger; do
    mv "$(readlink -f "/usr/bin/$program")" "/opt/slurm/bin/$program"
    rm -f "/usr/bin/$program"
  done
  for program in slurmctld slurmd; do
    mv "$(readlink -f "/usr/sbin/$program")" "/opt/slurm/sbin/$program"
    rm -f "/usr/sbin/$program"
  done
  cp -a "$lib" /opt/slurm/lib/slurm
  mkdir -p /opt/slurm/include && mv /usr/include/slurm /opt/slurm/include/slurm
  rm -rf /etc/slurm && ln -s /opt/slurm/etc /etc/slurm
}

# Debian 13's Slurm in place of Debian 12's, with its libraries below /opt/slurm/lib. build.sh has unpacked it.
newer_slurm() {
  local program libraries pmix
  [ -d /sandbox/newer/opt/slurm ] || return 0
  rm -rf /opt/slurm/{bin,sbin,lib,include} /usr/sbin/slurm* /usr/lib/*-linux-gnu/{slurm-wlm,libslurm*}
  cp -a /sandbox/newer/opt/slurm /opt
  libraries=$(echo /opt/slurm/lib/*-linux-gnu)
  for program in slurmctld slurmd slurmstepd; do mv "/opt/slurm/sbin/$program-wlm" "/opt/slurm/sbin/$program"; done
  mv "$libraries/slurm-wlm" /opt/slurm/lib/slurm
  # Paths that are compiled in. The one of PMIx belongs to Debian 12's; what it becomes has to be of the same length.
  ln -s /opt/slurm/sbin/slurmstepd /usr/sbin/slurmstepd
  ln -s /opt/slurm/lib/slurm "$libraries/slurm-wlm"
  ln -s /opt/slurm/lib/slurm "/usr/lib/${libraries##*/}/slurm-wlm"
  ln -s "${libraries##*/}/pmix2" /opt/slurm/lib/pmix2
  pmix=/usr/lib/${libraries##*/}/pmix2
  LC_ALL=C sed -i "s#$pmix#/opt/slurm/lib$(printf "%$((${#pmix} - 19))s" | tr ' ' /)pmix2#g" \
    /opt/slurm/lib/slurm/mpi_pmix_*.so /opt/slurm/lib/pmix2/lib/libpmix.so.*.*
}

# ParallelCluster 3.16 gives scontrol lists of instance ids, which Slurm takes from 25.11.6 on.
lists_of_instances() {
  [ "$family" = ubuntu ] || return 0
  mkdir -p /opt/slurm/libexec && mv /opt/slurm/bin/scontrol /opt/slurm/libexec/scontrol
  install -m 0755 /sandbox/repository/molecule/cluster/standins/scontrol/scontrol /opt/slurm/bin/scontrol
}

# ParallelCluster's own Python, which a look-alike's base has, with the environments that the cookbook makes below it.
parallelcluster_python() {
  local top=/opt/parallelcluster/pyenv/versions uv=/sandbox/repository/.venv/bin/uv python name
  if real_image; then
    python=$(type -P python3.12 || type -P python3.11)
    name=$("$python" -c 'import platform; print(platform.python_version())')
    mkdir -p "$top/$name/bin" && ln -s "$python" "$top/$name/bin/python3"
  fi
  top=$(echo $top/*)
  for name in node cookbook; do
    python=$top/envs/${name}_virtualenv/bin/python
    $uv venv --quiet --no-config --offline --python "$top/bin/python3" "${python%/bin/*}"
    $uv pip install --quiet --no-config --offline --no-index --find-links /sandbox/wheels \
      --compile-bytecode --python "$python" \
      --require-hashes --requirement "/sandbox/repository/requirements/${name/node/daemons-$1}.txt"
  done
  rm -rf ~/.cache/uv
}

users() {
  local user=$1 ordinary uid=1001
  id "$user" > /dev/null 2>&1 || useradd --create-home --shell /bin/bash --uid 1000 "$user"
  usermod --password '*' "$user"
  echo "$user ALL=(ALL) NOPASSWD:ALL" > "/etc/sudoers.d/90-cloud-init-users"
  # Ordinary users, who may use Slurm and nothing else.
  for ordinary in alice bob; do useradd --create-home --shell /bin/bash --uid $((uid++)) "$ordinary"; done
  id pcluster-admin > /dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin pcluster-admin
}

identity() {
  rm -f /etc/os-release /usr/lib/os-release
  if [ "$family" = ubuntu ]; then
    printf '%s\n' 'PRETTY_NAME="Ubuntu 24.04.3 LTS"' 'NAME="Ubuntu"' 'VERSION_ID="24.04"' \
      'VERSION="24.04.3 LTS (Noble Numbat)"' \
      'VERSION_CODENAME=noble' 'ID=ubuntu' 'ID_LIKE=debian' 'UBUNTU_CODENAME=noble' > /usr/lib/os-release
    rm -rf /usr/bin/dnf* /usr/bin/rpm* /etc/dnf /usr/lib/python3/dist-packages/dnf /usr/lib/python3/dist-packages/rpm
    # A node reaches no distribution mirror; what it needs from one comes with the sandbox's own repositories.
    rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
  else
    printf '%s\n' 'NAME="Amazon Linux"' 'VERSION="2023"' 'ID="amzn"' 'ID_LIKE="fedora"' 'VERSION_ID="2023"' \
      'PLATFORM_ID="platform:al2023"' \
      'PRETTY_NAME="Amazon Linux 2023.9.20251110"' 'CPE_NAME="cpe:2.3:o:amazon:amazon_linux:2023"' > /usr/lib/os-release
    echo 'Amazon Linux release 2023.9.20251110 (Amazon Linux)' > /etc/system-release
    # What Amazon Linux does not have at all.
    rm -f /usr/bin/squashfuse* /usr/bin/fuse-overlayfs
    rm -rf /usr/bin/apt* /usr/bin/dpkg* /etc/apt /var/lib/dpkg /etc/debian_version /usr/lib/python3/dist-packages/apt*
    mkdir -p /etc/rpm /etc/yum.repos.d /etc/dnf/vars /var/lib/rpm
    echo '%_dbpath /var/lib/rpm' > /etc/rpm/macros.sandbox
    echo 2023 > /etc/dnf/vars/releasever
    rpm --initdb
  fi
  ln -s ../usr/lib/os-release /etc/os-release
}

# Services that have no business in a container, and those that ParallelCluster starts itself once the node is
# configured.
services() {
  systemctl mask --quiet systemd-networkd.service systemd-networkd.socket systemd-networkd-wait-online.service \
    systemd-firstboot.service \
    systemd-resolved.service systemd-timesyncd.service systemd-udevd.service systemd-modules-load.service getty.target \
    console-getty.service \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount dev-hugepages.mount ssh.socket \
    nginx.service docker-registry.service sysstat.service \
    sysstat-collect.timer sysstat-summary.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer e2scrub_reap.service fstrim.timer
  rm -f /etc/systemd/system/multi-user.target.wants/slurm*.service
  systemctl set-default --quiet multi-user.target
}

real_image && install_packages "$@"
move_slurm
newer_slurm
lists_of_instances
parallelcluster_python "$3"
if [ "$family" = ubuntu ]; then users ubuntu; else users ec2-user; fi
real_image || identity
services
