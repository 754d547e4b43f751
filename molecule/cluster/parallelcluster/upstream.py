# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`pcluster create-cluster`, up to the call of CloudFormation. Runs in an environment that has aws-parallelcluster.

Takes a request on its standard input and writes what CloudFormation and the artifact bucket would have got into a file:
`upstream.py RESULT < REQUEST`. moto stands for AWS; nothing leaves the machine.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
from pathlib import Path
from typing import Any
from unittest import mock

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


def create(request: dict[str, Any]) -> dict[str, Any]:
    """Create the cluster as the command line does, and return what it hands to AWS."""
    import boto3
    from moto.moto_api._internal import mock_random
    from pcluster.aws.cfn import CfnClient
    from pcluster.aws.s3 import S3Client
    from pcluster.config.common import TypeMatchValidatorsSuppressor
    from pcluster.constants import OS_TO_IMAGE_NAME_PART_MAP
    from pcluster.models.cluster import CDKTemplateBuilder, Cluster
    from pcluster.utils import get_installed_version

    account = Account(request["topology"], request["cluster"])
    system = request["topology"]["clusters"][request["cluster"]]["os"]
    image = f"aws-parallelcluster-{get_installed_version()}-{OS_TO_IMAGE_NAME_PART_MAP[system]}-x86_64-{MADE}"
    account.furnish(image)
    # The artifact directory is the cluster's own, the objects' versions are their contents' own.
    random.seed(request["cluster"])
    mock_random.seed(request["seed"])
    stack: dict[str, Any] = {}
    build = CDKTemplateBuilder.build_cluster_template

    def template(**given: Any) -> Any:
        return build(**{**given, "log_group_name": account.log_group})

    cluster = Cluster(request["cluster"], request["config"])
    with (
        # CloudFormation is resolver.py.
        mock.patch.object(CfnClient, "stack_exists", return_value=False),
        mock.patch.object(CfnClient, "create_stack_from_url", side_effect=lambda **given: stack.update(given) or {}),
        mock.patch.object(S3Client, "put_bucket_policy"),  # moto knows no Condition and would deny everything
        mock.patch.object(CDKTemplateBuilder, "build_cluster_template", side_effect=template),
    ):
        _, notes = cluster.create(validator_suppressors={TypeMatchValidatorsSuppressor(SUPPRESSED)})
    s3, bucket, directory = boto3.client("s3"), cluster.bucket.name, cluster.bucket.artifact_directory
    objects = {}
    for found in s3.list_objects_v2(Bucket=bucket, Prefix=directory)["Contents"]:
        if not found["Key"].endswith(".zip"):  # the code of Lambda functions
            body = s3.get_object(Bucket=bucket, Key=found["Key"])["Body"].read().decode()
            objects[found["Key"][len(directory) + 1 :]] = body
    return {
        "version": get_installed_version(),
        "image_name": image,
        "bucket": bucket,
        "directory": directory,
        "objects": objects,
        "parameters": {each["ParameterKey"]: each["ParameterValue"] for each in stack["parameters"]},
        "tags": stack["tags"],
        "notes": [f"{note.validator_type}: {note.message}" for note in notes],
    }


def main() -> None:
    request = json.load(sys.stdin)
    os.environ.update(
        AWS_DEFAULT_REGION=request["topology"]["region"],
        AWS_ACCESS_KEY_ID="sandbox",
        AWS_SECRET_ACCESS_KEY="sandbox",
        JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION="1",
        JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION="1",
    )
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        os.environ.pop(name, None)
    logging.disable(logging.CRITICAL)
    from moto import mock_aws
    from pcluster.models.cluster import ClusterActionError

    with mock_aws():
        try:
            result = create(request)
        except ClusterActionError as error:
            failures = getattr(error, "validation_failures", [])
            words = [f"{found.validator_type}: {found.message}" for found in failures] or [str(error)]
            sys.exit(" ".join(f"ParallelCluster refuses the configuration: {'; '.join(words)}".split()))
    Path(sys.argv[1]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
