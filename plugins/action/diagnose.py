# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make one archive of what the nodes have sent, and of what AWS has of those that are gone; say what stands out."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible import constants as C

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import cluster as found_cluster
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import finding
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.redact import Redactor
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import session
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import some
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose import archive, fleet, gone, page
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose.model import GONE, SILENT, Node
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import options

ENDING = ".tar.gz"
_MOST_SILENT = 20  # nodes that do not answer, about which AWS is asked
_SHOWN = 12  # findings that are printed


class ActionModule(OnController):
    SPEC = {
        "state": {"type": "str", "choices": ["begin", "end"], "required": True},
        "variables": {"type": "dict", "required": True},
        "begun": {"type": "dict", "default": {}},
    }

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        args = {**args, **options("diagnose", args["variables"])}
        hosts = [str(host) for host in variables.get("ansible_play_hosts_all") or []]
        hostvars = variables.get("hostvars") or {}
        if args["state"] == "begin":
            return _begin(args, hosts, {host: _slurm_name(hostvars[host]) for host in hosts})
        return self._end(args, hosts, hostvars)

    def _end(self, args: dict[str, Any], hosts: Sequence[str], hostvars: Mapping[str, Any]) -> dict[str, Any]:
        asked = [host for host in hosts if host in args["begun"]["hosts"]]
        nodes = [_node(host, hostvars[host], args["begun"]["staging"], self._task.check_mode) for host in asked]
        if self._task.check_mode:
            return _foretell(nodes, hostvars, args)
        limits = gone.Limits(int(args["file_mb"] * 1e6), args["hours"], time.time())
        redactor = Redactor(archive.secrets(hostvars[host] for host in asked))
        fleet.compare(nodes)
        elsewhere = Elsewhere(args, nodes, limits, redactor)
        for name in args["gone"]:
            elsewhere.add(name)
        elsewhere.silent()
        archive.clean(nodes, redactor)
        run = page.Run(
            ", ".join(sorted({node.cluster for node in nodes if node.cluster})),
            args["begun"]["when"],
            f"Of each file the last {args['file_mb']:g} MB were kept, of each node {args['node_mb']:g} MB; "
            f"lines of logs that are older than {args['hours']:g} h are no findings",
            elsewhere.notes,
        )
        text = page.text(run, nodes)
        pages = {"summary.txt": text, "index.html": page.html(run, nodes)}
        path = args["begun"]["archive"]
        size = archive.write(path, os.path.basename(path).removesuffix(ENDING), nodes, pages, redactor)
        listed = [group.finding._asdict() | {"nodes": [n.slurm for n in group.nodes]} for group in page.groups(nodes)]
        lines = _said(listed, path, size)
        terminal.say("", *lines)
        return {"changed": True, "msg": lines[-1], "archive": path, "bytes": size, "findings": listed, "summary": text}


