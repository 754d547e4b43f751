#!/usr/bin/env bash
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#
# Stand-in: the variables of a job step, and where its MPI finds PMIx.
set -euo pipefail
[[ -n ${SLURM_JOB_ID-} && -n ${SLURM_STEP_ID-} ]] || exit 0
# compgen fails where no variable has such a name.
pass_on() { local name; for name in $(compgen -e "$1" || true); do
  echo "$name=${!name}"; done >> "$ENROOT_ENVIRON"; } # there may be none of a kind
pass_on SLURM_
if [[ -z ${SLURM_MPI_TYPE-} || $SLURM_MPI_TYPE == pmix* ]] && compgen -e PMIX_ > /dev/null; then
  # shellcheck source=/dev/null
  source "$ENROOT_LIBRARY_PATH/common.sh"
  # Whose directory is in slurmd's PATH only where somebody has put it there.
  common::checkcmd scontrol awk
  configuration=$(scontrol show config)
  spool=$(awk '$1 == "SlurmdSpoolDir" { print $3 }' <<< "$configuration") \
    tmp=$(awk '$1 == "TmpFS" { print $3 }' <<< "$configuration")
  [[ -n $spool && -n $tmp ]] || common::err "Could not read SLURM configuration"
  pass_on PMIX_
  for pair in PTL:ptl SECURITY:psec GDS:gds; do
    from=PMIX_${pair%:*}_MODULE to=PMIX_MCA_${pair#*:}
    [ "$from" != PMIX_SECURITY_MODULE ] || from=PMIX_SECURITY_MODE
    if [[ -n ${!from-} && -z ${!to-} ]]; then echo "$to=${!from}" >> "$ENROOT_ENVIRON"; fi
  done
  step=$SLURM_JOB_ID.$SLURM_STEP_ID
  directory=$tmp/spmix_appdir_${SLURM_JOB_UID-}_$step
  [ -e "$directory" ] || directory=$tmp/spmix_appdir_$step
  {
    echo "$directory x-create=dir,bind,rw,nosuid,noexec,nodev,private,nofail"
    echo "$spool/pmix.$step x-create=dir,bind,rw,nosuid,noexec,nodev,private"
  } >> "$ENROOT_MOUNTS"
fi
pass_on PMI_
