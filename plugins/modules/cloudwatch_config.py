#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.cloudwatch_config."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cloudwatch_config
short_description: Have a node's CloudWatch agent collect more, beside what ParallelCluster has it collect
description:
  - Writes one file of the agent's configuration, and has C(amazon-cloudwatch-agent-ctl) append it. The files of others,
    such as ParallelCluster's, are never changed.
  - Unknown plugins and measurements are refused, because the agent would ignore them.
  - Settings that conflict with another file are left out and named in the summary, because the agent takes most keys
    from one file only.
  - The agent is restarted if a file is newer than its process. If the agent does not stay up, the old configuration is
    put back and the task fails.
  - Nothing is done where ParallelCluster's configuration was never applied (CloudWatch logs are off), because the agent
    would apply it as well.
options:
  name:
    description: Name of the file, without its suffix.
    type: str
    default: pcluster-postboot
  state:
    description: V(absent) removes the file. An empty selection of metrics and logs does so too.
    type: str
    choices: [present, absent]
    default: present
  metrics:
    description: What is collected. V(host) is every plugin of O(measurements) but V(gpu) (C(nvidia_gpu)) and V(efa);
      V(prometheus) is O(scrapes).
    type: list
    elements: str
    choices: [host, gpu, efa, prometheus]
    default: []
  measurements:
    description: Measurements of each of the agent's plugins, by the plugin's name.
    type: dict
    default: {}
  per_device:
    description: Whether each GPU, EFA device, network interface and disk has metrics of its own. Otherwise they are
      aggregated, unless another file has metrics.
    type: bool
    default: false
  interval:
    description: Seconds between two values of a metric. Below 60, CloudWatch bills metrics of high resolution.
    type: int
    default: 60
  namespace:
    description: Namespace of the metrics. The namespace of another file's metrics takes precedence.
    type: str
    default: CWAgent
  dimensions:
    description: Dimensions of the metrics besides C(InstanceId). EFA's metrics get none.
    type: dict
    default: {}
  disks:
    description: Mount points of the file systems to measure.
    type: list
    elements: path
    default: [/]
  gpus:
    description: Number of NVIDIA GPUs. With 0, V(gpu) in O(metrics) is ignored.
    type: int
    default: 0
  efa:
    description: Number of EFA devices. With 0, V(efa) in O(metrics) is ignored.
    type: int
    default: 0
  logs:
    description: Log files to ship, as paths or patterns.
    type: list
    elements: str
    default: []
  log_group:
    description: Log group of O(logs); empty for ParallelCluster's.
    type: str
    default: ""
  scrapes:
    description: Exporters of the node whose metrics go to CloudWatch through its logs.
    type: list
    elements: dict
    default: []
    suboptions:
      job:
        description: Name of the job.
        type: str
        required: true
      target:
        description: Address and port of the exporter.
        type: str
        required: true
      path:
        description: Path of the metrics.
        type: str
        default: /metrics
      metrics:
        description: Regular expressions for the whole names of the metrics.
        type: list
        elements: str
        required: true
      dimensions:
        description: Labels that become dimensions, besides O(dimensions).
        type: list
        elements: str
        default: []
      metric_relabel_configs:
        description: Relabelling of its samples, in Prometheus' own form.
        type: list
        elements: dict
        default: []
      gpus:
        description: Whether only nodes with GPUs have the exporter.
        type: bool
        default: false
  scrape_log_group:
    description: Log group of O(scrapes).
    type: str
    default: /pcluster-postboot/prometheus
  config:
    description: Configuration in the agent's own form, merged over the rest. Lists are joined.
    type: dict
    default: {}
  home:
    description: Directory of the agent.
    type: path
    default: /opt/aws/amazon-cloudwatch-agent
extends_documentation_fragment: [pcluster.postboot.attributes, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Send the node's load and GPUs to CloudWatch
  pcluster.postboot.cloudwatch_config:
    metrics: [host, gpu]
    measurements:
      cpu: [usage_active]
      mem: [used_percent]
      nvidia_gpu: [utilization_gpu, memory_used]
    namespace: ParallelCluster/my-cluster
    dimensions:
      ClusterName: my-cluster
    gpus: "{{ ansible_facts['pcluster']['gpus']['count'] }}"
    logs: [/var/log/pcluster-postboot/*.log]
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be.
  type: list
  elements: str
  returned: success
summary:
  description: What the node sends, in one phrase.
  type: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import agent
from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch.config import Scrape, Wanted
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, frozen, serve


def work(module: AnsibleModule) -> dict[str, Any]:
    """Bring our part of the agent's configuration into its state, and return what was done."""
    given = frozen(module.params)
    request = {key: given.pop(key) for key in ("name", "state", "home")}
    given["scrapes"] = tuple(Scrape(**frozen(one)) for one in given["scrapes"])
    return agent.apply(agent.Request(wanted=Wanted(**given), check=module.check_mode, **request))._asdict()


def main() -> None:
    words = {"type": "list", "elements": "str"}
    serve(
        {
            **arguments(
                agent.Request,
                paths=("home",),
                without=("wanted", "wait_seconds"),
                state={"choices": ["present", "absent"]},
            ),
            **arguments(
                Wanted,
                paths=("disks",),
                without=("scrape_path",),
                metrics={"choices": ["host", "gpu", "efa", "prometheus"]},
                scrapes={
                    "elements": "dict",
                    "options": arguments(Scrape, metrics=words, metric_relabel_configs={"elements": "dict"}),
                },
            ),
        },
        work,
    )


if __name__ == "__main__":
    main()
