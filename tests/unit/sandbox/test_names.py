# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The DNS of the sandbox's network: names of Route 53's zones, and those that EC2 gives to private addresses."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from dnslib import RCODE, DNSRecord

from ansible_collections.pcluster.postboot.tests.programs import load


def answers(name: str, kind: str = "A") -> tuple[str, list[str]]:
    reply = load("molecule/cluster/aws/names.py").Zones().resolve(DNSRecord.question(name, kind), None)
    return RCODE[reply.header.rcode], [str(record.rdata) for record in reply.rr]


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    from moto import mock_aws

    with mock_aws():
        route53 = boto3.client("route53", region_name="us-east-1")
        zone = route53.create_hosted_zone(Name="main.pcluster.", CallerReference="1")["HostedZone"]["Id"]
        record = {"Name": "cpu-1.main.pcluster", "Type": "A", "TTL": 5, "ResourceRecords": [{"Value": "10.115.0.130"}]}
        change = {"Changes": [{"Action": "UPSERT", "ResourceRecordSet": record}]}
        route53.change_resource_record_sets(HostedZoneId=zone, ChangeBatch=change)
        yield


def test_a_zone_of_route_53_is_answered_from() -> None:
    assert answers("cpu-1.main.pcluster") == ("NOERROR", ["10.115.0.130"])
    assert answers("cpu-2.main.pcluster") == ("NXDOMAIN", [])


def test_a_private_address_has_a_name_and_leads_back_to_it() -> None:
    assert answers("ip-10-115-0-129.ec2.internal") == ("NOERROR", ["10.115.0.129"])
    assert answers("129.0.115.10.in-addr.arpa", "PTR") == ("NOERROR", ["ip-10-115-0-129.ec2.internal."])
    # A name without an address of another kind is known, and has no record.
    assert answers("ip-10-115-0-129.ec2.internal", "AAAA") == ("NOERROR", [])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ip-8-8-8-8.ec2.internal", "A"),
        ("ip-10-115-0-429.ec2.internal", "A"),
        ("ip-10-115-0-129.main.pcluster", "A"),
        ("8.8.8.8.in-addr.arpa", "PTR"),
    ],
)
def test_other_names_are_unknown(name: str, kind: str) -> None:
    assert answers(name, kind) == ("NXDOMAIN", [])
