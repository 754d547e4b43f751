# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`pcluster build-image`, up to the call of CloudFormation.

Runs in an environment that has aws-parallelcluster: `image.py < CONFIGURATION` prints the template as JSON. moto stands
for AWS; nothing leaves the machine.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import Any

import yaml

REGION = "us-east-1"


def template(config: dict[str, Any]) -> dict[str, Any]:
    """Return the template that ParallelCluster makes of a configuration which its schema takes."""
    import boto3
    from pcluster.models.s3_bucket import S3Bucket
    from pcluster.schemas.imagebuilder_schema import ImageBuilderSchema
    from pcluster.templates.cdk_builder import CDKTemplateBuilder

    ec2 = boto3.client("ec2")
    config["Build"]["ParentImage"] = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    found = ImageBuilderSchema().load(config)
    bucket = S3Bucket(name="artifacts", stack_name="image", service_name="image", artifact_directory="images/image")
    return dict(CDKTemplateBuilder.build_imagebuilder_template(found, "image", bucket))


def main() -> None:
    os.environ.update(AWS_DEFAULT_REGION=REGION, AWS_ACCESS_KEY_ID="sandbox", AWS_SECRET_ACCESS_KEY="sandbox")
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        os.environ.pop(name, None)
    logging.disable(logging.CRITICAL)
    from moto import mock_aws

    with mock_aws():
        json.dump(template(yaml.safe_load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
