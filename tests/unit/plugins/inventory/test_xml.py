# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The quick reader of EC2's answers gives what botocore gives, and leaves to botocore what it does not know."""

from __future__ import annotations

import functools
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import cloud as aws
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import xml
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import Reader

# As EC2 writes it: indented, with a network card that has elements of the same names as the instance.
INSTANCE = """
                <item>
                    <instanceId>{id}</instanceId>
                    <imageId>ami-0fedcba9876543210</imageId>
                    <instanceState>
                        <code>16</code>
                        <name>running</name>
                    </instanceState>
                    <privateDnsName>ip-10-0-0-5.ec2.internal</privateDnsName>
                    <dnsName/>
                    <instanceType>p5.48xlarge</instanceType>
                    <launchTime>2026-11-20T08:15:30.000Z</launchTime>
                    <placement>
                        <availabilityZone>us-east-1a</availabilityZone>
                        <tenancy>default</tenancy>
                    </placement>
                    <privateIpAddress>10.0.0.5</privateIpAddress>
                    <ipAddress>192.0.2.5</ipAddress>
                    <architecture>x86_64</architecture>
                    <blockDeviceMapping>
                        <item><deviceName>/dev/sda1</deviceName></item>
                    </blockDeviceMapping>
                    <tagSet>
                        <item>
                            <key>parallelcluster:cluster-name</key>
                            <value>alpha</value>
                        </item>
                        <item>
                            <key>parallelcluster:node-type</key>
                            <value>Compute</value>
                        </item>
                        <item>
                            <key>parallelcluster:attributes</key>
                            <value>alinux2023, slurm, 3.16.1, x86_64</value>
                        </item>
                        <item>
                            <key>Note</key>
                            <value>{note}</value>
                        </item>
                        <item>
                            <key>Empty</key>
                            <value/>
                        </item>
                    </tagSet>
                    <networkInterfaceSet>
                        <item>
                            <privateIpAddress>10.9.9.9</privateIpAddress>
                            <privateDnsName>other</privateDnsName>
                            <tagSet><item><key>parallelcluster:cluster-name</key><value>other</value></item></tagSet>
                        </item>
                        <item>
                            <privateIpAddressesSet/>
                        </item>
                    </networkInterfaceSet>
                </item>"""
NOTE = "&lt;networkInterfaceSet&gt; &amp; {{ lookup('pipe', 'id') }} é"


def page(*ids: str, token: str = "", note: str = NOTE) -> bytes:
    reservations = "".join(
        f"<item><reservationId>r-1</reservationId><groupSet/><instancesSet>{INSTANCE.format(id=id_, note=note)}"
        "</instancesSet></item>"
        for id_ in ids
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">\n'
        f"    <requestId>8f7724cf</requestId>\n    <reservationSet>{reservations}</reservationSet>\n"
        + (f"    <nextToken>{token}</nextToken>\n" if token else "")
        + "</DescribeInstancesResponse>"
    ).encode()


@functools.cache
def session() -> Any:
    """One session for all tests: it keeps the description of EC2, which is slow to read."""
    return boto3.Session("testing", "testing", region_name="us-east-1")


class Canned:
    """A client whose answers are given; it counts the requests, and notes what botocore was left to parse."""

    def __init__(self, bodies: list[bytes], status: int = 200, quick: bool = True) -> None:
        self.requests: list[Any] = []
        self.left: list[bytes] = []
        self.client = session().client("ec2")
        if quick:
            xml.register(self.client)

        def answer(request: Any, **_event: Any) -> AWSResponse:
            self.requests.append(request)
            response = AWSResponse(request.url, status, {}, None)
            response._content = bodies[len(self.requests) - 1]
            return response

        def note(response_dict: dict[str, Any], **_event: Any) -> None:
            self.left.append(response_dict["body"])

        self.client.meta.events.register("before-send.ec2.DescribeInstances", answer)
        self.client.meta.events.register_last(xml.EVENT, note)

    def instances(self) -> list[dict[str, Any]]:
        return aws.describe_instances(self.client, [])


def nodes(instances: list[dict[str, Any]]) -> list[Any]:
    reader = Reader("us-east-1")
    return [reader.node(instance) for instance in instances]


