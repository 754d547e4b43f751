# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who can write where bundles lie.

ParallelCluster runs the bootstrap.sh that lies in S3 as root on every node, whatever its hash is. So who can write
there is root on all nodes. Of a queue with that right it is everybody who can start a job, because compute nodes give
their credentials to every user.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document

_OF_AWS = re.compile(r"arn:[^:]+:iam::aws:policy/(?:.+/)?([^/]+)")
# Of AWS's own policies, those that allow to write to any bucket. With IAMFullAccess one can give oneself that right.
_WIDE = {
    *("AWSBackupServiceRolePolicyForItemRestores", "AWSBackupServiceRolePolicyForS3Restore", "AWSDataPipelineRole"),
    *("AWSElasticBeanstalkFullAccess", "AWSIoTRuleActions", "AWSLambdaExecute", "AWSLambdaFullAccess"),
    *("AdministratorAccess", "AdministratorAccess-Amplify", "AmazonDynamoDBFullAccesswithDataPipeline"),
    *("AmazonEC2RoleforDataPipelineRole", "AmazonEC2RoleforSSM", "AmazonElasticMapReduceFullAccess"),
    *("AmazonElasticMapReduceforEC2Role", "AmazonElasticTranscoderRole"),
    *("AmazonMachineLearningRoleforRedshiftDataSource", "AmazonMachineLearningRoleforRedshiftDataSourceV2"),
    *("AmazonS3FullAccess", "AmazonSageMakerJobFullAccess", "DataScientist", "DatabaseAdministrator"),
    *("IAMFullAccess", "PowerUserAccess"),
    *("SageMakerStudioAdminIAMPermissiveExecutionPolicy", "SageMakerStudioUserIAMPermissiveExecutionPolicy"),
    *("SystemAdministrator",),
}
# Those that allow to write wherever the name of the bucket or the object has a word, in this spelling.
_SAGEMAKER = ("SageMaker", "Sagemaker", "sagemaker")
_NAMED = {
    "AmazonSageMakerCanvasDataPrepFullAccess": _SAGEMAKER,
    "AmazonSageMakerCanvasEMRServerlessExecutionRolePolicy": ("SageMaker", "sagemaker"),
    "AmazonSageMakerCanvasFullAccess": _SAGEMAKER,
    "AmazonSageMakerEdgeDeviceFleetPolicy": _SAGEMAKER,
    "AmazonSageMakerFeatureStoreAccess": _SAGEMAKER,
    "AmazonSageMakerFullAccess": (*_SAGEMAKER, "aws-glue"),
    "AmazonSageMakerGeospatialExecutionRole": _SAGEMAKER,
    "AmazonSageMakerGroundTruthExecution": ("GroundTruth", "Groundtruth", "groundtruth", *_SAGEMAKER),
    "AmazonSageMakerModelCustomizationCoreAccess": _SAGEMAKER,
    "AmazonSageMakerModelGovernanceUseAccess": _SAGEMAKER,
}
_SESSION = re.compile(r"arn:([^:]+):sts::(\d+):assumed-role/([^/]+)/.+")
_TRUE = ("true", "yes", "on", "t", "y", "1")  # of strings, as ParallelCluster reads them


def policies(iam: Mapping[str, Any]) -> list[str]:
    return [str(entry.get("Policy")) for entry in iam.get("AdditionalIamPolicies") or []]


def of_aws(arn: str) -> bool:
    """Say whether AWS has made a policy. What others allow is not known here."""
    return bool(_OF_AWS.fullmatch(arn))


def writers(iam: Mapping[str, Any], place: str) -> Iterator[str]:
    """Yield by what a node with this section Iam can write below a place, <bucket>/<prefix>/."""
    for entry in iam.get("S3Access") or []:
        if str(entry.get("EnableWriteAccess")).lower() in _TRUE:
            bucket, key = entry.get("BucketName"), entry.get("KeyName")
            # As ParallelCluster makes ARNs of them, each with s3:*.
            if any(_below(pattern, place) for pattern in ([f"{bucket}/{key}"] if key else [bucket, f"{bucket}/*"])):
                yield f"S3Access to {bucket}/{key or '*'} with EnableWriteAccess"
    for arn in policies(iam):
        found = _OF_AWS.fullmatch(arn)
        if found and (found[1] in _WIDE or any(word in place for word in _NAMED.get(found[1], ()))):
            yield arn


