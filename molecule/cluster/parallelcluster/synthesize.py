#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What ParallelCluster itself tells the nodes of a cluster of the sandbox, as plain files: see README.md.

`synthesize.py --cluster NAME --out FOLDER` prints one line when something in the folder changed.
"""

from __future__ import annotations

import argparse
import base64
import email
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from account import Account
from resolver import Stack, Unresolved

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[2] / ".sandbox/cache"
COLLECTIONS = HERE.parents[2] / ".venv/collections"  # where scripts/setup.sh has put this checkout
SOURCES = ("account.py", "resolver.py", "synthesize.py", "upstream.py")
ON_NODES = "cluster-config-with-implied-values.yaml"  # the artifact that the nodes know as cluster-config.yaml
TEMPLATE = "templates/aws-parallelcluster.cfn.yaml"
CAPACITY_TYPES = {"ONDEMAND": "on-demand", "SPOT": "spot", "CAPACITY_BLOCK": "capacity-block"}
INIT = "AWS::CloudFormation::Init"
IMAGE_SIZE = 40  # GiB
TIMEOUT = re.compile(r"^\s*timeout (\d+) \S+/bootstrap\.sh", re.MULTILINE)


def configuration(topology: Mapping[str, Any], name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The cluster's configuration as the playbook cluster_config renders it, with what a user adds by hand."""
    if str(COLLECTIONS) not in sys.path:
        sys.path.append(str(COLLECTIONS))
    from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.render import render

    outcome = render(variables(topology, name))
    if outcome.problems:
        sys.exit("\n".join(outcome.problems))
    merged: dict[str, Any] = merge(outcome.config, overrides)
    return merged


