# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an instance type has, as far as a cluster's configuration depends on it: by a table, or as EC2 answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, code_of, explain
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import has_nvidia

_SIZE = r"nano|micro|small|medium|large|\d{0,4}xlarge|metal(?:-\d+xl)?"
_NAME = re.compile(rf"(?P<family>[a-z]+\d+[a-z]*(?:-[a-z0-9]+)?)\.(?P<size>{_SIZE})")
# EC2's answer to DescribeInstanceTypes, as moto 5.2 keeps it: the sizes of each family that have EFA. A family that is
# not in one of these two tables is unknown.
_WITH_EFA = {
    **dict.fromkeys(("c5n",), "9xlarge 18xlarge metal"),
    **dict.fromkeys(("m5dn", "m5n", "r5dn", "r5n"), "24xlarge metal"),
    **dict.fromkeys(("c6i", "c6id", "c6in", "m6i", "m6id", "m6idn", "m6in", "r6i", "r6id"), "32xlarge metal"),
    **dict.fromkeys(("r6idn", "r6in", "x2idn", "x2iedn", "i4i"), "32xlarge metal"),
    **dict.fromkeys(("c6a", "m6a", "r6a"), "48xlarge metal"),
    **dict.fromkeys(("c7a", "c7i", "m7a", "m7i", "r7a", "r7i", "c8a", "m8a", "r8a"), "48xlarge metal-48xl"),
    **dict.fromkeys(("c8i", "c8id", "c8in", "m8i", "m8id", "m8in"), "48xlarge 96xlarge metal-48xl metal-96xl"),
    **dict.fromkeys(("r8i", "r8id", "r8in"), "48xlarge 96xlarge metal-48xl metal-96xl"),
    **dict.fromkeys(("c6gn", "im4gn"), "16xlarge"),
    **dict.fromkeys(("c7g", "c7gd", "c7gn", "m7g", "m7gd", "r7g", "r7gd"), "16xlarge metal"),
    **dict.fromkeys(("c8g", "c8gd", "m8g", "m8gd", "r8g", "r8gd"), "24xlarge 48xlarge metal-24xl metal-48xl"),
    "g4dn": "8xlarge 12xlarge 16xlarge metal",
    **dict.fromkeys(("g5", "g6", "g6e"), "8xlarge 12xlarge 16xlarge 24xlarge 48xlarge"),
    **dict.fromkeys(("g7", "g7e"), "8xlarge 12xlarge 24xlarge 48xlarge"),
    "gr6": "8xlarge",
    **dict.fromkeys(("hpc6a",), "48xlarge"),
    "hpc6id": "32xlarge",
    "hpc7a": "12xlarge 24xlarge 48xlarge 96xlarge",
    "hpc7g": "4xlarge 8xlarge 16xlarge",
    "hpc8a": "96xlarge",
    "i3en": "12xlarge 24xlarge metal",
    **dict.fromkeys(("p3dn", "p4d", "p4de"), "24xlarge"),
    "p5": "4xlarge 48xlarge",
    **dict.fromkeys(("p5e", "p5en", "p6-b200", "p6-b300"), "48xlarge"),
    "p6e-gb200": "36xlarge",  # not in moto's copy: ParallelCluster's release notes of 3.14.0 name it
    **dict.fromkeys(("trn1", "trn1n"), "32xlarge"),
    "trn2": "3xlarge 48xlarge",
    "trn2u": "48xlarge",
    "inf1": "24xlarge",
}
_WITHOUT_EFA = frozenset(
    {
        *("c5", "c5a", "c5ad", "c5d", "c6g", "c6gd", "c7i-flex", "c8i-flex", "g5g", "g6f", "gr6f", "inf2"),
        *("m4", "m5", "m5a", "m5ad", "m5d", "m6g", "m6gd", "m7i-flex", "m8i-flex", "r5", "r5a", "r5ad"),
        *("r5b", "r5d", "r6g", "r6gd", "r8i-flex", "t2", "t3", "t3a", "t4g", "x2gd", "z1d"),
    }
)
# From the same answer. EC2's naming rule (a d after the number) tells of the others.
_WITH_DISKS = re.compile(
    r"(g5|g6|g6e|g6f|g7|g7e|gr6|gr6f|i[1-9]\w*|im4gn|p5|p5e|p5en|p6-b200|p6-b300|p6e-gb200|trn\w+)|\w[^\W\d]*\d[^\Wd]*d\w*"
)
_IN_BLOCKS = frozenset(
    {
        *("p4d.24xlarge", "p4de.24xlarge", "p5.4xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"),
        *("p6-b200.48xlarge", "p6-b300.48xlarge", "p6e-gb200.36xlarge", "trn1.32xlarge", "trn2.3xlarge"),
        *("trn2.48xlarge", "trn2u.48xlarge"),
    }
)
_IN_BLOCKS_ALONE = frozenset(["p6e-gb200.36xlarge"])  # ParallelCluster's release notes of 3.14.0
_NO_SPOT = frozenset(["trn2u.48xlarge"]) | _IN_BLOCKS_ALONE
_ARM = re.compile(r"a1|[a-z]+\d+[a-fh-z]*g[a-z]*|p6e-gb200")
_NO_PLACEMENT = re.compile(r"t\d\w*|\w+-flex|mac\S*")
# On p5 and metal Linux starts minutes after the launch (docs/pull.md, Time); p6 and Trainium are taken for alike.
_SLOW_TO_START = re.compile(r"(p[5-9]|trn).*|[^\s.]+\.metal\S*")


