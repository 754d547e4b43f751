# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Instances as boto3 returns them, a fake AWS that filters and pages, and the plugin run on it."""

from __future__ import annotations

import datetime
import sys
import threading
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Callable

import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.plugins.aws import error

AGENTS = load("molecule/cluster/aws/agents.py")
Instance = dict[str, Any]
AWS_VARIABLES = ("AWS_", "ANSIBLE_INVENTORY", "ANSIBLE_CACHE", "ANSIBLE_TRANSFORM")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the caller's AWS configuration reaches a test."""
    import os

    for name in list(os.environ):
        if name.startswith(AWS_VARIABLES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def make_instance(number: int, kind: str = "Compute", cluster: str = "alpha", **changes: Any) -> Instance:
    """Return an instance of a cluster; tags={} puts tags over its own (None removes one), others do so with fields."""
    tags: dict[str, str | None] = {
        "parallelcluster:cluster-name": cluster,
        "parallelcluster:node-type": kind,
        "parallelcluster:attributes": "ubuntu2204, slurm, 3.16.1, x86_64",
        "parallelcluster:networking": "EFA=NONE",
        "Name": kind,
    }
    if kind == "Compute":
        tags.update({"parallelcluster:queue-name": "gpu", "parallelcluster:compute-resource-name": "p5"})
    if kind == "LoginNode":
        tags["parallelcluster:login-nodes-pool"] = "people"
    tags.update(changes.pop("tags", {}))
    instance: Instance = {
        "InstanceId": f"i-{number:017x}",
        "InstanceType": "m7i.large",
        "Architecture": "x86_64",
        "State": {"Code": 16, "Name": "running"},
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "PrivateIpAddress": f"10.0.{number // 256}.{number % 256}",
        "PrivateDnsName": f"ip-10-0-{number // 256}-{number % 256}.ec2.internal",
        "PublicDnsName": "",
        "LaunchTime": datetime.datetime(2026, 11, 20, 8, 15, 30, tzinfo=datetime.timezone.utc),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items() if value is not None],
    }
    instance.update(changes)
    return instance


def make_cluster(cluster: str = "alpha", nodes: int = 2, first: int = 16) -> list[Instance]:
    """Return a head node, a login node, and compute nodes."""
    return [
        make_instance(first, "HeadNode", cluster, PublicIpAddress="192.0.2.7"),
        make_instance(first + 1, "LoginNode", cluster),
        *(make_instance(first + 2 + number, "Compute", cluster) for number in range(nodes)),
    ]


class Pages:
    """A paginator with two items a page, and an empty page in between."""

    def __init__(self, key: str, find: Callable[..., Iterable[Any]]) -> None:
        self.key = key
        self.find = find

    def paginate(self, PaginationConfig: dict[str, int] | None = None, **arguments: Any) -> Iterator[dict[str, Any]]:
        items = list(self.find(**arguments))
        yield {self.key: []}
        for start in range(0, len(items), 2):
            yield {self.key: items[start : start + 2]}


class FakeAws:
    """EC2, SSM and DynamoDB. What is an exception instead of a list is raised."""

    def __init__(self, instances: Iterable[Instance] | None = None, **regions: Any) -> None:
        self.instances: dict[str, Any] = {name.replace("_", "-"): found for name, found in regions.items()}
        if instances is not None:
            self.instances["us-east-1"] = list(instances)
        self.online: Any = set()
        self.tables: dict[str, Any] = {}
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.made_in: set[str] = set()

    def client(self, service: str, region: str) -> FakeClient:
        self.made_in.add(threading.current_thread().name)
        return FakeClient(self, service, region)


