# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# github.com/prometheus: releases of node_exporter, Prometheus and Alertmanager.
mkdir "$work/node" && cp "$work/prometheus-node-exporter/usr/bin/prometheus-node-exporter" "$work/node/node_exporter"
tarball node_exporter "$(version_of prometheus-node-exporter)" "$work/node"
mkdir "$work/prom" && cp "$work/prometheus/usr/bin/prometheus" "$work/promtool/usr/bin/promtool" "$work/prom/"
tarball prometheus "$(version_of prometheus)" "$work/prom"
mkdir "$work/alert" && cp "$work/prometheus-alertmanager/usr/bin/amtool" "$work/alert/"
cp "$work/prometheus-alertmanager/usr/bin/prometheus-alertmanager" "$work/alert/alertmanager"
tarball alertmanager "$(version_of prometheus-alertmanager)" "$work/alert"
# Debian's has its texts in files, which ami.py puts where it looks for them.
mkdir -p "$top/sandbox/alertmanager"
cp "$work"/prometheus-alertmanager/usr/share/prometheus/alertmanager/{default,email}.tmpl "$top/sandbox/alertmanager/"
