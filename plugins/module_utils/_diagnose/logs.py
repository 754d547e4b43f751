# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How programs begin the lines of their logs, and which of these lines users cannot write.

Users choose parts of many lines: partitions, job names, names of files, all of a line in syslog. Only the text that
follows a program's own prefix is that program's, so a pattern begins with one of these prefixes and is matched from the
beginning of the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# SchedMD/slurm, src/common/log.c, _log_msg(): "[%M] ", whose time has one of six forms (LogTimeFormat), then the level.
# slurmstepd has its step between these two, and is no daemon.
SLURM = r"\[[^\]\n]{1,80}\] "
# slurm_plugin of aws-parallelcluster-node 3.16.1, logging/*.conf; the resume program has its process, too.
MANAGER = r"\d{4}-\d\d-\d\d [\d:,]{8,12} - (?:\d{1,10} - )?\[slurm_plugin\.[\w.]{1,80}:\w{1,80}\] - "
# linux, kernel/printk/printk.c, print_time() and print_caller(); systemd writes the same time to the console.
STAMP = r"\[ {0,11}\d{1,11}\.\d{1,6}\](?:\[ {0,11}[TC]\d{1,11}\])? "
# What prints a boot's standard output: cloud-init on the console, and cfn-init the first line of a command's.
BOOT = (
    rf"(?:{STAMP}cloud-init\[\d{{1,10}}\]: "
    r"|\d{4}-\d\d-\d\d [\d:,]{8,12} \[[A-Z]{1,10}\] Command \S{1,80} output: )?"
)
# journalctl -o short-iso, where further lines of one message are indented; imuxsock of rsyslog, with either time.
_JOURNAL = re.compile(rf"\S{{1,40}} \S{{1,255}} kernel: (?:{STAMP})?")
_SYSLOG = re.compile(rf"(?:\w{{3}} [ \d]\d )?\S{{1,40}} \S{{1,255}} kernel: (?:{STAMP})?")
_CONSOLE = re.compile(STAMP)
# The further lines of a message about a GPU that has fallen off the bus (gpu_messages.py), which begin no message.
# imklog of rsyslog has each as a message of its own.
_FURTHER = re.compile(rf"{_SYSLOG.pattern}(NVRM: (?:\(PCI ID: |fallen off the bus).*)")


class Line(NamedTuple):
    """A message of the kernel."""

    message: str  # what follows the prefix
    sure: bool  # whether no user can have written it


def lines(text: str) -> Iterator[str]:
    """Yield the lines of a log that begin a message.

    Only a line feed ends a line, as users write what else str.splitlines() takes for an end. On a console, the kernel
    repeats the time before each further line of one message, in which it names files as users called them.
    """
    before = ""
    for line in text.split("\n"):
        match = _CONSOLE.match(line)
        stamp = match[0] if match else ""
        if not stamp or stamp != before:
            yield line.rstrip("\r")
        before = stamp


def whole(text: str) -> Iterator[str]:
    """Yield the messages of a log of the kernel, each with its further lines after a line feed.

    On a console these have the time of the first line, and in a journal they are indented.
    """
    parts: list[str] = []
    before = ""
    for line in text.split("\n"):
        line = line.rstrip("\r")
        match = _CONSOLE.match(line)
        stamp = match[0] if match else ""
        further = _FURTHER.match(line)
        if parts and (line.startswith(" ") or further or (stamp and stamp == before)):
            parts.append(further[1] if further else line[len(stamp) :].lstrip())
        else:
            if parts:
                yield "\n".join(parts)
            parts = [line]
        before = stamp
    yield "\n".join(parts)


def last(text: str) -> str:
    """Return the last line of a text."""
    return text.rstrip().rpartition("\n")[2]


def kernel(stem: str, line: str) -> Line | None:
    """Return the kernel's message of a line, by the log that has it; nothing if the line is another program's.

    Further lines of the message may follow (whole()).

    In syslog, a user's `logger -t kernel` looks like the kernel. The journal distinguishes the two.
    """
    sure = stem in ("kernel", "console")
    match = (_JOURNAL if stem == "kernel" else _CONSOLE if stem == "console" else _SYSLOG).match(line)
    return Line(line[match.end() :], sure) if match else None
