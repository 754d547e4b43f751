#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Begin and end a run on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_run
short_description: Begin and end a run on a node
version_added: "0.1.0"
description:
  - At the beginning, takes the node's lock, so that one run at a time works on it, and holds the packages
    that must not change along the way.
  - At the end, writes the report, releases the packages that runs have held, and gives the lock back.
  - A lock whose holder is known to be dead is taken over at once. That is known when the holder was started on the
    node itself, or by the machine from which this run is started. Of other controllers only the age of the
    lock's last sign of life tells, which every module of this collection gives (O(lock_lease)).
  - What is held is recorded first, so that the packages of a killed run are released by the end of the next one. What
    was held before stays held.
  - It never reports a change, since what it does is undone by the end of the run.
options:
  state:
    description: Which end of a run this is.
    type: str
    choices: [begin, end]
    required: true
  lock_timeout:
    description: How many seconds to wait for another run to end.
    type: int
    default: 600
  lock_lease:
    description:
      - After how many seconds without a sign of life another controller's run counts as dead.
      - They are as many times more as that run has turns, in which its nodes take each task, since a node is silent
        while others have theirs.
    type: int
    default: 3600
  hold_packages:
    description: Patterns of package names. Installed packages that match are held until the end of the run.
    type: list
    elements: str
    default: []
  package_manager:
    description: What manages the node's packages. With V(none) nothing is held.
    type: str
    choices: [apt, dnf, none]
    default: none
  report_dir:
    description:
      - A directory on shared storage to which the report is written as well, as C(<cluster>/<node>.json).
        It must be there.
    type: str
    default: ""
  report:
    description:
      - The report. The action plugin works it out. What is written tells in C(versions), too, for which version each
        component has run last, as a run may have some of them alone.
    type: dict
  run:
    description: Who drives this run. The action plugin fills it in.
    type: dict
  wait:
    description: How many seconds one call waits for the lock. The action plugin calls again until O(lock_timeout).
    type: float
    default: 0
  judged_run:
    description: The run of whose driving process the controller knows whether it lives. The action plugin fills it in.
    type: str
    default: ""
  judged_alive:
    description: What the controller knows of O(judged_run).
    type: bool
    default: false
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    support: partial
    details: It takes no lock and holds nothing, and warns when another run holds the lock.
  diff_mode:
    support: none
    details: Nothing is changed for good.
  idempotent:
    details: A run may begin more than once.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Begin
  pcluster.postboot.node_run:
    state: begin
    hold_packages: ["linux-image-*", "lustre-client*"]
    package_manager: apt

- name: End
  pcluster.postboot.node_run:
    state: end
"""

RETURN = r"""
taken:
  description: Whether this run holds the lock.
  type: bool
  returned: O(state=begin)
how:
  description: What the lock was like when it was taken, one of V(free), V(again), V(dead) and V(expired).
  type: str
  returned: when it was taken
holder:
  description: Who holds the lock, or held it before.
  type: dict
  returned: when there is one
held:
  description: Whether another run holds the lock.
  type: bool
  returned: O(state=begin)
busy:
  description: Whether the package manager was busy, so that the call has to be repeated.
  type: bool
  returned: when it was
packages:
  description: The packages that are newly held, or that were released.
  type: list
  elements: str
  returned: always
