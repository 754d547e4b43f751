#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.s3_release."""

from __future__ import annotations

DOCUMENTATION = r"""
module: s3_release
short_description: Upload files to S3 that are never overwritten
description:
  - The module runs on the controller with boto3's own credentials, region and endpoint. S3 verifies each upload by its
    sha256.
  - A file with the same bytes is left alone, by S3's checksum and without a download. Other bytes are an error.
  - Check mode looks into the bucket (C(s3:GetObject), C(s3:ListBucket)). Without boto3, without credentials that S3
    accepts, without an answer of S3 or without the bucket, it warns, and takes nothing for uploaded.
  - The policy of the bucket is only read (C(s3:GetBucketPolicy)), and may be denied to the caller. S3's answer tells
    before any upload whether S3 accepts the credentials, and whether the bucket is there.
options:
  src:
    description: Directory of the files. In check mode it need not exist.
    type: path
    required: true
  files:
    description: Files in the order of their upload. Without any, the task only finds out whether S3 can be asked.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the file in O(src) and below O(dest).
        type: str
        required: true
      sha256:
        description: Hash of the file.
        type: str
        required: true
  dest:
    description: Target, as C(s3://<bucket>/<prefix>).
    type: str
    required: true
requirements:
  - boto3
attributes:
  diff_mode:
    support: none
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Upload the bundle
  pcluster.postboot.s3_release:
    src: /home/me/postboot-bundles/1.3.0-3f9e2c51ab07
    files: "{{ bundle.files }}"
    dest: s3://my-bucket/postboot/1.3.0-3f9e2c51ab07
  delegate_to: localhost
"""

RETURN = r"""
uploaded:
  description: Files that were uploaded, or in check mode would be.
  type: list
  elements: str
  returned: success
account:
  description: Number of the AWS account; empty if unknown.
  type: str
  returned: success
partition:
  description: AWS partition.
  type: str
  returned: success
caller:
  description: ARN of the uploader; empty if unknown.
  type: str
  returned: success
region:
  description: AWS region of boto3's settings; empty if there is none.
  type: str
  returned: success
bucket_policy:
  description: Policy of the bucket, as JSON; empty if there is none, and null if it could not be read.
  type: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.pcluster.postboot.plugins.module_utils._bundle import s3_release
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    HAS_BOTO3 = True
except ImportError:
    HAS_BOTO3 = False

# What S3 says of credentials to whoever asks, whatever their rights are.
REFUSED = (
    *("ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed", "SignatureDoesNotMatch"),
    *("InvalidClientTokenId", "TokenRefreshRequired"),
)


class NotAsked(Problem):
    """Nobody can be asked, does not know who asks, or has no such bucket."""


def code_of(error: Exception) -> str:
    """Return AWS's code of an error."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def who(session: Any, config: Any) -> str:
    """Return the ARN of who asks. Nobody needs a permission for it, but not every S3 is AWS's."""
    try:
        sts = session.client("sts", region_name=session.region_name or "us-east-1", config=config)
        return str(sts.get_caller_identity()["Arn"])
    except (BotoCoreError, ClientError):
        return ""


def policy_of(client: Any, place: s3_release.Place) -> str | None:
    """Return the policy of a bucket. A right for that is not needed to upload, and not every S3 has policies.

    Raise NotAsked where nobody can upload.
    """
    try:
        return str(client.get_bucket_policy(Bucket=place.bucket)["Policy"])
    except ClientError as error:
        code = code_of(error)
        if code in REFUSED:
            raise NotAsked(
                f"{place}: the AWS credentials are refused ({code}: {error.response['Error'].get('Message', '')}); "
                "needed: those of a login that has not ended, and a clock that is right"
            ) from error
        if code == "NoSuchBucket":
            raise NotAsked(s3_release.no_bucket(place)) from error
        return "" if code == "NoSuchBucketPolicy" else None
    except BotoCoreError as error:
        raise NotAsked(f"{place}: {error}") from error


def session_of(dest: str) -> tuple[Any, Any, Any]:
    """Return boto3's session, its settings and a client of S3; raise where there is no boto3, or nobody to ask as."""
    if not HAS_BOTO3:
        raise NotAsked(missing_required_lib("boto3"))
    config = Config(retries={"mode": "standard", "max_attempts": 5}, connect_timeout=15)
    try:
        session = boto3.session.Session()
        known = session.get_credentials()
        client = session.client("s3", config=config)
    except BotoCoreError as error:
        raise NotAsked(f"{dest}: {error}") from error
    if known is None:
        raise NotAsked(
            f"{dest}: no AWS credentials were found, neither in the environment nor in ~/.aws nor of an instance; "
            "see 'aws configure', or set AWS_PROFILE"
        )
    return session, config, client


def work(module: AnsibleModule) -> dict[str, Any]:
    """Upload what is not there yet, and return who did so."""
    dest, files = module.params["dest"], module.params["files"]
    place = s3_release.parse(dest)
    try:
        session, config, client = session_of(dest)
        policy = policy_of(client, place)
    except NotAsked as problem:
        if not module.check_mode:
            raise
        module.warn(f"{problem}. What is in S3 already is not looked up, and the account's number is left open.")
        names = [file["name"] for file in files]
        nobody = {"account": "", "partition": "aws", "caller": "", "region": "", "bucket_policy": None}
        return {"changed": bool(names), **nobody, **s3_release.Outcome(names, [])._asdict()}
    try:
        release = s3_release.Release(client, code_of, check=module.check_mode)
        outcome = release.upload(module.params["src"], files, place)
        caller = who(session, config)
    except (BotoCoreError, ClientError, OSError) as error:
        raise Problem(f"{dest}: {error}") from error
    _arn, partition, _service, _region, account, *_name = (caller or "arn:aws:sts:::").split(":")
    found = {"account": account, "partition": partition, "caller": caller, "region": session.region_name or ""}
    return {"changed": bool(outcome.uploaded), **found, "bucket_policy": policy, **outcome._asdict()}


def main() -> None:
    serve(
        {
            "src": {"type": "path", "required": True},
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {"name": {"type": "str", "required": True}, "sha256": {"type": "str", "required": True}},
            },
            "dest": {"type": "str", "required": True},
        },
        work,
        alive=False,  # it runs on the controller
    )


if __name__ == "__main__":
    main()
