# shellcheck shell=sh
PATH="/opt/amazon/openmpi/bin/:/opt/amazon/efa/bin/:$PATH"
export PATH
