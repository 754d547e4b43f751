# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Queues, each with one compute resource: its instance types, how they are paid, and how they are connected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._node.neuron import has_neuron
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import cluster as shared
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import slurm, versions
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.cluster import Cluster
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.draft import Entry
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.instances import Instance
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file.rules import is_true

CAPACITIES = {"on_demand": "ONDEMAND", "spot": "SPOT", "capacity_block": "CAPACITY_BLOCK"}
_MOST = 50  # queues, and compute resources, of a cluster
_DEFAULT_MAX = 10  # ParallelCluster's
_RESERVATION = re.compile(r"cr-[0-9a-f]{8,17}")
_GROUP = re.compile(r"arn:[^:]+:resource-groups:.+:group/.+")
_BOOLEANS = {"true": True, "false": False}


def queues(cluster: Cluster) -> None:
    given = cluster.given.get("queues") or []
    for name in shared.duplicates(each["name"] for each in given):
        cluster.refuse(f"{shared.PREFIX}queues has two queues {name}; needed: a name of its own for each")
    for each in given:
        _Queue(cluster, each).put()
    count = len(cluster.draft.get("Scheduling", "SlurmQueues") or [])
    if not count:
        cluster.refuse(f"{shared.PREFIX}queues is empty; needed: one queue or more")
    if count > _MOST:
        cluster.refuse(f"{shared.PREFIX}queues: {count} queues; needed: {_MOST} at most")


def _word(value: Any) -> str:
    """Return a choice as a string, in which false is no absence."""
    return "auto" if value in (None, "") else str(value)


