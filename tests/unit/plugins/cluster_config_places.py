# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Configurations with a shared file system near the directory of nodes' own disks, and what becomes of each."""

from __future__ import annotations

from typing import Any

from ansible_collections.pcluster.postboot.tests.unit.plugins import cluster_config_sample as sample

Case = tuple[dict[str, Any], dict[str, Any], str, str]


def case(mount: str, verdict: str = "", nodes: str = "", **changes: Any) -> Case:
    """Return a base with a file system there, the variables, the verdict, and the nodes that a line names."""
    head: dict[str, Any] = {"InstanceType": changes.get("head", "m5.xlarge"), "Networking": {"SubnetId": sample.HEAD}}
    if "head_dir" in changes:
        head["LocalStorage"] = {"EphemeralVolume": {"MountDir": changes["head_dir"]}}
    storage = {
        "Name": "mine",
        "MountDir": mount,
        "StorageType": "FsxLustre",
        "FsxLustreSettings": {"FileSystemId": sample.FSX},
    }
    queues = [
        {
            "Name": name,
            "Networking": {"SubnetIds": [sample.COMPUTE]},
            "ComputeResources": [{"Name": "c", "Instances": [{"InstanceType": each} for each in types]}],
            **({"ComputeSettings": {"LocalStorage": {"EphemeralVolume": {"MountDir": place}}}} if place else {}),
        }
        for name, types, place in changes.get("queues", [("cpu", ["c5.xlarge"], "")])
    ]
    base = {
        "Region": "us-east-1",
        "Image": {"Os": "ubuntu2204"},
        "HeadNode": head,
        "Scheduling": {"Scheduler": "slurm", "SlurmQueues": queues},
        "SharedStorage": [storage],
    }
    return base, {"region": "", "queues": []}, verdict, nodes


DISKS = [("cpu", ["c5.xlarge"], ""), ("disks", ["c5.xlarge", "c5d.xlarge"], "")]
MOVED = [("disks", ["c5d.xlarge"], "/local")]
CASES: dict[str, Case] = {
    "no node has disks": case("/scratch"),
    "no node has disks, within": case("/scratch/fsx"),
    "a queue has disks there": case("/scratch", "noted", "queue disks (c5d.xlarge)", queues=DISKS),
    "a queue has disks around": case("/scratch/fsx", "refused", "queue disks (c5d.xlarge)", queues=DISKS),
    "a queue has moved its disks": case("/scratch", queues=MOVED),
    "a queue has moved its disks there": case("/local", "noted", "queue disks (c5d.xlarge)", queues=MOVED),
    "a queue has moved its disks around": case("/local/fsx", "refused", "queue disks (c5d.xlarge)", queues=MOVED),
    "a queue without disks has a directory for them": case("/local/fsx", queues=[("cpu", ["c5.xlarge"], "/local")]),
    "the head node has disks there": case("/scratch", "noted", "the head node (c5d.xlarge)", head="c5d.xlarge"),
    "the head node has moved its disks": case("/scratch", head="c5d.xlarge", head_dir="/headlocal"),
    "the head node has moved its disks there": case(
        "/headlocal", "noted", "the head node (c5d.xlarge)", head="c5d.xlarge", head_dir="/headlocal"
    ),
    "the head node has moved its disks around": case(
        "/headlocal/fsx", "refused", "the head node (c5d.xlarge)", head="c5d.xlarge", head_dir="/headlocal"
    ),
    "the head node's disks are within": case(
        "/data", "refused", "the head node (c5d.xlarge)", head="c5d.xlarge", head_dir="/data/local"
    ),
    "a head node without disks has a directory for them": case("/headlocal/fsx", head_dir="/headlocal"),
}