class Instance(NamedTuple):
    name: str
    known: bool = False
    efa: bool = False
    gpus: bool = False  # NVIDIA's
    disks: bool = False  # instance store
    arm: bool = False
    capacities: frozenset[str] = frozenset(["on_demand", "spot"])
    placement_groups: bool = True

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]

    @property
    def slow_to_start(self) -> bool:
        return bool(_SLOW_TO_START.fullmatch(self.name))


class Catalog:
    """The instance types that were asked about; those that EC2 has told of, and the table for the others."""

    def __init__(self, told: Mapping[str, Instance] | None = None) -> None:
        self._told = dict(told or {})

    def __getitem__(self, name: str) -> Instance:
        return self._told.get(name) or of_table(name)


def is_name(name: str) -> bool:
    return bool(_NAME.fullmatch(name))


def named(section: Mapping[str, Any]) -> list[str]:
    """Return the instance types that a head node or a compute resource of a configuration names."""
    several = [each.get("InstanceType") for each in section.get("Instances") or []]
    return [name for name in (section.get("InstanceType"), *several) if name]


def of_table(name: str) -> Instance:
    """Return what the table has of an instance type; `known` is false where it cannot tell."""
    match = _NAME.fullmatch(name)
    if not match:
        return Instance(name)
    family, size = match["family"], match["size"]
    efa = size in _WITH_EFA.get(family, "").split()
    capacities = {"on_demand", "spot", "capacity_block"}
    capacities -= set() if name in _IN_BLOCKS else {"capacity_block"}
    capacities -= {"spot"} if name in _NO_SPOT else set()
    capacities -= {"on_demand"} if name in _IN_BLOCKS_ALONE else set()
    return Instance(
        name,
        family in _WITH_EFA or family in _WITHOUT_EFA,
        efa,
        has_nvidia(name),
        bool(_WITH_DISKS.fullmatch(family)),
        bool(_ARM.fullmatch(family)),
        frozenset(capacities),
        not _NO_PLACEMENT.fullmatch(family),
    )


def ask(client: Any, names: Iterable[str], region: str) -> tuple[Catalog, list[str]]:
    """Return what EC2 tells of instance types, and those that the region does not have."""
    told, missing = {}, []
    for name in dict.fromkeys(names):
        try:
            answer = client.describe_instance_types(InstanceTypes=[name])
        except AwsErrors as error:
            if code_of(error) in ("InvalidInstanceType", "InvalidParameterValue"):
                missing.append(name)
                continue
            raise explain(error, region, "ec2:DescribeInstanceTypes", name) from error
        told[name] = _of_answer(answer["InstanceTypes"][0])
    return Catalog(told), missing


def _of_answer(found: Mapping[str, Any]) -> Instance:
    network = found.get("NetworkInfo") or {}
    makers = {gpu.get("Manufacturer") for gpu in (found.get("GpuInfo") or {}).get("Gpus") or []}
    strategies = (found.get("PlacementGroupInfo") or {}).get("SupportedStrategies") or []
    return Instance(
        found["InstanceType"],
        True,
        bool(network.get("EfaSupported")),
        "NVIDIA" in makers,
        bool(found.get("InstanceStorageSupported")),
        "arm64" in (found.get("ProcessorInfo") or {}).get("SupportedArchitectures", []),
        frozenset(each.replace("-", "_") for each in found.get("SupportedUsageClasses") or []),
        "cluster" in strategies,
    )
