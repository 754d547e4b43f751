# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What moto's EC2 and Route 53 leave out, and ParallelCluster's clusters need."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from account import Account
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2 import ec2_backends
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import InstanceBackend
from moto.route53.models import HostedZoneIdentifier, Route53Backend

TOPOLOGY = Path("/srv/topology.yml")
NO_CAPACITY: set[str] = set()  # the types of instances that EC2 has none of, as a test says
RESERVED = 128  # the last part of the first address that instances get by themselves


class NoCapacity(EC2ClientError):
    """What RunInstances answers ("Troubleshoot instance launch issues", EC2 User Guide)."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            "InsufficientInstanceCapacity",
            f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested.",
        )


def furnish() -> None:
    """Make the network that the clusters' templates name, with the ids that they have there."""
    topology = yaml.safe_load(TOPOLOGY.read_text())
    account = Account(topology, next(iter(topology["clusters"])))
    ec2 = ec2_backends[DEFAULT_ACCOUNT_ID][account.region]
    with (
        mock.patch("moto.ec2.models.vpcs.random_vpc_id", return_value=account.vpc),
        mock.patch("moto.ec2.models.subnets.random_subnet_id", return_value=account.subnet),
    ):
        ec2.create_vpc(account.cidr)
        subnet = ec2.create_subnet(account.vpc, account.cidr, availability_zone=account.zone)
    # What is below has a fixed address.
    while int(str(next(subnet._subnet_ip_generator)).rsplit(".", 1)[1]) < RESERVED:
        pass


def follow_launch_templates() -> None:
    """Let instances have the network interface and the shutdown behaviour of their launch template, as EC2 does."""
    launch = InstanceBackend.run_instances

    def run_instances(self: Any, image_id: str, count: int, *arguments: Any, **options: Any) -> Any:
        if options.get("launch_template"):
            data = self._get_template_from_args(options["launch_template"]).data
            if data.get("InstanceType") in NO_CAPACITY:
                raise NoCapacity(data["InstanceType"])
            # A p5 has 32 interfaces. moto keeps one a device index, and the cluster's programs ask for the first.
            subnets = [nic["SubnetId"] for nic in data.get("NetworkInterfaces", []) if "SubnetId" in nic]
            first = [{"DeviceIndex": 0, "SubnetId": subnets[0], "DeleteOnTermination": True}] if subnets else []
            options["nics"] = options.get("nics") or first
            options["instance_initiated_shutdown_behavior"] = data.get("InstanceInitiatedShutdownBehavior")
        return launch(self, image_id, count, *arguments, **options)

    InstanceBackend.run_instances = run_instances  # type: ignore[method-assign]


def name_zones_by_reference() -> None:
    """Let a hosted zone have its caller's reference for an id: templates name it before it is made."""
    create = Route53Backend.create_hosted_zone

    def create_hosted_zone(self: Any, name: str, private_zone: bool, caller_reference: Any = None, **more: Any) -> Any:
        with mock.patch.object(HostedZoneIdentifier, "generate", return_value=caller_reference):
            return create(self, name, private_zone, caller_reference, **more)

    Route53Backend.create_hosted_zone = create_hosted_zone  # type: ignore[method-assign]
