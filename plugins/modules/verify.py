#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.verify."""

from __future__ import annotations

DOCUMENTATION = r"""
module: verify
short_description: Check a cluster by jobs of an ordinary user
description:
  - Runs on the head node. Submits small jobs with C(srun), as an ordinary user, to every partition that has a node that
    is up.
  - V(nodes) asks each node what the last run of site left there, and whether exporters and EFA answer; V(containers)
    starts containers, by Pyxis and by Docker; V(nccl) measures NCCL, and compares it with published figures;
    V(neuron) counts the devices of Trainium and Inferentia, and measures a collective among them; V(health) looks for
    broken hardware on idle nodes, which takes minutes.
  - A failed check does not fail the task. Nothing is changed but O(output), the log beside it, and O(results_dir).
    Check mode submits and writes nothing.
  - With C(async) and C(poll=0) the action waits for the end, and tells from time to time what is being done.
options:
  user:
    description: User who submits, not root.
    type: str
    required: true
  stages:
    description: Stages to run.
    type: list
    elements: str
    choices: [nodes, containers, nccl, neuron, health]
    default: [nodes, containers, nccl, neuron]
  partitions:
    description: Partitions to check. The default is all.
    type: list
    elements: str
    default: []
  nodes:
    description: Number of nodes of each partition, and of each kind where only some have GPUs, on which containers
      start, and which O(power_up) boots; V(0) is all. V(nodes), V(nccl) and V(neuron) in O(stages) take all
      that are up.
    type: int
    default: 2
  power_up:
    description: Whether nodes that are powered down are booted.
    type: bool
    default: false
  time_limit:
    description: Minutes that a job may take.
    type: int
    default: 10
  wait:
    description: Seconds that a job may wait for busy nodes. The check is then skipped; V(nodes), V(nccl)
      and V(neuron) in O(stages) go on with idle nodes.
    type: int
    default: 120
  limit:
    description: Minutes after which no job is submitted, and what is not checked has failed; V(0) is no limit.
    type: int
    default: 0
  container_image:
    description: Image as C(srun --container-image) takes it. The default is the smallest of O(images_dir), or else an
      image that a job makes in O(results_dir) of a node's own files, for each partition, and that is removed at the
      end.
    type: str
    default: ""
  images_dir:
    description: Directory of images, as C(.sqsh) files.
    type: path
    default: /fsx/containers
  slurm:
    description: Directory of Slurm.
    type: path
    default: /opt/slurm
  instance_types:
    description: Instance types by nodes' names in Slurm. The default is ParallelCluster's feature in Slurm, or what the
      node tells.
    type: dict
    default: {}
  versions:
    description: Variables of roles with versions, such as C(nccl_version), as a dictionary for each node's name in
      Slurm, and under the empty name for all others. They are compared with the report of the last run of site.
    type: dict
    default: {}
  exporters:
    description: Services with metrics, each with C(unit), C(option) (of its command line, with the address), C(port)
      (without that option), C(component) and C(where). With C(where) as V(all), or V(gpu) on nodes with GPUs, the
      service must be enabled if the last run of site had the component.
    type: list
    elements: dict
    default: []
  nccl:
    description: Options of the stage V(nccl).
    type: dict
    default: {}
    suboptions:
      scopes:
        description: V(one) is each node by itself, over NVLink, V(two) two nodes, V(all) all of a partition that are
          up, and V(container) up to two nodes in a container with the cluster's NCCL, of O(container_image) or the
          newest of O(images_dir) with C(pytorch) in its name.
        type: list
        elements: str
        choices: [one, two, all, container]
        default: [one, two, all, container]
      collectives:
        description: Collectives to measure. The first is also measured on single nodes and in containers.
        type: list
        elements: str
        choices:
          - all_reduce
          - all_gather
          - reduce_scatter
          - alltoall
          - alltoallv
          - broadcast
          - reduce
          - gather
          - scatter
          - sendrecv
          - hypercube
        default: [all_reduce, all_gather, reduce_scatter, alltoall]
      min_bytes:
        description: Smallest message, as nccl-tests takes it.
        type: str
        default: "8"
      max_bytes:
        description: Largest message, as nccl-tests takes it. Sizes double in between.
        type: str
        default: 16G
      iterations:
        description: Number of times that each message is sent.
        type: int
        default: 20
      tests_dir:
        description: Directory of nccl-tests.
        type: path
        default: /fsx/nccl-tests/current/bin
      environment:
        description: File that a job sources first.
        type: path
        default: /fsx/nccl/setup-nccl-env.sh
      variables:
        description: Further environment variables of the jobs.
        type: dict
        default: {}
      mpi:
        description: The option C(--mpi) of srun. V(none) starts one process on each node, for tests without MPI.
        type: str
        default: pmix
      expected:
        description: Bus bandwidths to expect besides the published ones, or instead of them, with C(instance_type),
          C(nodes), C(collective), C(size) (bytes, or such as V(16G)), C(busbw) (GB/s) and C(source).
        type: list
        elements: dict
        default: []
      tolerance:
        description: Share by which a bandwidth may be less than expected.
        type: float
        default: 0.1
      bisect:
        description: Whether pairs of nodes are measured where several fall short, to find the slow node.
        type: bool
        default: true
  health:
    description: Options of the stage V(health).
    type: dict
    default: {}
    suboptions:
      checks:
        description: V(node_health) reads what each node's own checks have found last, V(gpu_diag) is NVIDIA's
          C(dcgmi diag), V(efa_loopback) sends through each EFA device to the device itself, and V(nccl_one_node)
          measures all_reduce on each node by itself.
        type: list
        elements: str
        choices: [node_health, gpu_diag, efa_loopback, nccl_one_node]
        default: [node_health, gpu_diag, efa_loopback, nccl_one_node]
      level:
        description: The level of C(dcgmi diag --run), from 1 to 4.
        type: int
        default: 2
      minutes:
        description: Minutes that C(dcgmi diag) may take on a node.
        type: int
        default: 15
  results_dir:
    description: Shared directory in which O(user) may write, for what the jobs print and for images.
    type: path
    default: /fsx/nccl-tests/results
  cluster:
    description: Name of the cluster, for the report.
    type: str
    default: ""
  region:
    description: AWS region of the cluster, for the report.
    type: str
    default: ""
  output:
    description: JSON file for the results, written after each stage and each minute.
      P(pcluster.postboot.verify_page#filter) makes a page of it.
    type: path
    default: /var/lib/pcluster-postboot/verify.json
extends_documentation_fragment: [pcluster.postboot.attributes.looks, pcluster.postboot.attributes.internal]
"""

