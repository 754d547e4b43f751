# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads what `scontrol -o show nodes` prints."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def gpus_of(gres: str) -> int:
    """Count the GPUs of a generic resource list such as gpu:h100:8(S:0-1),shard:8."""
    count = 0
    for part in re.sub(r"\([^()]*\)", "", gres).split(","):
        words = part.split(":")
        if words[0] == "gpu":
            told = document.whole(words[-1])
            count += 1 if told is None else told
    return count
