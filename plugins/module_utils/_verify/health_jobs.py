# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The job of the stage health, which has a node for itself: a shell script that says what it has found.

An ordinary user may run it. dcgmi asks the node's host engine over the loopback address, where the engine asks for no
password, and the engine starts the diagnostic outside of the job as its service account, and as root what needs
root (NVIDIA/DCGM v4.6.0: config-files/systemd/nvidia-dcgm.service.in, modules/diag/DcgmDiagManager.cpp). Without a host
engine dcgmi would start one of its own with the user's rights (dcgmi/Diag.cpp), so the script first asks whether the
engine answers.
"""

from __future__ import annotations

# Seconds for one device, whose ping-pong takes about one; and how many devices may fail before the others are left out.
PING_SECONDS, MOST_DEAD = 20, 4
# Minutes beyond the diagnostic's own: to send through the EFA devices, for dcgmi to give up, and for Slurm.
EFA_MINUTES, SPARE_MINUTES = 5, 3
# Minutes of a job without the diagnostic.
SHORT_MINUTES = 10

_BEGIN = """
say job begun
folder=$(mktemp -d) && cd "$folder" || exit
trap 'rm -rf "$folder"' EXIT
trap 'exit 143' TERM INT
"""
# As AWS' efa_test.sh and awslabs' 6-efa-loopback.sh do: fi_pingpong with itself, not over shared memory. A domain is
# named after its device (libfabric: fabtests/pytest/efa/test_efa_device_selection.py). A client is started when the
# server listens, as it would not wait, and fi_pingpong has no time limit (util/pingpong.c). A device that failed gets a
# second chance on another port.
_EFA = """
fabric=/opt/amazon/efa/bin port=47592 dead=
export FI_EFA_ENABLE_SHM_TRANSFER=0
ping() {
  port=$((port + 1))
  timeout -k 5 @SECONDS@ $fabric/fi_pingpong -e rdm -p efa -d "$1-rdm" -B $port > server 2>&1 &
  server=$!
  listens=$(printf ':%04X 00000000:0000 0A' $port)
  for turn in $(seq 50); do
    ! grep -q "$listens" /proc/net/tcp && kill -0 $server 2> /dev/null || break
    sleep 0.1
  done
  timeout -k 5 @SECONDS@ $fabric/fi_pingpong -e rdm -p efa -d "$1-rdm" -P $port localhost > client 2>&1
  code=$?
  [ $code = 0 ] || kill $server 2> /dev/null
  wait $server
  return $code
}
why() {
  [ $code != 124 ] || { echo "nothing came back within @SECONDS@ s"; return; }
  told=$(cat server client | grep -v '^bytes\\|Terminated' | grep . | tail -n 1)
  echo "${told:-fi_pingpong ended with $code}"
}
if ! [ -x $fabric/fi_pingpong ]; then
  for device in /sys/class/infiniband/*/device/driver; do
    case $(readlink "$device") in */efa) say efa_none "there is no $fabric/fi_pingpong"; break ;; esac
  done
else
  for device in /sys/class/infiniband/*; do
    case $(readlink "$device/device/driver") in */efa) ;; *) continue ;; esac
    name=${device##*/}
    if [ "$(echo "$dead" | wc -w)" -ge @MOST_DEAD@ ]; then say loopback "untried $name"
    elif ping "$name"; then say loopback "ok $name $(tail -n 1 client)"
    else dead="$dead $name"
    fi
  done
  for name in $dead; do
    if ping "$name"; then say loopback "ok $name $(tail -n 1 client)"; else say loopback "failed $name $(why)"; fi
  done
fi
say efa ended
"""
# With a heartbeat (DCGM 4.4 and later), the host engine ends the diagnostic of a client that is gone, however it ended.
_DIAG = """
if ! command -v dcgmi > /dev/null; then say diag_none 'there is no dcgmi'
elif ! told=$(timeout 60 dcgmi discovery -l --host localhost 2>&1); then
  say diag_none "DCGM's host engine does not answer: $(echo "$told" | grep . | tail -n 1)"
else
  beat=
  ! dcgmi diag --help 2>&1 | grep -q -e --enable-heartbeat || beat=--enable-heartbeat
  timeout -k 30 $((@DIAG_SECONDS@ + 60)) \\
    dcgmi diag --host localhost -r @LEVEL@ -t @DIAG_SECONDS@ -j $beat > diag 2> errors
  say diag_code $?
  # In parts: srun takes a line of more than 1024 bytes apart.
  (tr -d '\\n' < diag; echo) | fold -b -w 400 | while IFS= read -r part; do say diag "$part"; done
  say diag_error "$(tail -n 1 errors)"
fi
"""


def script(efa: bool, diag: bool, level: int, minutes: int) -> str:
    """Return the job's script, without the function say KIND TEXT, which Cluster.srun() puts before it."""
    text = _BEGIN + (_EFA if efa else "") + (_DIAG if diag else "")
    values = {"SECONDS": PING_SECONDS, "MOST_DEAD": MOST_DEAD, "LEVEL": level, "DIAG_SECONDS": 60 * minutes}
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def limit(efa: bool, diag: bool, minutes: int) -> int:
    """Return how many minutes the job may take."""
    return minutes + SPARE_MINUTES + (EFA_MINUTES if efa else 0) if diag else SHORT_MINUTES