EXAMPLES = r"""
- name: Check that containers run, on two nodes of every partition
  pcluster.postboot.verify:
    user: ubuntu
    container_image: ubuntu:24.04
"""

RETURN = r"""
table:
  description: The checks, one line each.
  type: list
  elements: str
  returned: success
complaints:
  description: One line for each failed check, and for each stage that could look at no node.
  type: list
  elements: str
  returned: success
verdict:
  description: The result in one sentence, beginning with what was not measured.
  type: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments, serve
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import (
    cluster,
    nccl_expected,
    nccl_results,
    report,
    stages,
)

NCCL = arguments(
    cluster.Nccl,
    paths=("tests_dir", "environment"),
    scopes={"choices": list(cluster.Nccl().scopes)},
    collectives={"choices": list(nccl_results.COLLECTIVES)},
    expected={"elements": "dict"},
)
HEALTH = arguments(cluster.Health, checks={"choices": list(cluster.Health().checks)})


def nccl_options(given: dict[str, Any]) -> cluster.Nccl:
    """Return what the stage nccl is asked for; what makes no sense is told by the name that users know."""
    wanted = {**given, "expected": nccl_expected.parse_rows(given["expected"])}
    for name in ("scopes", "collectives"):
        wanted[name] = tuple(dict.fromkeys(given[name]))
        if not wanted[name]:
            raise Problem(f"verify_nccl_{name}: found none; needed: one or more")
    sizes = []
    for name in ("min_bytes", "max_bytes"):
        try:
            sizes.append(nccl_expected.parse_size(given[name]))
        except Problem as error:
            raise Problem(f"verify_nccl_{name}: {error}") from error
        # As bytes, because nccl-tests does not know each way to write it.
        wanted[name] = str(sizes[-1])
    if sizes[0] > sizes[1]:
        raise Problem(f"verify_nccl_min_bytes: found {given['min_bytes']}; needed: no more than {given['max_bytes']}")
    if not 0 <= given["tolerance"] < 1:
        raise Problem(
            f"verify_nccl_tolerance: found {given['tolerance']}; needed: a share from 0 to below 1, such as 0.1"
        )
    wanted["variables"] = {name: str(value) for name, value in given["variables"].items()}
    return cluster.Nccl(**wanted)


def health_options(given: dict[str, Any]) -> cluster.Health:
    """Return what the stage health is asked for; what makes no sense is told by the name that users know."""
    if not given["checks"]:
        raise Problem("verify_health_checks: found none; needed: one or more")
    if not 1 <= given["level"] <= 4:
        raise Problem(f"verify_health_level: found {given['level']}; needed: a level of dcgmi diag, from 1 to 4")
    if given["minutes"] < 1:
        raise Problem(f"verify_health_minutes: found {given['minutes']}; needed: one minute or more")
    return cluster.Health(**{**given, "checks": tuple(dict.fromkeys(given["checks"]))})


ARGUMENTS = {
    **arguments(
        cluster.Options,
        paths=("images_dir", "slurm", "results_dir"),
        without=("image",),
        exporters={"elements": "dict"},
        nccl={"type": "dict", "default": {}, "apply_defaults": True, "options": NCCL},
        health={"type": "dict", "default": {}, "apply_defaults": True, "options": HEALTH},
    ),
    "stages": {"type": "list", "elements": "str", "choices": list(stages.STAGES), "default": list(stages.USUAL)},
    "container_image": {"type": "str", "default": ""},
    "cluster": {"type": "str", "default": ""},
    "region": {"type": "str", "default": ""},
    "output": {"type": "path", "default": lock.STATE_DIR + "/verify.json"},
}


def verify(module: AnsibleModule) -> dict[str, Any]:
    """Run the stages, and return what became of each check."""
    params = module.params
    if module.check_mode:
        none = "no job is submitted in check mode"
        return {"table": [], "complaints": [], "verdict": none, "msg": none}
    changed = {
        "image": params["container_image"],
        "partitions": tuple(params["partitions"]),
        "exporters": tuple(params["exporters"]),
        "instance_types": {name: str(kind) for name, kind in params["instance_types"].items() if kind},
        "nccl": nccl_options(params["nccl"]),
        "health": health_options(params["health"]),
    }
    options = cluster.Options(**{**{name: params.get(name) for name in cluster.Options._fields}, **changed})
    told = {name: params[name] for name in ("user", "stages", "cluster", "region")}
    context = cluster.Context(options)
    try:
        wanted = {name: stages.STAGES[name] for name in params["stages"]}
        checks = stages.carry_out(context, wanted, params["output"], told)
    finally:
        context.close()
    return {
        "table": [visible(line) for line in report.table(checks)],
        "complaints": [visible(line) for line in report.complaints(checks)],
        "verdict": visible(report.verdict(checks)),
    }


def main() -> None:
    serve(ARGUMENTS, verify)


if __name__ == "__main__":
    main()
