# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What Prometheus makes of labels by relabelling (model/relabel/relabel.go)."""

from __future__ import annotations

import re
from typing import Any

Labels = dict[str, str]


def relabel(labels: Labels, rules: list[dict[str, Any]]) -> Labels | None:
    """What is left of the labels of a target or a series; None if nothing is."""
    labels = dict(labels)
    for rule in rules:
        assert set(rule) <= {"source_labels", "regex", "action", "target_label", "replacement"}, rule
        value = ";".join(labels.get(name, "") for name in rule.get("source_labels", []))
        match = re.fullmatch(rule.get("regex", "(.*)"), value, re.DOTALL)
        action = rule.get("action", "replace")
        if action in ("keep", "drop"):
            if bool(match) is (action == "drop"):
                return None
        elif match:
            text = match.expand(rule.get("replacement", "$1").replace("$", "\\"))
            labels[rule["target_label"]] = text
    return {name: value for name, value in labels.items() if value and not name.startswith("__meta_")}
