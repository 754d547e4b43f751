# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who a node is in its cluster, in the words of this collection, whatever its platform calls it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MONITORING = "monitoring"
_NODE_TYPES = {
    "head": ("headnode", "head", "head_node", "master", "masterserver", "controller"),
    "login": ("loginnode", "login", "login_node", "loginnodes"),
    "compute": ("computefleet", "compute", "computenode", "compute_node"),
    MONITORING: (MONITORING,),
}


@dataclass
class Identity:
    """What a platform's own files say of a node; what they leave out is None."""

    platform: str
    facts: dict[str, Any] = field(default_factory=dict)  # keys of `empty_facts()`
    mounts: list[dict[str, str | None]] = field(default_factory=list)  # file systems that the node should have
    scratch: list[str | None] = field(default_factory=list)  # where its own disks may be mounted, the best first
    backup: bool = False  # whether this is no head node as long as another one is there


def node_type(spelling: str) -> str:
    """Return head, login, compute or monitoring for any spelling: cfnconfig's, the tag's, an API's or our own."""
    for kind, spellings in _NODE_TYPES.items():
        if str(spelling).strip().lower() in spellings:
            return kind
    raise ValueError(f"node type {spelling!r} is unknown: expected HeadNode, LoginNode, ComputeFleet or Compute")


def os_user(os_name: str | None) -> str | None:
    """Return the default user of an operating system in ParallelCluster's spelling, such as ubuntu2404."""
    name = (os_name or "").strip().lower().rstrip("0123456789.")
    return {
        "ubuntu": "ubuntu",
        "alinux": "ec2-user",
        "rhel": "ec2-user",
        "rocky": "rocky",
        "centos": "centos",
        "debian": "admin",
    }.get(name)


def text(value: Any) -> str | None:
    """Return a value as a string; None for what ParallelCluster writes where it has nothing."""
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        return None
    found = str(value).strip()
    return None if found.upper() in ("", "NONE", "NULL") else found


def truth(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).strip().lower())


def inner(mapping: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """Return the mapping that a mapping has by a name; empty where there is none."""
    found = (mapping or {}).get(name)
    return found if isinstance(found, dict) else {}


def first(*candidates: Any) -> str | None:
    """Return the first of several values that says something."""
    return next((found for found in map(text, candidates) if found), None)
