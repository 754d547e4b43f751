# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What tests have of AWS: what it refuses a call with, keys for the API that moto serves, and instances there."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


def error(code: str, message: str = "said AWS", operation: str = "DescribeInstances") -> ClientError:
    """Return what a call raises that AWS refuses."""
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


def launch(ec2: Any, tags: dict[str, str], count: int = 1, **more: Any) -> dict[str, Any]:
    """Run instances of an image that moto has, in one reservation, and return what EC2 says of the first."""
    labels = [{"ResourceType": "instance", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]
    made = ec2.run_instances(ImageId="ami-12c6146b", MinCount=count, MaxCount=count, TagSpecifications=labels, **more)
    found: dict[str, Any] = made["Instances"][0]
    return found
