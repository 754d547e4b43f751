#!/usr/bin/python
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module pcluster.postboot.verify."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: verify
short_description: Check a cluster by jobs of an ordinary user
version_added: 0.1.0
description:
  - Runs on the head node. Submits small jobs with C(srun), as an ordinary user, to every partition that has a node that
    is up, and says what worked.
  - V(nodes) asks each node that is up what the last run of site left there, and whether exporters and EFA answer;
    V(containers) starts a container on some nodes of each partition, and where these have GPUs and Docker one by
    C(docker run --gpus all), as a job of root's; V(nccl) measures NCCL on the partitions that have GPUs, and compares
    it with what others have published for the same instance type.
  - A check that fails does not fail the task, whose results name it, and first what was not measured. Nothing on the
    cluster is changed.
options:
  user:
    description: Who submits. Not root.
    type: str
    required: true
  stages:
    description: What is checked.
    type: list
    elements: str
    choices: [nodes, containers, nccl]
    default: [nodes, containers, nccl]
  partitions:
    description: The partitions to check. By default all.
    type: list
    elements: str
    default: []
  nodes:
    description:
      - On how many nodes of each partition containers are started, and up to how many are booted where O(power_up) is
        set; V(0) is all. V(nodes) and V(nccl) in O(stages) take all that are up.
      - Where only some nodes of a partition have GPUs, containers are started on as many of each kind, in jobs of their
        own.
    type: int
    default: 2
  power_up:
    description: Whether nodes that are powered down are booted for it. Otherwise only nodes that are up are asked.
    type: bool
    default: false
  time_limit:
    description: How many minutes each job may take.
    type: int
    default: 10
  wait:
    description:
      - How many seconds each job may wait for nodes that are busy. The check is skipped after that; V(nodes) and
        V(nccl) in O(stages) then go on with the nodes that are idle.
    type: int
    default: 120
  limit:
    description:
      - After how many minutes no further job is submitted. What was found until then is told, and what was not is a
        failure; V(0) is no limit.
    type: int
    default: 0
  container_image:
    description:
      - The image for the containers, as C(srun --container-image) takes it. By default the smallest of O(images_dir).
      - Where there is none, the user's job makes one of a node's own files in O(results_dir), for each partition. It is
        removed at the end.
    type: str
    default: ""
  images_dir:
    description: A folder of images, as C(.sqsh) files.
    type: path
    default: /fsx/containers
  slurm:
    description: Where Slurm is installed.
    type: path
    default: /opt/slurm
  instance_types:
    description:
      - The instance type of nodes, by their names in Slurm. Without it those count that ParallelCluster gives nodes as
        a feature in Slurm, or that the node itself tells.
    type: dict
    default: {}
  versions:
    description:
      - Which versions nodes are to have, as the variables of roles say it, such as C(nccl_version); a dictionary for
        each node, by its name in Slurm, and one under the empty name for all others and the head node.
      - They are compared with what site was last run for, which its report on the node tells. Without any, nothing is.
    type: dict
    default: {}
  nccl:
    description: What V(nccl) in O(stages) does.
    type: dict
    default: {}
    suboptions:
      scopes:
        description:
          - V(one) is each node by itself, over NVLink, V(two) two nodes, V(all) all of a partition that are up, and
            V(container) two nodes, or the only one, in a container, with the cluster's NCCL. Its image is
            O(container_image), or the newest of O(images_dir) that has C(pytorch) in its name, or as everywhere.
        type: list
        elements: str
        choices: [one, two, all, container]
        default: [one, two, all, container]
      collectives:
        description: What is measured; the first one also on every single node, and in containers.
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
        description: The smallest message, as nccl-tests takes it.
        type: str
        default: "8"
      max_bytes:
        description: The largest message, as nccl-tests takes it. The next one is always twice as large.
        type: str
        default: 16G
      iterations:
        description: How often each message is sent.
        type: int
        default: 20
      tests_dir:
        description: Where nccl-tests are.
        type: path
        default: /fsx/nccl-tests/current/bin
      environment:
        description: What a job sources first.
        type: path
        default: /fsx/nccl/setup-nccl-env.sh
      variables:
        description: Further environment variables of the jobs.
        type: dict
        default: {}
      mpi:
        description: How srun starts MPI programs; V(none) starts one process on each node, for tests without MPI.
        type: str
        default: pmix
      expected:
        description:
          - Bus bandwidths to expect besides the published ones, or instead of them. Each has C(instance_type),
            C(nodes), C(collective), C(size) in bytes (or such as V(16G)), C(busbw) in GB/s, and a C(source).
        type: list
        elements: dict
        default: []
      tolerance:
        description: How much less than expected is still well, as a share.
        type: float
        default: 0.1
      bisect:
        description:
          - Whether pairs of nodes are measured where several together fall short, to find the slow one. Where nobody
            knows what to expect of all together, about the square root of them meet in pairs, and all where one is
            slow.
        type: bool
        default: true
  results_dir:
    description:
      - Where V(nccl) makes a folder for what its jobs print, and where images are made. O(user) may write there, and
        all nodes see it.
    type: path
    default: /fsx/nccl-tests/results
  cluster:
    description: The cluster's name, for the report.
    type: str
    default: ""
  region:
    description: The cluster's region, for the report.
    type: str
    default: ""
  output:
    description:
      - The JSON file for the results. A page to look at is written beside it, with C(.html) at its end.
      - Both are written after each stage, and each minute of one that takes long, so that a run that is ended before
        its time leaves what it has found.
    type: path
    default: /var/lib/pcluster-postboot/verify.json
