#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.s3_mirror."""

from __future__ import annotations

DOCUMENTATION = r"""
module: s3_mirror
short_description: Copy a mirror's directory to S3
version_added: "0.2.0"
description:
  - Uploads with the AWS CLI each file that S3 does not have with the same content. Nothing is removed there.
  - S3's own ETag tells the content, or the sha256 that this module notes with each upload (C(x-amz-meta-sha256)), so
    that a file that is there is not uploaded again, and one of the same size with other content is.
  - Needs C(s3:ListBucket), C(s3:GetObject) and C(s3:PutObject).
options:
  src:
    description: Directory of the files.
    type: path
    required: true
  dest:
    description: Target, as C(s3://<bucket>/<prefix>).
    type: str
    required: true
  exclude:
    description: Directories right below O(src) that are left out.
    type: list
    elements: str
    default: []
attributes:
  diff_mode:
    support: none
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Copy the mirror to S3
  pcluster.postboot.s3_mirror:
    src: /srv/mirror
    dest: s3://my-bucket/mirror
"""

RETURN = r"""
copied:
  description: Files that were uploaded, or in check mode would be, by their paths below the directory.
  type: list
  elements: str
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.s3_mirror import Request, apply
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve


def main() -> None:
    serve(arguments(Request, paths=("src",)), by(Request, apply))


if __name__ == "__main__":
    main()
