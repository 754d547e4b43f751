# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# github.com/NVIDIA/nccl-tests: the source of a stand-in, which nodes build as they would upstream's; and as an older
# version, to upgrade from.
tests_pinned=2.19.6 tests_older=2.18.3
tests_tags=$top/github.com/NVIDIA/nccl-tests/archive/refs/tags
mkdir -p "$tests_tags"

tests_source() {  # version
  local tree=$work/nccl-tests-$1
  cp -r /standins/nccl-tests "$tree"
  echo "$1" > "$tree/VERSION"
  chmod -R u=rwX,go=rX "$tree"
  pack "$work" "nccl-tests-$1" "$tests_tags/v$1.tar.gz"
}
tests_sha256() { sha256sum "$tests_tags/v$1.tar.gz" | cut -d' ' -f1; }

tests_source "$tests_pinned"
tests_source "$tests_older"
pin nccl_tests "$(jq -nc --arg version "$tests_pinned" --arg sha256 "$(tests_sha256 "$tests_pinned")" --arg older_version "$tests_older" \
  --arg older_sha256 "$(tests_sha256 "$tests_older")" \
  '{$version, $sha256, older: {version: $older_version, sha256: $older_sha256}}')"