class Elsewhere:
    """Adds what is known elsewhere of nodes that are gone or do not answer: on a head node, and by AWS."""

    def __init__(self, args: Mapping[str, Any], nodes: list[Node], limits: gone.Limits, redactor: Redactor) -> None:
        self.args, self.nodes, self.limits, self.redactor = args, nodes, limits, redactor
        self.clusters = list(dict.fromkeys(_where(node) for node in nodes if node.cluster))
        self.asked: dict[tuple[str, str], gone.Aws | str] = {}
        self._more: list[str] = []

    @property
    def notes(self) -> list[str]:
        """What AWS would not say."""
        return self._more + [
            note for one in self.asked.values() for note in ([one] if isinstance(one, str) else one.notes)
        ]

    def add(self, name: str) -> None:
        """Add a node that is gone."""
        head, instances = _found_in(name, self.nodes)
        where = _where(head) if head else self.clusters[0] if self.clusters else ("", "")
        node = Node(name, GONE, {"node": name, "node_type": "compute", "cluster": where[0]})
        node.who["instance_id"] = ", ".join(instance for instance, _host in instances)
        for path, text in head.texts.items() if head else ():
            if path.startswith(f"gone/{name}/"):
                base = path.rpartition("/")[2]
                # clustermgtd keeps the console of nodes that have failed.
                base = "console.txt" if base.startswith("compute_console") else base
                node.texts["report.json" if base == "report.json" else f"head/{base}"] = text
        self._gather(node, where, instances, _log_group(head))
        self.nodes.append(node)
        if not node.texts:
            todo = "name the instance by its id; its logs may be older than the retention of CloudWatch"
            words = f"no line about {name} in the logs of the head node, and none of its instances in AWS"
            node.findings.append(finding("unknown", "fault", "nothing is known of it", words, "", todo, "logs"))

    def silent(self) -> None:
        """Add to nodes that do not answer what AWS has of their instances."""
        silent = [node for node in self.nodes if node.state == SILENT and node.who.get("instance_id")]
        if len(silent) > _MOST_SILENT:
            self._more.append(f"AWS was asked about {_MOST_SILENT} of the {len(silent)} nodes that do not answer")
        for node in silent[:_MOST_SILENT]:
            self._gather(node, _where(node), [(str(node.who["instance_id"]), "")], "")

    def _gather(self, node: Node, where: tuple[str, str], instances: Sequence[tuple[str, str]], group: str) -> None:
        if where not in self.asked:
            self.asked[where] = _aws(self.args, where, self.limits, group)
        asked = self.asked[where]
        if isinstance(asked, gone.Aws):
            asked.gather(node, instances)
        gone.clean(node, self.redactor)
        node.findings += gone.judged(node, self.limits)
        sizes = {name: len(text.encode()) for name, text in node.texts.items()}
        node.files = [
            {"name": name, "source": "AWS" if name.startswith("i-") else "the head node", "kept": size, "whole": size}
            for name, size in sizes.items()
        ]


def _begin(args: dict[str, Any], hosts: Sequence[str], names: Mapping[str, str]) -> dict[str, Any]:
    """Refuse what makes no sense, before any node is asked; return whom to ask, and where things go."""
    gone.check(args["gone"])
    unknown = [name for name in args["nodes"] if name not in hosts and name not in names.values()]
    if unknown:
        raise Problem(
            f"diagnose_nodes: found {some(unknown)}; needed: nodes of the inventory, by its names or Slurm's; a node "
            "that is gone belongs into diagnose_gone"
        )
    for name in ("file_mb", "node_mb", "seconds", "mount_seconds", "hours"):
        if args[name] <= 0:
            raise Problem(f"diagnose_{name}: found {args[name]:g}; needed: more than 0")
    wanted = [host for host in hosts if not args["nodes"] or host in args["nodes"] or names[host] in args["nodes"]]
    now = time.time()
    own = f"diagnose-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}{ENDING}"
    path = os.path.abspath(os.path.expanduser(args["archive"] or own))
    if not path.endswith(ENDING):
        raise Problem(f"diagnose_archive: found {args['archive']}; needed: a name that ends with {ENDING}")
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Problem(f"diagnose_archive: {folder} is no directory that can be written to; needed: one")
    # Ansible removes its own directory for temporary files at the end.
    staging = os.path.join(C.DEFAULT_LOCAL_TMP, "diagnose")
    return {"hosts": wanted, "staging": staging, "archive": path, "when": lock.utc(now), "msg": f"to {path}"}


def _slurm_name(variables: Any) -> str:
    return str(variables.get("pcluster_slurm_node") or "")