class _Queue:
    def __init__(self, cluster: Cluster, item: Mapping[str, Any]) -> None:
        self.cluster, self.draft, self.item = cluster, cluster.draft, item
        self.where = f"{shared.PREFIX}queues[{item['name']}]"
        self.path = ("Scheduling", "SlurmQueues", Entry("Name", item["name"]))
        single, several = item.get("instance_type"), item.get("instance_types") or []
        self.types: list[str] = [single] if single else list(several)
        self.instances: list[Instance] = []
        self.capacity = item.get("capacity") or "on_demand"
        self.subnets: list[str] = item.get("subnets") or []

    def refuse(self, line: str) -> None:
        self.cluster.refuse(line)

    def put(self) -> None:
        cluster, draft, item, where = self.cluster, self.draft, self.item, self.where
        cluster.check_name(f"{where}.name", item["name"])
        draft.ask(f"{where}.name", item["name"], *self.path, "Name")
        if item.get("capacity"):
            draft.ask(f"{where}.capacity", CAPACITIES[self.capacity], *self.path, "CapacityType")
        self._strategy()
        self._networking()
        self._compute_resource()
        draft.ask(f"{where}.exclusive", item.get("exclusive"), *self.path, "JobExclusiveAllocation")
        self._reservation()
        self._storage()
        cluster.check_id(f"{where}.custom_ami", item.get("custom_ami"), "image")
        draft.ask(f"{where}.custom_ami", item.get("custom_ami"), *self.path, "Image", "CustomAmi")
        neuron = [name for name in self.types if has_neuron(name)]
        if neuron and not draft.get(*self.path, "Image", "CustomAmi") and not cluster.system.custom_ami:
            draft.notes.append(
                f"{where}: ParallelCluster's own image has no driver for the Neuron devices of {', '.join(neuron)}; "
                "role neuron builds one at each boot, before jobs start; custom_ami names an image that has it"
            )
        cluster.iam(where, item, cluster.given.get("policies") or [], *self.path)
        health = item.get("gpu_health_check")
        if health and not all(each.gpus for each in self.instances):
            self.refuse(f"{where}.gpu_health_check is true, and {self._types()} has no NVIDIA GPU; needed: false")
        draft.ask(f"{where}.gpu_health_check", health, *self.path, "HealthChecks", "Gpu", "Enabled")
        slurm.of_queue(cluster, where, item, self.path, self.resource)
        for key, value in (item.get("tags") or {}).items():
            draft.ask(f"{where}.tags", str(value), *self.path, "Tags", Entry("Key", str(key)), "Value")

    def _types(self) -> str:
        return ", ".join(self.types)

    def _networking(self) -> None:
        given = self.cluster.given
        self.cluster.check_id(f"{self.where}.subnets", self.subnets, "subnet")
        path = (*self.path, "Networking", "SubnetIds")
        self.draft.ask(f"{self.where}.subnets", self.subnets, *path)
        default = given.get("subnet_compute") or given.get("subnet_head")
        self.draft.derive([default] if default else None, *path)
        self.subnets = list(self.draft.get(*path) or [])
        if not self.subnets:
            self.refuse(
                f"{self.where}.subnets is not set, and neither is cluster_config_subnet_compute; needed: a subnet"
            )
        self.cluster.security(self.where, self.item, *self.path)

    def _compute_resource(self) -> None:
        item, where = self.item, self.where
        if bool(item.get("instance_type")) == bool(item.get("instance_types")):
            found = "both" if self.types else "neither"
            self.refuse(f"{where} has {found} of instance_type and instance_types; needed: one of them")
        for name in shared.duplicates(self.types):
            self.refuse(f"{where}.instance_types has {name} twice; needed: each once")
        key = "instance_type" if item.get("instance_type") else "instance_types"
        self.instances = [self.cluster.instance(f"{where}.{key}", name) for name in self.types]
        for each in self.instances:
            if self.capacity not in each.capacities:
                words = ", ".join(sorted(each.capacities))
                self.refuse(
                    f"{where}.capacity is {self.capacity}, which EC2 does not sell {each.name} by; needed: {words}"
                )
        default = item["name"] if item.get("instance_types") or not self.types else self.instances[0].family
        name = item.get("compute_resource") or default
        self.cluster.check_name(f"{where}.compute_resource", name)
        self.resource = (*self.path, "ComputeResources", Entry("Name", name))
        self.draft.ask(f"{where}.instance_type", item.get("instance_type"), *self.resource, "InstanceType")
        for each in item.get("instance_types") or []:
            self.draft.add({"InstanceType": each}, *self.resource, "Instances")
        if item.get("instance_type") and len(self.subnets) > 1:
            self.refuse(
                f"{where} has {len(self.subnets)} subnets and instance_type; needed: one subnet, or instance_types"
            )
        self._counts()
        if item.get("spot_price") is not None and self.capacity != "spot":
            self.refuse(f"{where}.spot_price is set, and capacity is {self.capacity}; needed: capacity spot")
        self.draft.ask(f"{where}.spot_price", item.get("spot_price"), *self.resource, "SpotPrice")
        self._efa()
        if item.get("multithreading") is not None:
            threads = not item["multithreading"]
            self.draft.ask(f"{where}.multithreading", threads, *self.resource, "DisableSimultaneousMultithreading")

    def _counts(self) -> None:
        item, where = self.item, self.where
        count, least, most = item.get("count"), item.get("min"), item.get("max")
        if count is not None and (least is not None or most is not None):
            self.refuse(f"{where} has count, and min or max too; needed: count, or min and max")
        named = "count" if count is not None else "max"
        least, most = (count, count) if count is not None else (least, most)
        if most is not None and most < 1:
            self.refuse(f"{where}.{named} is {most}; needed: 1 or more")
        elif (least or 0) > (_DEFAULT_MAX if most is None else most) or (least or 0) < 0:
            self.refuse(f"{where}.min is {least}; needed: 0 to max, which is {_DEFAULT_MAX if most is None else most}")
        if self.capacity == "capacity_block" and (not least or least != most):
            self.refuse(
                f"{where} has min {least or 0} and max {_DEFAULT_MAX if most is None else most} with a capacity block; "
                "needed: count, because all nodes of a capacity block always run"
            )
        for variable, value, default, key in (
            ("count" if count is not None else "min", least, 0, "MinCount"),
            (named, most, _DEFAULT_MAX, "MaxCount"),
        ):
            self.draft.ask(f"{where}.{variable}", value, *self.resource, key)
            self.draft.derive(default, *self.resource, key)

    def _efa(self) -> None:
        where, asked = self.where, _word(self.item.get("efa")).lower()
        without = [each.name for each in self.instances if not each.efa]
        unsure = [each.name for each in self.instances if not each.known]
        if asked == "auto" and unsure:
            self.refuse(
                f"{where}.efa is auto, and nothing is known of {', '.join(unsure)}; needed: true or false, or "
                "cluster_config_ask_ec2: true"
            )
        several = len(self.subnets) > 1
        enabled = asked == "true" or (asked == "auto" and bool(self.instances) and not without and not several)
        if asked == "true":
            if [name for name in without if name not in unsure]:
                self.refuse(f"{where}.efa is true, which {', '.join(without)} has not; needed: auto or false")
            if several:
                self.refuse(
                    f"{where}.efa is true with {len(self.subnets)} subnets; needed: one, as EFA does not leave a zone"
                )
        place = (*self.resource, "Efa", "Enabled")
        if asked == "auto":
            self.draft.derive(True if enabled else None, *place)
        else:
            self.draft.ask(f"{where}.efa", enabled or None, *place)
        self._placement(is_true(self.draft.get(*place)))

    def _placement(self, efa: bool) -> None:
        where, given = self.where, _word(self.item.get("placement_group"))
        path = (*self.path, "Networking", "PlacementGroup")
        several, block = len(self.subnets) > 1, self.capacity == "capacity_block"
        if given == "auto":
            if efa:
                # ParallelCluster wants it said with EFA. A reservation has a place of its own.
                self.draft.derive(not block and not self.item.get("reservation"), *path, "Enabled")
        elif given.lower() in _BOOLEANS:
            self.draft.ask(f"{where}.placement_group", _BOOLEANS[given.lower()], *path, "Enabled")
        else:
            self.draft.ask(f"{where}.placement_group", given, *path, "Name")
        there = self.draft.get(*path) or {}
        enabled = is_true(there.get("Enabled"))
        if enabled or there.get("Name") or there.get("Id"):
            what = f"{where} has a placement group"
            if block:
                self.refuse(
                    f"{what} and a capacity block, which has its own place; needed: placement_group auto or false"
                )
            elif self.item.get("reservation") and enabled:
                self.refuse(
                    f"{what} of its own and a reservation, whose capacity may be elsewhere; needed: placement_group "
                    "auto, or the name of the reservation's placement group"
                )
            if several:
                self.refuse(f"{what} and {len(self.subnets)} subnets; needed: one subnet, or placement_group false")
            unfit = [each.name for each in self.instances if not each.placement_groups]
            if unfit:
                self.refuse(f"{what}, which {', '.join(unfit)} cannot be in; needed: placement_group auto or false")

    def _reservation(self) -> None:
        where, given = self.where, self.item.get("reservation") or ""
        path = (*self.path, "CapacityReservationTarget")
        if _GROUP.fullmatch(given):
            self.draft.ask(f"{where}.reservation", given, *path, "CapacityReservationResourceGroupArn")
        elif _RESERVATION.fullmatch(given):
            self.draft.ask(f"{where}.reservation", given, *path, "CapacityReservationId")
            if self.item.get("instance_types"):
                self.refuse(
                    f"{where} has reservation {given} and instance_types; needed: instance_type, or a resource group"
                )
        elif given:
            self.refuse(f"{where}.reservation is {given}; needed: cr-… or the ARN of a resource group (…:group/…)")
        if self.capacity == "capacity_block" and not self.draft.get(*path, "CapacityReservationId"):
            self.refuse(f"{where}.capacity is capacity_block; needed: reservation, the capacity block's cr-…")
        if self.capacity == "spot" and given:
            self.refuse(
                f"{where} has capacity spot and a reservation, which holds on-demand capacity; needed: one of them"
            )

    def _strategy(self) -> None:
        given, where = self.item.get("allocation_strategy"), f"{self.where}.allocation_strategy"
        if not given:
            return
        version, first = self.cluster.version, versions.STRATEGIES.get(given)
        ours = {"on_demand": ("lowest-price", "prioritized"), "capacity_block": ()}.get(
            self.capacity, [name for name in versions.STRATEGIES if name != "prioritized"]
        )
        if first is None:
            self.refuse(f"{where} is {given}; needed: one of {', '.join(versions.STRATEGIES)}")
        elif version < first:
            self.refuse(
                f"{where} is {given}, and cluster_config_version is {versions.shown(version)}; needed: "
                f"{versions.shown(first)}, the first that has it"
            )
        elif given not in ours:
            self.refuse(f"{where} is {given} with capacity {self.capacity}; needed: {', '.join(ours) or 'none'}")
        elif not self.item.get("instance_types"):
            self.refuse(f"{where} is set, and EC2 has nothing to choose from; needed: instance_types")
        self.draft.ask(where, given, *self.path, "AllocationStrategy")

    def _storage(self) -> None:
        disks = bool(self.instances) and all(each.disks for each in self.instances)
        path = (*self.path, "ComputeSettings")
        self.cluster.root_volume(self.where, self.item, "compute", disks, *path)
        scratch = self.item.get("scratch_dir")
        if scratch and not str(scratch).startswith("/"):
            self.refuse(f"{self.where}.scratch_dir is {scratch}; needed: a path, such as /scratch")
        if scratch and not disks and all(each.known for each in self.instances):
            self.refuse(
                f"{self.where}.scratch_dir is {scratch}, and {self._types()} has no disks of its own; needed: none"
            )
        self.draft.ask(f"{self.where}.scratch_dir", scratch, *path, "LocalStorage", "EphemeralVolume", "MountDir")
