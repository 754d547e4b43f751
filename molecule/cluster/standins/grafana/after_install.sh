# shellcheck shell=sh
getent group grafana > /dev/null || groupadd --system grafana
getent passwd grafana > /dev/null ||
  useradd --system --gid grafana --home-dir /usr/share/grafana --no-create-home --shell /bin/false grafana
mkdir -p /var/log/grafana /var/lib/grafana
cp -a /usr/share/grafana/data/plugins-bundled /var/lib/grafana
chown -R grafana:grafana /var/log/grafana /var/lib/grafana
[ -f /etc/grafana/grafana.ini ] || cp /usr/share/grafana/conf/sample.ini /etc/grafana/grafana.ini
mkdir -p /etc/grafana/provisioning/dashboards /etc/grafana/provisioning/datasources
chown -Rh root:grafana /etc/grafana/*
find /etc/grafana -type f -exec chmod 640 {} ';'
find /etc/grafana -type d -exec chmod 755 {} ';'