def variables(topology: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The variables of cluster_config, without their prefix."""
    cluster, account = topology["clusters"][name], Account(topology, name)
    nodes = list(cluster["nodes"].values())
    head = next(node for node in nodes if node["type"] == "HeadNode")
    login = [node for node in nodes if node["type"] == "LoginNode"]
    pools = {node["pool"]: node["instance_type"] for node in login}
    return {
        "name": name,
        "version": str(cluster.get("parallelcluster", topology["parallelcluster"])),
        "region": account.region,
        "os": cluster["os"],
        "subnet_head": account.subnet,
        "fsx_lustre": account.file_system,
        "components": [],  # the sandbox's machines have the disks and the time that this one has
        "head_node": {"instance_type": head["instance_type"]},
        "login_pools": [
            {"name": pool, "instance_type": instance_type, "count": sum(node["pool"] == pool for node in login)}
            for pool, instance_type in pools.items()
        ],
        "queues": [queue(each) for each in cluster["queues"]],
        "slurm_settings": settings(cluster["queues"]),
    }


def settings(queues: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What the sandbox wants of Slurm beside ParallelCluster's defaults."""
    static = [f"{each['name']}-st-{each['compute_resource']}-[1-{each['min']}]" for each in queues if each["min"]]
    return {
        "idle_minutes": 60,  # tests take longer than ten minutes
        "update_strategy": "DRAIN",
        "custom": [
            # Nodes have as many CPUs as their instance type, whatever this machine has.
            {"SlurmdParameters": "config_overrides"},
            # A node that was powered down can boot again after so many seconds, in the place of ParallelCluster's 120.
            {"SuspendTimeout": 20},
            # The nodes that are always there, so that `srun -N2` without a partition has two.
            {"PartitionName": "static", "Nodes": ",".join(static), "State": "UP", "Default": "YES"},
        ],
    }


def queue(given: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("name", "compute_resource", "instance_type", "min", "max")
    return {**{key: given[key] for key in keys}, "efa": "true" if given.get("efa") else "false"}


def merge(there: Any, ours: Any) -> Any:
    """Put `ours` over what is there: key by key, and what has a Name over what has the same Name."""
    if isinstance(there, dict) and isinstance(ours, Mapping):
        return {**there, **{key: merge(there.get(key), value) for key, value in ours.items()}}
    if isinstance(there, list) and isinstance(ours, list) and all("Name" in each for each in [*there, *ours]):
        named = {each["Name"]: each for each in there}
        for each in ours:
            named[each["Name"]] = merge(named.get(each["Name"]), each)
        return list(named.values())
    return ours


def stacks(account: Account, result: Mapping[str, Any]) -> tuple[Stack, list[Stack]]:
    """The cluster's stack, and those that are nested in it."""
    name, objects = account.cluster, result["objects"]
    template = yaml.safe_load(objects[TEMPLATE])
    root = Stack(name, template, result["parameters"], account.pseudo(name), account)
    for logical, resource in root.resources("AWS::CloudFormation::Stack").items():
        where = (name, "Resources", logical, "Properties")
        url = root.text(resource["Properties"]["TemplateURL"], (*where, "TemplateURL"))
        key = url.split(f"/{result['bucket']}/{result['directory']}/", 1)[1]
        inner = account.nested(name, logical)
        parameters = root.resolve(resource["Properties"].get("Parameters", {}), (*where, "Parameters"))
        root.nested[logical] = Stack(inner, json.loads(objects[key]), parameters, account.pseudo(inner), account)
    return root, [root, *root.nested.values()]


def written_files(user_data: str) -> dict[str, str]:
    """The files that cloud-init writes by this user data."""
    files = {}
    for part in email.message_from_string(user_data).walk():
        if part.get_content_type() == "text/cloud-config":
            for file in yaml.safe_load(str(part.get_payload())).get("write_files", []):
                files[file["path"]] = file["content"]
    return files


def acceptable(data: Mapping[str, Any]) -> dict[str, Any]:
    """The launch template's data without what moto refuses, and EC2 does not mind.

    That is a tag that stands there twice with one value; instance store by its virtual name, which an instance with
    NVMe does not heed; and a root volume without a size, for which EC2 takes the image's.
    """
    volumes = [each for each in data["BlockDeviceMappings"] if "Ebs" in each]
    tags = data.get("TagSpecifications", [])
    return {
        **data,
        "BlockDeviceMappings": [{**each, "Ebs": {"VolumeSize": IMAGE_SIZE, **each["Ebs"]}} for each in volumes],
        "TagSpecifications": [
            {**each, "Tags": [{"Key": key, "Value": value} for key, value in plain(each["Tags"]).items()]}
            for each in tags
        ],
    }


def launch(stack: Stack, name: str) -> dict[str, Any]:
    """A launch template as ec2:CreateLaunchTemplate takes it, and what its instances are told."""
    properties = stack.properties(name)
    data = properties["LaunchTemplateData"]
    text = base64.b64decode(data["UserData"]).decode()
    found: dict[str, Any] = {"launch_template_data": acceptable(data), "user_data": text}
    if "LaunchTemplateName" in properties:
        found["launch_template_name"] = properties["LaunchTemplateName"]
    tags = [each["Tags"] for each in data.get("TagSpecifications", []) if each["ResourceType"] == "instance"]
    found["tags"] = {key: value for each in tags for key, value in plain(each).items()}
    limit = TIMEOUT.search(text)
    if limit:
        found["timeout"] = int(limit[1])
    files = written_files(text)
    metadata = stack.template["Resources"][name].get("Metadata", {})
    if INIT in metadata:
        found["cfn_init"] = stack.resolve(metadata[INIT], (stack.name, "Resources", name, "Metadata", INIT))
        files |= {path: file["content"] for path, file in found["cfn_init"]["deployConfigFiles"]["files"].items()}
    for path, content in files.items():
        if path.endswith(("/dna.json", "/extra.json")):
            found[Path(path).stem] = json.loads(content)
    return found


def fleet_config(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """fleet-config.json, as the cookbook's generator makes it of the configuration on the nodes: see README.md."""
    found: dict[str, dict[str, Any]] = {}
    for queue in config["Scheduling"]["SlurmQueues"]:
        resources = found[queue["Name"]] = {}
        for resource in queue["ComputeResources"]:
            fleet: dict[str, Any] = {"CapacityType": CAPACITY_TYPES[queue["CapacityType"]]}
            for each in (resource, queue):
                reservation = (each.get("CapacityReservationTarget") or {}).get("CapacityReservationId")
                if reservation:
                    fleet.setdefault("CapacityReservationId", reservation)
            if "InstanceType" not in resource:
                sys.exit(
                    f"{resource['Name']} of {queue['Name']} has no InstanceType; the sandbox knows run-instances alone"
                )
            instances = [{"InstanceType": resource["InstanceType"]}]
            resources[resource["Name"]] = {**fleet, "Api": "run-instances", "Instances": instances}
    return found


def cluster_of(account: Account, result: Mapping[str, Any]) -> dict[str, Any]:
    """cluster.json."""
    root, every = stacks(account, result)
    config = yaml.safe_load(result["objects"][f"configs/{ON_NODES}"])
    found: dict[str, Any] = {
        "cluster": account.cluster,
        "parallelcluster": result["version"],
        "account": {**vars(account), "image_name": result["image_name"]},
        "stack": {"name": account.cluster, "id": account.stack_id(account.cluster), "tags": plain(result["tags"])},
        "artifacts": {"bucket": result["bucket"], "directory": result["directory"]},
        "log_group": root.properties("CloudWatchLogGroup")["LogGroupName"],
        "dynamodb_tables": [root.properties(name) for name in root.resources("AWS::DynamoDB::Table")],
        "head": head_of(root, result),
        "login_pools": [],
        "compute_resources": [],
        "fleet_config": fleet_config(config),
        "notes": result["notes"],
    }
    named = {
        f"{account.cluster}-{queue['Name']}-{resource['Name']}": (queue, resource)
        for queue in config["Scheduling"]["SlurmQueues"]
        for resource in queue["ComputeResources"]
    }
    for stack in every[1:]:
        for template in [launch(stack, name) for name in stack.resources("AWS::EC2::LaunchTemplate")]:
            if template["launch_template_name"] in named:
                queue, resource = named[template["launch_template_name"]]
                counts = {"min": resource["MinCount"], "max": resource["MaxCount"]}
                names = {"queue": queue["Name"], "compute_resource": resource["Name"]}
                found["compute_resources"].append({**names, **counts, **template})
            else:
                found["login_pools"].append(pool_of(stack, template))
    return found


def plain(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}


def head_of(root: Stack, result: Mapping[str, Any]) -> dict[str, Any]:
    (condition,) = root.resources("AWS::CloudFormation::WaitCondition")
    return {
        **launch(root, "HeadNodeLaunchTemplate"),
        "tags": {**plain(root.properties("HeadNode")["Tags"]), **plain(result["tags"])},
        "timeout": int(root.properties(condition)["Timeout"]),
    }


def pool_of(stack: Stack, template: dict[str, Any]) -> dict[str, Any]:
    """A login pool, with its auto scaling group."""
    pool = template["dna"]["cluster"]["pool_name"]
    for name, resource in stack.resources("AWS::AutoScaling::AutoScalingGroup").items():
        where = (stack.name, "Resources", name, "Properties")
        wanted = ("AutoScalingGroupName", "MinSize", "MaxSize", "DesiredCapacity", "LifecycleHookSpecificationList")
        group = {key: stack.resolve(resource["Properties"][key], (*where, key)) for key in (*wanted, "Tags")}
        if group["AutoScalingGroupName"].endswith(f"-{pool}-AutoScalingGroup"):
            tags = {**template["tags"], **plain(group["Tags"])}
            return {"pool": pool, **template, "tags": tags, "auto_scaling_group": group}
    raise Unresolved((stack.name,), f"the login pool {pool} has no auto scaling group")


def ask(program: str, request: Any, version: str, folder: Path) -> Any:
    """The answer of a program that runs in the environment of a ParallelCluster."""
    python = CACHE / f"parallelcluster-{version}/bin/python"
    if not python.exists():
        sys.exit(f"ParallelCluster {version} is not in {python.parents[1]}; needed: scripts/setup.sh --sandbox")
    at = folder / "result.json"
    line = [python, HERE / program, at]
    done = subprocess.run(line, input=json.dumps(request), text=True, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"ParallelCluster {version} ended with {done.returncode} and said nothing")
    found = json.loads(at.read_text())
    at.unlink()
    return found


def upstream(request: Mapping[str, Any], version: str, folder: Path) -> dict[str, Any]:
    """Let ParallelCluster work."""
    found: dict[str, Any] = ask("upstream.py", request, version, folder)
    if "refused" in found:
        sys.exit(f"ParallelCluster {version} refuses the configuration: {found['refused']}")
    return found


def fill(folder: Path, account: Account, request: Mapping[str, Any], version: str) -> None:
    """Write everything that there is to know of the cluster into an empty folder."""
    result = upstream(request, version, folder)
    cluster = cluster_of(account, result)
    for name, text in result["objects"].items():
        at = folder / "artifacts" / name
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text)
    shutil.copy(folder / "artifacts/configs" / ON_NODES, folder / "cluster-config.yaml")
    (folder / "cluster.json").write_text(json.dumps(cluster, indent=1) + "\n")


def bring(source: Path, out: Path) -> bool:
    """Make `out` what `source` is, file by file, so that what is mounted somewhere stays so. Whether it changed."""
    wanted = {path.relative_to(source): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    there = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for name in there.keys() - wanted.keys():
        (out / name).unlink()
    for name, content in wanted.items():
        if there.get(name) != content:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            new = out / name.with_name(f".{name.name}.new")
            new.write_bytes(content)
            new.rename(out / name)
    return there != wanted


def synthesize(
    topology: Mapping[str, Any],
    name: str,
    out: Path,
    overrides: Mapping[str, Any],
    previous: Mapping[str, Any] | None = None,
) -> bool:
    """Bring `out` up to date, with `previous` as an update of the cluster that has those. Whether it changed."""
    cluster = topology["clusters"][name]
    version = str(cluster.get("parallelcluster", topology["parallelcluster"]))
    # Of the topology what Account reads: the rest is in the configuration, or is nothing to ParallelCluster.
    nodes = {key: {"type": node["type"], "address": node.get("address")} for key, node in cluster["nodes"].items()}
    heads = {key: node for key, node in nodes.items() if node["type"] == "HeadNode"}
    parts = {"region": topology["region"], "network": topology["network"], "parallelcluster": version}
    request = {
        "topology": {**parts, "clusters": {name: {"os": cluster["os"], "nodes": heads}}},
        "cluster": name,
        "config": yaml.safe_dump(configuration(topology, name, overrides), sort_keys=False),
    }
    if previous is not None:
        request["previous"] = yaml.safe_dump(configuration(topology, name, previous), sort_keys=False)
    environment = CACHE / f"parallelcluster-{version}/.stamp"
    inputs = [version, json.dumps(request, sort_keys=True), environment.read_text() if environment.exists() else ""]
    inputs += [(HERE / source).read_text() for source in SOURCES]
    seed = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
    known = CACHE / "clusters" / seed
    if not known.exists():
        known.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=known.parent) as folder:
            new = Path(folder) / "new"
            new.mkdir()
            fill(new, Account(topology, name), {**request, "seed": seed}, version)
            if not known.exists():
                new.rename(known)
    return bring(known, out)


def read(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text()) or {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", type=Path, default=HERE.parent / "topology.yml")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--overrides", type=Path, metavar="FILE", help="parts of a configuration, merged over ours")
    parser.add_argument("--previous", type=Path, metavar="FILE", help="those of the cluster that is to be updated")
    options = parser.parse_args()
    topology = yaml.safe_load(options.topology.read_text())
    if options.cluster not in topology["clusters"]:
        sys.exit(f"--cluster is {options.cluster}; {options.topology} has {', '.join(topology['clusters'])}")
    overrides = read(options.overrides) if options.overrides else {}
    previous = read(options.previous) if options.previous else None
    try:
        if synthesize(topology, options.cluster, options.out, overrides, previous):
            print(f"synthesised {options.cluster} into {os.path.relpath(options.out)}")
    except Unresolved as error:
        sys.exit(f"the templates of {options.cluster} have what the sandbox can not resolve: {error}")


if __name__ == "__main__":
    main()
