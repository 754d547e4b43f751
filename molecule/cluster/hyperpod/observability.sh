#!/bin/bash
# What install_observability.py leaves on a node, where the owner of a cluster has switched it on: the collector's
# configuration, and exporters. Units with the mirror's programs take the place of containers. In the place of
# dcgm-exporter, whose container has a host engine of its own, something serves its port without metrics of GPUs.
#
# `off` in the place of a node's type is what the owner does to have none of it any more.
#
#   observability.sh controller|login|compute|off NODE_EXPORTER_VERSION SLURM_EXPORTER_VERSION
set -eu
if [ "$1" = off ]; then
  for unit in docker-node-exporter docker-efa-exporter docker-dcgm-exporter slurm_exporter; do
    [ -e "/etc/systemd/system/$unit.service" ] || continue
    systemctl disable --quiet --now "$unit"
    rm "/etc/systemd/system/$unit.service"
  done
  systemctl daemon-reload
  rm -rf /etc/otel /opt/observability
  exit 0
fi
declare -A ports=([controller]="9100 9341" [login]=9100 [compute]="9100 9400 9109")
mkdir -p /etc/otel /opt/observability
{
  printf 'receivers:\n  prometheus:\n    config:\n      scrape_configs:\n'
  for port in ${ports[$1]}; do
    printf "        - job_name: 'exporter_%s'\n          static_configs:\n            - targets: ['localhost:%s']\n" \
      "$port" "$port"
  done
} > /etc/otel/config.yaml
fetch() {  # path below github.com, program, folder
  curl --silent --fail "http://mirror/github.com/$1" |
    tar --extract --gzip --directory "$3" --wildcards --no-anchored --transform 's#.*/##' "$2"
}
serve() {  # unit, command line. slurm_exporter ends by SIGKILL alone.
  printf '%s\n' '[Unit]' "Description=$1 of the cluster's owner" '[Service]' \
    'Environment=PATH=/opt/slurm/bin:/usr/bin:/bin' "ExecStart=$2" 'Restart=on-failure' 'KillSignal=SIGKILL' \
    'SuccessExitStatus=SIGKILL' '[Install]' \
    'WantedBy=multi-user.target' > "/etc/systemd/system/$1.service"
  systemctl enable --quiet --now "$1"
}
fetch "prometheus/node_exporter/releases/download/v$2/node_exporter-$2.linux-amd64.tar.gz" node_exporter \
  /opt/observability
serve docker-node-exporter "/opt/observability/node_exporter --path.rootfs=/"
case $1 in
  compute)
    serve docker-efa-exporter "/opt/observability/node_exporter --web.listen-address=:9109 \
--collector.disable-defaults --collector.infiniband"
    serve docker-dcgm-exporter "/opt/observability/node_exporter --web.listen-address=:9400 --collector.disable-defaults"
    ;;
  controller)
    fetch "SckyzO/slurm_exporter/releases/download/v$3/slurm_exporter-$3-linux-amd64.tar.gz" slurm_exporter /usr/bin
    serve slurm_exporter /usr/bin/slurm_exporter
    ;;
esac
