#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.cloudwatch_config."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: cloudwatch_config
short_description: Have a node's CloudWatch agent collect more, beside what ParallelCluster has it collect
version_added: 0.1.0
description:
  - Builds one file of the agent's configuration, checks it, and has C(amazon-cloudwatch-agent-ctl) append it to those
    that are there. It never replaces or edits another file, so ParallelCluster's log shipping stays as it is.
  - Every key and every measurement is compared with those that the agent knows, because the agent's own schema lets
    most misspelt ones through and then collects nothing. What is wrong is refused before anything is touched.
  - What another file says comes first. The agent takes most keys from one file only, and several hold for the metrics
    of all files, such as the namespace, so what of ours cannot stand beside another file is left out, and named in
    RV(left_out). On a head node that is ParallelCluster's own C(mem) and C(disk), and its namespace C(CWAgent), in
    which its alarms look.
  - The agent is restarted where its files are newer than its process. When it does not stay up, the configuration is
    put back as it was, and the task fails.
  - Where ParallelCluster's configuration is on the node but was never applied, which is so where the cluster's
    CloudWatch logs are off, nothing is done, because the agent would apply that too.
options:
  name:
    description:
      - Name of the file, without its suffix.
    type: str
    default: pcluster-postboot
  state:
    description:
      - V(absent) removes the file, and with it exactly what it had the agent collect. So does an empty selection.
    type: str
    choices: [present, absent]
    default: present
  metrics:
    description:
      - What is collected. V(host) is every plugin in O(measurements) but those of GPUs and EFA devices, V(gpu) is
        C(nvidia_gpu), V(efa) is C(efa), and V(prometheus) is O(scrapes).
    type: list
    elements: str
    choices: [host, gpu, efa, prometheus]
    default: []
  measurements:
    description:
      - What each of the agent's plugins measures, as a list by the plugin's name.
    type: dict
    default: {}
  per_device:
    description:
      - Whether each GPU, EFA device, network interface and disk device has metrics of its own. Otherwise all of a node
        count as one, with C(Average), C(Sum), C(Minimum) and C(Maximum) over them.
      - Where another file has metrics, it is always so, because aggregation would hold for those too.
    type: bool
    default: false
  interval:
    description:
      - Seconds between two values of a metric. Less than 60 makes metrics of high resolution, which cost more.
    type: int
    default: 60
  namespace:
    description:
      - The namespace of the metrics, where no other file has any.
    type: str
    default: CWAgent
  dimensions:
    description:
      - Dimensions of the metrics besides C(InstanceId). Those of EFA take none.
    type: dict
    default: {}
  disks:
    description:
      - Mount points of the file systems to measure.
    type: list
    elements: path
    default: [/]
  gpus:
    description:
      - How many NVIDIA GPUs the node has. Without one, V(gpu) in O(metrics) means nothing.
    type: int
    default: 0
  efa:
    description:
      - How many EFA devices the node has. Without one, V(efa) in O(metrics) means nothing.
    type: int
    default: 0
  logs:
    description:
      - Log files to ship, also as patterns. A JSON document is one event.
    type: list
    elements: str
    default: []
  log_group:
    description:
      - Their log group. Empty is the one to which ParallelCluster ships its own.
    type: str
    default: ""
  scrapes:
    description:
      - Exporters on the node whose metrics go to CloudWatch, through its logs.
    type: list
    elements: dict
    default: []
    suboptions:
      job:
        description: Its name.
        type: str
        required: true
      target:
        description: Where it answers, as an address and a port.
        type: str
        required: true
      path:
        description: Path of its metrics.
        type: str
        default: /metrics
      metrics:
        description: Regular expressions that match the whole name of each metric to send.
        type: list
        elements: str
        required: true
      dimensions:
        description: Labels that become dimensions, besides O(dimensions).
        type: list
        elements: str
        default: []
      gpus:
        description: Whether it is there on nodes with GPUs only.
        type: bool
        default: false
  scrape_log_group:
    description:
      - Log group of what O(scrapes) send.
    type: str
    default: /pcluster-postboot/prometheus
  config:
    description:
      - Further configuration in the agent's own form, which is put over the rest. Objects are merged, lists are joined.
    type: dict
    default: {}
  home:
    description:
      - Folder of the agent.
    type: path
    default: /opt/aws/amazon-cloudwatch-agent
