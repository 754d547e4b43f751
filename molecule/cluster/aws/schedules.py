# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What EC2 has scheduled, which moto does not know: the end of capacity blocks, and events of instances.

A test plants both. An instance's tag `sandbox:event` is an event's code and its beginning (system-reboot
2026-12-01T04:00:00Z); a third word, such as [Completed], begins its description, as the page of InstanceStatusEvent
says. RESERVATIONS has capacity reservations by their ids, with the keys of the API (/sandbox/capacity-reservations).
"""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Instance
from moto.ec2.responses import EC2Response
from moto.ec2.responses.instances import InstanceResponse

TAG = "sandbox:event"
RESERVATIONS: dict[str, dict[str, Any]] = {}


class NotFound(EC2ClientError):
    def __init__(self, one: str) -> None:
        super().__init__("InvalidCapacityReservationId.NotFound", f"The capacity reservation ID '{one}' was not found")


def events(instance: Any) -> list[dict[str, Any]]:
    """Return what is scheduled for an instance, as DescribeInstanceStatus tells it."""
    planted = [tag["value"].split(maxsplit=2) for tag in instance.get_tags() if tag["key"] == TAG]
    return [
        {
            "InstanceEventId": f"instance-event-{instance.id.removeprefix('i-')}",
            "Code": code,
            "Description": " ".join([*more, "The instance is scheduled for maintenance"]),
            "NotBefore": begins,
        }
        for code, begins, *more in planted
    ]


def describe_instance_status(self: Any) -> ActionResult:
    """Answer as moto does, and by the filter event.code, which moto refuses."""
    wanted = self._filters_from_querystring()
    codes = wanted.pop("event.code", None)
    found = self.ec2_backend.describe_instance_status(
        self._get_param("InstanceIds", []),
        self._get_bool_param("IncludeAllInstances", False),
        [{"name": name, "values": values} for name, values in wanted.items()],
    )
    if codes:
        found = [one for one in found if any(event["Code"] in codes for event in events(one))]
    return ActionResult({"InstanceStatuses": found})


def describe_capacity_reservations(self: Any) -> ActionResult:
    ids = self._get_param("CapacityReservationIds", [])
    for one in ids:
        if one not in RESERVATIONS:
            raise NotFound(one)
    return ActionResult({"CapacityReservations": [RESERVATIONS[one] for one in ids or RESERVATIONS]})


def plant(told: dict[str, Any]) -> dict[str, Any]:
    """Take reservations by their ids; null takes one away."""
    for one, reservation in told.items():
        RESERVATIONS.pop(one, None)
        RESERVATIONS.update({one: reservation} if reservation else {})
    return RESERVATIONS


def patches() -> list[tuple[Any, str, Any]]:
    """Return what is to be set where in moto: by the server for good, by a test for its time."""
    return [
        (Instance, "events", property(events)),
        (InstanceResponse, "describe_instance_status", describe_instance_status),
        (EC2Response, "describe_capacity_reservations", describe_capacity_reservations),
    ]


def register() -> None:
    for target, name, value in patches():
        setattr(target, name, value)
