# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What one ParallelCluster says of configurations: its schema, then its validators, then its templates.

With `previous`, the configuration of a cluster that runs, a request is an update, of which the update policy judges.

Runs in an environment that has aws-parallelcluster, for check.py: `judge.py RESULT < REQUESTS`. Nothing leaves the
machine.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from estate import Estate, walk
from upstream import hasten, image_name, refusal, synthesise, warnings

# These ask for what moto can not tell, and nobody else: the validator, and why.
UNANSWERED = {
    "ComputeResourceLaunchTemplateValidator": "a dry run of RunInstances: moto refuses instance store, knows no limits",
    "HeadNodeLaunchTemplateValidator": "the same dry run, of the head node",
}


def schema(config: dict[str, Any]) -> str:
    """What the schema refuses, by the keys that lead there; nothing is asked of AWS."""
    from pcluster.schemas.cluster_schema import ClusterSchema

    refused = ClusterSchema(cluster_name="example").validate(config)
    return "; ".join(" ".join(f"{'.'.join(map(str, path))}: {text}".split()) for path, text in walk(refused))


def validate(request: dict[str, Any]) -> dict[str, Any]:
    from pcluster.aws.cfn import CfnClient
    from pcluster.config.common import TypeMatchValidatorsSuppressor
    from pcluster.models.cluster import Cluster
    from pcluster.validators.common import FailureLevel

    suppressors = {TypeMatchValidatorsSuppressor(set(UNANSWERED))}
    with mock.patch.object(CfnClient, "stack_exists", return_value=False):
        cluster = Cluster(request["cluster"], request["config"])
        return {"warnings": warnings(cluster.validate_create_request(suppressors, FailureLevel.ERROR))}


def judge(request: dict[str, Any]) -> dict[str, Any]:
    """One configuration, in an account of its own."""
    import boto3
    from moto import mock_aws
    from pcluster.aws.aws_api import AWSApi
    from pcluster.models.cluster import ClusterActionError

    config = yaml.safe_load(request["config"])
    os.environ["AWS_DEFAULT_REGION"] = config["Region"]
    AWSApi.reset()
    with mock_aws():
        refused = schema(config)
        if refused or request["depth"] == "schema":
            return {"refused": refused} if refused else {}
        estate = Estate({**config, "Previous": yaml.safe_load(request.get("previous", ""))})
        kinds = boto3.client("ec2").describe_instance_types(InstanceTypes=[config["HeadNode"]["InstanceType"]])
        (architecture,) = kinds["InstanceTypes"][0]["ProcessorInfo"]["SupportedArchitectures"][-1:]
        official = image_name(config["Image"]["Os"], architecture)
        estate.furnish(official, architecture)
        try:
            with estate.answering():
                if request["depth"] == "validators":
                    return validate(request)
                return synthesise({**request, "seed": request["cluster"]}, estate, UNANSWERED)
        except ClusterActionError as error:
            return {"refused": refusal(error)}


def main() -> None:
    # Each account would begin with hundreds of AWS' images, and a configuration needs its own alone.
    os.environ.update(AWS_ACCESS_KEY_ID="sandbox", AWS_SECRET_ACCESS_KEY="sandbox", MOTO_EC2_LOAD_DEFAULT_AMIS="false")
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE"):
        os.environ.pop(name, None)
    logging.disable(logging.CRITICAL)
    hasten()
    Path(sys.argv[1]).write_text(json.dumps([judge(request) for request in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
