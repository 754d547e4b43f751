#!/bin/bash
# node_exporter 1.5.0 drops a series of a valid textfile, and node_textfile_scrape_error stays 0.
#
# Two *.prom files that give one metric different HELP texts are each valid. The exporter keeps the text of the first file,
# drops the series of the other one with a line in its log, answers 200, and reports no error of the textfile collector.
# Only promhttp_metric_handler_errors_total and the log show that something is missing.
# Needs apt of Debian 12.
set -e
folder=$(mktemp -d)
trap 'kill "$exporter" 2> /dev/null; rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -q=2 prometheus-node-exporter=1.5.0-1+b6 > /dev/null 2>&1
dpkg-deb --extract prometheus-node-exporter_*.deb .
mkdir textfiles
printf '# HELP jobs Jobs of team a.\n# TYPE jobs gauge\njobs{team="a"} 1\n' > textfiles/a.prom
printf '# HELP jobs Jobs of team b.\n# TYPE jobs gauge\njobs{team="b"} 2\n' > textfiles/b.prom
usr/bin/prometheus-node-exporter --web.listen-address=127.0.0.1:19100 --collector.disable-defaults \
  --collector.textfile --collector.textfile.directory=textfiles 2> log &
exporter=$!
for _try in $(seq 50); do curl -sf -o page http://127.0.0.1:19100/metrics && break; sleep 0.1; done
curl -sf -o page -w 'HTTP %{http_code}\n' http://127.0.0.1:19100/metrics
usr/bin/prometheus-node-exporter --version 2>&1 | head -n 1
grep -E '^(jobs|node_textfile_scrape_error|promhttp_metric_handler_errors_total\{cause="gathering"\})' page
grep -o 'has help .* but should have .*' log | head -n 1
[ "$(grep -c '^jobs' page)" = 1 ] && grep -q '^node_textfile_scrape_error 0' page
