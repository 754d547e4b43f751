# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""DescribeInstanceInformation of AWS Systems Manager: what the service knows of the agents, with its filters and pages.

"Tag filters can't be combined with other filter types" (botocore's model of ssm, DescribeInstanceInformation, Filters);
the words of the refusal are those of danmx/sigil, issue 61. Whether one tag may stand beside another tag, neither
says clearly, so that is refused as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from commands import InvalidRequest

MIXED = "Cannot mix tag or inventory filter with any other filter."

Agent = tuple[dict[str, Any], dict[str, str]]  # a row of the answer, and the instance's tags


def chosen(agents: Iterable[Agent], filters: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that pass all filters."""
    if len(filters) > 1 and any(_of_tags(wanted["Key"]) for wanted in filters):
        raise InvalidRequest("ValidationException", MIXED)
    return [row for row, tags in agents if all(_passes(row, tags, wanted) for wanted in filters)]


def page(agents: Iterable[Agent], request: dict[str, Any]) -> dict[str, Any]:
    """One page of the answer."""
    size = request.get("MaxResults", 10)
    if not 5 <= size <= 50:
        raise InvalidRequest("ValidationException", f"MaxResults is {size}; it must be from 5 to 50")
    rows = chosen(agents, request.get("Filters", []))
    start = int(request.get("NextToken") or 0)
    found: dict[str, Any] = {"InstanceInformationList": rows[start : start + size]}
    if start + size < len(rows):
        found["NextToken"] = str(start + size)
    return found


def _of_tags(key: str) -> bool:
    return key == "tag-key" or key.startswith("tag:")


def _passes(row: dict[str, Any], tags: dict[str, str], wanted: dict[str, Any]) -> bool:
    key, values = wanted["Key"], wanted["Values"]
    if key == "InstanceIds":
        return row["InstanceId"] in values
    if key == "PingStatus":
        return row["PingStatus"] in values
    if key == "tag-key":
        return any(tag in values for tag in tags)
    if key.startswith("tag:"):
        return tags.get(key[4:]) in values
    raise InvalidRequest("InvalidFilterKey", f"{key} is not a filter of this call")
