#!/bin/sh
# Brings this node up to date with a bundle. AWS-RunShellScript, or on HyperPod a unit that a session has started, runs
# it, as root; `fleet` puts lines before these, which set url, sha256, seconds, and the arguments of bootstrap.sh. Of what
# is printed SSM keeps the beginning, so the line for the controller comes first, when all is over. PCLUSTER_POSTBOOT_ROOT is internal: tests put it before every path.
# shellcheck disable=SC2154
root=${PCLUSTER_POSTBOOT_ROOT:-}
export PATH="${root:+$root/bin:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" LC_ALL=C.UTF-8
umask 022
now() { # in seconds of this boot: the clock may still be set during a boot
  read -r up _ < /proc/uptime
  echo "${up%%.*}"
}
began=$(now)
opt=$root/opt/pcluster-postboot
report=$root/var/lib/pcluster-postboot/report.json
# ParallelCluster's own proxy, of which only login shells know.
# shellcheck source=/dev/null
if [ -r "$root/etc/profile.d/proxy.sh" ]; then . "$root/etc/profile.d/proxy.sh"; fi
# Without a region the AWS CLI asks an endpoint of us-east-1, to which there may be no way.
if [ -z "${AWS_REGION:-}${AWS_DEFAULT_REGION:-}" ]; then
  file=$root/etc/parallelcluster/cfnconfig
  region=$(if [ -r "$file" ]; then sed -n "s/^cfn_region=[\"']*\([a-z0-9-]*\).*/\1/p" "$file"; fi)
  file=$root/opt/ml/config/resource_config.json # of HyperPod
  if [ -z "$region" ] && [ -r "$file" ]; then
    region=$(sed -n 's/.*"ClusterArn" *: *"arn:[a-z-]*:sagemaker:\([a-z0-9-]*\):.*/\1/p' "$file")
  fi
  if [ "$region" ]; then export AWS_DEFAULT_REGION="$region"; fi
fi

mkdir -p "$opt" && here=$(mktemp -d "$opt/.fleet.XXXXXX") || exit 1
trap 'rm -rf "$here"' EXIT
trap 'exit 143' HUP INT TERM
former=$(if [ -e "$report" ]; then sha256sum < "$report"; fi)
find "$opt" -maxdepth 1 -name '.fleet.*' -mmin +1440 -exec rm -rf {} + # what runs that were killed have left

answer() { # CODE: what the controller reads, and then what people read
  told=-
  if [ -e "$report" ] && [ "$(sha256sum < "$report")" != "$former" ]; then told=$(gzip -9 < "$report" | base64 -w 0); fi
  after=$(readlink "$opt/current")
  echo "pcluster-postboot-fleet 1 $1 ${before:--} ${after:--} $told"
  tail -n 20 "$here/said"
  exit "$1"
}
fail() {
  echo "$1" > "$here/said"
  answer 1
}

# A node may still boot when SSM answers. Its boot would then put its own bundle in place of this one.
boots=$root/run/cloud-init
until [ ! -d "$boots" ] || [ -e "$boots/result.json" ] || [ -e "$boots/disabled" ]; do
  waited=$(($(now) - began))
  [ "$waited" -lt $((seconds / 2)) ] || fail "the node still boots after $waited s: there is no $boots/result.json"
  sleep 2
done
before=$(readlink "$opt/current")

# bootstrap.sh is trusted because the bundle is: a bundle that is installed as a whole was verified, and holds the one
# that belongs to it.
bundle=$url
script=$(find "$opt" -mindepth 2 -maxdepth 2 -path "*-$(echo "$sha256" | cut -c 1-12)/.complete")
script=${script:+${script%.complete}bootstrap.sh}
if [ -z "$script" ]; then
  bundle=$here/bundle.tar.gz
  script=$here/bootstrap.sh
  told=$(aws s3 cp --only-show-errors --cli-connect-timeout 10 --cli-read-timeout 60 "$url" "$bundle" 2>&1) ||
    fail "$url cannot be read: $(echo "$told" | tail -n 1)"
  found=$(sha256sum < "$bundle" | cut -d ' ' -f 1)
  [ "$found" = "$sha256" ] || fail "$url has the sha256 $found; needed: $sha256 (fleet_sha256)"
  told=$(tar --extract --gzip --no-same-owner --occurrence=1 --directory "$here" --file "$bundle" bootstrap.sh 2>&1) ||
    fail "$url holds no bootstrap.sh: $(echo "$told" | grep . | head -n 1)"
fi
# What the node has been taken for stays, because bootstrap.sh would take it for auto.
mode=$(if [ -r "$opt/mode" ]; then cat "$opt/mode"; fi)
case $mode in auto | gpu | cpu) set -- --mode "$mode" "$@" ;; esac
bash "$script" --bundle "$bundle" --sha256 "$sha256" --budget "$((seconds - $(now) + began))" \
  "$@" > "$here/said" 2>&1 < /dev/null
answer $?
