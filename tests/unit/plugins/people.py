# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Configurations of clusters as people write them, made up anew from a seed: sections, styles of YAML, and mistakes.

The shapes are those of public repositories and of ParallelCluster's documentation; no file is copied from there.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import yaml

Config = dict[str, Any]
SUBNETS = [f"subnet-0123456789abcdef{digit}" for digit in "0123"]
ROLE, PROFILE = "arn:aws:iam::123456789012:role/mine", "arn:aws:iam::123456789012:instance-profile/mine"
POLICIES = ["arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore", "arn:aws:iam::123456789012:policy/of-the-users"]
SCRIPTS: list[Any] = [
    {"Script": "s3://of-the-users/setup.sh"},
    {"Script": "https://example.com/setup.sh", "Args": ["--mode", "${HOME}", "a b"]},
    {"Sequence": [{"Script": "s3://of-the-users/one.sh"}, {"Script": "s3://of-the-users/two.sh", "Args": ["1"]}]},
    {"Sequence": []},
]


class File(NamedTuple):
    text: str
    plain: str  # the same without keys that are null: ParallelCluster dumps such keys, and its schema refuses them


def make(seed: int, version: str) -> File:
    """Return a configuration. Every third one has a mistake, which ParallelCluster refuses."""
    rng = random.Random(f"{seed} {version}")
    config = _cluster(rng, version)
    if seed % 3 == 2:
        rng.choice(_MISTAKES)(config, rng)
    return _STYLES[seed % len(_STYLES)](config, rng)


def _maybe(rng: random.Random, likely: float, target: Config, **keys: Callable[[], Any]) -> None:
    target.update({key: value() for key, value in keys.items() if rng.random() < likely})


def _iam(rng: random.Random, login: bool = False) -> Config:
    kind = rng.randrange(5)
    if kind < 2:
        return [{"InstanceRole": ROLE}, {"InstanceProfile": PROFILE}][kind]
    found: Config = {"AdditionalIamPolicies": [{"Policy": each} for each in POLICIES[: rng.randrange(3)]]}
    if not login:
        write = rng.choice([True, False, "yes", "false", 1])
        found["S3Access"] = [{"BucketName": "of-the-users"}, {"BucketName": "theirs", "EnableWriteAccess": write}]
        _maybe(rng, 0.5, found["S3Access"][0], KeyName=lambda: "data/*")
    return found


def _actions(rng: random.Random, *events: str) -> Config:
    return {event: copy.deepcopy(rng.choice(SCRIPTS)) for event in events if rng.random() < 0.6}


def _volume(rng: random.Random) -> Config:
    found: Config = {"RootVolume": {"Size": rng.choice([200, "300", 250.0]), "Encrypted": rng.choice([True, "true"])}}
    _maybe(rng, 0.3, found, EphemeralVolume=lambda: {"MountDir": "/local"})
    return found


def _slurm(rng: random.Random) -> Config:
    return rng.choice([{}, {"Feature": "gpu,fast"}, {"MaxTime": "2-00:00:00", "Priority": 5}])


def _resource(rng: random.Random, name: str, version: str) -> Config:
    found: Config = {"Name": name, "InstanceType": rng.choice(["c5.large", "m5.xlarge", "c5d.xlarge"])}
    if rng.random() < 0.3:
        del found["InstanceType"]
        found["Instances"] = [{"InstanceType": "c5.large"}, {"InstanceType": "c5a.large"}]
    _maybe(
        rng,
        0.4,
        found,
        MinCount=lambda: rng.choice([0, 1, "0"]),
        MaxCount=lambda: rng.choice([4, "8"]),
        SpotPrice=lambda: rng.choice([1, 0.5]),
        DisableSimultaneousMultithreading=lambda: rng.choice([True, "yes"]),
        CustomSlurmSettings=lambda: _slurm(rng),
        Tags=lambda: [{"Key": "cost", "Value": "7"}],
        HealthChecks=lambda: {"Gpu": {"Enabled": False}},
        Efa=lambda: {"Enabled": rng.choice([False, "false"])},
    )
    if version > "3.15" and rng.random() < 0.2:
        found["LaunchTemplateOverrides"] = {"LaunchTemplateId": "lt-0123456789abcdef0", "Version": 1}
    return found


