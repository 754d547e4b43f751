# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# github.com/prometheus: releases of node_exporter and Prometheus.
mkdir "$work/node" && cp "$work/prometheus-node-exporter/usr/bin/prometheus-node-exporter" "$work/node/node_exporter"
tarball node_exporter "$(version_of prometheus-node-exporter)" "$work/node"
mkdir "$work/prom" && cp "$work/prometheus/usr/bin/prometheus" "$work/promtool/usr/bin/promtool" "$work/prom/"
tarball prometheus "$(version_of prometheus)" "$work/prom"
