# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What jobs need beside GPUs: slurmd and its Pyxis, memory that may be locked, GDRCopy, and the time."""

from __future__ import annotations

import os
import re

from . import children, slow, units
from .look import Look

SLURMD_HOLD = 60.0  # seconds in which a restart of slurmd is none of our business
CHRONYC = "/usr/bin/chronyc"
# GDRCopy's module: what its packages bring, of which none says that the module is loaded.
GDRCOPY = ("/opt/gdrcopy", "/usr/lib/systemd/system/gdrcopy.service", "/etc/init.d/gdrcopy", "/etc/rc.d/init.d/gdrcopy")
_REQUIRED = re.compile(r"^\s*(?:required|optional)\s+(\S*spank_pyxis\.so)", re.MULTILINE)


def slurmd(look: Look) -> None:
    if look.settings["node_type"] != "compute" or not look.settings["slurm"]:
        return
    process = units.main_process(look, "slurmd", "slurmd")
    if process:
        look.memory["slurmd"] = True
        _memlock(look, process)
    elif not look.memory.get("slurmd"):
        look.skip("slurmd", "slurmd has not run since this boot began")
    else:
        units.expect(look, "slurmd", "slurmd", "slurmd_down", "slurmd", SLURMD_HOLD)


def _memlock(look: Look, process: int) -> None:
    """Look at what slurmd itself may lock, which its jobs inherit."""
    wanted = look.settings["memlock"]
    if not wanted or not look.settings["efa"]:
        return
    match = re.search(r"^Max locked memory +(\S+)", look.text(f"/proc/{process}/limits"), re.MULTILINE)
    if not match:
        look.skip("memlock", f"/proc/{process}/limits cannot be read")
    elif match[1].isdigit() and int(match[1]) < wanted * 2**30:
        look.find("memlock_limited", f"/proc/{process}/limits of slurmd: {' '.join(match[0].split())} bytes")


def gdrdrv(look: Look) -> None:
    if not look.settings["gpus"] or not look.settings["efa"]:
        return
    if look.exists("/sys/module/gdrdrv"):
        return
    here = [path for path in GDRCOPY if look.exists(path)]
    here += [f"/usr/src/{name}" for name in look.names("/usr/src") if name.startswith("gdrdrv-")]
    if here:
        look.find("gdrdrv_missing", f"{here[0]} is there, and /sys/module/gdrdrv is not")
    else:
        look.skip("gdrdrv", "GDRCopy is not installed")


def clock(look: Look) -> None:
    """Ask chrony, which ParallelCluster has set up on every node."""
    if not os.access(CHRONYC, os.X_OK):
        look.skip("clock", f"{CHRONYC} is not there")
        return
    # By its port, because the socket's folder is another user's. The fields are those of chrony's client.c: the name
    # or address of the server, the clock's difference in seconds, and at the end whether there is a server.
    said = slow.program(look, "clock", [CHRONYC, "-c", "-n", "-h", "127.0.0.1", "tracking"])
    if said is None:
        return
    fields = said.out.strip().split(",")
    if said.code or len(fields) < 14:
        look.skip("clock", f"chronyc: {(said.out + said.error).strip() or said.code}")
        return
    skew, leap = float(fields[4]), fields[13]
    if leap == "Not synchronised":
        look.find("clock_skew", f"chronyc tracking: {leap}")
    elif abs(skew) > look.settings["clock_skew"]:
        look.find("clock_skew", f"chronyc tracking: {skew:g} s from {fields[1]}")


def pyxis(look: Look) -> None:
    """Read Slurm's plugstack, which is on a file system that may hang."""
    folder = f"{look.settings['slurm']}/etc/plugstack.conf.d"
    if look.settings["node_type"] != "compute" or not look.settings["slurm"]:
        return

    def missing(folder: str) -> str:
        plugins = [path for name in look.names(folder) for path in _REQUIRED.findall(look.text(f"{folder}/{name}"))]
        gone = [path for path in plugins if not look.exists(path)]
        return f"missing {gone[0]}" if gone else "there" if plugins else "none"

    answers, hangs = children.ask(look, [folder], missing)
    said = answers.get(folder, "")
    if said.startswith("missing "):
        look.find("pyxis_missing", f"{folder} names {said[8:]}, which is not there")
    elif said != "there":
        look.skip("pyxis", hangs.get(folder) or f"{folder} names no Pyxis")
