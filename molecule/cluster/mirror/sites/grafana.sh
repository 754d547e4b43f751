# shellcheck shell=bash disable=SC2034,SC2154  # top, work and the like are from lib.sh, which reads description
# apt.grafana.com and rpm.grafana.com: Grafana, which is a stand-in in Grafana's packaging. Both sign their lists, and
# rpm.grafana.com its packages too.
grafana_standin=/standins/grafana
grafana_pinned=13.2.3 grafana_newer=13.3.0 grafana_older=13.2.1

stage_grafana() {  # version packaging environment-file
  stage
  mkdir -p "$work"/stage/usr/share/grafana/{bin,conf,data/plugins-bundled/prometheus} "$work/stage/usr/sbin" \
    "$work/stage$(dirname "$3")" "$work"/stage/etc/grafana/provisioning
  sed "s/@VERSION@/$1/" "$grafana_standin/grafana.py" > "$work/stage/usr/share/grafana/bin/grafana"
  chmod 0755 "$work/stage/usr/share/grafana/bin/grafana"
  ln -s ../share/grafana/bin/grafana "$work/stage/usr/sbin/grafana"
  cp "$grafana_standin/sample.ini" "$work/stage/usr/share/grafana/conf/"
  echo '{"id": "prometheus", "type": "datasource"}' > "$work/stage/usr/share/grafana/data/plugins-bundled/prometheus/plugin.json"
  cp "$grafana_standin/environment" "$work/stage$3"
  sed "s#@ENVIRONMENT@#$3#; s/@PACKAGING@/$2/" \
    "$grafana_standin/grafana-server.service" > "$work/stage/usr/lib/systemd/system/grafana-server.service"
  after_install "$(cat "$grafana_standin/after_install.sh")"
}

grafana_packages() {  # version
  stage_grafana "$1" deb /etc/default/grafana-server
  deb grafana "$1" "adduser" "$top/apt.grafana.com/pool/main/g/grafana"
  stage_grafana "$1" rpm /etc/sysconfig/grafana-server
  rpm_package grafana "$1-1" "" "$work/grafana_rpm"
}

grafana_lists() {
  apt_suite "$top/apt.grafana.com" stable pool/main Grafana Grafana main
  cp "$work/key.asc" "$top/apt.grafana.com/gpg.key"
  mkdir -p "$top/rpm.grafana.com" && mv "$work/grafana_rpm/$(uname -m)"/*.rpm "$top/rpm.grafana.com/"
  rpm_sign "$top/rpm.grafana.com"
  rpm_repository "$top/rpm.grafana.com"
  cp "$work/key.asc" "$top/rpm.grafana.com/gpg.key"
}

description='a stand-in'
grafana_packages "$grafana_pinned"
grafana_packages "$grafana_newer"
grafana_packages "$grafana_older"
grafana_lists
pin grafana "$(jq -nc --arg version "$grafana_pinned" --arg newer "$grafana_newer" --arg key "$fingerprint" \
  '{$version, $newer, key_fingerprints: [$key]}')"