@pytest.mark.parametrize(
    "bodies",
    [
        [page("i-1")],
        [page("i-1", "i-2", token="a&lt;b+c"), page("i-3", token="2"), page("i-4")],
        [page()],
        [page(token="1"), page("i-9")],
        [page("i-1", note="")],
    ],
    ids=["one", "pages", "none", "empty-page", "empty-tag"],
)
def test_both_readers_agree(bodies: list[bytes]) -> None:
    quick, slow = Canned(bodies), Canned(bodies, quick=False)
    assert nodes(quick.instances()) == nodes(slow.instances())
    assert len(quick.requests) == len(slow.requests) == len(bodies)
    assert all(len(body) < 200 for body in quick.left)


def test_only_the_instance_itself_is_read() -> None:
    (node,) = nodes(Canned([page("i-1")]).instances())
    assert node["private_ip"] == "10.0.0.5"
    assert node["cluster"] == "alpha"
    assert node["tags"]["Note"] == "<networkInterfaceSet> & {{ lookup('pipe', 'id') }} é"
    assert node["tags"]["Empty"] == ""
    assert node["launch_time"] == "2026-11-20T08:15:30+00:00"
    assert "public_dns" not in node


def test_token_is_passed_on() -> None:
    canned = Canned([page("i-1", token="a&lt;b"), page("i-2")])
    canned.instances()
    assert "NextToken=a%3Cb" in str(canned.requests[1].body)
    assert "MaxResults=1000" in str(canned.requests[0].body)


@pytest.mark.parametrize(
    "body",
    [
        page("i-1").replace(b"<reservationSet>", b"<!-- new --><reservationSet>"),
        page("i-1", note="<![CDATA[<networkInterfaceSet>]]>"),
        page("i-1").replace(b"instancesSet>", b"instancesList>"),
        page("i-1").replace(b"reservationSet>", b"reservations>"),
        page("i-1").replace(b"DescribeInstancesResponse", b"DescribeInstancesResult"),
        page("i-1").replace(b"instanceId>", b"instanceIdentifier>"),
    ],
    ids=["comment", "cdata", "no-instances", "no-reservations", "other-root", "no-id"],
)
def test_unfamiliar_answers_are_left_to_botocore(body: bytes) -> None:
    quick, slow = Canned([body]), Canned([body], quick=False)
    assert quick.instances() == slow.instances()
    assert quick.left == [body]


@pytest.mark.parametrize("body", [b"", b"<", b"\xff\xfe", b"<a>", b"<networkInterfaceSet>", b"{}"])
def test_broken_answers_are_refused_quietly(body: bytes) -> None:
    response = {"status_code": 200, "body": body}
    custom: dict[str, Any] = {}
    xml.handle(response_dict=response, customized_response_dict=custom)
    assert (response["body"], custom) == (body, {})


@pytest.mark.parametrize(
    "event", [{}, {"response_dict": {}}, {"response_dict": None}, {"response_dict": {"status_code": 200}}, {"new": 1}]
)
def test_another_form_of_the_event_changes_nothing(event: dict[str, Any]) -> None:
    xml.handle(**event)
    xml.handle(**{"customized_response_dict": {}, **event})


def test_errors_are_left_to_botocore() -> None:
    from botocore.exceptions import ClientError

    body = (
        b"<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>No.</Message></Error></Errors>"
        b"<RequestID>1</RequestID></Response>"
    )
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        Canned([body], status=403).instances()


def test_without_the_event_botocore_reads() -> None:
    """A botocore that emits no such event: the handler is never called."""
    canned = Canned([page("i-1", token="1"), page("i-2")])
    canned.client.meta.events.unregister(xml.EVENT, xml.handle)
    instances = canned.instances()
    assert [instance["InstanceId"] for instance in instances] == ["i-1", "i-2"]
    assert "NetworkInterfaces" in instances[0]  # all of it was parsed


def test_what_is_large_is_never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse = xml.ElementTree.fromstring
    monkeypatch.setattr(xml.ElementTree, "fromstring", lambda body: (parsed.append(body), parse(body))[1])
    assert len(xml.read_instances(page("i-1", "i-2"))[0]) == 2
    assert b"10.9.9.9" not in parsed[0]
    assert b"deviceName" not in parsed[0]


def test_cut_takes_whole_elements() -> None:
    assert xml.cut(b"<a><b>1</b>x<b>2</b></a>", b"b") == b"<a>x</a>"
    assert xml.cut(b"<a><b/></a>", b"b") == b"<a><b/></a>"
    with pytest.raises(xml.Unfamiliar):
        xml.cut(b"<a><b>1</a>", b"b")
