#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.dcgm_check."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dcgm_check
short_description: Check that DCGM or its exporter sees every GPU of a node
description:
  - Asks C(dcgmi discovery -l), or with O(url) the exporter, and fails where the number of GPUs is not O(gpus).
  - RV(summary) tells of an exporter without profiling metrics, and of one whose C(/debug/pprof/) answers everybody
    (CVE-2026-47483).
options:
  gpus:
    description: Number of GPUs of the node.
    type: int
    required: true
  url:
    description: URL of the exporter's metrics. Empty asks DCGM.
    type: str
    default: ""
  counters:
    description: Metrics that the exporter is configured to have.
    type: list
    elements: str
    default: []
  wait:
    description: Seconds to wait for all GPUs.
    type: float
    default: 15
extends_documentation_fragment: [pcluster.postboot.attributes.looks, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Check that DCGM sees every GPU
  pcluster.postboot.dcgm_check:
    gpus: 8
"""

RETURN = r"""
summary:
  description: What was seen, in one phrase.
  type: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _dcgm
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    params = module.params
    seen = _dcgm.see(params["gpus"], params["url"], params["wait"])
    missing = [name for name in params["counters"] if name not in seen.metrics]
    return {"metrics": seen.metrics, "missing": missing, "summary": _dcgm.summary(seen, params["counters"])}


def main() -> None:
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
