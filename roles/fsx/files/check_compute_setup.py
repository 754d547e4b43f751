# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Shows what the last run of site has made of this node, and whether that works now. Any user may ask.

    check-compute-setup.sh

Ends with 0 where all is well, with 1 where something is not, and with 3 where a run is at work or none has ended yet.
The collection's own modules are not there where a user runs this, so it is one file, for Python 3.9.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = os.environ.get("PCLUSTER_POSTBOOT_ROOT", "")  # for tests that have no node to look at
STATE, RUN = f"{ROOT}/var/lib/pcluster-postboot", f"{ROOT}/run/pcluster-postboot"
PCI = f"{ROOT}/sys/bus/pci/devices"
NVIDIA, AMAZON = "0x10de", "0x1d0f"
FI_INFO, OK, FAILED = f"{ROOT}/opt/amazon/efa/bin/fi_info", "ok", "FAILED"
# What a report says of a component, and what stands here for that.
STATES = {"changed": OK, "unchanged": OK, "failed": FAILED, "deferred": "later", "skipped": "-"}
LIBRARY = """
import ctypes
found = ctypes.c_int()
ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(found))
path = next(line.split()[-1] for line in open("/proc/self/maps") if "/libnccl.so" in line)
print("%d.%d.%d, %s" % (found.value // 10000, found.value // 100 % 100, found.value % 100, path))
"""


class Line(NamedTuple):
    """One thing, how it is, and in which words."""

    what: str
    state: str
    words: str = ""


# A copy of visible() of module_utils/_host/text.py, which is not there where this runs; a unit test compares both.
def visible(line: str) -> str:
    """Return one line with each character that a terminal or browser obeys written out, as in \\x1b[2J or \\u202e.

    These are control characters (C0, DEL and C1, so line breaks too), separators of lines and paragraphs, overrides of
    the writing direction and other characters of no width.
    """
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def load(path: str) -> dict[str, Any]:
    """Return a file's JSON object; an empty one where there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def inner(found: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object that an object has by a key; an empty one where there is none."""
    value = found.get(key)
    return value if isinstance(value, dict) else {}


def ask(*line: str) -> tuple[int, str]:
    """Return how a program ended and its output; 127 where it is missing, 124 where it says nothing for 20 s."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/opt/slurm/bin"
    # A user's settings of sinfo, such as SINFO_PARTITION, would hide a node.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SINFO_", "SLURM_CLUSTERS"))}
    try:
        done = subprocess.run(
            line,
            env={**own, "PATH": path, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        )
    except FileNotFoundError:
        return 127, f"{line[0]} is not there"
    except (OSError, subprocess.TimeoutExpired) as error:
        return 124, str(error)
    return done.returncode, done.stdout.strip()


def last(text: str) -> str:
    return text.splitlines()[-1] if text else "no word"


# --- the last run ----------------------------------------------------------------------------------------------------


def components(report: Mapping[str, Any]) -> Iterator[Line]:
    """Yield each component that this node is to have: of the last run, and before that of earlier runs."""
    listed = report.get("components")
    entries = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    told = {str(one.get("name")): one for one in entries}
    versions = inner(report, "versions")
    for name in versions:
        if name not in told:  # the last run had some components alone
            one = inner(versions, name)
            words = one.get("summary") or one.get("version") or ""
            yield Line(name, OK, f"{words} (run of {one.get('finished')})")
    for name, one in told.items():
        state = STATES.get(str(one.get("status")), str(one.get("status")))
        if state != "-":
            yield Line(name, state, str(one.get("why") or one.get("summary") or one.get("version") or ""))


def shown(path: str, lock: Mapping[str, Any]) -> bool:
    """Say whether the run that holds a lock has shown itself within an hour, or has announced that it may be silent."""
    first, last = lock.get("seen"), load(f"{path}.seen")
    if not isinstance(first, dict):  # of an earlier version
        return time.time() - os.stat(path).st_mtime < 3600
    boot, now = boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME)
    signs = [sign for sign in (first, last) if sign.get("boot") == boot and number(sign.get("at")) <= now]
    sign = max(signs, key=lambda sign: number(sign["at"]), default=None)
    return sign is not None and now - number(sign["at"]) < number(sign.get("silence")) + 3600


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()


def number(value: Any) -> float:
    """Return a number of a file; 0 for anything else."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def run_at_work() -> str:
    """Return which run is at work on this node, in words; nothing where none is."""
    path = f"{RUN}/lock"
    lock, progress = load(path), load(f"{RUN}/progress.json")
    if not lock:
        return ""
    if str(lock.get("machine")).startswith(f"{os.uname().nodename} "):
        pid = lock.get("pid")
        alive = isinstance(pid, int) and os.path.isdir(f"/proc/{pid}")
    else:  # a run from another machine shows itself by its signs of life (module_utils/_host/lock.py)
        alive = shown(path, lock)
    at = progress.get("component")
    return f"a run is at work{f', at {at}' if at else ''}" if alive else ""


# --- now -------------------------------------------------------------------------------------------------------------


def shared(folder: str, head: bool) -> Line:
    code, said = ask("findmnt", "--noheadings", "--output=FSTYPE,SIZE,AVAIL,TARGET", f"--target={folder}")
    kind, size, free, target = [*last(said).split(), "", "", "", ""][:4]
    if code or (target == "/" and not head):
        return Line(folder, FAILED, "no file system is mounted there: sudo mount -a")
    return Line(folder, OK, f"{kind} at {target}, {free} of {size} are free")


