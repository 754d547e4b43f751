# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How many series the nodes of a cluster may bring, and whether a Prometheus on this node can hold them.

The nodes are all that Slurm's configuration has, with power or without: a cluster may use them all at once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._efa import devices
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._node import neuron
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import nodes as slurm_nodes
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.ask import scontrol

# Series of a node by what it has, with the exporters as their roles set them up; tests/bench/metrics.py counts them.
OF_A_NODE = 640
OF_A_CPU = 8
OF_AN_INTERFACE = 11
OF_AN_EFA_DEVICE = 35
OF_A_GPU = 33
# Of Neuron's exporter, where one program holds all cores: what AWS' program prints (tests/unit/fixtures/neuron).
OF_NEURON = 49
OF_A_NEURON_DEVICE = 8
OF_A_NEURON_CORE = 6
NO_NEURON = neuron.Kind(0, 0)
# What a series takes of the memory of a server, and of an agent: tests/bench/prometheus_memory.py measures it.
BYTES_A_SERIES, AGENT_BYTES_A_SERIES = 3000, 2000
# The part of a head node's memory that Prometheus' series may take, which leaves room for queries and for jobs' labels.
SHARE = 0.25


class Kind(NamedTuple):
    """What the nodes of one kind have."""

    cpus: int
    gpus: int
    efa: int
    neuron: neuron.Kind = NO_NEURON

    @property
    def series(self) -> int:
        """How many series one of them brings."""
        return (
            OF_A_NODE
            + OF_A_CPU * self.cpus
            + OF_AN_INTERFACE * max(1, self.efa)
            + OF_AN_EFA_DEVICE * self.efa
            + OF_A_GPU * self.gpus
            + OF_NEURON * min(1, self.neuron.devices)
            + OF_A_NEURON_DEVICE * self.neuron.devices
            + OF_A_NEURON_CORE * self.neuron.cores
        )


class Outcome(NamedTuple):
    """The module's result."""

    nodes: int
    series: int
    bytes: int
    memory: int
    reason: str
    summary: str


def efa_devices(features: list[str]) -> int:
    """Return how many EFA devices a node has, by what ParallelCluster names among its features."""
    if "efa" not in features:
        return 0
    return next((devices.DEVICES[word] for word in features if word in devices.DEVICES), 1)


def parse(text: str) -> Counter[Kind]:
    """Return how many nodes of each kind `scontrol -o show nodes` names."""
    kinds: Counter[Kind] = Counter()
    for fields in slurm_nodes.nodes(text, "CPUTot", "AvailableFeatures", "Gres"):
        cpus, gpus = document.whole(fields.get("CPUTot", "")), slurm_nodes.gpus_of(fields.get("Gres", ""))
        features = fields.get("AvailableFeatures", "").split(",")
        devices_and_cores = next((neuron.TYPES[word] for word in features if word in neuron.TYPES), NO_NEURON)
        kinds[Kind(1 if cpus is None else cpus, gpus, efa_devices(features), devices_and_cores)] += 1
    return kinds


def ask(prefix: str, seconds: float) -> tuple[str, str]:
    """Return scontrol's answer on all nodes, or an error."""
    try:
        return scontrol(prefix, "-a", "-o", "show", "nodes", seconds=seconds).output(), ""
    except Problem as error:
        return "", str(error)


def memory_of(path: str = "/proc/meminfo") -> int:
    """Return how many bytes of memory this node has; 0 where it does not tell."""
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            found = re.search(r"^MemTotal:\s+(\d+) kB$", stream.read(), re.MULTILINE)
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


def find(prefix: str, timeout: float, agent: bool = False, memory: int | None = None) -> Outcome:
    """Return the load that the cluster's nodes may put on this node's Prometheus."""
    text, reason = ask(prefix, timeout)
    kinds = parse(text)
    nodes = sum(kinds.values())
    series = sum(kind.series * number for kind, number in kinds.items())
    room = memory_of() if memory is None else memory
    needed = series * (AGENT_BYTES_A_SERIES if agent else BYTES_A_SERIES)
    summary = ""
    if room and needed > SHARE * room:
        summary = (
            f"{nodes:,} nodes may bring {series / 1e6:.1f} million series, which take {_gb(needed)} of this node's "
            f"{_gb(room)}: take a head node with {math.ceil(needed / SHARE / 1e9)} GB or more, or drop "
            f"series (metric_relabel_configs of prometheus_jobs){'' if agent else '; amp-only takes a third less'}"
        )
    return Outcome(nodes, series, needed, room, reason, summary)


def _gb(number: float) -> str:
    return f"{number / 1e9:.1f} GB"


def as_result(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome as the module's result. A summary that has nothing to say is left out."""
    result: dict[str, Any] = outcome._asdict()
    if not outcome.summary:
        del result["summary"]
    return result
