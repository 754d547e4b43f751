# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads what `scontrol -o show nodes` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

# With these, a powered-down node is not merely idle.
_ON_THE_WAY = {"DRAIN", "FAIL", "POWER_DOWN", "POWERING_DOWN", "POWER_UP", "POWERING_UP"}

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document


def nodes(text: str, *keys: str) -> Iterator[dict[str, str]]:
    """Yield the fields of each node, NodeName among them, that have one of these keys."""
    wanted = re.compile(rf"(?:^|\s)({'|'.join(('NodeName', *keys))})=(\S*)")
    for line in text.splitlines():
        fields: dict[str, str] = {}
        # The first of a kind counts: free text, such as a reason, stands at the end of the line.
        for key, value in wanted.findall(line):
            fields.setdefault(key, value)
        if fields.get("NodeName"):
            yield fields


def is_stranded(fields: Mapping[str, str]) -> bool:
    """Say whether Slurm never starts a node again that is powered down: Slurm waits for its slurmd to answer.

    state=resume and state=undrain of a powered-down node set NOT_RESPONDING (update_node() of SchedMD/slurm 24.11.5,
    src/slurmctld/node_mgr.c). Once slurmctld has read its configuration again, no job gets such a node
    (read_config.c), although sinfo shows idle~ and no reason: aws-parallelcluster#7577. A node that boots has the
    address of its instance, and a drained one is shown with its reason.
    """
    states = set(fields.get("State", "").split("+"))
    stranded = {"IDLE", "POWERED_DOWN", "NOT_RESPONDING"} <= states and not states & _ON_THE_WAY
    return stranded and fields.get("NodeAddr", "") == fields.get("NodeName")


def stranded(text: str) -> list[str]:
    """Return the names of the nodes that Slurm never starts again."""
    return [fields["NodeName"] for fields in nodes(text, "State", "NodeAddr") if is_stranded(fields)]


def freed(names: str) -> str:
    """Return the command after which Slurm starts nodes again, which it has powered down."""
    return f"scontrol update nodename={names} state=power_down_force"


def gpus_of(gres: str) -> int:
    """Count the GPUs of a generic resource list such as gpu:h100:8(S:0-1),shard:8."""
    count = 0
    for part in re.sub(r"\([^()]*\)", "", gres).split(","):
        words = part.split(":")
        if words[0] == "gpu":
            told = document.whole(words[-1])
            count += 1 if told is None else told
    return count
