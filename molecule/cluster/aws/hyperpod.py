# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""SageMaker HyperPod, as far as the collection asks of it.

moto's own clusters have nodes with names in place of instance ids, no host names and ARNs that end with the cluster's
name. Here what is asked and what is answered are checked with botocore's model of SageMaker, so that nothing passes
that the real service could not say.

PUT /sandbox/hyperpod takes what there is: clusters with the shapes of DescribeCluster, each with `Region` and `Nodes`,
a list in the shape of ClusterNodeSummaries (`InstanceId` "" is a node without an instance). `throttled` is how many of
the next calls the service refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import botocore.session
from botocore.model import StructureShape
from botocore.validate import ParamValidator
from commands import InvalidRequest, need

MODEL = botocore.session.get_session().get_service_model("sagemaker")
MOST = 100  # of a page, which is also what a page has by default


def checked(values: dict[str, Any], shape: StructureShape, code: str) -> dict[str, Any]:
    report = ParamValidator().validate(values, shape)
    need(not report.has_errors(), code, report.generate_report())
    return values


class Service:
    """Every HyperPod cluster of the account."""

    def __init__(self) -> None:
        self.clusters: list[dict[str, Any]] = []
        self.throttled = 0
        self.asked: list[str] = []
        self.calls = {
            "ListClusters": self.list_clusters,
            "DescribeCluster": self.describe_cluster,
            "ListClusterNodes": self.list_cluster_nodes,
        }

    def arrange(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """Take what a test or a flavour of the sandbox wants there to be, and return the calls so far."""
        self.throttled = int(wanted.get("throttled", self.throttled))
        if "clusters" in wanted:
            self.clusters = [self.described(one) and one for one in wanted["clusters"]]
        asked, self.asked = self.asked, []
        return {"asked": asked}

    def answer(self, name: str, region: str, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a call, as the model says that it may be asked and answered."""
        self.asked.append(name)
        self.throttled -= (throttled := self.throttled > 0)
        need(not throttled, "ThrottlingException", "Rate exceeded")
        operation = MODEL.operation_model(name)
        checked(request, operation.input_shape, "ValidationException")
        return checked(self.calls[name](region, request), operation.output_shape, "InternalFailure")

    def described(self, cluster: dict[str, Any]) -> dict[str, Any]:
        """What DescribeCluster says of a cluster."""
        found = {key: value for key, value in cluster.items() if key not in ("Region", "Nodes")}
        return checked(found, MODEL.operation_model("DescribeCluster").output_shape, "ValidationException")

    def list_clusters(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        keys = ("ClusterArn", "ClusterName", "CreationTime", "ClusterStatus")
        rows = [{key: one[key] for key in keys} for one in self.clusters if one["Region"] == region]
        return page("ClusterSummaries", rows, request)

    def describe_cluster(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        return self.described(self.cluster(region, request))

    def list_cluster_nodes(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        rows = self.cluster(region, request)["Nodes"]
        if not request.get("IncludeNodeLogicalIds"):
            rows = [row for row in rows if row["InstanceId"]]
        return page("ClusterNodeSummaries", rows, request)

    def cluster(self, region: str, request: dict[str, Any]) -> dict[str, Any]:
        asked = request["ClusterName"]
        for one in self.clusters:
            if one["Region"] == region and asked in (one["ClusterName"], one["ClusterArn"]):
                return one
        raise InvalidRequest("ResourceNotFound", f"Cluster {asked} not found")

    # Session Manager

    def targets(self, region: str) -> Iterator[tuple[str, str]]:
        """What Session Manager knows the nodes that run by, and their instances (easy-ssh.sh of awslabs)."""
        for one in self.clusters:
            for node in one["Nodes"] if one["Region"] == region else ():
                if node["InstanceId"] and node["InstanceStatus"]["Status"] == "Running":
                    short = one["ClusterArn"].rpartition("/")[2]
                    yield (
                        f"sagemaker-cluster:{short}_{node['InstanceGroupName']}-{node['InstanceId']}",
                        node["InstanceId"],
                    )


def page(key: str, rows: list[dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    size, start = request.get("MaxResults", MOST), int(request.get("NextToken") or 0)
    need(1 <= size <= MOST, "ValidationException", f"MaxResults is {size}; it must be from 1 to {MOST}")
    answer: dict[str, Any] = {key: rows[start : start + size]}
    if start + size < len(rows):
        answer["NextToken"] = str(start + size)
    return answer
