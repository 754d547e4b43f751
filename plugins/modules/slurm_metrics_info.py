#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.slurm_metrics_info."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_metrics_info
short_description: Find out where Slurm's metrics come from
description:
  - Slurm has metrics on slurmctld's port from 25.11 on if C(MetricsType=metrics/openmetrics) is set. Before 25.11.5
    they are not asked for, because they could end slurmctld.
  - Asks C(scontrol show config), and slurmctld itself if it may have metrics. Otherwise an exporter is needed.
options:
  source:
    description: V(auto) prefers slurmctld's metrics to the exporter's, except on clusters with GPUs before Slurm 26.05,
      whose metrics do not count GPUs. V(native) fails where slurmctld's cannot be used.
    type: str
    choices: [auto, native, exporter]
    default: auto
  exporter_address:
    description: Address of the exporter on this node.
    type: str
    default: 127.0.0.1:9341
  exporter_needs:
    description: Variable without which the exporter cannot be installed; empty if it can.
    type: str
    default: ""
  interval:
    description: Prometheus' scrape interval.
    type: str
    default: 60s
  users:
    description: Whether slurmctld's metrics of users and accounts are scraped. Slurm's guide advises against it,
      because their number has no limit.
    type: bool
    default: false
  address:
    description: Address of slurmctld.
    type: str
    default: 127.0.0.1
attributes:
  diff_mode:
    support: N/A
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.internal
  - pcluster.postboot.attributes.slurm
"""

EXAMPLES = r"""
- name: Find out where Slurm's metrics come from
  pcluster.postboot.slurm_metrics_info:
  register: slurm_metrics
"""

RETURN = r"""
source:
  description: V(native), V(exporter) or V(none).
  type: str
  returned: success
summary:
  description: Where the metrics come from, in one phrase.
  type: str
  returned: success
accounting:
  description: Whether the cluster has accounting.
  type: bool
  returned: success
targets:
  description: Groups of targets for Prometheus on this node.
  type: list
  elements: dict
  returned: success
"""

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, by, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.metrics import Request, find


def main() -> None:
    serve(
        arguments(
            Request,
            paths=("prefix",),
            source={"choices": ["auto", "native", "exporter"]},
        ),
        by(Request, find),
    )


if __name__ == "__main__":
    main()
