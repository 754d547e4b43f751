#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.s3_release."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: s3_release
short_description: Put files into S3 once, and never write them again
version_added: 0.1.0
description:
  - Uploads O(files) one after another. S3 verifies each by its sha256.
  - What is there with the same bytes is left alone; by S3's own checksum this costs no download. What is there with
    other bytes is an error, also where it appears while this runs.
  - Credentials, region and endpoint are those of boto3 (C(AWS_PROFILE), C(AWS_REGION), C(AWS_ENDPOINT_URL), …).
options:
  src:
    description: The directory with the files. In check mode it need not be there.
    type: path
    required: true
  files:
    description: The files, in the order in which they are uploaded.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The file's name in O(src), and below O(dest).
        type: str
        required: true
      sha256:
        description: Its hash.
        type: str
        required: true
  dest:
    description: Where they go, as C(s3://<bucket>/<prefix>).
    type: str
    required: true
extends_documentation_fragment:
  - pcluster.postboot.attributes
attributes:
  check_mode:
    details: It looks into the bucket, which takes C(s3:GetObject) and C(s3:ListBucket).
  diff_mode:
    description: There is nothing to show.
    support: none
requirements:
  - boto3
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: The bundle is in S3
  pcluster.postboot.s3_release:
    src: /home/me/postboot-bundles/0.1.0-3f9e2c51ab07
    files: "{{ bundle.files }}"
    dest: s3://my-bucket/postboot/0.1.0-3f9e2c51ab07
  delegate_to: localhost
"""

RETURN = r"""
uploaded:
  description: The files that were uploaded, or in check mode would be.
  type: list
  elements: str
  returned: success
  sample: [bootstrap.sh, pcluster-postboot.tar.gz, SHA256SUMS]
present:
  description: The files that were there already.
  type: list
  elements: str
  returned: success
account:
  description: The number of your AWS account; empty where AWS does not say.
  type: str
  returned: success
partition:
  description: Its part of AWS.
  type: str
  returned: success
  sample: aws
caller:
  description: The ARN of who uploads; empty where AWS does not say.
  type: str
  returned: success
  sample: arn:aws:sts::123456789012:assumed-role/publishers/me
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib

from ansible_collections.pcluster.postboot.plugins.module_utils import _s3_release

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    HAS_BOTO3 = True
except ImportError:
    HAS_BOTO3 = False


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


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path", "required": True},
            "files": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {"name": {"type": "str", "required": True}, "sha256": {"type": "str", "required": True}},
            },
            "dest": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    if not HAS_BOTO3:
        module.fail_json(msg=missing_required_lib("boto3"))
    config = Config(retries={"mode": "standard", "max_attempts": 5}, connect_timeout=15)
    try:
        session = boto3.session.Session()
        place = _s3_release.parse(module.params["dest"])
        release = _s3_release.Release(session.client("s3", config=config), code_of, check=module.check_mode)
        outcome = release.upload(module.params["src"], module.params["files"], place)
        caller = who(session, config)
    except _s3_release.ReleaseError as error:
        module.fail_json(msg=str(error))
    except (BotoCoreError, ClientError, OSError) as error:
        module.fail_json(msg=f"{module.params['dest']}: {' '.join(str(error).split())}")
    _arn, partition, _service, _region, account, *_name = (caller or "arn:aws:sts:::").split(":")
    found = {"account": account, "partition": partition, "caller": caller}
    module.exit_json(changed=bool(outcome.uploaded), **found, **outcome._asdict())


if __name__ == "__main__":
    main()
