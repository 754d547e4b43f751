#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.dcgm_gpus."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: dcgm_gpus
short_description: See that NVIDIA's DCGM, or its exporter, knows every GPU of a node
version_added: 0.1.0
description:
  - Asks DCGM, by C(dcgmi discovery -l), or with O(url) its exporter, and fails with one line where it is another number
    of GPUs than this node has.
  - Of an exporter it tells in RV(summary) that no profiling metric is there, and that its C(/debug/pprof/) answers
    everybody, which is CVE-2026-47483.
options:
  gpus:
    description: How many GPUs the node has.
    type: int
    required: true
  url:
    description: The address of the exporter's metrics. Empty asks DCGM itself.
    type: str
    default: ""
  counters:
    description: The metrics that the exporter is configured to have, to tell of how many a GPU knows nothing.
    type: list
    elements: str
    default: []
  wait:
    description: Seconds within which all GPUs must be seen.
    type: float
    default: 15
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.linux
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: DCGM sees every GPU
  pcluster.postboot.dcgm_gpus:
    gpus: 8

- name: Its exporter has metrics of all of them
  pcluster.postboot.dcgm_gpus:
    gpus: 8
    url: http://127.0.0.1:9400/metrics
"""

RETURN = r"""
metrics:
  description: The metrics that the exporter has.
  type: list
  elements: str
  returned: success
  sample: [DCGM_FI_DEV_GPU_UTIL]
missing:
  description: Those of O(counters) that it has not.
  type: list
  elements: str
  returned: success
  sample: [DCGM_FI_PROF_SM_ACTIVE]
summary:
  description: What was seen, in one phrase.
  type: str
  returned: success
  sample: 8 GPUs
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _dcgm
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    params = module.params
    seen = _dcgm.see(params["gpus"], params["url"], params["wait"])
    missing = [name for name in params["counters"] if name not in seen.metrics]
    return {"metrics": seen.metrics, "missing": missing, "summary": _dcgm.summary(seen, params["counters"])}


def main() -> None:
    """Run the module."""
    serve(
        {
            "gpus": {"type": "int", "required": True},
            "url": {"type": "str", "default": ""},
            "counters": {"type": "list", "elements": "str", "default": []},
            "wait": {"type": "float", "default": 15},
        },
        work,
    )


if __name__ == "__main__":
    main()
