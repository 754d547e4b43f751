# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The DNS of the sandbox's network: it answers from the zones that Route 53 holds, and knows nothing else."""

from __future__ import annotations

from typing import Any

from dnslib import QTYPE, RCODE, RR, A
from dnslib.server import BaseResolver, DNSServer
from moto.core import DEFAULT_ACCOUNT_ID
from moto.route53 import route53_backends


def addresses(name: str) -> list[str]:
    """The A records of a name."""
    found = []
    for zone in route53_backends[DEFAULT_ACCOUNT_ID]["aws"].zones.values():
        for record in zone.rrsets:
            if record.type == "A" and record.name.rstrip(".").lower() == name.rstrip(".").lower():
                found += [str(value) for value in record.records]
    return found


class Zones(BaseResolver):  # type: ignore[misc]
    """Answers one question."""

    def resolve(self, request: Any, _handler: Any) -> Any:
        reply, name = request.reply(), request.q.qname
        found = addresses(str(name))
        if not found:
            reply.header.rcode = RCODE.NXDOMAIN
        for address in found if request.q.qtype in (QTYPE.A, QTYPE.ANY) else []:
            reply.add_answer(RR(name, QTYPE.A, ttl=5, rdata=A(address)))
        return reply


def serve() -> None:
    """Answer on port 53, over UDP and TCP, in threads of their own."""
    for tcp in (False, True):
        DNSServer(Zones(), port=53, address="0.0.0.0", tcp=tcp).start_thread()
