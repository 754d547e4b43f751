#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fail because another node has not published what this one needs: the documentation of an action plugin."""

from __future__ import annotations

DOCUMENTATION = r"""
module: wait_for_publisher
short_description: Fail because another node has not published what this one needs
description: Fails with O(message). During a boot, and in the service that follows it (C(common_phase)), the component
  is reported as deferred and tried again.
options:
  message:
    description: What is missing, and what to do.
    type: str
    required: true
  waits:
    description: Whether the missing thing may come by itself. V(false) is a failure in any run.
    type: bool
    default: true
extends_documentation_fragment: [pcluster.postboot.attributes.looks, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Fail because no NCCL is published
  pcluster.postboot.wait_for_publisher:
    message: no NCCL is published in /fsx/nccl; the head node publishes it
"""

RETURN = r"""
waits_for:
  description: What this node waits for; empty if nothing will come by itself.
  type: str
  returned: always
"""
