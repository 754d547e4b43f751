# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How much disk nodes need for the chosen components, and how long they may boot, as meta/component.yml has it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.components import Component

# docs/pull.md, Time: seconds from the launch to bootstrap.sh, the same on p5 and metal, and those that are kept.
LAUNCH, SLOW_LAUNCH, KEPT = 200, 480, 180
LOGIN_TIME = 600  # of the launch hook of a login pool
_STEP = 300
_STEP_OF_DISK = 10


class Sum(NamedTuple):
    """A figure, and what it is made of."""

    total: int
    parts: Mapping[str, int]

    def __str__(self) -> str:
        return " + ".join(f"{figure} {name}" for name, figure in self.parts.items())


def disk(components: Iterable[Component], node: str, has_disks: bool, image: int, sizes: Mapping[str, float]) -> Sum:
    """Return the GiB of a root volume: the image's, and what each component lays there."""
    parts = {"of the image": image}
    for each in components:
        figure = sum(
            count * sizes[name]
            for need in each.needs
            if node in need.nodes and not (need.scratch and has_disks)
            for name, count in need.times.items()
        )
        if figure >= 1:
            parts[each.name] = math.ceil(figure)
    total = sum(parts.values())
    return Sum(image if len(parts) == 1 else _rounded(total, _STEP_OF_DISK), parts)


def boot(components: Iterable[Component], node: str, slow: bool) -> Sum:
    """Return the seconds from the launch of a node to the end of its boot."""
    parts = {"from the launch to bootstrap.sh": SLOW_LAUNCH if slow else LAUNCH}
    for each in components:
        figure = sum(need.seconds for need in each.needs if node in need.nodes) if each.essential else 0
        if figure:
            parts[each.name] = figure
    parts["for the end"] = KEPT
    return Sum(_rounded(sum(parts.values()), _STEP), parts)


def head_boot(own: Sum, compute_timeout: int, static: bool) -> Sum:
    """Return the seconds of the head node's boot: half of them are its own, in the other half static nodes boot."""
    parts = {"twice its own boot": 2 * own.total}
    if static and 2 * compute_timeout > 2 * own.total:
        parts = {"twice the compute nodes' timeout": 2 * compute_timeout}
    return Sum(sum(parts.values()), parts)


def _rounded(figure: int, step: int) -> int:
    return math.ceil(figure / step) * step
