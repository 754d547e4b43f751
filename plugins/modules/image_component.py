#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the component of EC2 Image Builder that bakes a bundle: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: image_component
short_description: Write the component of EC2 Image Builder that bakes a bundle into an image
description:
  - The action plugin works on the controller. It writes the component's document, and prints the command that makes the
    component, and the part of an image's configuration (C(pcluster build-image)) that uses it.
options:
  dest:
    description: File of the document. Its directory has to be there.
    type: path
    required: true
  script:
    description: Script that the document runs on the build instance.
    type: path
    required: true
  base:
    description: Where bundles are published, as C(s3://<bucket>/<prefix>).
    type: str
    required: true
  id:
    description: Name of the bundle. Empty checks O(dest), and writes and prints nothing.
    type: str
    default: ""
  account:
    description: Number of the AWS account.
    type: str
    default: ""
  region:
    description: AWS region in which the component is made.
    type: str
    default: ""
  policy:
    description: ARN of the policy by which the build instance reads bundles. The default is a policy to be made.
    type: str
    default: ""
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.bundle
"""

EXAMPLES = r"""
- name: Write the component of an image
  pcluster.postboot.image_component:
    dest: /home/me/image-component.yaml
    script: "{{ role_path }}/../bake/files/bake.sh"
    base: s3://my-bucket/postboot
    id: 1.3.0-3f9e2c51ab07
    sha256: "{{ bundle.sha256 }}"
    account: "123456789012"
    region: us-east-2
"""

RETURN = r"""
text:
  description: What was printed; empty without O(id).
  type: str
  returned: success
"""
