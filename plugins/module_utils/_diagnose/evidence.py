# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is known of a node when its faults are looked for, and what a finding is."""

from __future__ import annotations

import calendar
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import logs
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible

# How grave a finding is: why something does not work, what does not work, and what is worth knowing.
CAUSE, FAULT, NOTE = "cause", "fault", "note"
LEVELS = (CAUSE, FAULT, NOTE)
_STREAM = re.compile(r"^.*\.i-[0-9a-f]+\.")
_OURS = re.compile(r"^pcluster-postboot(?:_.*_|-)")
_LONGEST = 300  # characters of a line of evidence
# Of a month and a day that a calendar has, as a log may hold anything.
_TIME = re.compile(r"\[?((?:19|20)\d\d)-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[T ](\d\d):(\d\d):(\d\d)", re.ASCII)


# The system's log by its file, and by its stream in CloudWatch where that differs: /var/log/messages of Amazon Linux,
# RHEL and Rocky (aws-parallelcluster-cookbook, files/cloudwatch/cloudwatch_agent_config.json).
SYSLOGS = ("syslog", "messages", "system-messages")
Split = Callable[[str], Iterator[str]]


class Finding(NamedTuple):
    kind: str  # findings of one kind on several nodes are one
    level: str
    what: str  # what is wrong, in a few words
    line: str  # one line of evidence
    file: str  # where that line stands in the node's part of the archive
    todo: str  # what to do
    page: str  # the runbook, a page of docs/runbooks


def finding(kind: str, level: str, what: str, line: str, file: str, todo: str, page: str) -> Finding:
    """Return a finding whose texts are one line each, and safe to print."""
    kind, what, line, file, todo = (visible(" ".join(text.split())) for text in (kind, what, line, file, todo))
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"
    return Finding(kind, level, what, line, file, todo, page)


@dataclass(frozen=True)
class Evidence:
    """What was gathered of one node, without its secrets."""

    node: str
    node_type: str
    texts: Mapping[str, str]  # by their names in the archive
    facts: Mapping[str, Any] = field(default_factory=dict)
    rooms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by mount point, as rooms.ask() tells
    units: tuple[str, ...] = ()  # the services of our components
    running: bool | None = None  # whether the run that holds the node's lock lives; None where nobody can say
    now: float = 0.0
    hours: float = 48.0  # older lines of logs are no findings

    def named(self, *stems: str) -> Iterator[tuple[str, str]]:
        """Yield the texts of these names, with their names in the archive, in the order asked for.

        A file is `slurmctld.log` on a node, and the stream `ip-10-0-0-1.i-0123.slurmctld` of CloudWatch; `pull.log` is
        `ip-10-0-0-1.i-0123.pcluster-postboot__var_log_pcluster-postboot_pull.log` there (_cloudwatch/config.py).
        """
        for stem in stems:
            for name in self.texts:
                base = _OURS.sub("", _STREAM.sub("", os.path.basename(name)))
                if base == stem or re.sub(r"\.(log|txt|json|conf)$", "", base) == stem:
                    yield name, self.texts[name]

    def text(self, stem: str) -> tuple[str, str]:
        """Return the first text of this name, and its name in the archive; nothing where there is none."""
        return next(self.named(stem), ("", ""))

    def mapping(self, stem: str) -> tuple[str, dict[str, Any]]:
        """Return a JSON object, and its name in the archive."""
        name, text = self.text(stem)
        try:
            found = document.parse(text) if text else {}
        except ValueError:
            found = {}
        return name, found if isinstance(found, dict) else {}

    def lines(self, *stems: str, split: Split = logs.lines) -> Iterator[tuple[str, str]]:
        """Yield the lines of logs, whatever their age, with the logs' names."""
        for name, text in self.named(*stems):
            for line in split(text):
                yield name, line

    def recent(self, *stems: str, split: Split = logs.lines) -> Iterator[tuple[str, str]]:
        """Yield the lines of logs that are no older than `hours`, with the logs' names.

        A line without a time is as old as the one before it.
        """
        oldest = self.now - self.hours * 3600
        log, fresh = "", True
        for name, line in self.lines(*stems, split=split):
            at = written(line)
            if at is not None:
                fresh = at >= oldest
            elif name != log:
                fresh = True
            log = name
            if fresh:
                yield name, line

    def kernel(self) -> Iterator[tuple[str, str, logs.Line]]:
        """Yield what the kernel says that is no older than `hours`: the log's name, the line, and its message.

        Both have the message's further lines, too. The log that knows most comes last. If the kernel's own log was not
        gathered, syslog is read instead, to which users can write any line.
        """
        for stem in ("console", "kernel") if any(self.named("kernel")) else (*SYSLOGS, "console"):
            for name, line in self.recent(stem, split=logs.whole):
                found = logs.kernel(stem, line)
                if found:
                    yield name, line, found


def last(lines: Iterable[tuple[str, str]], pattern: str) -> tuple[str, re.Match[str] | None]:
    """Return the last line that matches from its beginning, and its log."""
    wanted, found, where = re.compile(pattern), None, ""
    for name, line in lines:
        match = wanted.match(line)
        if match:
            found, where = match, name
    return where, found


def written(line: str) -> float | None:
    """Return the time that a line begins with, as if it were UTC; none where it begins with something else."""
    match = _TIME.match(line)
    return float(calendar.timegm(tuple(int(part) for part in match.groups()))) if match else None


def age(seconds: float) -> str:
    """Return a time that has passed, for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
