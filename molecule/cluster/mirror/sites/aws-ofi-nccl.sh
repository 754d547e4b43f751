# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# github.com/aws/aws-ofi-nccl: the release of a stand-in, which nodes build as they would upstream's; and a newer one,
# to upgrade to.
ofi_pinned=1.21.1 ofi_newer=1.22.0
ofi_releases=$top/github.com/aws/aws-ofi-nccl/releases/download

ofi_release() {  # version
  local tree=$work/aws-ofi-nccl-$1
  cp -r /standins/aws-ofi-nccl "$tree"
  echo "$1" > "$tree/.release_version"
  chmod -R u=rwX,go=rX "$tree"
  mkdir -p "$ofi_releases/v$1"
  pack "$work" "aws-ofi-nccl-$1" "$ofi_releases/v$1/aws-ofi-nccl-$1.tar.gz"
}
ofi_sha256() { sha256sum "$ofi_releases/v$1/aws-ofi-nccl-$1.tar.gz" | cut -d' ' -f1; }

ofi_release "$ofi_pinned"
ofi_release "$ofi_newer"
# A header that a build needs, which the look-alike of Amazon Linux has without knowing its package.
stage_nothing hwloc-devel; rpm_package hwloc-devel 2.10.0 "" "$amazonlinux"
pin aws_ofi_nccl "$(jq -nc --arg version "$ofi_pinned" --arg sha256 "$(ofi_sha256 "$ofi_pinned")" --arg newer_version "$ofi_newer" \
  --arg newer_sha256 "$(ofi_sha256 "$ofi_newer")" \
  '{$version, $sha256, newer: {version: $newer_version, sha256: $newer_sha256}}')"