extends_documentation_fragment:
  - pcluster.postboot.attributes
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    details: Works on a node that has no agent yet.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: The node's load and GPUs go to CloudWatch
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

- name: Watch a process too
  pcluster.postboot.cloudwatch_config:
    config:
      metrics:
        metrics_collected:
          procstat:
            - exe: slurmd
              measurement: [memory_rss]

- name: Nothing of ours goes there
  pcluster.postboot.cloudwatch_config:
    state: absent
"""

RETURN = r"""
actions:
  description: >-
    What was done, or in check mode would be, from V(appended), V(removed), V(wrote), V(started), V(restarted),
    V(stopped) and V(enabled).
  type: list
  elements: str
  returned: success
  sample: [appended, restarted]
config:
  description: Our file as it is now, or in check mode would be; empty where there is none.
  type: dict
  returned: success
namespace:
  description: The namespace of the metrics.
  type: str
  returned: success
  sample: ParallelCluster/my-cluster
left_out:
  description: What of ours cannot stand beside other files, and why.
  type: list
  elements: str
  returned: success
  sample: ["mem: ParallelCluster's own"]
version:
  description: The agent's version; empty in check mode where it is not there yet.
  type: str
  returned: success
  sample: 1.300071.0b1720
summary:
  description: What the node ended up with.
  type: str
  returned: success
  sample: cpu, mem, disk (4 names of metrics) to ParallelCluster/my-cluster and 2 logs
journal:
  description: The last lines that the agent's unit left in the journal.
  type: list
  elements: str
  returned: when the agent did not stay up
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _cloudwatch_agent as agent
from ansible_collections.pcluster.postboot.plugins.module_utils import _run, _systemd
from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch_config import ConfigError, Scrape, Wanted


def _frozen(given: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


def main() -> None:
    """Run the module."""
    words = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "default": "pcluster-postboot"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "metrics": {**words, "choices": ["host", "gpu", "efa", "prometheus"]},
            "measurements": {"type": "dict", "default": {}},
            "per_device": {"type": "bool", "default": False},
            "interval": {"type": "int", "default": 60},
            "namespace": {"type": "str", "default": "CWAgent"},
            "dimensions": {"type": "dict", "default": {}},
            "disks": {"type": "list", "elements": "path", "default": ["/"]},
            "gpus": {"type": "int", "default": 0},
            "efa": {"type": "int", "default": 0},
            "logs": words,
            "log_group": {"type": "str", "default": ""},
            "scrapes": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "job": {"type": "str", "required": True},
                    "target": {"type": "str", "required": True},
                    "path": {"type": "str", "default": "/metrics"},
                    "metrics": {"type": "list", "elements": "str", "required": True},
                    "dimensions": words,
                    "gpus": {"type": "bool", "default": False},
                },
            },
            "scrape_log_group": {"type": "str", "default": "/pcluster-postboot/prometheus"},
            "config": {"type": "dict", "default": {}},
            "home": {"type": "path", "default": agent.HOME},
        },
        supports_check_mode=True,
    )
    _run.heartbeat()
    given = dict(module.params)
    request = {key: given.pop(key) for key in ("name", "state", "home")}
    given["scrapes"] = [Scrape(**_frozen(one)) for one in given["scrapes"]]
    wanted = Wanted(**_frozen(given))
    try:
        outcome = agent.apply(agent.Request(wanted=wanted, check=module.check_mode, **request))
    except _systemd.UnitError as error:
        module.fail_json(msg=str(error), journal=error.journal)
    except (ConfigError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(outcome.actions), **outcome._asdict())


if __name__ == "__main__":
    main()
