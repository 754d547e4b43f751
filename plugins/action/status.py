# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Show which node of a cluster is where in its boot, until all are up; and what came of all clusters."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node.hyperpod import PLATFORM as HYPERPOD
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import session
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import some
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.reach import LOST, Reaching
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import options
from ansible_collections.pcluster.postboot.plugins.plugin_utils._status import watch, words

_NEEDED = ("pcluster_instance_id", "pcluster_region", "pcluster_cluster", "pcluster_node_type")


class ActionModule(Reaching, OnController):
    _requires_connection = True  # of the head node, for its module
    SPEC = {
        "state": {"type": "str", "choices": ["chosen", "watched", "shown"], "required": True},
        "variables": {"type": "dict", "required": True},
    }

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        if args["state"] == "chosen":
            return _chosen(variables)
        given = options("status", args["variables"])
        return self._watched(given, variables) if args["state"] == "watched" else _shown(given, variables)

    def _watched(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Watch the cluster of this head node."""
        for name, least in (("interval", 1), ("timeout", 1)):
            if args[name] < least:
                raise Problem(f"status_{name}: found {args[name]}; needed: a number of seconds, {least} or more")
        session.need_boto3()
        region, cluster = str(variables["pcluster_region"]), str(variables["pcluster_cluster"])
        who = session.Credentials(profile=args["profile"], assume_role_arn=args["assume_role_arn"])
        client = session.client_maker(who, region)("ec2", region)
        plan = watch.Plan(cluster, args["wait"], args["timeout"], args["interval"])
        instances = watch.Instances(client, region, cluster)
        seen, waited = watch.Watch(plan, instances.read, lambda: self._ask(variables), _say).run()
        found = {**words.as_json(seen), "region": region}
        return {"seen": found, "lines": words.table(seen), "complaint": words.complaint(seen, waited)}

    def _ask(self, variables: dict[str, Any]) -> watch.Head:
        """Ask the head node; while it boots, nobody can connect to it."""
        try:
            told = self._execute_module(module_name="pcluster.postboot.boot_info", module_args={}, task_vars=variables)
        except LOST as error:
            with contextlib.suppress(*LOST):  # aws_ssm starts the next session here
                self._connection.reset()
            self._connection._shell.tmpdir = None  # of a head node that boots, it may not be there any more
            return None, _one_line(error)
        if told.get("failed") or "nodes" not in told:
            return None, _one_line(told.get("msg") or told.get("module_stderr") or "no message")
        return told, ""


def _one_line(text: Any) -> str:
    return " ".join(str(text).split())[:300]


def _say(lines: list[str]) -> None:
    clock = time.strftime("%H:%M:%S")
    terminal.say(*(f"{clock} {line}" for line in lines))


def _chosen(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the head node of each cluster of the play, which has the inventory and --limit behind it."""
    hostvars = variables.get("hostvars") or {}
    heads: dict[tuple[str, str], str] = {}
    others: dict[tuple[str, str], str] = {}
    for host in variables.get("ansible_play_hosts_all") or []:
        theirs = hostvars[host]
        if not all(theirs.get(name) for name in _NEEDED):
            continue
        if theirs.get("pcluster_platform") == HYPERPOD:
            raise Problem(
                f"{host}: found a node of SageMaker HyperPod, whose boots `aws sagemaker list-cluster-nodes` tells of; "
                "needed: --limit '!pcluster_platform_hyperpod'"
            )
        where = str(theirs["pcluster_region"]), str(theirs["pcluster_cluster"])
        if theirs["pcluster_node_type"] == "head":
            heads.setdefault(where, str(host))
        elif theirs["pcluster_node_type"] in ("login", "compute"):
            others.setdefault(where, str(host))
    headless = sorted(cluster for (_region, cluster) in set(others) - set(heads))
    if headless:
        raise Problem(
            f"cluster {some(headless)}: found no head node among the hosts; needed: the head node, which knows how far "
            "the others are. The inventory lists it once EC2 runs it, and --limit may leave it out"
        )
    if not heads:
        raise Problem(
            "found no head node of a cluster; needed: one that the inventory plugin pcluster.postboot.pcluster has "
            "found in EC2"
        )
    many, forks = len(heads), int(variables.get("ansible_forks") or len(heads))
    if many > forks:
        terminal.warn(f"{many} clusters with {forks} forks: some are watched after others; use --forks {many}")
    return {"hosts": list(heads.values()), "msg": f"head nodes: {some(heads.values())}"}


def _shown(args: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Show the last look at each cluster, and fail where one is not well."""
    hostvars = variables.get("hostvars") or {}
    results = [hostvars[host].get("__status_watched") or {} for host in variables.get("ansible_play_hosts_all") or []]
    results = [result for result in results if result.get("seen")]
    lines = [line for result in results for line in ["", *result["lines"]]]
    terminal.say(*lines)
    if args["json"]:
        _keep(args["json"], {"clusters": [result["seen"] for result in results]})
    bad = [f"{result['seen']['cluster']}: {result['complaint']}" for result in results if result["complaint"]]
    if bad:
        # Nothing beside: Ansible prints all of a result that failed.
        return {"failed": True, "msg": "; ".join(bad)}
    answer = {"lines": lines, "clusters": [result["seen"] for result in results]}
    return {**answer, "msg": f"{len(results)} cluster{'' if len(results) == 1 else 's'}: nothing has failed"}


def _keep(path: str, found: Mapping[str, Any]) -> None:
    path = os.path.abspath(os.path.expanduser(path))
    try:
        # As fleet's report, for nobody who has no business with it.
        files.write(path, json.dumps(found, indent=1) + "\n", 0o600)
    except OSError as error:
        raise Problem(f"status_json: {path} cannot be written: {error}") from error
