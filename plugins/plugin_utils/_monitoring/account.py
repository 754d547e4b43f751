# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the account has before the monitoring instance's stack is made or changed. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import account
from ansible_collections.pcluster.postboot.plugins.plugin_utils._monitoring.parameters import Subnet

# Where Canonical says which image is the newest.
IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}


class Account(account.Account):
    def subnets(self, names: Sequence[str]) -> dict[str, Subnet]:
        found = self._ask("ec2", "describe_subnets", "ec2:DescribeSubnets", "subnets", SubnetIds=list(names))
        return {one["SubnetId"]: Subnet(one["VpcId"], one["AvailabilityZone"]) for one in found["Subnets"]}

    def image(self, instance_type: str) -> str:
        """Return Canonical's newest image for an instance type."""
        about = f"instance type {instance_type}"
        permission = "ec2:DescribeInstanceTypes"
        asked = self._ask("ec2", "describe_instance_types", permission, about, InstanceTypes=[instance_type])
        architectures = asked["InstanceTypes"][0]["ProcessorInfo"]["SupportedArchitectures"]
        name = IMAGE.format(next(_ARCHITECTURES[one] for one in architectures if one in _ARCHITECTURES))
        found = self._ask("ssm", "get_parameter", "ssm:GetParameter", name, Name=name)
        return str(found["Parameter"]["Value"])
