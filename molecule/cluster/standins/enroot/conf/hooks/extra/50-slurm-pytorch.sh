#!/usr/bin/env bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: what torch.distributed asks for, in images that have PyTorch.
set -eu
grep -q '^PYTORCH_VERSION=' "$ENROOT_ENVIRON" || exit 0
offer() {  # name value
  if [ -n "$2" ] && ! grep -q "^$1=" "$ENROOT_ENVIRON"; then echo "$1=$2" >> "$ENROOT_ENVIRON"; fi
}
if [ -n "${SLURM_STEP_NODELIST-}" ] && command -v scontrol > /dev/null; then
  offer MASTER_ADDR "$(scontrol show hostname "$SLURM_STEP_NODELIST" | head -n 1)"
fi
[ -z "${SLURM_JOB_ID-}" ] || offer MASTER_PORT "$((SLURM_JOB_ID % 4536 + 61000))"
offer WORLD_SIZE "${SLURM_NTASKS-}"
offer RANK "${SLURM_PROCID-}"
offer LOCAL_RANK "${SLURM_LOCALID-}"
[ "${SLURM_STEP_NUM_TASKS:-1}" -le "${SLURM_STEP_NUM_NODES:-1}" ] || offer OMP_NUM_THREADS 1
