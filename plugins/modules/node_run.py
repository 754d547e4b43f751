#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Begin and end a run on a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_run
short_description: Begin and end a run on a node
description:
  - At the beginning, takes the node's lock, so that one run at a time works on the node, and holds packages that must
    not change. At the end, writes the report, releases the packages that runs have held, and gives back the lock.
  - A dead holder's lock is taken over at once if the holder was started on the node itself or by this controller. For
    other controllers O(lock_lease) decides.
  - Held packages are recorded first, so that the end of the next run releases those of a killed one.
options:
  state:
    description: Which end of a run this is.
    type: str
    choices: [begin, end]
    required: true
  lock_timeout:
    description: Seconds to wait for another run to end.
    type: int
    default: 600
  lock_lease:
    description: Seconds without a sign of life after which another controller's run counts as dead. The silence that
      the run has announced comes on top.
    type: int
    default: 3600
  hold_packages:
    description: Patterns of the names of installed packages to hold until the end of the run.
    type: list
    elements: str
    default: []
  package_manager:
    description: Package manager of the node. With V(none) nothing is held.
    type: str
    choices: [apt, dnf, none]
    default: none
  report_dir:
    description: Directory on shared storage to which the report is also written, as C(<cluster>/<node>.json). It must
      exist.
    type: str
    default: ""
  report:
    description: The report, from the action plugin.
    type: dict
  run:
    description: The driver of this run, from the action plugin.
    type: dict
  wait:
    description: Seconds that one call waits for the lock. The action plugin repeats the call until O(lock_timeout).
    type: float
    default: 0
  judged_run:
    description: The run whose driver the controller has looked for, from the action plugin.
    type: str
    default: ""
  judged_alive:
    description: Whether the driver of O(judged_run) lives.
    type: bool
    default: false
attributes:
  check_mode:
    support: partial
    details: Check mode takes no lock and holds nothing, and warns of another run's lock.
  diff_mode:
    support: none
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Begin a run
  pcluster.postboot.node_run:
    state: begin
    hold_packages: ["linux-image-*", "lustre-client*"]
    package_manager: apt
"""

RETURN = r"""
taken:
  description: Whether this run holds the lock.
  type: bool
  returned: O(state=begin)
how:
  description: State of the lock before, one of V(free), V(again), V(dead) and V(expired).
  type: str
  returned: when it was taken
holder:
  description: The lock's holder, or its last one.
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
  description: Packages that were held or released.
  type: list
  elements: str
  returned: always
"""

import contextlib
import os
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _directory_tree as directory_tree
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock as host_lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host import report as host_report
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds as packages_holds


def begin(module: AnsibleModule, lock: host_lock.Lock, me: host_lock.Holder) -> dict[str, Any]:
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
            module.warn(f"{lock.path} is {outcome.sentence()}: what check mode finds may change")
        return answer
    if not outcome.taken and outcome.holder:
        raise Problem(
            f"{outcome.sentence()}; waited {params['lock_timeout']} s (common_lock_timeout): "
            f"let that run end, or remove {lock.path} if it is surely gone",
            changed=False,
            **answer,
        )
    answer["msg"] = "the node is ours"
    if outcome.how in ("dead", "expired") and outcome.holder:
        gone = "is dead" if outcome.how == "dead" else "gave no sign of life for too long (common_lock_lease)"
        answer["msg"] = f"taken over from a run that {gone}: it was {outcome.sentence()}"
        module.warn(answer["msg"])
    manager = holds(params["package_manager"])
    try:
        answer["packages"] = manager.begin(params["hold_packages"]) if manager else []
    except packages_holds.BusyError as error:
        answer.update(busy=True, msg=str(error))
    except (OSError, packages_holds.HoldError) as error:
        told = {**answer, "changed": False}
        del told["msg"]
        raise Problem(f"packages cannot be held: {error} (common_hold_packages)", **told) from error
    return answer


def end(module: AnsibleModule, lock: host_lock.Lock, me: host_lock.Holder) -> dict[str, Any]:
    """Write the report, release the packages, give the lock back."""
    params = module.params
    answer: dict[str, Any] = {"packages": []}
    if module.check_mode or not lock.mine(me.run_id):
        answer["msg"] = "this run does not hold the lock: nothing is written or released"
        return answer
    report = params["report"]
    if report:
        text = host_report.save(report)
        if params["report_dir"]:
            share(module, params["report_dir"], report, text)
    manager = holds(params["package_manager"])
    if manager:
        try:
            answer["packages"] = manager.end()
        except packages_holds.BusyError as error:
            answer.update(busy=True, msg=str(error))
            return answer
    lock.release(me.run_id)
    answer["msg"] = "the lock is given back"
    return answer


def share(module: AnsibleModule, directory: str, report: dict[str, Any], text: str) -> None:
    """Write the report to shared storage. That it cannot be written is worth a warning, and no failure."""
    if not os.path.isdir(directory):
        module.warn(f"common_report_dir: {directory} is not there, so the report is only in {host_lock.STATE_DIR}")
        return
    cluster, node = (str(report.get(key) or "unknown").replace("/", "_") for key in ("cluster", "node"))
    try:
        os.makedirs(os.path.join(directory, cluster), mode=0o755, exist_ok=True)
        with contextlib.ExitStack() as stack:
            start = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, start)
            folder = stack.enter_context(directory_tree.opened(cluster, directory_tree.trusted(()), start))
            # Because each node of the cluster has its report there, none reads the whole directory.
            files.write(f"/proc/self/fd/{folder}/{node}.json", text, tidy=False)
    except (OSError, Problem) as error:
        why = getattr(error, "strerror", error)  # a path below /proc would say nothing
        module.warn(f"common_report_dir: the report cannot be written to {directory}: {why}")


def holds(manager: str) -> packages_holds.Holds | None:
    """Return the keeper of holds for a package manager."""
    if manager == "apt":
        return packages_holds.Holds(packages_holds.AptHolds())
    if manager == "dnf":
        return packages_holds.Holds(packages_holds.DnfHolds())
    return None


def work(module: AnsibleModule) -> dict[str, Any]:
    """Begin or end the run, and return what came of it."""
    state = module.params["state"]
    me = host_lock.Holder.from_dict(module.params["run"])
    if not me.run_id:
        me = host_lock.Holder.of_process(os.getppid(), "pull")
    try:
        return (begin if state == "begin" else end)(module, host_lock.Lock(), me)
    except (OSError, packages_holds.HoldError) as error:
        raise Problem(f"node_run state={state}: {error}") from error


def main() -> None:
    """Run the module."""
    serve(
        {
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
        work,
        alive=False,  # it takes the lock and gives it back
    )


if __name__ == "__main__":
    main()
