#!/bin/sh
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# A stand-in for Open MPI's mpirun, for the sandbox: runs the ranks on this node, one after the other. Known: -n, -np,
# -N, -x, --version; other options are ignored.
ranks=1
while [ $# -gt 0 ]; do
  case $1 in
    --version) echo 'mpirun (Open MPI) @VERSION@'; exit 0 ;;
    -n | -np) ranks=$2; shift ;;
    -x) case $2 in *=*) export "${2?}" ;; esac; shift ;;
    -N | --hostfile | --bind-to | --map-by) shift ;;
    --mca) shift 2 ;;
    -*) ;;
    *) break ;;
  esac
  shift
done
rank=0
while [ "$rank" -lt "$ranks" ]; do
  OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$ranks "$@" || exit
  rank=$((rank + 1))
done
