# shellcheck shell=bash disable=SC2154  # top, work and the like are from lib.sh
# github.com/SckyzO/slurm_exporter: releases as goreleaser packs them, with a stand-in that asks the sandbox's own
# Slurm.
slurm_exporter_version=1.8.4
slurm_exporter_release=$top/github.com/SckyzO/slurm_exporter/releases/download/v$slurm_exporter_version
slurm_exporter_name=slurm_exporter-$slurm_exporter_version-linux-$architecture.tar.gz
mkdir -p "$slurm_exporter_release" "$work/slurm_exporter"
install -m 0755 /standins/slurm_exporter/slurm_exporter.py "$work/slurm_exporter/slurm_exporter"
tar --create --sort=name --owner=0 --group=0 --mtime=@0 --directory "$work/slurm_exporter" slurm_exporter |
  gzip --no-name -1 > "$slurm_exporter_release/$slurm_exporter_name"
(cd "$slurm_exporter_release" && sha256sum "$slurm_exporter_name" > slurm_exporter_checksums.txt)
pin slurm_exporter "$(jq -nc --arg version "$slurm_exporter_version" \
  --arg sha256 "$(cut -d' ' -f1 "$slurm_exporter_release/slurm_exporter_checksums.txt")" '{$version, $sha256}')"