extends_documentation_fragment:
  - pcluster.postboot.attributes.looks
  - pcluster.postboot.attributes.linux
attributes:
  check_mode:
    description: Can run in check mode and return what would change without changing it.
    details: No job is submitted in check mode, and nothing is written.
  idempotent:
    details: Nothing is ever changed, apart from O(output), and what jobs print in O(results_dir), which are results.
author:
  - The pcluster.postboot contributors (@pcluster)
"""

EXAMPLES = r"""
- name: Check that containers run, on two nodes of every partition
  pcluster.postboot.verify:
    user: ubuntu
    container_image: ubuntu:24.04
"""

RETURN = r"""
page:
  description: Where the page is that shows the same with charts. It needs no other file.
  type: str
  returned: success
table:
  description: The same for people, a line for each check.
  type: list
  elements: str
  returned: success
complaints:
  description: One line for each check that failed, and for each stage that could look at no node.
  type: list
  elements: str
  returned: success
verdict:
  description: All in one sentence, and first what was not measured.
  type: str
  returned: success
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import (
    _nccl_expected,
    _nccl_results,
    _run,
    _verify,
    _verify_containers,
    _verify_nccl,
    _verify_nodes,
)

STAGES = {"nodes": _verify_nodes.run, "containers": _verify_containers.run, "nccl": _verify_nccl.run}
USUAL = _verify.Nccl()
NCCL: dict[str, dict[str, Any]] = {
    "scopes": {"type": "list", "elements": "str", "choices": list(USUAL.scopes)},
    "collectives": {"type": "list", "elements": "str", "choices": list(_nccl_results.COLLECTIVES)},
    "min_bytes": {"type": "str"},
    "max_bytes": {"type": "str"},
    "iterations": {"type": "int"},
    "tests_dir": {"type": "path"},
    "environment": {"type": "path"},
    "variables": {"type": "dict"},
    "mpi": {"type": "str"},
    "expected": {"type": "list", "elements": "dict"},
    "tolerance": {"type": "float"},
    "bisect": {"type": "bool"},
}
for name, usual in USUAL._asdict().items():
    NCCL[name]["default"] = list(usual) if isinstance(usual, tuple) else usual


