# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`pcluster create-cluster` and `update-cluster`, up to the call of CloudFormation.

Runs in an environment that has aws-parallelcluster: `upstream.py RESULT < REQUEST` writes what CloudFormation and the
artifact bucket would have got. moto stands for AWS; nothing leaves the machine.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import os
import random
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import yaml
from account import MADE, Account

# These ask AWS for what moto has not.
SUPPRESSED = {
    "ComputeResourceLaunchTemplateValidator",  # a dry run: moto takes no instance store in BlockDeviceMappings
    "HeadNodeLaunchTemplateValidator",
    "ExistingFsxNetworkingValidator",  # moto's file systems have no network interfaces
    # What CustomActions and Iam name exists in the caller's account, not in this one.
    "AdditionalIamPolicyValidator",
    "IamPolicyValidator",
    "UrlValidator",
}


class Owner(Protocol):
    """An account as the calls below need it: account.py has the sandbox's, estate.py one for any configuration."""

    image: str
    log_group: str

    def stack_id(self, stack: str) -> str: ...

    def reference(self, stack: str, name: str, kind: str, properties: Mapping[str, Any]) -> str | None: ...


class CloudFormation:
    """The calls that reach CloudFormation, for the one stack that there is. What it would make, resolver.py says."""

    def __init__(self, account: Owner) -> None:
        self.account = account
        self.stack: dict[str, Any] = {}
        self.defaults: dict[str, str] = {}

    def stack_exists(self, name: str) -> bool:
        return bool(self.stack)

    def create_stack_from_url(self, **given: Any) -> dict[str, str]:
        name = given["stack_name"]
        self.stack = {"StackName": name, "StackId": self.account.stack_id(name), "StackStatus": "CREATE_COMPLETE"}
        return self.update_stack_from_url(**given)

    def update_stack_from_url(self, **given: Any) -> dict[str, str]:
        own = [{"ParameterKey": key, "ParameterValue": value} for key, value in self.defaults.items()]
        self.stack.update(Parameters=[*given["parameters"], *own], Tags=given["tags"])
        return {"StackId": self.stack["StackId"]}

    def describe_stack(self, name: str) -> dict[str, Any]:
        return self.stack

    def describe_stack_resources(self, name: str) -> dict[str, dict[str, str]]:
        names = ("HeadNodeSecurityGroup", "ComputeSecurityGroup")
        ids = {each: self.account.reference(name, each, "AWS::EC2::SecurityGroup", {}) for each in names}
        return {each: {"LogicalResourceId": each, "PhysicalResourceId": str(found)} for each, found in ids.items()}


def image_name(system: str, architecture: str = "x86_64") -> str:
    """What the official image is called, by which ParallelCluster finds it."""
    from pcluster.constants import OS_TO_IMAGE_NAME_PART_MAP
    from pcluster.utils import get_installed_version

    return f"aws-parallelcluster-{get_installed_version()}-{OS_TO_IMAGE_NAME_PART_MAP[system]}-{architecture}-{MADE}"


