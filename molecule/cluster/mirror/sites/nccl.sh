# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# files.pythonhosted.org: NCCL itself, NVIDIA's own wheel, which sandbox.py has fetched and verified.
# github.com/NVIDIA/nccl: the source of a stand-in, which a node builds as it would upstream's.
nccl_source_version=2.30.7-1
nccl_tags=$top/github.com/NVIDIA/nccl/archive/refs/tags
mkdir -p "$nccl_tags"
cp -r /downloads/. "$top/"

cp -r /standins/nccl "$work/nccl-$nccl_source_version"
chmod -R u=rwX,go=rX "$work/nccl-$nccl_source_version"
pack "$work" "nccl-$nccl_source_version" "$nccl_tags/v$nccl_source_version.tar.gz"

nccl_wheel=$(basename "$(find /downloads -name 'nvidia_nccl_cu13-*.whl')")
pin nccl "$(jq -nc --arg version "$(cut -d- -f2 <<< "$nccl_wheel")" --arg source_version "$nccl_source_version" \
  --arg sha256 "$(sha256sum "$nccl_tags/v$nccl_source_version.tar.gz" |
  cut -d' ' -f1)" '{$version, source: {version: $source_version, $sha256}}')"
