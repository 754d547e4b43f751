# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the sandbox answers to DescribeInstanceInformation, and what it refuses as AWS does."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

agents = load("molecule/cluster/aws/agents.py")
KNOWN = [
    ({"InstanceId": "i-1", "PingStatus": "Online"}, {"cluster": "alpha"}),
    ({"InstanceId": "i-2", "PingStatus": "ConnectionLost"}, {"cluster": "alpha"}),
    ({"InstanceId": "i-3", "PingStatus": "Online"}, {"cluster": "beta", "spare": ""}),
]
ONLINE = {"Key": "PingStatus", "Values": ["Online"]}
ALPHA = {"Key": "tag:cluster", "Values": ["alpha"]}
SPARE = {"Key": "tag-key", "Values": ["spare"]}


def names(*filters: dict[str, Any]) -> list[str]:
    return [row["InstanceId"] for row in agents.chosen(KNOWN, filters)]


def test_filters() -> None:
    assert names() == ["i-1", "i-2", "i-3"]
    assert names(ONLINE) == ["i-1", "i-3"]
    assert names(ALPHA) == ["i-1", "i-2"], "agents that are lost as well"
    assert names(SPARE) == ["i-3"]
    assert names(ONLINE, {"Key": "InstanceIds", "Values": ["i-2", "i-3"]}) == ["i-3"]
    with pytest.raises(agents.InvalidRequest, match="Name is not a filter"):
        names({"Key": "Name", "Values": ["x"]})


@pytest.mark.parametrize("filters", [(ONLINE, ALPHA), (ALPHA, ONLINE), (SPARE, ONLINE)])
def test_the_filter_of_a_tag_stands_alone(filters: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(agents.InvalidRequest, match="Cannot mix tag or inventory filter with any other filter") as told:
        names(*filters)
    assert told.value.args[0] == "ValidationException"


def test_pages() -> None:
    known = KNOWN * 2
    first = agents.page(known, {"MaxResults": 5})
    assert len(first["InstanceInformationList"]) == 5
    last = agents.page(known, {"MaxResults": 5, "NextToken": first["NextToken"]})
    assert len(last["InstanceInformationList"]) == 1
    assert "NextToken" not in last
    with pytest.raises(agents.InvalidRequest, match="must be from 5 to 50"):
        agents.page(known, {"MaxResults": 51})