def synthesise(request: dict[str, Any], account: Owner, suppressed: Iterable[str] = SUPPRESSED) -> dict[str, Any]:
    """Create or update the cluster as the command line does, and return what it hands to AWS."""
    import boto3
    from moto.moto_api._internal import mock_random
    from pcluster.aws.cfn import CfnClient
    from pcluster.aws.s3 import S3Client
    from pcluster.config.common import TypeMatchValidatorsSuppressor
    from pcluster.models.cluster import CDKTemplateBuilder, Cluster
    from pcluster.utils import get_installed_version

    name = request["cluster"]
    # The artifact directory is the cluster's own, the objects' versions are their contents' own.
    random.seed(name)
    mock_random.seed(request["seed"])
    cloudformation = CloudFormation(account)
    calls = [call for call in vars(CloudFormation) if not call.startswith("_")]
    build = CDKTemplateBuilder.build_cluster_template
    later = "previous" in request

    def template(**given: Any) -> Any:
        """Write the template, with the same log group each time; of a cluster that is updated below, none yet."""
        bucket, config = given["bucket"], given["cluster_config"]
        cloudformation.defaults = {
            "ArtifactS3RootDirectory": bucket.artifact_directory,
            "ClusterCWLogGroup": account.log_group,
            "ConfigVersion": config.original_config_version,
            "OfficialAmi": account.image,
            "ResourcesS3Bucket": bucket.name,
        }
        if later and not cloudformation.stack:
            return {}, None
        return build(**{**given, "log_group_name": account.log_group})

    suppressors = {TypeMatchValidatorsSuppressor(set(suppressed))}
    with (
        mock.patch.multiple(
            CfnClient, **{call: mock.Mock(side_effect=getattr(cloudformation, call)) for call in calls}
        ),
        mock.patch.object(S3Client, "put_bucket_policy"),  # moto knows no Condition and would deny everything
        mock.patch.object(CDKTemplateBuilder, "build_cluster_template", side_effect=template),
        mock.patch.object(Cluster, "has_running_login_nodes", return_value=login_nodes(request.get("previous", ""))),
    ):
        cluster = Cluster(name, request["previous"] if later else request["config"])
        _, notes = cluster.create(validator_suppressors=suppressors)
        if later:
            ec2 = boto3.client("ec2")
            tags = {"parallelcluster:cluster-name": name, "parallelcluster:node-type": "HeadNode"}
            pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
            specification = [{"ResourceType": "instance", "Tags": pairs}]
            ec2.run_instances(ImageId=account.image, MinCount=1, MaxCount=1, TagSpecifications=specification)
            cluster = Cluster(name)
            _, notes = cluster.update(request["config"], validator_suppressors=suppressors)
    s3, bucket, directory = boto3.client("s3"), cluster.bucket.name, cluster.bucket.artifact_directory
    objects = {}
    for found in s3.list_objects_v2(Bucket=bucket, Prefix=directory)["Contents"]:
        if not found["Key"].endswith(".zip"):  # the code of Lambda functions
            body = s3.get_object(Bucket=bucket, Key=found["Key"])["Body"].read().decode()
            objects[found["Key"][len(directory) + 1 :]] = body
    return {
        "version": get_installed_version(),
        "bucket": bucket,
        "directory": directory,
        "objects": objects,
        "parameters": {each["ParameterKey"]: each["ParameterValue"] for each in cloudformation.stack["Parameters"]},
        "tags": cloudformation.stack["Tags"],
        "notes": [f"{note.validator_type}: {note.message}" for note in notes],
        "warnings": warnings(notes),
    }


def warnings(notes: Iterable[Any]) -> list[str]:
    """What validators warn of, without what they merely tell."""
    return [f"{note.validator_type}: {note.message}" for note in notes if note.level.name == "WARNING"]


def hasten() -> None:
    """Let all of botocore's sessions share what they read and work out, since ParallelCluster makes hundreds.

    A look for garbage goes through what was read, megabytes of it, and is seldom worth its time.
    """
    from botocore import hooks
    from botocore.loaders import JSONFileLoader

    read, begin, names = functools.cache(JSONFileLoader().load_file), hooks.EventAliaser.__init__, {}

    def alias(self: Any, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        self._alias_name_cache = names

    JSONFileLoader.load_file = lambda _self, path: read(path)
    hooks.accepts_kwargs = functools.cache(hooks.accepts_kwargs)
    hooks.EventAliaser.__init__ = alias
    gc.set_threshold(100_000, 20, 20)


def login_nodes(config: str) -> bool:
    """Whether a cluster of this configuration has login nodes that run."""
    pools = ((yaml.safe_load(config) or {}).get("LoginNodes") or {}).get("Pools") or []
    return any(pool["Count"] for pool in pools)


def refusal(error: Exception) -> str:
    """Why ParallelCluster refuses, on one line."""
    failures = getattr(error, "validation_failures", [])
    words = [f"{found.validator_type}: {found.message}" for found in failures if found.level.name == "ERROR"]
    names, *rows = getattr(error, "update_changes", None) or [[]]
    for row in (dict(zip(names, row)) for row in rows):
        if row["check"] != "SUCCEEDED":
            words.append(f"{'.'.join([*row['param_path'], row['parameter']])}: {row['reason']} {row['action_needed']}")
    return " ".join(("; ".join(words) or str(error)).split())


def main() -> None:
    request = json.load(sys.stdin)
    os.environ.update(
        AWS_DEFAULT_REGION=request["topology"]["region"],
        AWS_ACCESS_KEY_ID="sandbox",
        AWS_SECRET_ACCESS_KEY="sandbox",
    )
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        os.environ.pop(name, None)
    logging.disable(logging.CRITICAL)
    hasten()
    from moto import mock_aws
    from pcluster.models.cluster import ClusterActionError

    with mock_aws():
        try:
            account = Account(request["topology"], request["cluster"])
            image = image_name(request["topology"]["clusters"][request["cluster"]]["os"])
            account.furnish(image)
            result = {**synthesise(request, account), "image_name": image}
        except ClusterActionError as error:
            result = {"refused": refusal(error)}
    Path(sys.argv[1]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
