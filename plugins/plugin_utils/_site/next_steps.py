# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The commands that come after a whole run of site that went well, with the cluster's own names."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._node.hyperpod import PLATFORM as HYPERPOD
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.variables import dynamic

_PORT = re.compile(r"at (http://127\.0\.0\.1:(\d+))")  # roles/grafana's summary, where nothing else is in front
_ADDRESS = re.compile(r"at (https?://[^,\s]+)")
_FEW = 3


def steps(
    reports: Sequence[Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]], sources: Sequence[str]
) -> list[str]:
    """Return the lines. Empty where a run did not go well, or has not configured a whole cluster.

    `known` has each host's variables, `sources` what the command line has named as inventory.
    """
    heads = [report for report in reports if report.get("node_type") == "head"]
    if not heads or any(report["outcome"] != "ok" or report.get("ended_badly") for report in reports):
        return []
    hosts = [str(report["host"]) for report in heads]
    limit = ",".join(hosts) if len(hosts) <= _FEW else "pcluster_head"
    play = " ".join(["ansible-playbook", *(word for one in sources for word in ("-i", shlex.quote(_short(one))))])
    first = known.get(hosts[0], {})
    told = str(first.get("publish_s3") or "")
    hyperpod = first.get("pcluster_platform") == HYPERPOD
    place = told if told and not dynamic(told) else f"s3://{'sagemaker-' if hyperpod else ''}my-bucket/postboot"
    name = str(heads[0].get("cluster") or "my-cluster")
    described = f"publish_hyperpod={shlex.quote(name)}.json" if hyperpod else f"publish_config={shlex.quote(name)}.yaml"
    seen = _dashboards(heads, known)
    if not seen and not hyperpod:  # where status knows of no boots
        seen = "Watch nodes boot:", f"{play} pcluster.postboot.status --limit {limit}"
    lines = [
        ("Prove that the cluster works:", f"{play} pcluster.postboot.verify --limit {limit}"),
        *([seen] if seen else []),
        (
            "Have new nodes configure themselves:",
            f"{play} pcluster.postboot.publish -e publish_s3={shlex.quote(place)} -e {described}",
        ),
    ]
    width = max(len(what) for what, _command in lines)
    return ["", "What comes next:", *(f"  {what:<{width}}  {command}" for what, command in lines)]


def _short(path: str) -> str:
    """Return an inventory as people would write it."""
    near = os.path.relpath(path) if os.path.isabs(path) else path
    return path if near.startswith("..") else near


def _dashboards(heads: Sequence[Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return how the first head node's Grafana is reached; None where no head node has one."""
    for report in heads:
        for entry in report["components"]:
            if entry["name"] != "grafana" or entry["status"] not in ("changed", "unchanged"):
                continue
            summary = str(entry.get("summary") or "")
            local, address = _PORT.search(summary), _ADDRESS.search(summary)
            if local:
                command = _forward(local[2], known.get(str(report["host"]), {}))
                return (f"See the dashboards at http://localhost:{local[2]}:", command) if command else None
            return ("See the dashboards:", address[1]) if address else None
    return None


def _forward(port: str, host: Mapping[str, Any]) -> str:
    """Return the command that brings a port of a node's loopback here, on the way on which Ansible reaches the node."""
    proxied = "ssm" in str(host.get("ansible_ssh_common_args") or "")
    if host.get("ansible_connection") == "ssh" and not proxied and not dynamic(host.get("ansible_host") or "{{ }}"):
        key = host.get("ansible_ssh_private_key_file")
        options = ["-i", str(key)] if key and not dynamic(key) else []
        user = f"{host['ansible_user']}@" if host.get("ansible_user") else ""
        return shlex.join(["ssh", *options, "-N", "-L", f"{port}:127.0.0.1:{port}", f"{user}{host['ansible_host']}"])
    target = host.get("pcluster_ssm_target") or host.get("pcluster_instance_id")
    if target:
        return (
            f"aws ssm start-session --region {host.get('pcluster_region')} --target {target} "
            f"--document-name AWS-StartPortForwardingSession --parameters portNumber={port},localPortNumber={port}"
        )
    return ""