def _queue(rng: random.Random, name: str, version: str) -> Config:
    found: Config = {
        "Name": name,
        "Networking": {"SubnetIds": [rng.choice(SUBNETS)]},
        "ComputeResources": [_resource(rng, f"{name}-{number}", version) for number in range(1 + rng.randrange(2))],
    }
    _maybe(
        rng,
        0.5,
        found,
        Iam=lambda: _iam(rng),
        CustomActions=lambda: _actions(rng, "OnNodeStart", "OnNodeConfigured"),
        ComputeSettings=lambda: {"LocalStorage": _volume(rng)},
        CapacityType=lambda: rng.choice(["ONDEMAND", "SPOT"]),
        AllocationStrategy=lambda: "lowest-price",
        JobExclusiveAllocation=lambda: True,
        CustomSlurmSettings=lambda: _slurm(rng),
        Tags=lambda: [{"Key": "team", "Value": "ml"}],
        Image=lambda: {"CustomAmi": "ami-0123456789abcdef0"},
        CapacityReservationTarget=lambda: {"CapacityReservationId": "cr-0123456789abcdef0"},
    )
    networking = found["Networking"]
    _maybe(
        rng,
        0.3,
        networking,
        AssignPublicIp=lambda: False,
        PlacementGroup=lambda: rng.choice([{"Enabled": True}, {"Name": "of-the-users"}]),
        AdditionalSecurityGroups=lambda: ["sg-01234567"],
        Proxy=lambda: {"HttpProxyAddress": "http://proxy.example.com:3128"},
    )
    return found


def _pool(rng: random.Random, name: str, version: str) -> Config:
    found: Config = {
        "Name": name,
        "InstanceType": "c5.large",
        "Count": rng.choice([1, "2", 0]),
        "Networking": {"SubnetIds": [rng.choice(SUBNETS)]},
    }
    _maybe(
        rng,
        0.5,
        found,
        Iam=lambda: _iam(rng, login=True),
        CustomActions=lambda: _actions(rng, "OnNodeStart", "OnNodeConfigured", "OnNodeUpdated"),
        GracetimePeriod=lambda: 10,
        Ssh=lambda: {"KeyName": "mine"} if version < "3.15" else {"AllowedIps": "192.0.2.0/24"},
    )
    return found


def _storage(rng: random.Random) -> list[Config]:
    known: list[tuple[str, str, Config]] = [
        ("Ebs", "EbsSettings", {"Size": rng.choice([50, "60"]), "Raid": {"Type": 1, "NumberOfVolumes": 2}}),
        ("Efs", "EfsSettings", {"FileSystemId": "fs-0123456789abcdef0", "EncryptionInTransit": True}),
        ("FsxLustre", "FsxLustreSettings", {"FileSystemId": "fs-0123456789abcdef1"}),
        ("FsxOpenZfs", "FsxOpenZfsSettings", {"VolumeId": "fsvol-0123456789abcdef0"}),
        ("FsxOntap", "FsxOntapSettings", {"VolumeId": "fsvol-0123456789abcdef1"}),
        ("FileCache", "FileCacheSettings", {"FileCacheId": "fc-0123456789abcdef0"}),
    ]
    new = {
        "StorageCapacity": 1200,
        "DeploymentType": "PERSISTENT_2",
        "PerUnitStorageThroughput": "125",
        "DataRepositoryAssociations": [{"Name": "d", "DataRepositoryPath": "s3://b", "FileSystemPath": "/d"}],
    }
    known.append(("FsxLustre", "FsxLustreSettings", new))
    return [
        {"Name": f"of-{number}", "MountDir": f"/shared{number}", "StorageType": kind, settings: value}
        for number, (kind, settings, value) in enumerate(rng.sample(known, rng.randrange(1, 5)))
    ]