def publishers(caller: str) -> list[str]:
    """Return what aws:PrincipalArn is of who has this ARN: of a session it is the role, whose path it does not tell."""
    session = _SESSION.fullmatch(caller)
    if not session:
        return [caller]
    partition, account, role = session.groups()
    return [f"arn:{partition}:iam::{account}:role/{path}{role}" for path in ("", "*/")]


def put_bucket_policy(name: str, objects: str, arns: list[str], there: str | None) -> list[str]:
    """Return how to keep nodes from writing to a bucket, whose policy is there; empty is none, and None is unknown."""
    bucket, _slash, _key = objects.partition("/")
    found = document.parse(there) if there else {}
    others = _protects(found, bucket, objects)
    if others is not None:
        whom = f"but {', '.join(others)}" if others else "at all"
        return [f"The bucket's policy lets nobody write there {whom}, and is left as it is."]
    policy = bucket_policy(bucket, objects, arns)
    if found:
        policy = {**found, "Statement": _beside(_listed(found.get("Statement")), policy["Statement"][0])}
    about = {
        None: "It takes the place of the bucket's policy, if there is one; look at that first:",
        "": "The bucket has no policy yet:",
    }.get(there, "What the bucket's policy says already is kept in this one:")
    look = f"  aws s3api get-bucket-policy --bucket {name} --query Policy --output text"
    return [
        "Every node runs the bootstrap.sh that lies in S3 as root. Once, let nobody write there but those who publish:",
        f"  add their ARNs to yours. {about}",
        *([look] if there is None else []),
        f"  aws s3api put-bucket-policy --bucket {name} --policy {shlex.quote(json.dumps(policy))}",
    ]


def _protects(policy: Mapping[str, Any], bucket: str, objects: str) -> list[str] | None:
    """Return who alone may write these objects and change the policy; None where that may be others too."""
    ways = {"s3:PutObject": objects, "s3:PutBucketPolicy": bucket}
    excepted: set[str] = set()
    for statement in _listed(policy.get("Statement")):
        everybody = statement.get("Principal") in ("*", {"AWS": "*"}, {"AWS": ["*"]})
        arns = _excepted(statement.get("Condition") or {})
        if statement.get("Effect") == "Deny" and everybody and arns is not None:
            closed = [
                action
                for action, resource in ways.items()
                if _covered(action, statement.get("Action"), re.IGNORECASE)
                and _covered(resource, statement.get("Resource"))
            ]
            for action in closed:
                del ways[action]
            excepted.update(arns if closed else ())
    return None if ways else sorted(excepted)


def _excepted(condition: Mapping[str, Any]) -> list[str] | None:
    """Return the principals to whom a denial does not apply; None where it is not by them alone."""
    if not condition:
        return []
    operators = ("ArnNotLike", "ArnNotEquals", "StringNotLike", "StringNotEquals")
    ((operator, keys), *more) = condition.items()
    if more or operator not in operators or [key.lower() for key in keys] != ["aws:principalarn"]:
        return None
    arns = [str(arn) for value in keys.values() for arn in _listed(value)]
    # An exception for everybody is no denial.
    return None if any(not arn.strip("*") for arn in arns) else arns


def _covered(text: str, patterns: Any, flags: int = 0) -> bool:
    return any(re.fullmatch(_regex(str(pattern)), text, flags) for pattern in _listed(patterns))


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [] if found is None else [found]


def _beside(there: list[dict[str, Any]], ours: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Put our statement below those that are there. No two of a policy may have the same Sid."""
    known = {statement.get("Sid") for statement in there}
    names = (f"{ours['Sid']}{number or ''}" for number in range(len(known) + 1))
    return [*there, {**ours, "Sid": next(name for name in names if name not in known)}]


def bucket_policy(bucket: str, objects: str, arns: list[str]) -> dict[str, Any]:
    """Return the policy of a bucket in which nobody else writes these objects, nor takes that policy away."""
    statement = {
        "Sid": "OnlyPublishersWriteBundles",
        "Effect": "Deny",
        "Principal": "*",
        "Action": ["s3:PutObject*", "s3:DeleteObject*", "s3:PutBucketPolicy", "s3:DeleteBucketPolicy"],
        "Resource": [bucket, objects],
        "Condition": {"ArnNotLike": {"aws:PrincipalArn": arns}},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def _below(pattern: str, place: str) -> bool:
    """Say whether an ARN's pattern, in which * crosses slashes, fits anything that begins like a place."""
    beginnings = (pattern[:length] for length in range(len(pattern) + 1))
    return any(re.fullmatch(_regex(beginning), place) for beginning in beginnings)


def _regex(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
