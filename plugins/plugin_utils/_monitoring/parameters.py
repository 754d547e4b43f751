# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The parameters of the monitoring instance's stack: what the options make of those that the stack has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.instances import is_name

# Parameters of the template, by the options that they are.
_NAMES = {
    "vpc": "Vpc",
    "subnet": "Subnet",
    "scheme": "Scheme",
    "domain": "Domain",
    "hosted_zone": "HostedZone",
    "certificate": "Certificate",
    "security_group": "SecurityGroup",
    "nodes_security_group": "NodesSecurityGroup",
    "image": "Image",
    "instance_type": "InstanceType",
    "data_size": "DataSize",
    "data_volume": "DataVolume",
}
BALANCER = ("BalancerSubnet1", "BalancerSubnet2")
CIDRS = tuple(f"AllowedCidr{number}" for number in range(1, 6))
# As the template has them.
_DOMAIN = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+")
DATA_SIZES = (10, 16384)
_NEEDED = {
    "Vpc": "the VPC of the clusters",
    "Subnet": "a private subnet of that VPC",
    BALANCER[0]: "two subnets of that VPC in two zones, public ones for a load balancer on the internet",
    "Domain": "the name by which people reach Grafana, such as monitoring.example.org",
    CIDRS[0]: "the addresses of the people who may see Grafana, such as 198.51.100.0/24",
}
_OPTIONS = {parameter: option for option, parameter in _NAMES.items()}
_OPTIONS.update({BALANCER[0]: "balancer_subnets", CIDRS[0]: "allowed_cidrs"})
# Certificate or zone, and one of two groups: setting the one on a stack that has the other takes the other away.
_EITHER = (("HostedZone", "Certificate"), ("SecurityGroup", "NodesSecurityGroup"))


class Subnet(NamedTuple):
    vpc: str
    zone: str


def settled(name: str, options: Mapping[str, Any], there: Mapping[str, str]) -> dict[str, str]:
    """Return the stack's parameters: those that it has, and over them what is set."""
    given = {key: value for key, value in options.items() if value not in (None, "", [])}
    found = {parameter: str(given[option]) for option, parameter in _NAMES.items() if option in given}
    found.update(zip(BALANCER, map(str, given.get("balancer_subnets", ()))))
    for pair in _EITHER:
        if any(one in found for one in pair):
            found = {**dict.fromkeys(pair, ""), **found}
    if "allowed_cidrs" in given:
        found.update(dict.fromkeys(CIDRS[1:], ""), **dict(zip(CIDRS, map(str, given["allowed_cidrs"]))))
    return {**there, **found, "Name": name}


def refusals(parameters: Mapping[str, str], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong before the account is asked, a line for each."""
    for name, needed in _NEEDED.items():
        if not parameters.get(name):
            yield f"monitoring_{_OPTIONS[name]} is not set; needed: {needed}"
    yield from _shapes(parameters)
    subnets = options.get("balancer_subnets") or []
    if subnets and len(subnets) != len(BALANCER):
        yield f"monitoring_balancer_subnets has {len(subnets)}; needed: {len(BALANCER)}, in two zones"
    cidrs = options.get("allowed_cidrs") or []
    if len(cidrs) > len(CIDRS):
        yield f"monitoring_allowed_cidrs has {len(cidrs)} ranges; needed: {len(CIDRS)} at most"
    for cidr in cidrs:
        yield from _range(str(cidr))
    if not parameters.get("HostedZone") and not parameters.get("Certificate"):
        yield (
            "neither monitoring_hosted_zone nor monitoring_certificate is set; needed: the Route 53 zone of "
            "monitoring_domain, in which the record and the certificate are made, or the ARN of a certificate"
        )
    if not parameters.get("SecurityGroup") and not parameters.get("NodesSecurityGroup"):
        yield (
            "neither monitoring_security_group nor monitoring_nodes_security_group is set; needed: a group that the "
            "nodes let in, or the nodes' own"
        )


def _shapes(parameters: Mapping[str, str]) -> Iterator[str]:
    domain, kind, size = (parameters.get(name) for name in ("Domain", "InstanceType", "DataSize"))
    if domain and not _DOMAIN.fullmatch(domain):
        yield f"monitoring_domain is {domain}; needed: a name in small letters, such as monitoring.example.org"
    if kind and not is_name(kind):
        yield f"monitoring_instance_type is {kind}, which is no instance type; needed: one such as t3.medium"
    if size and not DATA_SIZES[0] <= int(size) <= DATA_SIZES[1]:
        yield f"monitoring_data_size is {size}; needed: {DATA_SIZES[0]} to {DATA_SIZES[1]} GiB"


def _range(cidr: str) -> Iterator[str]:
    try:
        network = IPv4Network(cidr)
    except ValueError as error:
        yield f"monitoring_allowed_cidrs has {cidr}, which is no range ({error}); needed: such as 198.51.100.0/24"
        return
    if network.prefixlen == 0:
        yield f"monitoring_allowed_cidrs has {cidr}, which is everybody; needed: the ranges of your own people"


def subnets_of(parameters: Mapping[str, str]) -> list[str]:
    return [parameters[name] for name in ("Subnet", *BALANCER)]


def misplaced(parameters: Mapping[str, str], subnets: Mapping[str, Subnet]) -> Iterator[str]:
    """Yield what is wrong with the subnets, which the account has told."""
    for name in subnets_of(parameters):
        if subnets[name].vpc != parameters["Vpc"]:
            yield f"subnet {name} is in {subnets[name].vpc}; needed: one in monitoring_vpc, {parameters['Vpc']}"
    zones = sorted({subnets[parameters[name]].zone for name in BALANCER})
    if len(zones) < 2:
        yield f"monitoring_balancer_subnets are in {', '.join(zones)}; needed: two zones, as load balancers have them"