def _cluster(rng: random.Random, version: str) -> Config:
    head: Config = {"InstanceType": "c5.xlarge", "Networking": {"SubnetId": SUBNETS[0]}}
    _maybe(
        rng,
        0.5,
        head,
        Iam=lambda: _iam(rng),
        CustomActions=lambda: _actions(rng, "OnNodeStart", "OnNodeConfigured", "OnNodeUpdated"),
        LocalStorage=lambda: _volume(rng),
        Ssh=lambda: {"KeyName": "mine", "AllowedIps": "192.0.2.0/24"},
        Dcv=lambda: {"Enabled": True, "Port": 8443},
        Imds=lambda: {"Secured": True},
        DisableSimultaneousMultithreading=lambda: True,
    )
    _maybe(rng, 0.3, head["Networking"], ElasticIp=lambda: True, SecurityGroups=lambda: ["sg-01234567", "sg-76543210"])
    scheduling: Config = {"Scheduler": "slurm"}
    settings: Config = {}
    _maybe(
        rng,
        0.4,
        settings,
        ScaledownIdletime=lambda: rng.choice([10, "-1"]),
        QueueUpdateStrategy=lambda: "DRAIN",
        CustomSlurmSettings=lambda: [{"MaxArraySize": 5000}, {"PartitionName": "all", "Nodes": "ALL"}],
        Dns=lambda: {"DisableManagedDns": True, "UseEc2Hostnames": True},
        Database=lambda: {
            "Uri": "db.example.com:3306",
            "UserName": "slurm",
            "PasswordSecretArn": "arn:aws:secretsmanager:us-east-1:123456789012:secret:x",
        },
    )
    if settings:
        scheduling["SlurmSettings"] = settings
    names = ["cpu", "gpu", "long", "debug"][: rng.randrange(1, 5)]
    scheduling["SlurmQueues"] = [_queue(rng, name, version) for name in names]
    config: Config = {
        "Region": "us-east-1",
        "Image": {"Os": rng.choice(["ubuntu2204", "alinux2023", "rhel9"])},
        "HeadNode": head,
        "Scheduling": scheduling,
    }
    _maybe(
        rng,
        0.4,
        config,
        LoginNodes=lambda: {"Pools": [_pool(rng, name, version) for name in ("in", "out")[: rng.randrange(1, 3)]]},
        SharedStorage=lambda: _storage(rng),
        Monitoring=lambda: {
            "DetailedMonitoring": True,
            "Logs": {"CloudWatch": {"Enabled": True, "RetentionInDays": rng.choice([30, "30"])}},
            "Dashboards": {"CloudWatch": {"Enabled": "false"}},
        },
        Tags=lambda: [{"Key": "team", "Value": "ml"}, {"Key": "cost", "Value": "7"}],
        Imds=lambda: {"ImdsSupport": "v2.0"},
        Iam=lambda: {"ResourcePrefix": "/mine/", "PermissionsBoundary": POLICIES[1]},
        DirectoryService=lambda: {
            "DomainName": "dc=example,dc=com",
            "DomainAddr": "ldaps://ldap.example.com",
            "PasswordSecretArn": "arn:aws:secretsmanager:us-east-1:123456789012:secret:x",
            "DomainReadOnlyUser": "cn=reader",
            "AdditionalSssdConfigs": {"access_provider": "simple", "ldap_page_size": 5},
        },
        DevSettings=lambda: {"Timeouts": {"HeadNodeBootstrapTimeout": "7200", "ComputeNodeBootstrapTimeout": 3600}},
        AdditionalPackages=lambda: {"IntelSoftware": {"IntelHpcPlatform": False}},
        DeploymentSettings=lambda: {"DisableSudoAccessForDefaultUser": False},
        CustomS3Bucket=lambda: "of-the-users",
    )
    return config


# --- Styles: how the same sections are written down


def _nodes(config: Config) -> list[Config]:
    return config["Scheduling"]["SlurmQueues"] if isinstance(config["Scheduling"], dict) else []


def _plain(config: Config, _rng: random.Random) -> File:
    text = yaml.safe_dump(copy.deepcopy(config), sort_keys=False)
    return File(text, text)


def _shared(config: Config, rng: random.Random) -> File:
    """Write what queues and pools have in common once, with an anchor; PyYAML does so for one and the same object."""
    for several in (_nodes(config), config.get("LoginNodes", {}).get("Pools", [])):
        first, *others = several if isinstance(several, list) and several else [{}]
        for other in others:
            for key in ("Networking", "Iam", "CustomActions", "ComputeSettings", "Tags", "CustomSlurmSettings"):
                if isinstance(first, dict) and key in first and rng.random() < 0.7:
                    other[key] = first[key]
    text = yaml.safe_dump(config, sort_keys=False)
    return File(text, text)


def _merged(config: Config, rng: random.Random) -> File:
    """Write each queue as the first one with some keys of its own."""
    queues = _nodes(config)
    lines = yaml.safe_dump({**config, "Scheduling": "HERE"}, sort_keys=False).splitlines()
    if not isinstance(queues, list) or not all(isinstance(queue, dict) for queue in queues):
        return _plain(config, rng)
    first, *others = queues
    rest = {key: value for key, value in config["Scheduling"].items() if key != "SlurmQueues"}
    flow = [f"&first {json.dumps(first)}"]
    for other in others:
        own = {key: value for key, value in other.items() if rng.random() < 0.5 or key in ("Name", "ComputeResources")}
        flow.append(f"{{<<: *first, {json.dumps(own)[1:-1]}}}")
    block = "".join(f"\n    - {each}" for each in flow)
    scheduling = f"Scheduling:\n  <<: {json.dumps(rest)}\n  SlurmQueues:{block}"
    text = "\n".join(scheduling if line == "Scheduling: HERE" else line for line in lines) + "\n"
    return File(text, text)


