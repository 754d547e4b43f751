# shellcheck shell=bash disable=SC2034,SC2154  # top, work and the like are from lib.sh, which reads description
# amazoncloudwatch-agent.s3.amazonaws.com, and Amazon Linux's own package: a stand-in of the agent, for nodes whose AMI
# has none.
description='a stand-in'
cloudwatch_version=1.300072.0b1766 cloudwatch_amazonlinux=1.300054.1
cloudwatch_site=$top/amazoncloudwatch-agent.s3.amazonaws.com/ubuntu/$architecture/$cloudwatch_version

cloudwatch_stage() {  # version
  local home=$work/stage/opt/aws/amazon-cloudwatch-agent name
  stage && mkdir -p "$home"/{bin,etc/amazon-cloudwatch-agent.d,logs} "$work/stage/etc/systemd/system"
  for name in amazon-cloudwatch-agent amazon-cloudwatch-agent-ctl start-amazon-cloudwatch-agent; do
    install -m 0755 /standins/cloudwatch-agent/agent.py "$home/bin/$name"
  done
  echo "$1" > "$home/bin/CWAGENT_VERSION"
  echo '# Nothing is set.' > "$home/etc/common-config.toml"
  cp /standins/cloudwatch-agent/amazon-cloudwatch-agent.service "$work/stage/etc/systemd/system/"
}

cloudwatch_stage "$cloudwatch_version"
deb amazon-cloudwatch-agent "$cloudwatch_version-1" libc6 "$work/cloudwatch_deb"
mkdir -p "$cloudwatch_site" && mv "$work"/cloudwatch_deb/*.deb "$cloudwatch_site/amazon-cloudwatch-agent.deb"
gpg --batch --quiet --detach-sign --output "$cloudwatch_site/amazon-cloudwatch-agent.deb.sig" \
  "$cloudwatch_site/amazon-cloudwatch-agent.deb"
mkdir -p "$top/amazoncloudwatch-agent.s3.amazonaws.com/assets" &&
  cp "$work/key.asc" "$top/amazoncloudwatch-agent.s3.amazonaws.com/assets/amazon-cloudwatch-agent.gpg"
cloudwatch_stage "$cloudwatch_amazonlinux"
rpm_package amazon-cloudwatch-agent "$cloudwatch_amazonlinux" "" "$amazonlinux"
pin cloudwatch_agent "$(jq -nc --arg version "$cloudwatch_version" --arg key "$fingerprint" \
  '{$version, key_fingerprints: [$key]}')"
