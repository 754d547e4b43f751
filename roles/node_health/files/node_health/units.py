# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Services of systemd, and programs that may hang. systemctl is asked only where the cgroups show no process."""

from __future__ import annotations

from typing import NamedTuple

from .look import Hangs, Look

SYSTEMCTL = "/usr/bin/systemctl"
CGROUPS = ("/sys/fs/cgroup/system.slice", "/sys/fs/cgroup/systemd/system.slice")  # version 2, and 1


class Said(NamedTuple):
    code: int
    out: str
    error: str


def run(line: list[str], patience: float) -> Said:
    """Run a program to its end. OSError says that there is none, Hangs that it did not end in time."""
    import subprocess  # 6 ms that most looks do without

    # libfabric would look for CUDA, and so begin with the GPUs (FI_HMEM of its src/hmem.c).
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "FI_HMEM": "system"}
    process = subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        out, error = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired as expired:
        process.kill()
        why = f"'{' '.join(line)}' did not end within {patience:g} s"
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            raise Hangs(why, process.pid) from expired
        raise Hangs(why) from expired
    return Said(process.returncode, out, error)


def main_process(look: Look, unit: str, program: str = "") -> int:
    """Return a process of a service, by the cgroups: the first, or the first with the program's name; else 0."""
    for top in CGROUPS:
        for word in look.text(f"{top}/{unit}.service/cgroup.procs").split():
            if not program or look.text(f"/proc/{word}/comm").strip() == program:
                return int(word)
    return 0


def state(look: Look, unit: str) -> tuple[str, str]:
    """Ask systemd for a service's LoadState and ActiveState."""
    said = run([SYSTEMCTL, "show", "--property=LoadState,ActiveState", f"{unit}.service"], look.patience)
    found = dict(line.partition("=")[::2] for line in said.out.splitlines())
    if said.code or "ActiveState" not in found:
        raise OSError(0, f"systemctl show {unit}: {said.error.strip() or said.code}")
    return found.get("LoadState", ""), found["ActiveState"]


def expect(look: Look, unit: str, check: str, finding: str, program: str = "", hold: float = 0) -> bool:
    """Note a service that does not run. Whether one runs that starts or stops just now is not judged."""
    if main_process(look, unit, program):
        return True
    try:
        loaded, active = state(look, unit)
    except (OSError, Hangs) as error:
        look.skip(check, str(error))
        return False
    if loaded != "loaded":
        look.skip(check, f"{unit}.service is not installed")
    elif active in ("inactive", "failed"):
        look.find(finding, f"{unit}.service is {active}", hold=hold)
    return active == "active"
