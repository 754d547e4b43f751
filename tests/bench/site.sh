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

release=http://mirror/github.com/NVIDIA/enroot/releases/download/v$ENROOT_VERSION
curl -fsS -o /tmp/enroot.deb "$release/enroot_$ENROOT_VERSION-1_amd64.deb" -o /tmp/enroot+caps.deb "$release/enroot+caps_$ENROOT_VERSION-1_amd64.deb"
echo "$ENROOT_DEB_SHA256  /tmp/enroot.deb" | sha256sum --check --quiet
echo "$ENROOT_CAPS_DEB_SHA256  /tmp/enroot+caps.deb" | sha256sum --check --quiet
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq /tmp/enroot.deb /tmp/enroot+caps.deb
install -d -m 1777 /run/enroot /var/lib/enroot /var/lib/enroot/data /var/lib/enroot/cache /var/lib/enroot/tmp
cat > /etc/enroot/enroot.conf <<'EOF'
ENROOT_RUNTIME_PATH /run/enroot/user-$(id -u)
ENROOT_DATA_PATH /var/lib/enroot/data/user-$(id -u)
ENROOT_CACHE_PATH /var/lib/enroot/cache/user-$(id -u)
ENROOT_TEMP_PATH /var/lib/enroot/tmp
EOF
echo 'd /run/enroot 1777 root root -' > /etc/tmpfiles.d/enroot.conf
for hook in 50-slurm-pmi.sh 50-slurm-pytorch.sh; do ln -s /usr/share/enroot/hooks.d/$hook /etc/enroot/hooks.d/; done
mkdir -p /etc/systemd/system/slurmd.service.d
printf '[Service]\nEnvironment=PATH=/opt/slurm/sbin:/opt/slurm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n' > /etc/systemd/system/slurmd.service.d/10-path.conf

systemctl daemon-reload
systemctl enable --now node_exporter docker
systemctl restart slurmd
curl -fsS --retry 10 --retry-connrefused --retry-delay 1 -o /dev/null http://localhost:9100/metrics
docker info > /dev/null
enroot version > /dev/null
/opt/slurm/bin/srun --help | grep -q container-image
