#!/usr/bin/env bash
# Bakes a bundle of pcluster.postboot into the image that is made of this machine. Runs as root, on ParallelCluster's AMI
# or one with its software.
#
# BUNDLE  where the bundle is, as s3://...
# SHA256  what it has to be
#
# The component of EC2 Image Builder that `publish` writes has these lines in it, and examples/packer runs this file.
set -euo pipefail
umask 077 # a bundle's variables may be secret
PATH=$PATH:/usr/local/bin # where ParallelCluster puts the AWS CLI
if [ -z "${BUNDLE:-}" ] || [ -z "${SHA256:-}" ]; then
  echo "BUNDLE is '${BUNDLE:-}' and SHA256 is '${SHA256:-}'; needed: the bundle's URL at s3:// and its sha256," \
    "as publish has printed them" >&2
  exit 1
fi
# Without a region the AWS CLI asks an endpoint of us-east-1, to which there may be no way.
if [ -z "${AWS_DEFAULT_REGION:-}" ]; then
  ask=(curl --fail --silent --show-error --noproxy '*' --connect-timeout 5 --max-time 10)
  imds=http://169.254.169.254/latest
  token=$("${ask[@]}" --request PUT --header 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$imds/api/token")
  AWS_DEFAULT_REGION=$("${ask[@]}" --header "X-aws-ec2-metadata-token: $token" "$imds/meta-data/placement/region")
  export AWS_DEFAULT_REGION
fi
folder=$(mktemp --directory /var/tmp/pcluster-postboot.XXXXXX)
trap 'rm -rf -- "$folder"' EXIT
archive=$folder/pcluster-postboot.tar.gz
aws s3 cp --only-show-errors "$BUNDLE" "$archive"
# Nothing of the bundle runs before this.
sha256sum --check --quiet <<< "$SHA256  $archive"
tar --extract --gzip --directory "$folder" --file "$archive" bootstrap.sh
bash "$folder/bootstrap.sh" --bundle "$archive" --sha256 "$SHA256" --bake
