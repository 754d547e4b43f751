#!/usr/bin/env bash
# Installs every component on a distribution's own image, from upstream, as an AMI is made of it (the playbook bake),
# and once more, which may change nothing. What needs a cluster, a GPU or an EFA device is not there.
#
#   distribution.sh IMAGE [ARGUMENT...]      such as docker.io/library/ubuntu:22.04; the rest is ansible-playbook's
#
# RUN_OPTIONS are further options of podman run.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "${1:-}" ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
image=$1 name=distribution-$$
shift
read -ra options <<< "${RUN_OPTIONS:-}"
# On version 1 cgroups, a sandbox that was made here has a configuration that fits.
[ ! -e .sandbox/containers.conf ] || export CONTAINERS_CONF=$PWD/.sandbox/containers.conf
work=$(mktemp -d)
tidy() {
  podman rm --force --ignore --time 0 "$name" > /dev/null
  if podman image exists "localhost/$name"; then podman rmi --force "localhost/$name" > /dev/null; fi
  rm -rf "$work"
}
trap tidy EXIT

# What an AMI has, and a distribution's image has not.
cat > "$work/Containerfile" << END
FROM $image
RUN if command -v apt-get > /dev/null; then apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y \
    --no-install-recommends systemd systemd-sysv dbus python3 python3-apt sudo ca-certificates curl gnupg iproute2 \
    kmod pciutils procps; \
  else dnf install -y systemd dbus python3 sudo ca-certificates iproute kmod pciutils procps-ng; fi
END
podman build --quiet --tag "localhost/$name" "$work" > /dev/null
podman run --detach --name "$name" --systemd=always --privileged "${options[@]}" "localhost/$name" /sbin/init > /dev/null
cat > "$work/inventory.yml" << END
pcluster:
  hosts:
    image:
      ansible_connection: containers.podman.podman
      ansible_host: $name
      ansible_python_interpreter: /usr/bin/python3
END
bake() {
  ANSIBLE_CONFIG=$PWD/inventory/ansible.cfg ansible-playbook --inventory "$work/inventory.yml" pcluster.postboot.bake \
    --extra-vars '{"bake_node_overrides": {"node_type": "head"}, "common_all_essential": true}' "$@" |
    tee "$work/log"
}
bake "$@"
bake "$@"
if ! grep -qE '^image +: .* changed=0 ' "$work/log"; then
  echo "the second run has changed $image" >&2
  exit 1
fi
