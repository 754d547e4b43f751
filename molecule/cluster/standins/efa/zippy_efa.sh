# shellcheck shell=sh
# The EFA installer's file in /etc/profile.d: login shells find its Open MPI and libfabric's programs.
PATH="/opt/amazon/openmpi/bin/:/opt/amazon/efa/bin/:$PATH"
export PATH
