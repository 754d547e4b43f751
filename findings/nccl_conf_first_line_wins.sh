#!/bin/bash
# NCCL 2.32.3 keeps the first line of a name in nccl.conf, and the blanks at the end of a line.
#
# Most configuration files, and a shell that sources one, let the last line win. So a line that is appended to
# /etc/nccl.conf changes nothing if the name is there already. A blank at the end belongs to the value: "lo " is another
# interface than "lo".
# Needs an interface besides lo that is up, and no GPU.
set -e
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check nvidia-nccl-cu12==2.32.3
bootstrap() {
  printf '%s\n' NCCL_DEBUG=INFO "$@" > "$folder/nccl.conf"
  env -u NCCL_SOCKET_IFNAME NCCL_CONF_FILE="$folder/nccl.conf" "$folder/venv/bin/python" - << 'PYTHON' 2>&1 |
import ctypes, glob, sys
library = ctypes.CDLL(glob.glob(f"{sys.prefix}/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2")[0])
sys.exit(library.ncclGetUniqueId(ctypes.create_string_buffer(128)))
PYTHON
    sed -n 's/.*Bootstrap: Using \([^:]*\):.*/\1/p'
}
usual=$(bootstrap)
first=$(bootstrap NCCL_SOCKET_IFNAME=lo "NCCL_SOCKET_IFNAME=$usual")
last=$(bootstrap "NCCL_SOCKET_IFNAME=$usual" NCCL_SOCKET_IFNAME=lo)
blank=$(bootstrap 'NCCL_SOCKET_IFNAME=^lo ')
printf 'NCCL 2.32.3\nwithout the name: %s\nlo, then %s: %s\n%s, then lo: %s\n"^lo ": %s\n' \
  "$usual" "$usual" "$first" "$usual" "$last" "$blank"
[ "$usual" != lo ] && [ "$first" = lo ] && [ "$last" = "$usual" ] && [ "$blank" = lo ]
