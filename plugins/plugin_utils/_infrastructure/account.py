# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is known in the account before a stack is made or changed. Nothing is changed here."""

from __future__ import annotations

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import account
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, code_of, explain


class Account(account.Account):
    def zones(self) -> dict[str, str]:
        """Return the region's availability zones, and their ids, which are the same in all accounts."""
        found = self._ask("ec2", "describe_availability_zones", "ec2:DescribeAvailabilityZones", "zones")
        return {
            zone["ZoneName"]: zone["ZoneId"]
            for zone in found["AvailabilityZones"]
            if zone.get("ZoneType", "availability-zone") == "availability-zone" and zone.get("State") == "available"
        }

    def caller(self) -> str:
        return str(self._ask("sts", "get_caller_identity", "sts:GetCallerIdentity", "the caller")["Arn"])

    def refuse_repository(self, bucket: str) -> None:
        """Refuse a bucket that is not there, or in another region. Of a bucket of others the region may be unknown."""
        try:
            headers = self.make("s3", self.region).head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]
        except AwsErrors as error:
            if code_of(error) in ("404", "NoSuchBucket"):
                raise Problem(
                    f"infrastructure_lustre_repository is in the bucket {bucket}, which is not there; make the bucket "
                    f"first: aws s3 mb s3://{bucket} --region {self.region}"
                ) from error
            response = getattr(error, "response", None)
            if not isinstance(response, dict):
                raise explain(error, self.region, "s3:ListBucket", f"bucket {bucket}") from error
            headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        region = headers.get("x-amz-bucket-region", self.region)
        if region != self.region:
            raise Problem(
                f"infrastructure_lustre_repository is in {bucket}, a bucket of {region}; needed: one of {self.region}, "
                "where the file system is"
            )
