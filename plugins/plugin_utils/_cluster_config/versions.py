# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each version of ParallelCluster has. The sources are its release notes, and its schema in 3.13.2 and 3.16.1."""

from __future__ import annotations

import re
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import metrics
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import supported

Version = tuple[int, int, int]
_SUPPORTED = supported.read()


def parse(text: str) -> Version | None:
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


OLDEST = parse(_SUPPORTED.parallelcluster["oldest"]) or (0, 0, 0)
_SLURM: dict[Version, tuple[int, int, int]] = {  # from each version on
    (3, 13, 0): (24, 5, 7),
    (3, 13, 1): (24, 5, 8),
    (3, 14, 0): (24, 11, 6),
    (3, 15, 0): (25, 11, 4),
    (3, 16, 0): (25, 11, 6),
    (3, 16, 1): (25, 11, 8),
}
# Those that this collection configures, and others with the last version that has them.
SYSTEMS = tuple(system.name for system in _SUPPORTED.systems)
_OTHER_SYSTEMS: dict[str, Version | None] = {
    "alinux2": (3, 15, 99),
    "ubuntu2004": (3, 13, 99),
    "rhel8": None,
    "rocky8": None,
}
# ParallelCluster publishes none of these.
WITHOUT_IMAGE = ("rocky8", *(system.name for system in _SUPPORTED.systems if not system.image))
_GB200_SYSTEMS = ("alinux2023", "ubuntu2204", "ubuntu2404")  # release notes of 3.14.0
# Instance families by the first version that supports them.
_FAMILIES: dict[str, Version] = {"p6-b200": (3, 14, 0), "p6e-gb200": (3, 14, 0), "p6-b300": (3, 15, 0)}
# Not with the open kernel module of NVIDIA's driver, which ParallelCluster's images have.
_OLD_GPUS = ("p2", "p3", "p3dn", "g2", "g3", "g3s")
STRATEGIES: dict[str, Version] = {
    "lowest-price": OLDEST,
    "capacity-optimized": OLDEST,
    "price-capacity-optimized": OLDEST,
    "prioritized": (3, 14, 0),
    "capacity-optimized-prioritized": (3, 14, 0),
}
ROOT_VOLUME = 45  # EBS_ROOT_VOLUME_SIZE_DEFAULT in GiB, 3.13.2 to 3.16.1
_LARGER_ROOT_VOLUME = ((3, 16, 2), 50)  # release notes of 3.16.2
BOOT_TIMEOUT = 2100  # NODE_BOOTSTRAP_TIMEOUT, 3.13.2 to 3.16.1
LONGEST_TIMEOUT = 43200  # of CloudFormation's WaitCondition


class System(NamedTuple):
    name: str
    custom_ami: bool


def shown(version: Version) -> str:
    return ".".join(str(number) for number in version)


def problems(text: str) -> list[str]:
    version = parse(text)
    if version and OLDEST <= version < (4, 0, 0):
        return []
    needed = f"{shown(OLDEST)} or newer, below 4, as `pcluster version` tells"
    return [f"cluster_config_version is {text or 'empty'}; needed: {needed}"]


def system_problems(system: System, version: Version, ours: bool) -> list[str]:
    """Return what is wrong with an operating system. `ours`: whether this collection is to configure its nodes."""
    name = system.name
    where = f"cluster_config_os is {name}"
    if name not in (*SYSTEMS, *_OTHER_SYSTEMS):
        return [f"{where}; needed: one of {', '.join(SYSTEMS)}"]
    last = _OTHER_SYSTEMS.get(name)
    if last and version > last:
        return [f"{where}, which ParallelCluster has up to {last[0]}.{last[1]}; needed: one of {', '.join(SYSTEMS)}"]
    if ours and name not in SYSTEMS:
        return [
            f"{where}, which this collection does not configure; needed: one of {', '.join(SYSTEMS)}, or "
            "cluster_config_components: [] without cluster_config_bundle"
        ]
    if name in WITHOUT_IMAGE and not system.custom_ami:
        return [f"{where}, for which ParallelCluster has no image; needed: cluster_config_custom_ami, one of your own"]
    return []


def instance_problems(where: str, name: str, system: System, version: Version) -> list[str]:
    family = name.partition(".")[0]
    first = _FAMILIES.get(family, OLDEST)
    if version < first:
        return [
            f"{where} is {name}, and cluster_config_version is {shown(version)}; needed: {shown(first)}, the first "
            "that supports it"
        ]
    if family == "p6e-gb200" and system.name not in _GB200_SYSTEMS:
        return [
            f"{where} is {name}, and the operating system {system.name}; needed: one of {', '.join(_GB200_SYSTEMS)}"
        ]
    if family in _OLD_GPUS and not system.custom_ami:
        return [
            f"{where} is {name}, whose GPUs are too old for the driver of ParallelCluster's images; needed: a newer one"
        ]
    return []


def slurm(version: Version) -> tuple[int, int, int]:
    return max(found for first, found in _SLURM.items() if first <= version)


def has_native_metrics(version: Version) -> bool:
    return slurm(version) >= metrics.SAFE


def first_native_metrics() -> str:
    return shown(min(first for first in _SLURM if has_native_metrics(first)))


def root_volume(version: Version) -> int:
    first, size = _LARGER_ROOT_VOLUME
    return size if version >= first else ROOT_VOLUME
