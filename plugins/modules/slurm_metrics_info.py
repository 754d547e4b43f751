#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.slurm_metrics_info."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: slurm_metrics_info
short_description: Find out where the metrics of Slurm come from
version_added: 0.1.0
description:
  - Slurm 25.11 and newer has metrics of its own, on slurmctld's port, where C(MetricsType=metrics/openmetrics) is set
    in the cluster's configuration. Before 25.11.5 they could end slurmctld, so that they are not asked for.
  - Asks C(scontrol show config) and, where the answer is promising, slurmctld itself. Everywhere else an exporter is
    needed; RV(reason) says why, and what to set.
options:
  prefix:
    description: Where Slurm is installed.
    type: path
    default: /opt/slurm
  source:
    description:
      - V(auto) takes slurmctld's own metrics where they are there and safe, and else the exporter's. Where neither can
        be had, there are none, and RV(summary) says what is needed.
      - V(native) fails where slurmctld's own cannot be used.
    type: str
    choices: [auto, native, exporter]
    default: auto
  exporter_address:
    description: Where the exporter answers on this node.
    type: str
    default: 127.0.0.1:9341
  exporter_needs:
    description: The variable without which the exporter cannot be installed; empty where it can.
    type: str
    default: ""
  interval:
    description: How often Prometheus is to scrape them.
    type: str
    default: 60s
  users:
    description:
      - Whether slurmctld's own metrics of each user and account are among them. Slurm's guide advises not to store
        them, as their number has no limit.
    type: bool
    default: false
  address:
    description: Where slurmctld answers.
    type: str
    default: 127.0.0.1
  timeout:
    description: Seconds that each of them has to answer.
    type: float
    default: 10
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  diff_mode:
    support: N/A
    details: Nothing is changed.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Know where the metrics of Slurm come from
  pcluster.postboot.slurm_metrics_info:
  register: slurm_metrics
"""

RETURN = r"""
source:
  description: V(native), V(exporter) or V(none).
  type: str
  returned: success
  sample: exporter
version:
  description: The version of the Slurm that runs.
  type: str
  returned: success
  sample: 25.11.8
reason:
  description: Why slurmctld's own metrics are not used; empty where they are.
  type: str
  returned: success
  sample: Slurm 25.11.4 is older than 25.11.5 of ParallelCluster 3.16, from which on its own metrics are safe
summary:
  description: Where they come from, in one phrase.
  type: str
  returned: success
  sample: slurmctld's own metrics (Slurm 25.11.8)
accounting:
  description: Whether the cluster has accounting, without which some commands of Slurm only fail.
  type: bool
  returned: success
targets:
  description: What Prometheus has to scrape on this node, as it reads groups of targets from a file.
  type: list
  elements: dict
  returned: success
  sample: [{targets: ["127.0.0.1:6820"], labels: {job: slurm, __metrics_path__: /metrics/jobs, slurm_part: jobs}}]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _slurm_metrics
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked for, and return the result."""
    return _slurm_metrics.find(_slurm_metrics.Request(**module.params))._asdict()


def main() -> None:
    """Run the module."""
    serve(
        {
            "prefix": {"type": "path", "default": "/opt/slurm"},
            "source": {"type": "str", "choices": ["auto", "native", "exporter"], "default": "auto"},
            "exporter_address": {"type": "str", "default": "127.0.0.1:9341"},
            "exporter_needs": {"type": "str", "default": ""},
            "interval": {"type": "str", "default": "60s"},
            "users": {"type": "bool", "default": False},
            "address": {"type": "str", "default": "127.0.0.1"},
            "timeout": {"type": "float", "default": 10},
        },
        work,
    )


if __name__ == "__main__":
    main()