class FakeClient:
    def __init__(self, aws: FakeAws, service: str, region: str) -> None:
        self.aws, self.service, self.region = aws, service, region

    def get_paginator(self, operation: str) -> Pages:
        key, find = {
            "describe_instances": ("Reservations", self.describe_instances),
            "describe_instance_information": ("InstanceInformationList", self.describe_instance_information),
            "scan": ("Items", self.scan),
        }[operation]
        return Pages(key, find)

    def describe_instances(self, Filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.aws.calls.append(("ec2", self.region, {f["Name"]: f["Values"] for f in Filters}))
        found = self.aws.instances[self.region]
        if isinstance(found, Exception):
            raise found
        return [{"Instances": [instance]} for instance in found if all(_passes(instance, f) for f in Filters)]

    def describe_instance_information(self, Filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        self.aws.calls.append(("ssm", self.region, {f["Key"]: f["Values"] for f in Filters}))
        if isinstance(self.aws.online, Exception):
            raise self.aws.online
        known = [(self._information(one), _tags(one)) for one in self.aws.instances[self.region]]
        try:
            found: list[dict[str, Any]] = AGENTS.chosen(known, Filters)
        except AGENTS.InvalidRequest as refused:
            raise error(*refused.args, "DescribeInstanceInformation") from refused
        return found

    def _information(self, instance: Instance) -> dict[str, str]:
        """Return what SSM says of an agent. One that was lost stays in its list."""
        name = instance["InstanceId"]
        return {"InstanceId": name, "PingStatus": "Online" if name in self.aws.online else "ConnectionLost"}

    def scan(self, TableName: str, ProjectionExpression: str) -> list[dict[str, Any]]:
        self.aws.calls.append(("dynamodb", self.region, {"table": TableName}))
        found = self.aws.tables.get(TableName, error("ResourceNotFoundException", "no table", "Scan"))
        if isinstance(found, Exception):
            raise found
        return [{"Id": {"S": name}, "InstanceId": {"S": instance}} for name, instance in found.items()]


def _tags(instance: Instance) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance["Tags"]}


def _passes(instance: Instance, wanted: dict[str, Any]) -> bool:
    """Filter as EC2 does: * and ? are wild, [ is not."""
    tags = _tags(instance)
    name = wanted["Name"]
    if name == "instance-state-name":
        value = instance["State"]["Name"]
    elif name.startswith("tag:"):
        value = tags.get(name[4:])
    else:
        value = instance.get({"vpc-id": "VpcId"}[name])
    patterns = (pattern.replace("[", "[[]") for pattern in wanted["Values"])
    return value is not None and any(fnmatchcase(value, pattern) for pattern in patterns)


class Listing:
    """An inventory that was made, with the plugin and the warnings."""

    def __init__(self, inventory: Any, plugin: Any, warnings: list[str]) -> None:
        self.inventory, self.plugin, self.warnings = inventory, plugin, warnings

    @property
    def hosts(self) -> list[str]:
        return list(self.inventory.hosts)

    def group(self, name: str) -> list[str]:
        return [host.name for host in self.inventory.groups[name].get_hosts()]

    def variables(self, host: str) -> dict[str, Any]:
        """Return a host's variables with those of its groups, as a play would see them."""
        from ansible.inventory.helpers import get_group_vars

        found = self.inventory.hosts[host]
        return {**get_group_vars(found.get_groups()), **found.vars}


Make = Callable[..., Listing]


@pytest.fixture
def aws() -> type[FakeAws]:
    """aws(instances) or aws(us_east_1=[…], eu_west_1=error) is a fake AWS."""
    return FakeAws


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """listing(aws, clusters=["alpha"]) runs the plugin with those options, in us-east-1 where they do not say."""
    from ansible.inventory.data import InventoryData
    from ansible.parsing.dataloader import DataLoader
    from ansible.plugins.loader import inventory_loader

    def run(cloud: FakeAws | None = None, inventory: Any = None, refresh: bool = False, **options: Any) -> Listing:
        plugin = inventory_loader.get("pcluster.postboot.pcluster")
        warnings: list[str] = []
        monkeypatch.setattr(plugin.display, "warning", lambda text, *_rest, **_more: warnings.append(str(text)))
        if cloud is not None:
            module = sys.modules[type(plugin).__module__]
            monkeypatch.setattr(module, "client_maker", lambda credentials, region: cloud.client)
        config = {"plugin": "pcluster.postboot.pcluster", "regions": ["us-east-1"], **options}
        if options.get("source") == "node":
            del config["regions"]
        path = tmp_path / "pcluster.yml"
        path.write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not None}))
        data = inventory or InventoryData()
        assert plugin.verify_file(str(path))
        plugin.parse(data, DataLoader(), str(path), cache=not refresh)
        if options.get("cache"):
            plugin.update_cache_if_changed()
        data.reconcile_inventory()
        return Listing(data, plugin, warnings)

    return run


@pytest.fixture
def make() -> Any:
    """make.instance(…), make.cluster(…), make.node(…) and make.error(…)."""
    return Maker


class Maker:
    instance = staticmethod(make_instance)
    cluster = staticmethod(make_cluster)
    error = staticmethod(error)

    @staticmethod
    def node(
        number: int, kind: str = "Compute", cluster: str = "alpha", region: str = "us-east-1", **changes: Any
    ) -> Any:
        """Return a node, as the plugin reads it from an instance; what `changes` names is put over it."""
        from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import Reader

        node = Reader(region).node(make_instance(number, kind, cluster, tags=changes.pop("tags", {})))
        assert node is not None
        return {**node, **changes}
