# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# github.com/NVIDIA/pyxis: the source of a stand-in, which nodes build as they would upstream's, or upstream's own; and
# the same as an older version, to upgrade from.
take_source pyxis "$work/pyxis"
pyxis_pinned=$(sed -n 's/^PYXIS_VER *?= *//p' "$work/pyxis/Makefile") pyxis_older=0.23.0
pyxis_tags=$top/github.com/NVIDIA/pyxis/archive/refs/tags
mkdir -p "$pyxis_tags"

pyxis_source() {  # version
  local tree=$work/pyxis-$1
  cp -r "$work/pyxis" "$tree"
  sed -i "s/^PYXIS_VER .*/PYXIS_VER ?= $1/" "$tree/Makefile"
  chmod -R u=rwX,go=rX "$tree"
  pack "$work" "pyxis-$1" "$pyxis_tags/v$1.tar.gz"
}
pyxis_sha256() { sha256sum "$pyxis_tags/v$1.tar.gz" | cut -d' ' -f1; }

pyxis_source "$pyxis_pinned"
pyxis_source "$pyxis_older"
pin pyxis "$(jq -nc --arg version "$pyxis_pinned" --arg sha256 "$(pyxis_sha256 "$pyxis_pinned")" --arg older_version "$pyxis_older" \
  --arg older_sha256 "$(pyxis_sha256 "$pyxis_older")" \
  '{$version, $sha256, older: {version: $older_version, sha256: $older_sha256}}')"