_OPTIONAL = ("Iam", "CustomActions", "Ssh", "Tags", "Image", "LocalStorage", "ComputeSettings", "CustomSlurmSettings")


def _dumped(config: Config, rng: random.Random) -> File:
    """Write keys without a value as null, as ClusterSchema.dump does."""
    plain = yaml.safe_dump(copy.deepcopy(config), sort_keys=False)
    full = copy.deepcopy(config)
    for key in ("LoginNodes", "SharedStorage", "Monitoring", "Tags", "Iam", "DevSettings", "DirectoryService"):
        full.setdefault(key, None)
    queues = [each for each in _nodes(full) if isinstance(each, dict)] if isinstance(_nodes(full), list) else []
    for node in (full["HeadNode"], *queues):
        if isinstance(node, dict):
            for key in _OPTIONAL:
                node.setdefault(key, None)
            for key, names in (
                ("Iam", ("InstanceRole", "InstanceProfile", "S3Access", "AdditionalIamPolicies")),
                ("CustomActions", ("OnNodeStart", "OnNodeConfigured")),
                ("Networking", ("SecurityGroups", "AdditionalSecurityGroups", "Proxy")),
            ):
                if isinstance(node[key], dict):
                    for name in names:
                        node[key].setdefault(name, None)
    return File(yaml.safe_dump(full, sort_keys=rng.random() < 0.5), plain)


def _as_json(config: Config, _rng: random.Random) -> File:
    text = json.dumps(config, indent=2)
    return File(text, text)


def _documented(config: Config, rng: random.Random) -> File:
    """Begin with marks and comments, end with a mark, and have lines as Windows has them."""
    text = f"# A cluster\n%YAML 1.1\n---  # begins\n{_plain(config, rng).text}...\n"
    return File(text.replace("\n", "\r\n"), text)


_STYLES: list[Callable[[Config, random.Random], File]] = [_plain, _shared, _merged, _dumped, _as_json, _documented]
_STYLES.append(_shared)  # so that the number of styles and every third one have no common divisor


# --- Mistakes, each of which ParallelCluster refuses


def _unknown(config: Config, _rng: random.Random) -> None:
    config["HeadNode"]["InstanceKind"] = "c5.large"


def _other_letters(config: Config, _rng: random.Random) -> None:
    _nodes(config)[0]["Customactions"] = {}


def _policy(config: Config, _rng: random.Random) -> None:
    config["HeadNode"]["Iam"] = {"AdditionalIamPolicies": list(POLICIES)}


def _script(config: Config, rng: random.Random) -> None:
    _nodes(config)[-1]["CustomActions"] = {
        "OnNodeConfigured": rng.choice(["s3://of-the-users/x.sh", ["s3://of-the-users/x.sh"], {"Args": ["a"]}])
    }


def _size(config: Config, rng: random.Random) -> None:
    config["HeadNode"]["LocalStorage"] = {"RootVolume": {"Size": rng.choice(["100GB", "big", [100], True])}}


def _timeout(config: Config, _rng: random.Random) -> None:
    config["DevSettings"] = {"Timeouts": {"ComputeNodeBootstrapTimeout": "1 hour"}}


def _queues(config: Config, rng: random.Random) -> None:
    config["Scheduling"]["SlurmQueues"] = rng.choice([{"Name": "gpu"}, ["gpu"], "gpu"])


def _placeholder(config: Config, rng: random.Random) -> None:
    config["HeadNode"]["Networking"]["SubnetId"] = rng.choice(
        ["${SUBNET_ID}", "PLACEHOLDER_SUBNET", "<your subnet>", "{{ subnet }}"]
    )


def _tag(config: Config, rng: random.Random) -> None:
    config["Tags"] = rng.choice([{"team": "ml"}, [{"Key": "cost", "Value": 7}], [{"Key": "on", "Value": True}]])


_MISTAKES = [_unknown, _other_letters, _policy, _script, _size, _timeout, _queues, _placeholder, _tag]
