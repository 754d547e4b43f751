# What site.yml does for a CPU node, as the plain bash that people paste into CustomActions, at its best: pinned, checked, from the same mirror.
# The benchmark puts the versions and hashes in front of it.
set -euo pipefail
mountpoint -q /fsx

curl -fsS -o /tmp/node_exporter.tar.gz "http://mirror/github.com/prometheus/node_exporter/releases/download/v$NODE_EXPORTER_VERSION/node_exporter-$NODE_EXPORTER_VERSION.linux-amd64.tar.gz"
echo "$NODE_EXPORTER_SHA256  /tmp/node_exporter.tar.gz" | sha256sum --check --quiet
tar -xzf /tmp/node_exporter.tar.gz -C /usr/local/bin --strip-components 1 --wildcards '*/node_exporter'
useradd --system --no-create-home --shell /usr/sbin/nologin node_exporter
mkdir -p /var/lib/node_exporter/textfile_collector
cat > /etc/systemd/system/node_exporter.service <<'EOF'
[Unit]
Description=node_exporter
[Service]
User=node_exporter
ExecStart=/usr/local/bin/node_exporter --collector.textfile.directory=/var/lib/node_exporter/textfile_collector --collector.systemd
Restart=always
[Install]
WantedBy=multi-user.target
EOF

mkdir -p /etc/apt/keyrings
curl -fsS http://mirror/download.docker.com/linux/ubuntu/gpg -o /etc/apt/keyrings/docker.asc
echo "deb [arch=amd64 signed-by=/etc/apt/keyrings/docker.asc] http://mirror/download.docker.com/linux/ubuntu noble stable" > /etc/apt/sources.list.d/docker.list
apt-get update -qq
mkdir -p /etc/docker
echo '{"data-root": "/var/lib/docker"}' > /etc/docker/daemon.json
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq docker-ce docker-ce-cli containerd.io docker-buildx-plugin docker-compose-plugin

systemctl daemon-reload
systemctl enable --now node_exporter docker
curl -fsS --retry 10 --retry-connrefused --retry-delay 1 -o /dev/null http://localhost:9100/metrics
docker info > /dev/null
