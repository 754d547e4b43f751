# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report of the last run of a node: `/var/lib/pcluster-postboot/report.json`, one JSON object.

Times are strings such as 2026-01-31T12:00:00Z, in UTC. What is not known is an empty string.

key         type    what it tells, and who sets it where that is not `summarise` of `plugin_utils/_site/report.py`
----------  ------  ---------------------------------------------------------------------------------------------
run_id      string  the run, as the lock names its holder
host        string  the name in the inventory
cluster     string  the name of the cluster
node        string  the name of the node in Slurm, else its host name
node_type   string  head, login, compute or monitoring
kind        string  in words: the type, its GPUs, its EFA devices, such as "compute, 8 GPU, no EFA"
started     time    when the run began on this node
finished    time    when it ended; `roles/pull` sets it for a run that it has stopped
seconds     number  between these two, to a tenth; likewise
phase       string  boot, later or all (`common_phase`)
check_mode  bool    whether nothing was changed; a report of check mode stays on the controller
outcome     string  ok; failed: a component that is not essential; stopped: the node. `roles/pull` sets unfinished
                    where the time was up. On the controller alone: unreachable, and not sent, which fleet sets
stopped     object  null, or {component, message}: what ended the run. The component is empty where that was none,
                    and then each line of the message is one thing to correct
changed     number  how many tasks have changed something: the sum of all components
components  list    an object for each component of the run, in the order of the run, as below
advisories  list    a line for each flaw of what the node has and the collection leaves (docs/advisories.md)
versions    object  by component: {version, summary, finished} of the run that has done it last here. `save` sets it
ended_badly string  on the controller alone: why the end of the run failed (lock, holds), which `site` and fleet set

of a component:
name        string  its name, which is that of its role
status      string  changed, unchanged, failed, skipped (not wanted, or the run had ended), or deferred (a later
                    run does it). `roles/pull` sets deferred for what a stopped run has not done
changed     number  how many of its tasks have changed something
changes     list    the names of these tasks' results; absent where its turn has not come, as the next ones
seconds     number  how long it took, to a tenth
why         string  why it was skipped or deferred, or has failed; else empty
task        string  the task that has failed; there for failed alone
essential   bool    whether a failure ends the run on the node
version     string  the version that the variables ask for; there where it has run
summary     string  what the node has ended up with, in its own words; there where a result told one

Who reads it: `verify` (`_verify/nodes.py`), `roles/pull/files`, `playbooks/files/fleet.sh`, which sends it packed to
`_fleet/rollout.py`, and CloudWatch's agent, which ships it. With `common_report_dir`, `node_run` writes a copy there.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files, lock

# What readers may rely on, as a node's file may have been damaged, or written by another version.
SHAPE: dict[str, Any] = {
    **dict.fromkeys(("run_id", "host", "cluster", "node", "node_type", "kind", "started", "finished"), str),
    **dict.fromkeys(("phase", "outcome", "ended_badly"), str),
    "check_mode": bool,
    "advisories": [str],
    "seconds": float,
    "changed": float,
    "stopped": {"component": str, "message": str},
    "components": [
        {
            **dict.fromkeys(("name", "status", "why", "task", "version", "summary"), str),
            "changed": float,
            "changes": [str],
            "seconds": float,
            "essential": bool,
        }
    ],
    "versions": {document.ANY: dict.fromkeys(("version", "summary", "finished"), str)},
}


def path() -> str:
    """Return where the report of this node is."""
    return os.path.join(lock.STATE_DIR, "report.json")


def save(report: dict[str, Any]) -> str:
    """Write the report of this node, with the versions; return its text."""
    text = json.dumps({**report, "versions": _versions(report)}, indent=1, sort_keys=True) + "\n"
    os.makedirs(lock.STATE_DIR, mode=0o755, exist_ok=True)
    files.write(path(), text)
    return text


def _versions(report: dict[str, Any]) -> dict[str, Any]:
    """Return for which version each component has run here last.

    A run may have some components alone, so what the report of the run before says goes on to hold for the others.
    """
    try:
        before = document.read(path()).get("versions")
    except (OSError, ValueError, AttributeError):
        before = None
    versions = dict(before) if isinstance(before, dict) else {}
    for entry in report.get("components") or []:
        name, status = entry.get("name"), entry.get("status")
        if status in ("changed", "unchanged"):
            told = {key: entry.get(key) or "" for key in ("version", "summary")}
            versions[name] = {**told, "finished": report.get("finished") or ""}
        elif status == "skipped" and not report.get("stopped"):
            versions.pop(name, None)  # this node is not to have it any more
    return versions
