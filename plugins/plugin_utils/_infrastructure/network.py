# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Addresses and zones: what AWS, or the cluster on it, would refuse."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network

SUBNETS = ("PrivateCidr", "SecondaryPrivateCidr", "PublicCidr", "SecondaryPublicCidr")
SPLIT = (16, 23)  # prefix lengths of a VPC that split() can divide: the smallest subnets have 27
SUBNET = (16, 28)  # what AWS takes
BALANCER = 27  # the smallest subnet of a load balancer ("Subnets for your load balancer", Elastic Load Balancing)
DOCKER = IPv4Network("172.17.0.0/16")


def split(cidr: str) -> dict[str, str]:
    """Divide a VPC: half for the nodes, an eighth for the second zone, a sixteenth for each public subnet."""
    try:
        whole = IPv4Network(cidr)
    except ValueError:
        return {}
    if not SPLIT[0] <= whole.prefixlen <= SPLIT[1]:
        return {}
    eighths, sixteenths = list(whole.subnets(3)), list(whole.subnets(4))
    halves = next(whole.subnets(1))
    return dict(zip(SUBNETS, map(str, (halves, eighths[4], sixteenths[14], sixteenths[15]))))


def refusals(
    parameters: Mapping[str, str], told: Mapping[str, str], zones: Mapping[str, str], logins: Sequence[str]
) -> Iterator[str]:
    """Yield what is wrong, a line for each. Zones are those of the region, with their ids."""
    yield from _zones(parameters, zones)
    yield from _addresses(parameters, told)
    for place in logins:
        yield from _login(place)


def _zones(parameters: Mapping[str, str], zones: Mapping[str, str]) -> Iterator[str]:
    listed = ", ".join(f"{name} ({ident})" for name, ident in sorted(zones.items()))
    primary, secondary = parameters.get("PrimaryAz", ""), parameters["SecondaryAz"]
    for name, zone in (("infrastructure_primary_az", primary), ("infrastructure_secondary_az", secondary)):
        if zone and zone not in zones:
            yield f"{name} is {zone}; needed: a zone of the region by its name, which is one of {listed}"
    if not primary:
        yield f"infrastructure_primary_az is not set; needed: the zone of your nodes and file systems, one of {listed}"
    if secondary and secondary == primary:
        yield f"infrastructure_secondary_az is {secondary}, as infrastructure_primary_az is; needed: another zone"
    if parameters["Monitoring"] == "self_hosted" and not secondary:
        yield (
            "infrastructure_monitoring is self_hosted, whose load balancer needs two zones; needed: "
            f"infrastructure_secondary_az, one of {listed}"
        )


def _addresses(parameters: Mapping[str, str], told: Mapping[str, str]) -> Iterator[str]:
    whole, wrong = _network("infrastructure_cidr", parameters["Cidr"])
    if wrong or not whole:
        yield wrong
        return
    if not SUBNET[0] <= whole.prefixlen <= SUBNET[1]:
        yield f"infrastructure_cidr is {whole}; needed: a size from /{SUBNET[0]} to /{SUBNET[1]}, as AWS takes it"
        return
    if not split(str(whole)) and not all(name in told for name in SUBNETS):
        yield (
            f"infrastructure_cidr is {whole}, which is too small for four subnets; needed: a size from /{SPLIT[0]} to "
            f"/{SPLIT[1]}, or infrastructure_private_cidr and the other three"
        )
        return
    if whole.overlaps(DOCKER):
        yield (
            f"infrastructure_cidr is {whole}, which overlaps {DOCKER}, where Docker on every node has its bridge; "
            "needed: other addresses"
        )
    used = SUBNETS if parameters["SecondaryAz"] else SUBNETS[::2]
    subnets = {}
    for name in used:
        subnet, wrong = _network(_variable(name), parameters[name])
        if wrong or not subnet:
            yield wrong
            continue
        subnets[name] = subnet
        if not subnet.subnet_of(whole):
            yield f"{_variable(name)} is {subnet}; needed: a part of infrastructure_cidr, {whole}"
        least = BALANCER if "Public" in name and parameters["Monitoring"] == "self_hosted" else SUBNET[1]
        if subnet.prefixlen > least:
            yield f"{_variable(name)} is {subnet}, which is too small; needed: /{least} or larger"
    for (one, first), (other, second) in itertools.combinations(subnets.items(), 2):
        if first.overlaps(second):
            yield f"{_variable(one)} is {first} and overlaps {_variable(other)}, {second}; needed: subnets apart"


def _login(place: str) -> Iterator[str]:
    found, wrong = _network("infrastructure_login_ssh_from", place)
    if wrong or not found:
        yield wrong
    elif not found.prefixlen:
        yield (
            "infrastructure_login_ssh_from has 0.0.0.0/0, which is everybody; needed: your own addresses, such as "
            "203.0.113.7/32"
        )


def _network(name: str, text: str) -> tuple[IPv4Network | None, str]:
    try:
        if "/" in text:
            return IPv4Network(text), ""
    except ValueError as error:
        return None, f"{name} has {text}; needed: IPv4 addresses such as 10.0.0.0/16 ({error})"
    return None, f"{name} has {text}; needed: IPv4 addresses with their size, such as 10.0.0.0/16 or 203.0.113.7/32"


def _variable(parameter: str) -> str:
    words = {"PrivateCidr": "private", "PublicCidr": "public"}
    second = parameter.startswith("Secondary")
    return f"infrastructure_{'secondary_' if second else ''}{words[parameter.removeprefix('Secondary')]}_cidr"
