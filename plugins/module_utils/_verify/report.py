# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report of verify: its checks, their verdict, and the file that has all of it."""

from __future__ import annotations

import json
import os
import textwrap
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files, lock

# How many things that were not measured the verdict names.
_MOST_TOLD = 6
# How wide the table is, as far as its first columns allow it.
_WIDTH = 200


class Check(NamedTuple):
    """What became of one check."""

    name: str
    subject: str  # the partition, or "cluster"
    status: str  # ok, failed, skipped, or unknown: measured, and nobody can say whether that is well
    message: str
    details: dict[str, Any] = {}
    missed: bool = True  # of one that was skipped: whether something is not known because of it


def report(
    checks: Sequence[tuple[str, Check]], begun: float, unfinished: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """Return what programs read, and what the page is made of; `unfinished` are the stages that have not ended yet.

    Times are ISO 8601, sizes bytes, bandwidths GB/s::

        ok           whether something was checked and nothing failed
        verdict      one sentence
        cluster, region, user, stages (names), started, finished ("" for as long as the run lasts)
        checks       a list of Check as a dictionary, with its stage
        runs         a list of
          stage, partition, instance_type, nodes (names), ranks, collective, log (its path)
          container  whether it ran inside one
          rows       as nccl_results.plain(Result.rows): {size, out_of_place: {time_us, algbw, busbw, wrong}, in_place}
          expectation   as nccl_expected.for_report(): {points: [{size, busbw, source, meaning, and_up}],
                        limit: {busbw, meaning, source} or null, tolerance}; or null
          judgement  {status, message}; status is ok, short, suspicious or unknown
          provider, nics, environment (a dictionary), versions (a dictionary)
        pairs        a list of {partition, collective, size, nodes (names), busbw, expected, status, message}, the runs
                     that looked for a slow node; status as of a run, or failed
        findings     what the stage health has found: a list of {node, finding, class (replace, reboot, reset, watch),
                     subject ("GPU 3"; "" for the node), evidence (one line), source (what tells that class), deep};
                     deep is false of what the node's own checks had found before
    """
    said = f"not finished: {', '.join(unfinished)}. " if unfinished else ""
    return {
        **more,
        "started": lock.utc(begun),
        "finished": "" if unfinished else lock.utc(time.time()),
        "ok": not unfinished and not complaints(checks),
        "verdict": said + verdict(checks),
        "checks": [{"stage": stage, **check._asdict()} for stage, check in checks],
    }


def table(checks: Sequence[tuple[str, Check]]) -> list[str]:
    """Return the table for people; a long message is wrapped."""
    rows = [("STAGE", "WHERE", "CHECK", "RESULT", "")]
    rows += [(stage, check.subject, check.name, check.status, check.message) for stage, check in checks]
    widths = [max(len(row[index]) for row in rows) for index in range(4)]
    lines = []
    for row in rows:
        before = "".join(cell.ljust(width + 2) for cell, width in zip(row, widths))
        message = textwrap.wrap(row[4], max(80, _WIDTH - len(before)), break_long_words=False, break_on_hyphens=False)
        lines += [
            (text + part).rstrip() for text, part in zip([before] + [" " * len(before)] * len(message), message or [""])
        ]
    return lines


def _counts(check: Check) -> bool:
    """Say whether a check has looked at a node of a partition."""
    return check.status != "skipped" and check.subject != "cluster"


def _not_measured(checks: Sequence[tuple[str, Check]]) -> list[str]:
    """Return what was skipped, once for all stages with the same reason."""
    stages: dict[tuple[str, str], list[str]] = {}
    for stage, check in checks:
        if check.status == "skipped" and check.missed:
            stages.setdefault((check.subject, check.message), []).append(stage)
    return [f"{', '.join(dict.fromkeys(some))} on {subject}: {message}" for (subject, message), some in stages.items()]


def complaints(checks: Sequence[tuple[str, Check]]) -> list[str]:
    """Return one line for each failed check, and for each stage that could look at no node."""
    said = [f"{c.subject}: {c.name} ({stage}): {c.message}" for stage, c in checks if c.status == "failed"]
    for stage in dict.fromkeys(stage for stage, _check in checks):
        own = [one for one in checks if one[0] == stage]
        if not any(check.status == "failed" or _counts(check) for _stage, check in own):
            said += [f"nothing was measured: {why}" for why in _not_measured(own)]
    if said or any(_counts(check) for _stage, check in checks):
        return said
    skipped = [f"{stage}: {check.message}" for stage, check in checks if check.status == "skipped"]
    return [f"nothing was measured: {'; '.join(skipped) or 'there is no partition'}"]


def verdict(checks: Sequence[tuple[str, Check]]) -> str:
    """Return the result in one sentence, beginning with what was not measured."""
    count = {status: sum(check.status == status for _stage, check in checks) for status in ("ok", "failed", "unknown")}
    said = f"{count['failed']} of {len(checks)} checks failed" if count["failed"] else f"{count['ok']} checks passed"
    said += f", and {count['unknown']} could not be judged" if count["unknown"] else ""
    missed = _not_measured(checks)
    more = f"; and {len(missed) - _MOST_TOLD} more" if len(missed) > _MOST_TOLD else ""
    return f"not measured: {'; '.join(missed[:_MOST_TOLD])}{more}. {said}" if missed else said


def write(path: str, result: dict[str, Any]) -> None:
    """Put the report in place."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    files.write(path, json.dumps(result, indent=1, sort_keys=True) + "\n")
