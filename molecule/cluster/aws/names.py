# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The DNS of the sandbox's network: the zones that Route 53 holds, and the private DNS names of EC2.

Every private IPv4 address has such a name in us-east-1, ip-10-115-0-10.ec2.internal, whether a machine has the address
or not, and the address leads back to the name ("EC2 instance hostnames and domains", AWS' EC2 user guide).
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address
from typing import Any

from dnslib import PTR, QTYPE, RCODE, RR, A
from dnslib.server import BaseResolver, DNSServer
from moto.core import DEFAULT_ACCOUNT_ID
from moto.route53 import route53_backends

OF_EC2 = re.compile(r"ip-(\d+)-(\d+)-(\d+)-(\d+)\.ec2\.internal", re.I)
REVERSE = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)\.in-addr\.arpa", re.I)


def private(parts: tuple[str, ...]) -> list[str]:
    """The private address with these four parts, or none."""
    try:
        address = IPv4Address(".".join(parts))
    except AddressValueError:
        return []
    return [str(address)] if address.is_private else []


def addresses(name: str) -> list[str]:
    """The A records of a name."""
    if of_ec2 := OF_EC2.fullmatch(name.rstrip(".")):
        return private(of_ec2.groups())
    found = []
    for zone in route53_backends[DEFAULT_ACCOUNT_ID]["aws"].zones.values():
        for record in zone.rrsets:
            if record.type == "A" and record.name.rstrip(".").lower() == name.rstrip(".").lower():
                found += [str(value) for value in record.records]
    return found


def name_of(reverse: str) -> list[str]:
    """The PTR records of a name below in-addr.arpa."""
    found = REVERSE.fullmatch(reverse.rstrip("."))
    return [f"ip-{one.replace('.', '-')}.ec2.internal" for one in private(found.groups()[::-1])] if found else []


class Zones(BaseResolver):  # type: ignore[misc]
    """Answers one question."""

    def resolve(self, request: Any, _handler: Any) -> Any:
        reply, name = request.reply(), request.q.qname
        records = [(QTYPE.A, A(address)) for address in addresses(str(name))]
        records += [(QTYPE.PTR, PTR(one)) for one in name_of(str(name))]
        if not records:
            reply.header.rcode = RCODE.NXDOMAIN
        for kind, data in records:
            if request.q.qtype in (kind, QTYPE.ANY):
                reply.add_answer(RR(name, kind, ttl=5, rdata=data))
        return reply


def serve() -> None:
    """Answer on port 53, over UDP and TCP, in threads of their own."""
    for tcp in (False, True):
        DNSServer(Zones(), port=53, address="0.0.0.0", tcp=tcp).start_thread()
