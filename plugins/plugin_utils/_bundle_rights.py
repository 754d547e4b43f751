# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who can write where bundles lie.

ParallelCluster runs the bootstrap.sh that lies in S3 as root on every node, whatever its hash is. So who can write
there is root on all nodes. Of a queue with that right it is everybody who can start a job, because compute nodes give
their credentials to every user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_OF_AWS = re.compile(r"arn:[^:]+:iam::aws:policy/(?:.+/)?([^/]+)")
# Of AWS's own policies, those that allow to write to any bucket. With IAMFullAccess one can give oneself that right.
_WIDE = frozenset(
    (
        "AWSBackupServiceRolePolicyForItemRestores",
        "AWSBackupServiceRolePolicyForS3Restore",
        "AWSDataPipelineRole",
        "AWSElasticBeanstalkFullAccess",
        "AWSIoTRuleActions",
        "AWSLambdaExecute",
        "AWSLambdaFullAccess",
        "AdministratorAccess",
        "AdministratorAccess-Amplify",
        "AmazonDynamoDBFullAccesswithDataPipeline",
        "AmazonEC2RoleforDataPipelineRole",
        "AmazonEC2RoleforSSM",
        "AmazonElasticMapReduceFullAccess",
        "AmazonElasticMapReduceforEC2Role",
        "AmazonElasticTranscoderRole",
        "AmazonMachineLearningRoleforRedshiftDataSource",
        "AmazonMachineLearningRoleforRedshiftDataSourceV2",
        "AmazonS3FullAccess",
        "DataScientist",
        "DatabaseAdministrator",
        "IAMFullAccess",
        "PowerUserAccess",
        "SageMakerStudioAdminIAMPermissiveExecutionPolicy",
        "SageMakerStudioUserIAMPermissiveExecutionPolicy",
        "SystemAdministrator",
    )
)
_SESSION = re.compile(r"arn:([^:]+):sts::(\d+):assumed-role/([^/]+)/.+")
_TRUE = ("true", "yes", "on", "t", "y", "1")  # of strings, as ParallelCluster reads them


def policies(iam: Mapping[str, Any]) -> list[str]:
    """Return the ARNs of AdditionalIamPolicies."""
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
        if found and found[1] in _WIDE:
            yield arn


def publishers(caller: str) -> list[str]:
    """Return what aws:PrincipalArn is of who has this ARN: of a session it is the role, whose path it does not tell."""
    session = _SESSION.fullmatch(caller)
    if not session:
        return [caller]
    partition, account, role = session.groups()
    return [f"arn:{partition}:iam::{account}:role/{path}{role}" for path in ("", "*/")]


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
