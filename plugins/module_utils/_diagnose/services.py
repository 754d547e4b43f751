# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Finds units of systemd that should run and do not."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import logs
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    CAUSE,
    FAULT,
    NOTE,
    Evidence,
    Finding,
    finding,
)

UNITS = "commands/units.txt"
# Without these no job runs on the node.
_NEEDED = ("slurmctld.service", "slurmd.service", "munge.service", "supervisord.service")
# Runs once a boot and ends, though it is no oneshot.
_ENDS = "pcluster-postboot.service"


def states(text: str) -> Iterator[dict[str, str]]:
    """Yield the properties of each unit, as `systemctl show` prints them."""
    for block in text.split("\n\n"):
        unit = dict(line.split("=", 1) for line in logs.lines(block) if "=" in line)
        if unit.get("Id"):
            yield unit


def dead(evidence: Evidence) -> Iterator[Finding]:
    """Find services that have failed, or are enabled and do not run."""
    name, text = evidence.text("units")
    for unit in states(text):
        failed = unit.get("ActiveState") == "failed"
        # What is done once, what another unit starts when it is asked for, and what a condition keeps from running.
        once = unit.get("Type") == "oneshot" or unit["Id"] == _ENDS
        idle = once or unit.get("TriggeredBy") or unit.get("ConditionResult") == "no"
        stopped = unit.get("ActiveState") == "inactive" and unit.get("UnitFileState") == "enabled" and not idle
        if unit.get("LoadState") != "loaded" or not (failed or stopped):
            continue
        service = unit["Id"]
        said = f"{service}: {unit['ActiveState']} ({unit.get('SubState')}), result {unit.get('Result')}, "
        said += f"{unit.get('UnitFileState')}, since {unit.get('StateChangeTimestamp') or 'its boot'}"
        journal, lines = evidence.text(f"journal-{service}")
        words = [line for line in logs.lines(lines) if line.strip() and not line.startswith("--")]
        if failed and words:
            said += f"; {words[-1]}"
        ours = service.partition(".")[0] in evidence.units
        level = CAUSE if service in _NEEDED else FAULT
        what = f"{service} {'has failed' if failed else 'is enabled and does not run'}"
        todo = f"systemctl start {service}, and journalctl -u {service} where that fails"
        todo += "; its metrics are missing meanwhile" if ours else ""
        yield finding(f"unit-{service}", level, what, said, journal if failed and words else name, todo, "logs")


def others(evidence: Evidence) -> Iterator[Finding]:
    """Tell of units that have failed and are none of ours."""
    name, text = evidence.text("failed-units")
    known = {unit["Id"] for _name, shown in [evidence.text("units")] for unit in states(shown)}
    for line in logs.lines(text):
        unit = line.split()[0] if line.split() else ""
        if "." in unit and unit not in known and " failed " in f" {line} ":
            todo = f"journalctl -u {unit} on the node"
            yield finding(f"unit-{unit}", NOTE, f"{unit} has failed", line, name, todo, "logs")


def facts(evidence: Evidence) -> Iterator[Finding]:
    """Pass on what node_facts complains of."""
    for problem in evidence.facts.get("problems") or []:
        if "did not answer within" not in problem and "EFA device" not in problem:
            yield finding(f"facts-{problem[:60]}", NOTE, problem, problem, "facts.json", "see the line", "logs")


FINDERS = (dead, others, facts)