def pci(vendor: str, key: str, *begins: str) -> int:
    """Count devices of a vendor whose class, or number, begins so."""

    def line(path: Path) -> str:
        return path.read_text().strip() if path.exists() else ""

    folders = list(Path(PCI).iterdir()) if os.path.isdir(PCI) else []
    return sum(line(one / "vendor") == vendor and line(one / key).startswith(begins) for one in folders)


def gpus() -> Line | None:
    there = pci(NVIDIA, "class", "0x0300", "0x0302")
    if not there:
        return None
    code, said = ask("nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader")
    seen = [one for one in said.splitlines() if "," in one] if code == 0 else []
    words = f"{len(seen)} of {there}{', driver ' + ', '.join(sorted(set(seen))) if seen else ': ' + last(said)}"
    if len(seen) < there and os.environ.get("SLURM_JOB_ID") and (seen or "No devices" in said):
        return Line("GPUs", "unknown", f"{words}; this job may have no more: srun --exclusive --gpus-per-node={there}")
    return Line("GPUs", OK if len(seen) == there else FAILED, words)


def efa() -> Line | None:
    there = pci(AMAZON, "device", "0xefa")
    if not there:
        return None
    _code, said = ask(FI_INFO, "-p", "efa", "-t", "FI_EP_RDM")
    seen = {one.split(":", 1)[1] for one in said.splitlines() if one.strip().startswith("domain:")}
    words = f"{len(seen)} of {there} devices answer to libfabric"
    return Line("EFA", OK if len(seen) == there else FAILED, words if seen else f"{words}: {last(said)}")


def nccl() -> Line:
    """Load NCCL as a program without any settings would."""
    code, said = ask("env", "-u", "LD_LIBRARY_PATH", sys.executable, "-I", "-c", LIBRARY)
    return Line("NCCL", OK if code == 0 else FAILED, last(said))


def containers() -> Line:
    code, said = ask("enroot", "version")
    plugin = ask("srun", "--help")[1]
    missing = [] if code == 0 else [f"enroot: {last(said)}"]
    missing += [] if "--container-image" in plugin else ["Pyxis: srun has no --container-image"]
    return Line("containers", FAILED if missing else OK, "; ".join(missing) or f"Enroot {last(said)}, Pyxis")


def services(units: list[str]) -> Line | None:
    """Say of the services that site has enabled here which do not run; some are run by a timer."""
    names = [name for unit in units for name in (unit, f"{unit}.timer")]
    there = [name for name in names if ask("systemctl", "is-enabled", name)[1] == "enabled"]
    down = [name for name in there if ask("systemctl", "is-active", name)[0] != 0]
    if down:
        return Line("services", FAILED, f"{', '.join(down)} does not run: systemctl status {' '.join(down)}")
    return Line("services", OK, ", ".join(there)) if there else None


def slurm(node: str) -> Line | None:
    # A compute node's host name may be EC2's (UseEc2Hostnames), which Slurm does not know.
    name = os.environ.get("SLURMD_NODENAME") or node or os.uname().nodename.split(".")[0]
    code, said = ask("sinfo", "--noheader", "--Node", f"--nodes={name}", "--format=%T %E")
    if code or not said:  # a head or login node is none of Slurm's
        return None
    state, why = said.splitlines()[0].partition(" ")[::2]
    bad = state.rstrip("*~#!%$@^-") in ("down", "drained", "draining", "fail", "failing", "error", "unknown")
    return Line("Slurm", FAILED if bad else OK, state if why == "none" else f"{state}: {why}")


def now(report: Mapping[str, Any], folder: str, units: list[str]) -> Iterator[Line]:
    """Yield what is to be seen now of what the last run says that there is."""
    done = {one.what for one in components(report) if one.state == OK}
    asked = (
        shared(folder, report.get("node_type") == "head") if "fsx" in done else None,
        gpus(),
        efa() if "efa" in done else None,
        nccl() if "nccl" in done else None,
        containers() if {"enroot", "pyxis"} <= done else None,
        services(units),
        slurm(str(report.get("node") or "")),
    )
    yield from (one for one in asked if one)


def show(lines: list[Line]) -> None:
    for line in lines:
        print(visible(f"  {line.what:<26}{line.state:<9}{' '.join(line.words.split())}".rstrip()))


def main(folder: str, *units: str) -> int:
    """Print all of it; return the exit code."""
    report, working = load(f"{STATE}/report.json"), run_at_work()
    kind = f": {report['kind']}" if report.get("kind") else ""
    print(visible(f"{report.get('node') or os.uname().nodename}{kind}"))
    if not report:
        why = f": {working}" if working else ""
        print(visible(f"site has not ended on this node yet{why}; see {STATE}/report.json"))
        return 3
    before, lines = list(components(report)), list(now(report, folder, list(units)))
    print(visible(f"the last run ended at {report.get('finished')}: {report.get('outcome')}"))
    show(before)
    stopped = inner(report, "stopped")
    if stopped:
        print(visible(f"  stopped: {stopped.get('component')} {' '.join(str(stopped.get('message')).split())}"))
    print("now")
    show(lines)
    bad = [line.what for line in (*before, *lines) if line.state == FAILED]
    later = [line.what for line in before if line.state == "later"]
    if bad or stopped:
        print(visible(f"not well: {', '.join(bad) or stopped.get('component')}"))
        return 1
    if working or later or report.get("outcome") == "unfinished":
        why = f": {working}" if working else ""
        print(visible(f"not done yet{why}{'; later: ' + ', '.join(later) if later else ''}"))
        return 3
    print("all is well")
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a report may have names of files
    sys.exit(main(*sys.argv[1:]))