"""

import json
import os
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _run, _run_holds


def begin(module: AnsibleModule, lock: _run.Lock, me: _run.Holder) -> dict[str, Any]:
    """Take the lock, then hold the packages."""
    params = module.params
    judged = (params["judged_run"], params["judged_alive"])
    if module.check_mode:
        outcome = lock.look(params["lock_lease"], me, *judged)
    else:
        outcome = lock.wait(me, params["lock_lease"], params["wait"], *judged)
    answer: dict[str, Any] = {"taken": outcome.taken, "how": outcome.how, "held": not outcome.taken, "packages": []}
    if outcome.holder is not None:
        answer["holder"] = asdict(outcome.holder)
    if module.check_mode:
        answer["taken"] = False
        answer["msg"] = "check mode: nothing is locked or held"
        if not outcome.taken and outcome.holder:
            module.warn(f"{lock.path} is {outcome.holder.sentence(outcome.age)}: what check mode finds may change")
        return answer
    if not outcome.taken and outcome.holder:
        answer["failed"] = True
        answer["msg"] = (
            f"{outcome.holder.sentence(outcome.age)}; waited {params['lock_timeout']} s (common_lock_timeout): "
            f"let that run end, or remove {lock.path} if it is surely gone"
        )
        return answer
    answer["msg"] = "the node is ours"
    if outcome.how in ("dead", "expired") and outcome.holder:
        gone = "is dead" if outcome.how == "dead" else "gave no sign of life for too long (common_lock_lease)"
        answer["msg"] = f"taken over from a run that {gone}: it was {outcome.holder.sentence(outcome.age)}"
        module.warn(answer["msg"])
    manager = holds(params["package_manager"])
    try:
        answer["packages"] = manager.begin(params["hold_packages"]) if manager else []
    except _run_holds.BusyError as error:
        answer.update(busy=True, msg=str(error))
    except (OSError, _run_holds.HoldError) as error:
        answer.update(failed=True, msg=f"packages cannot be held: {error} (common_hold_packages)")
    return answer


def end(module: AnsibleModule, lock: _run.Lock, me: _run.Holder) -> dict[str, Any]:
    """Write the report, release the packages, give the lock back."""
    params = module.params
    answer: dict[str, Any] = {"packages": []}
    if module.check_mode or not lock.mine(me.run_id):
        answer["msg"] = "this run does not hold the lock: nothing is written or released"
        return answer
    report = params["report"]
    if report:
        report = _run.with_versions(report)
        text = json.dumps(report, indent=1, sort_keys=True) + "\n"
        os.makedirs(_run.STATE_DIR, mode=0o755, exist_ok=True)
        _run.write_atomically(os.path.join(_run.STATE_DIR, _run.REPORT), text, 0o644)
        if params["report_dir"]:
            share(module, params["report_dir"], report, text)
    manager = holds(params["package_manager"])
    if manager:
        try:
            answer["packages"] = manager.end()
        except _run_holds.BusyError as error:
            answer.update(busy=True, msg=str(error))
            return answer
    lock.release(me.run_id)
    answer["msg"] = "the lock is given back"
    return answer


def share(module: AnsibleModule, directory: str, report: dict[str, Any], text: str) -> None:
    """Write the report to shared storage. That it cannot be written is worth a warning, and no failure."""
    if not os.path.isdir(directory):
        module.warn(f"common_report_dir: {directory} is not there, so the report is only in {_run.STATE_DIR}")
        return
    names = [str(report.get(key) or "unknown").replace("/", "_") for key in ("cluster", "node")]
    try:
        os.makedirs(os.path.join(directory, names[0]), mode=0o755, exist_ok=True)
        _run.write_atomically(os.path.join(directory, names[0], names[1] + ".json"), text, 0o644)
    except OSError as error:
        module.warn(f"common_report_dir: the report cannot be written to {directory}: {error}")


def holds(manager: str) -> _run_holds.Holds | None:
    """Return the keeper of holds for a package manager."""
    if manager == "apt":
        return _run_holds.Holds(_run_holds.AptHolds())
    if manager == "dnf":
        return _run_holds.Holds(_run_holds.DnfHolds())
    return None


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["begin", "end"], "required": True},
            "lock_timeout": {"type": "int", "default": 600},
            "lock_lease": {"type": "int", "default": 3600},
            "hold_packages": {"type": "list", "elements": "str", "default": []},
            "package_manager": {"type": "str", "choices": ["apt", "dnf", "none"], "default": "none"},
            "report_dir": {"type": "str", "default": ""},
            "report": {"type": "dict"},
            "run": {"type": "dict"},
            "wait": {"type": "float", "default": 0},
            "judged_run": {"type": "str", "default": ""},
            "judged_alive": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    me = _run.Holder.from_dict(module.params["run"])
    if not me.run_id:
        me = _run.Holder.of_process(os.getppid(), "pull")
    act = begin if module.params["state"] == "begin" else end
    try:
        answer = act(module, _run.Lock(), me)
    except (OSError, _run_holds.HoldError) as error:
        module.fail_json(msg=f"node_run state={module.params['state']}: {error}")
    if answer.pop("failed", False):
        module.fail_json(changed=False, **answer)
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()
