#!/bin/bash
# NCCL 2.32.3 takes the loopback interface if NCCL_SOCKET_IFNAME excludes others and not lo.
#
# Without the variable NCCL avoids lo where there is another interface. An exclude list such as ^docker, which many guides
# recommend, lifts that: lo comes first, so ranks on several nodes wait for each other at 127.0.0.1.
# A blank before a name, as in "^docker, lo", has the same effect, because " lo" is no interface.
# Needs an interface besides lo that is up, and no GPU.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nvidia-nccl-cu12==2.32.3
bootstrap() {
  env "$@" NCCL_DEBUG=INFO "$folder/venv/bin/python" - << 'PYTHON' 2>&1 | sed -n 's/.*Bootstrap: Using \([^:]*\):.*/\1/p'
import ctypes, glob, sys
library = ctypes.CDLL(glob.glob(f"{sys.prefix}/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2")[0])
sys.exit(library.ncclGetUniqueId(ctypes.create_string_buffer(128)))
PYTHON
}
usual=$(bootstrap -u NCCL_SOCKET_IFNAME)
excluded=$(bootstrap NCCL_SOCKET_IFNAME=^docker)
blank=$(bootstrap 'NCCL_SOCKET_IFNAME=^docker, lo')
named=$(bootstrap NCCL_SOCKET_IFNAME=^docker,lo)
printf 'NCCL 2.32.3\nwithout the variable: %s\n^docker: %s\n^docker, lo: %s\n^docker,lo: %s\n' \
  "$usual" "$excluded" "$blank" "$named"
[ "$usual" != lo ] && [ "$excluded" = lo ] && [ "$blank" = lo ] && [ "$named" = "$usual" ]
