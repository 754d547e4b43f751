# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Slurm's nodes as scontrol shows them."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

# slurm_plugin/slurm_resources.py of aws-parallelcluster-node 3.16.1, parse_nodename
NAME = re.compile(r"([a-z0-9-]{1,64})-(st|dy)-([a-z0-9-]{1,64})-\d+")
# States in which a node takes no jobs, or in which somebody works on that node already.
OUT = frozenset(("DOWN", "DRAIN", "FAIL", "FUTURE", "UNKNOWN", "INVALID_REG", "MAINTENANCE", "REBOOT_REQUESTED",
                 "REBOOT_ISSUED", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWERING_UP"))  # fmt: skip

# A node that is powered down, or soon will be, has no slurmd. state=undrain has Slurm wait for that slurmd, and no job
# starts there after the next `scontrol reconfigure` (aws-parallelcluster#7577).
OFF = frozenset(("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"))


class Node(NamedTuple):
    """A node as Slurm has it."""

    name: str
    states: frozenset[str]
    address: str = ""
    instance: str = ""
    booted: float = 0.0
    reason: str = ""

    @property
    def up(self) -> bool:
        return not self.states & OUT

    @property
    def off(self) -> bool:
        return bool(self.states & OFF)

    @property
    def queue(self) -> str:
        match = NAME.fullmatch(self.name)
        return match[1] if match else ""


class NoAnswer(Exception):
    """Slurm's controller has refused, or does not answer."""


def when(text: str) -> float:
    """Return the seconds since the epoch of a time as Slurm prints times, which is this machine's own."""
    numbers = [int(number) for number in re.findall(r"\d{1,9}", text)]
    try:
        return time.mktime((*numbers, 0, 0, -1)) if len(numbers) == 6 else 0.0  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return 0.0


def parse_nodes(text: str) -> dict[str, Node]:
    """Read what `scontrol --oneliner show nodes` prints. A reason is free text, and so is told apart first."""
    found = {}
    for line in text.splitlines():
        head, _mark, tail = line.partition(" Reason=")
        match = re.match(r"(.*) \[[^\s@\[\]]+@[^\s\[\]]+\](.*)", tail)
        reason, rest = (match[1], match[2]) if match else ("", tail)
        fields: dict[str, str] = {}
        for key, value in re.findall(r"(?:^|\s)(\w+)=(\S*)", head + rest):
            fields.setdefault(key, value)
        if "NodeName" in fields and "State" in fields:
            found[fields["NodeName"]] = Node(
                name=fields["NodeName"],
                states=frozenset(re.findall(r"[A-Z_]+", fields["State"])),
                address=fields.get("NodeAddr", ""),
                instance=fields.get("InstanceId", ""),
                booted=when(fields.get("BootTime", "")),
                reason=reason,
            )
    return found


def scontrol(program: str, *words: str) -> str:
    import subprocess  # only where Slurm is asked: most runs have no need of that

    try:
        done = subprocess.run(
            [program, *words], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(str(error)) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise NoAnswer(f"'{program} {' '.join(words)}' ended with {done.returncode}: {said[:300]}")
    return done.stdout
