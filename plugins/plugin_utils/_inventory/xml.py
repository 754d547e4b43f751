# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads EC2's answer to DescribeInstances several times faster than botocore, by reading only what an inventory needs.

botocore builds dictionaries of every element, which is most of the time and memory that an inventory of thousands of
nodes costs. It emits the event "before-parse" with the raw answer, and takes parts that a handler has read already.
That event is not documented: where it is not emitted, or an answer looks unfamiliar, nothing is touched and botocore
reads the answer itself. Both ways give the same instances, in the shape of boto3's.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

EVENT = "before-parse.ec2.DescribeInstances"

# Parts of an instance that are not needed and not small. They are cut out of the bytes before anything parses them; 32
# network cards are nine tenths of an answer. None of these elements ever holds another of its own name, and in the text
# of XML "<" is always escaped.
_CUT = (b"networkInterfaceSet", b"blockDeviceMapping")

_TEXTS = {
    "instanceId": "InstanceId",
    "instanceType": "InstanceType",
    "architecture": "Architecture",
    "privateIpAddress": "PrivateIpAddress",
    "privateDnsName": "PrivateDnsName",
    "ipAddress": "PublicIpAddress",
    "dnsName": "PublicDnsName",
    "launchTime": "LaunchTime",
}
_WITHIN = {
    "placement": ("Placement", "availabilityZone", "AvailabilityZone"),
    "instanceState": ("State", "name", "Name"),
}


class Unfamiliar(Exception):
    """An answer that is left to botocore."""


def cut(body: bytes, name: bytes) -> bytes:
    """Return the body without the elements of a name."""
    start, end = b"<" + name + b">", b"</" + name + b">"
    kept = []
    position = 0
    while True:
        found = body.find(start, position)
        if found < 0:
            break
        kept.append(body[position:found])
        closed = body.find(end, found)
        if closed < 0:
            raise Unfamiliar(f"<{name.decode()}> is not closed")
        position = closed + len(end)
    kept.append(body[position:])
    return b"".join(kept)


def read_instances(body: bytes) -> tuple[list[dict[str, Any]], str | None]:
    """Return an answer's instances, with the fields that are needed, and the token of the next page."""
    if not isinstance(body, bytes) or b"<!" in body:
        raise Unfamiliar("no bytes, or comments, CDATA or a document type among them")
    for name in _CUT:
        body = cut(body, name)
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise Unfamiliar(str(error)) from error
    space, brace, kind = root.tag.rpartition("}")
    if kind != "DescribeInstancesResponse":
        raise Unfamiliar(f"the answer is a {kind}")
    space += brace
    reservations = root.find(f"{space}reservationSet")
    if reservations is None:
        raise Unfamiliar("no reservationSet")
    wanted: dict[str, tuple[str, ...]] = {f"{space}{tag}": (key,) for tag, key in _TEXTS.items()}
    wanted.update((f"{space}{tag}", (key, f"{space}{inner}", field)) for tag, (key, inner, field) in _WITHIN.items())
    tag_set, tag_key, tag_value = f"{space}tagSet", f"{space}key", f"{space}value"
    instances = []
    for reservation in reservations:
        found = reservation.find(f"{space}instancesSet")
        if found is None:
            raise Unfamiliar("a reservation without instancesSet")
        for item in found:
            instance: dict[str, Any] = {}
            for child in item:
                where = wanted.get(child.tag)
                if where is None:
                    if child.tag == tag_set:
                        instance["Tags"] = [
                            {"Key": tag.findtext(tag_key, ""), "Value": tag.findtext(tag_value, "")} for tag in child
                        ]
                elif len(where) == 1:
                    instance[where[0]] = child.text or ""
                else:
                    instance[where[0]] = {where[2]: child.findtext(where[1], "")}
            if not instance.get("InstanceId"):
                raise Unfamiliar("an instance without instanceId")
            instances.append(instance)
    return instances, root.findtext(f"{space}nextToken")


def handle(
    response_dict: dict[str, Any] | None = None, customized_response_dict: dict[str, Any] | None = None, **_event: Any
) -> None:
    """Take the instances out of an answer before botocore parses the rest, which is the token of the next page."""
    try:
        if response_dict is None or customized_response_dict is None or response_dict["status_code"] != 200:
            return
        instances, token = read_instances(response_dict["body"])
        rest = f"<nextToken>{escape(token)}</nextToken>" if token else ""
        response_dict["body"] = f"<DescribeInstancesResponse>{rest}</DescribeInstancesResponse>".encode()
        customized_response_dict["Reservations"] = [{"Instances": instances}]
    except (Unfamiliar, KeyError, TypeError, AttributeError):
        return  # nothing was taken: botocore parses the whole answer


def register(client: Any) -> None:
    """Let an EC2 client read its answers this way."""
    client.meta.events.register(EVENT, handle)
