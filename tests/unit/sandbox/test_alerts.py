# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The rules with which the sandbox plays alerts: only durations differ from those of role prometheus."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.pcluster.postboot.tests.programs import load

alerts = load("molecule/cluster/tests/alerts.py")
DURATION = r"(?<=[\[: ])\d+[smhd](?=[\]:]|$| |\n)"


def test_nothing_but_durations_is_changed() -> None:
    """Names, labels and texts are the same, and so is every expression without its ranges."""

    def bare(rule: Any) -> Any:
        kept = {key: value for key, value in rule.items() if key not in ("for", "keep_firing_for")}
        return {**kept, "expr": re.sub(DURATION, "T", rule["expr"])}

    for name, file in alerts.rules().items():
        for group, short in zip(file["groups"], alerts.shortened(file)["groups"]):
            assert short["name"] == group["name"], name
            assert [bare(rule) for rule in short["rules"]] == [bare(rule) for rule in group["rules"]]
            waits = [[{"for", "keep_firing_for"} & set(rule) for rule in one["rules"]] for one in (group, short)]
            assert waits[0] == waits[1]


def test_an_hour_is_a_minute_and_no_range_is_longer_than_two() -> None:
    rule = {
        "alert": "A",
        "for": "45m",
        "keep_firing_for": "30s",
        "expr": "max_over_time(a[6h]) + rate(b[30m:1m]) > c[2m]",
    }
    (group,) = alerts.shortened({"groups": [{"name": "g", "rules": [{**rule}, {"expr": "a offset 2h"}]}]})["groups"]
    assert group["interval"] == "5s"
    assert group["rules"] == [
        {
            "alert": "A",
            "for": "45s",
            "keep_firing_for": "1s",
            "expr": "max_over_time(a[120s]) + rate(b[120s:5s]) > c[2m]",
        },
        {"expr": "a offset 120s"},
    ]
