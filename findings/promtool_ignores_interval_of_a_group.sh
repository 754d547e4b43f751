#!/bin/bash
# promtool 2.42.0 evaluates all groups at evaluation_interval in "test rules", whatever interval a group has.
#
# A rule that counts its own evaluations shows it: with interval 5m in the group and evaluation_interval 1m in the test, it
# is evaluated each minute. So a test passes for an alert that Prometheus, which follows the group, would raise later.
# Needs apt of Debian 12.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -q=2 prometheus=2.42.0+ds-5+deb12u1 > /dev/null 2>&1
dpkg-deb --extract prometheus_*.deb .
cat > rules.yml << 'YAML'
groups:
  - name: slow
    interval: 5m
    rules:
      - {record: evaluations, expr: (evaluations or vector(0)) + 1}
YAML
cat > test.yml << 'YAML'
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    promql_expr_test:
      - {expr: evaluations, eval_time: 10m, exp_samples: [{labels: evaluations, value: 11}]}
YAML
usr/bin/promtool --version 2>&1 | head -n 1
usr/bin/promtool check rules rules.yml
usr/bin/promtool test rules test.yml
echo "evaluations after 10 minutes: 11, and 3 if the group's interval counted"
