# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asks AWS for the nodes of clusters, all regions at once.

One session serves all clients, and clients are made one after another: both are slow, and neither is safe in threads.
Only calls are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, code_of, explain, some
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import ClientMaker
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.connection import ClusterKey
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.hyperpod import HyperPod
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import (
    HYPERPOD,
    MONITORING,
    PARALLELCLUSTER,
    TAG_CLUSTER,
    TAG_OF_TYPE,
    TAG_OURS,
    TAG_TYPE,
    Node,
    Reader,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.query import Query, matches

PAGE_SIZE = 1000
SSM_PAGE_SIZE = 50
THREADS = 16
ALIVE = ["pending", "running", "stopping", "stopped"]


def describe_instances(client: Any, filters: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    paginator = client.get_paginator("describe_instances")
    pages = paginator.paginate(Filters=filters, PaginationConfig={"PageSize": PAGE_SIZE})
    reservations = (reservation for page in pages for reservation in page.get("Reservations", ()))
    return [instance for reservation in reservations for instance in reservation.get("Instances", ())]


def online_instances(client: Any, key: str, values: Sequence[str]) -> set[str]:
    """Return the instances, chosen by a filter, whose SSM agents answer. A page may be empty and not be the last.

    SSM refuses a tag's filter beside any other, such as PingStatus.
    """
    pages = client.get_paginator("describe_instance_information").paginate(
        Filters=[{"Key": key, "Values": list(values)}], PaginationConfig={"PageSize": SSM_PAGE_SIZE}
    )
    agents = (agent for page in pages for agent in page.get("InstanceInformationList", ()))
    return {agent["InstanceId"] for agent in agents if agent.get("PingStatus") == "Online"}


def slurm_nodes(client: Any, cluster: str) -> dict[str, str]:
    """Return the Slurm node names of one cluster, by instance; past instances stay in the table."""
    pages = client.get_paginator("scan").paginate(
        TableName=f"parallelcluster-slurm-{cluster}", ProjectionExpression="Id, InstanceId"
    )
    items = [item for page in pages for item in page.get("Items", ())]
    return {
        item["InstanceId"]["S"]: item["Id"]["S"]
        for item in items
        if "InstanceId" in item and re.search(r"-(?:st|dy)-.{1,64}-\d+$", item["Id"]["S"])
    }


@dataclass
class Found:
    nodes: list[Node] = field(default_factory=list)
    heads: list[Node] = field(default_factory=list)  # running ones, listed or not
    warnings: list[str] = field(default_factory=list)


def _key(node: Node) -> ClusterKey:
    """Return where a node is: monitoring instances are in no cluster, whatever their names."""
    return node["region"], "" if node["node_type"] == MONITORING else node["cluster"]


def _about_cluster(key: ClusterKey) -> tuple[str, str]:
    return key[0], f"cluster {key[1]}" if key[1] else "monitoring instances"


class Cloud:
    """Answers one query. Everything that would make an inventory silently incomplete is a Problem."""

    def __init__(self, query: Query, make_client: ClientMaker) -> None:
        self.query = query
        self.warnings: list[str] = []
        self._client = make_client  # only the main thread may call it
        self._pool = ThreadPoolExecutor(THREADS)

    def find(self) -> Found:
        try:
            return self._find()
        finally:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _find(self) -> Found:
        query, questions = self.query, self.query.questions()
        clients = {region: self._client("ec2", region) for region in query.regions} if questions else {}
        calls = {
            (region, number): self._pool.submit(describe_instances, client, filters)
            for region, client in clients.items()
            for number, filters in enumerate(questions)
        }
        hyperpod = None
        if HYPERPOD in query.platforms and query.of_clusters:
            hyperpod = HyperPod(query, self._client, self._pool, self._gather)
        # In one region, clusters that are named can be asked for elsewhere before EC2 has answered.
        only = query.platforms == (PARALLELCLUSTER,) and len(query.regions) == 1
        early = query.named if only and query.of_clusters else []
        extra = {(region, name): self._ask_more(region, name) for region in query.regions for name in early}

        answers = self._gather(calls, "ec2:DescribeInstances", lambda call: (call[0], query.told))
        instances: dict[str, list[dict[str, Any]]] = {region: [] for region, _number in answers}
        for (region, _number), told in answers.items():
            instances[region] += told
        nodes = self._read(instances)
        present = sorted({_key(node) for node in nodes})
        for key in present:
            if key not in extra:
                extra[key] = self._ask_more(*key)
        if query.slurm_names:
            self._name(nodes, {key: extra[key]["names"] for key in present if key[1]})
        regions = list(instances)
        if hyperpod:
            nodes += hyperpod.nodes()
            regions = list(dict.fromkeys([*regions, *hyperpod.regions]))
        found = Found(
            nodes=[node for node in nodes if query.lists(node)],
            heads=[node for node in nodes if node["node_type"] == "head" and node["state"] == "running"],
        )
        listed = sorted({_key(node) for node in found.nodes})
        if query.ssm_online:
            self._keep_online(found, {key: one["online"] for key, one in extra.items() if key in listed}, hyperpod)
        existing = hyperpod.existing if hyperpod else set()
        self._check_clusters({cluster for _region, cluster in listed}, regions, existing)
        found.warnings = [*self.warnings, *(hyperpod.warnings if hyperpod else [])]
        return found

    def _ask_more(self, region: str, cluster: str) -> dict[str, Future[Any]]:
        started: dict[str, Future[Any]] = {}
        if self.query.ssm_online:
            client = self._client("ssm", region)
            tag, value = (TAG_CLUSTER, cluster) if cluster else (TAG_OURS, MONITORING)
            started["online"] = self._pool.submit(online_instances, client, f"tag:{tag}", [value])
        if self.query.slurm_names and cluster:
            started["names"] = self._pool.submit(slurm_nodes, self._client("dynamodb", region), cluster)
        return started

    def _gather(
        self, calls: Mapping[Any, Future[Any]], permission: str, about: Callable[[Any], tuple[str, str]]
    ) -> dict[Any, Any]:
        """Return what the calls returned. One Problem names every region that failed."""
        answers, failures = {}, []
        for key, future in calls.items():
            try:
                answers[key] = future.result()
            except AwsErrors as error:
                failures.append(explain(error, about(key)[0], permission, about(key)[1]))
        if self.query.skip_denied and answers:
            self.warnings += [str(failure) for failure in failures if failure.denied]
            failures = [failure for failure in failures if not failure.denied]
        if failures:
            raise Problem("; ".join(dict.fromkeys(map(str, failures)))) from failures[0]
        return answers

    def _read(self, instances: Mapping[str, Iterable[dict[str, Any]]]) -> list[Node]:
        nodes = []
        for region, found in instances.items():
            reader = Reader(region)
            read = [node for node in map(reader.node, found) if node is not None]
            wanted = self.query.clusters
            nodes += [node for node in read if node["node_type"] == MONITORING or matches(node["cluster"], wanted)]
            self.warnings += reader.problems()
        return nodes

    def _name(self, nodes: Iterable[Node], calls: Mapping[ClusterKey, Future[Any]]) -> None:
        usable: dict[ClusterKey, Future[Any]] = {}
        for key, future in calls.items():
            if code_of(future.exception()) == "ResourceNotFoundException":
                self.warnings.append(
                    f"{key[0]}, cluster {key[1]}: there is no DynamoDB table parallelcluster-slurm-{key[1]}, "
                    "so its nodes have no Slurm names"
                )
            else:
                usable[key] = future
        names = self._gather(usable, "dynamodb:Scan on the table parallelcluster-slurm-<cluster>", _about_cluster)
        for node in nodes:
            name = names.get(_key(node), {}).get(node["instance_id"])
            if name and node["node_type"] == "compute":
                node["slurm_node"] = name

    def _keep_online(self, found: Found, calls: Mapping[ClusterKey, Future[Any]], hyperpod: HyperPod | None) -> None:
        """Leave out the nodes whose agents do not answer, and say what usually is the reason."""
        theirs = [node for node in found.nodes if node.get("platform") == HYPERPOD]
        found.nodes = [node for node in found.nodes if node.get("platform") != HYPERPOD]
        online = self._gather(calls, "ssm:DescribeInstanceInformation", _about_cluster)
        silent: dict[ClusterKey, list[str]] = {}
        for node in found.nodes:
            if node["instance_id"] not in online.get(_key(node), ()):
                silent.setdefault(_key(node), []).append(node["instance_id"])
        for (region, cluster), instances in sorted(silent.items()):
            of = sum(_key(node) == (region, cluster) for node in found.nodes)
            where = ", ".join(_about_cluster((region, cluster)))
            self.warnings.append(
                f"{where}: {len(instances)} of {of} node(s) left out, their SSM agents do not "
                f"answer: {some(instances)}; the usual reason is that their role lacks the policy "
                "AmazonSSMManagedInstanceCore, which ParallelCluster does not add by itself (set "
                "Iam/AdditionalIamPolicies), or that they have no way to the SSM endpoints"
            )
        found.nodes = [node for node in found.nodes if node["instance_id"] in online.get(_key(node), ())]
        if hyperpod and theirs:
            found.nodes += hyperpod.online(theirs)

    def _check_clusters(self, listed: set[str], regions: Sequence[str], others: set[str]) -> None:
        """Ask once more where a cluster has no node: it may not exist, or have nothing that was asked for."""
        if not self.query.of_clusters:
            if not listed:
                self.warnings.append(f"{some(regions)}: there is no instance with the tag {TAG_OURS}={MONITORING}")
            return
        named = [name for name in self.query.named if name not in listed]
        if listed and not named:
            return
        filters = [
            {"Name": f"tag:{TAG_TYPE}", "Values": [TAG_OF_TYPE["head"]]},
            {"Name": "instance-state-name", "Values": ALIVE},
        ]
        calls = {
            region: self._pool.submit(describe_instances, self._client("ec2", region), filters)
            for region in (regions if PARALLELCLUSTER in self.query.platforms else ())
        }
        answers = self._gather(calls, "ec2:DescribeInstances", lambda region: (region, "all clusters"))
        heads = [node for region, found in answers.items() for node in map(Reader(region).node, found) if node]
        existing = sorted({head["cluster"] for head in heads} | others)
        where = some(regions)
        there = f"the clusters there are {some(existing, 10)}" if existing else "this account has no cluster there"
        absent = [name for name in named if name not in existing]
        if absent:
            plural = "clusters" if len(absent) > 1 else "cluster"
            raise Problem(f"{where}: there is no {plural} {', '.join(absent)}; {there}; check clusters and regions")
        idle = named or [name for name in existing if matches(name, self.query.clusters)]
        if not idle:
            raise Problem(f"{where}: no cluster matches {', '.join(self.query.clusters)}; {there}")
        plural = "clusters" if len(idle) > 1 else "cluster"
        self.warnings.append(f"{where}, {plural} {some(idle)}: none of the nodes is {self.query.wanted}")