def nccl_options(given: dict[str, Any]) -> _verify.Nccl:
    """Return what the stage nccl is asked for; what makes no sense is told by the name that users know."""
    wanted = {**given, "expected": _nccl_expected.parse_rows(given["expected"])}
    for name in ("scopes", "collectives"):
        wanted[name] = tuple(dict.fromkeys(given[name]))
        if not wanted[name]:
            raise _nccl_expected.ExpectedError(f"verify_nccl_{name}: found none; needed: one or more")
    sizes = []
    for name in ("min_bytes", "max_bytes"):
        try:
            sizes.append(_nccl_expected.parse_size(given[name]))
        except _nccl_expected.ExpectedError as error:
            raise _nccl_expected.ExpectedError(f"verify_nccl_{name}: {error}") from error
        # As bytes, because nccl-tests does not know each way to write it.
        wanted[name] = str(sizes[-1])
    if sizes[0] > sizes[1]:
        raise _nccl_expected.ExpectedError(
            f"verify_nccl_min_bytes: found {given['min_bytes']}; needed: no more than {given['max_bytes']}"
        )
    if not 0 <= given["tolerance"] < 1:
        raise _nccl_expected.ExpectedError(
            f"verify_nccl_tolerance: found {given['tolerance']}; needed: a share from 0 to below 1, such as 0.1"
        )
    wanted["variables"] = {name: str(value) for name, value in given["variables"].items()}
    return _verify.Nccl(**wanted)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "stages": {"type": "list", "elements": "str", "choices": list(STAGES), "default": list(STAGES)},
            "partitions": {"type": "list", "elements": "str", "default": []},
            "nodes": {"type": "int", "default": 2},
            "power_up": {"type": "bool", "default": False},
            "time_limit": {"type": "int", "default": 10},
            "wait": {"type": "int", "default": 120},
            "limit": {"type": "int", "default": 0},
            "container_image": {"type": "str", "default": ""},
            "images_dir": {"type": "path", "default": "/fsx/containers"},
            "slurm": {"type": "path", "default": "/opt/slurm"},
            "instance_types": {"type": "dict", "default": {}},
            "versions": {"type": "dict", "default": {}},
            "nccl": {"type": "dict", "default": {}, "apply_defaults": True, "options": NCCL},
            "results_dir": {"type": "path", "default": "/fsx/nccl-tests/results"},
            "cluster": {"type": "str", "default": ""},
            "region": {"type": "str", "default": ""},
            "output": {"type": "path", "default": _run.STATE_DIR + "/verify.json"},
        },
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        none = "no job is submitted in check mode"
        module.exit_json(changed=False, table=[], complaints=[], verdict=none, msg=none)
    try:
        nccl = nccl_options(params["nccl"])
    except _nccl_expected.ExpectedError as error:
        module.fail_json(msg=str(error))
    options = _verify.Options(
        user=params["user"],
        image=params["container_image"],
        images_dir=params["images_dir"],
        partitions=tuple(params["partitions"]),
        nodes=params["nodes"],
        power_up=params["power_up"],
        time_limit=params["time_limit"],
        wait=params["wait"],
        limit=params["limit"],
        slurm=params["slurm"],
        instance_types={name: str(kind) for name, kind in params["instance_types"].items() if kind},
        versions=params["versions"],
        results_dir=params["results_dir"],
        nccl=nccl,
    )
    try:
        context = _verify.Context(options)
        try:
            told = {name: params[name] for name in ("user", "stages", "cluster", "region")}
            stages = {name: STAGES[name] for name in params["stages"]}
            checks = _verify.carry_out(context, stages, params["output"], told)
        finally:
            context.close()
    except (OSError, _verify.VerifyError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        page=_verify.page_of(params["output"]),
        table=_verify.table(checks),
        complaints=_verify.complaints(checks),
        verdict=_verify.verdict(checks),
    )


if __name__ == "__main__":
    main()
