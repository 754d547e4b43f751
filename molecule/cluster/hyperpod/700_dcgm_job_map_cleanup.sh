#!/bin/bash
# A stand-in for the AMI's: takes the job's number out of the files of its GPUs, and removes those that are empty then.
# It never fails.
folder=/run/slurm/dcgm-job-mapping
for gpu in ${SLURM_JOB_GPUS//,/ }; do
  [ -e "$folder/$gpu" ] || continue
  flock "$folder/.lock" sh -c 'sed -i "/^$1\$/d" "$2"; [ -s "$2" ] || rm -f "$2"' sh "$SLURM_JOB_ID" "$folder/$gpu"
done
exit 0