def _node(host: str, variables: Any, staging: str, check: bool) -> Node:
    """Return what is known of a host of the play: what was fetched of it, or that it does not answer."""
    result = variables.get("__diagnose_node") or {}
    who = {
        name: str(variables.get(f"pcluster_{name}") or "") for name in ("cluster", "region", "instance_id", "node_type")
    }
    who["node"] = _slurm_name(variables) or host
    node = Node(host.replace("/", "_"), who=who)
    file = os.path.join(staging, f"{host}{ENDING}")
    failed = variables.get("__diagnose_failed") or ""
    if result.get("unreachable") or "node" not in result:
        why = str(result.get("msg") or failed or "no connection")
        fleet.silent(node, why, *([] if result.get("unreachable") else ["the node could not gather anything"]))
        return node
    node.who = {**who, **{name: value for name, value in result["node"].items() if value}}
    if check:
        return node
    if not os.path.isfile(file):
        fleet.silent(node, failed or "no file came", "what the node has gathered could not be fetched")
        node.findings += [finding(**one) for one in result["findings"]]
        return node
    node.file = file
    try:
        archive.read(node)
    except Problem as problem:
        node.file = ""
        fleet.silent(node, str(problem), "what the node has sent cannot be read")
    return node


def _foretell(nodes: Sequence[Node], hostvars: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    lines = [f"would write {args['begun']['archive']}"]
    for node in nodes:
        parts = (hostvars[node.name].get("__diagnose_node") or {}).get("parts") or []
        silent = node.findings[0].line if node.state == SILENT else ""
        lines.append(f"{node.slurm}: {f'does not answer: {silent}' if silent else f'{len(parts)} files and programs'}")
    lines += [f"{name}: the logs of its cluster's head node, CloudWatch, its console" for name in args["gone"]]
    lines = [visible(line) for line in lines]
    terminal.say(*lines)
    return {"changed": True, "msg": lines[0], "lines": lines}


def _where(node: Node) -> tuple[str, str]:
    """Return a node's cluster and region."""
    return node.cluster, str(node.who.get("region") or "")


def _found_in(name: str, nodes: Sequence[Node]) -> tuple[Node | None, list[tuple[str, str]]]:
    """Return the head node whose logs know a node, and the instances that the node was; else the only head node."""
    heads = [node for node in nodes if node.who.get("node_type") == "head" and node.file]
    for head in heads:
        text = "".join(text for path, text in head.texts.items() if not path.startswith("gone/"))
        if any(path.startswith(f"gone/{name}/") for path in head.texts):
            return head, found_cluster.instances_of(name, text)
    return (heads[0] if len(heads) == 1 else None), [(name, "")] if name.startswith("i-") else []


def _log_group(head: Node | None) -> str:
    """Return the log group of a cluster, as its head node knows it."""
    text = head.texts.get("etc/chef/dna.json", "") if head else ""
    match = re.search(r'"log_group_name"\s*:\s*"([^"]+)"', text)
    return match[1] if match else ""


def _aws(args: Mapping[str, Any], where: tuple[str, str], limits: gone.Limits, group: str) -> gone.Aws | str:
    """Return who asks AWS about a cluster, or why nobody does."""
    cluster, region = where
    if not args["aws"]:
        return "AWS was not asked (diagnose_aws)"
    if not region:
        return "AWS was not asked: no node of the play tells its cluster and region"
    if session.boto3 is None:
        return "AWS was not asked: boto3 is not installed where Ansible runs"
    who = session.Credentials(profile=args["profile"], assume_role_arn=args["assume_role_arn"])
    try:
        return gone.Aws(session.client_maker(who, region), region, cluster, limits, group)
    except Problem as problem:
        return f"AWS was not asked: {problem}"


def _said(findings: Sequence[Mapping[str, Any]], path: str, size: int) -> list[str]:
    lines = []
    for one in findings[:_SHOWN]:
        names = page.shown(one["nodes"])
        lines += [f"{one['level']}: {names}: {one['what']}", f"       {one['line']}"]
    if len(findings) > _SHOWN:
        lines.append(f"and {len(findings) - _SHOWN} more in the archive")
    nothing = "" if findings else "nothing stands out; "
    return [*map(visible, lines), f"{nothing}{path} ({size / 1e6:.1f} MB): open index.html or summary.txt in it"]
