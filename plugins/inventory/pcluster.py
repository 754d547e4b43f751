# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The inventory plugin pcluster.postboot.pcluster."""

from __future__ import annotations

DOCUMENTATION = r"""
---
name: pcluster
short_description: Nodes of AWS ParallelCluster and SageMaker HyperPod
version_added: 0.1.0
author: The pcluster.postboot contributors (@pcluster)
description:
  - Lists the nodes of AWS ParallelCluster clusters, from the tags of their EC2 instances, those of SageMaker HyperPod
    clusters with Slurm (O(platforms)), as SageMaker tells of them, or the one node on which it runs, from its own
    files.
  - The configuration is a YAML file whose name ends with C(pcluster.yml) or C(pcluster.yaml).
  - All nodes are in the group C(pcluster), which carries the connection variables, and in one of C(pcluster_head),
    C(pcluster_login) and C(pcluster_compute). Further groups are C(pcluster_cluster_<cluster>),
    C(pcluster_queue_<queue>), C(pcluster_compute_resource_<compute resource>), C(pcluster_pool_<login pool>),
    C(pcluster_gpu), C(pcluster_neuron) (Trainium, Inferentia) and C(pcluster_efa). Characters that a group name cannot
    have become C(_).
  - The queue of a HyperPod compute node, and the pool of a HyperPod login node, is its instance group. Nodes of
    HyperPod are in the group C(pcluster_platform_hyperpod), too.
  - Host variables are C(pcluster_cluster), C(pcluster_node_type) (V(head), V(login) or V(compute)),
    C(pcluster_queue), C(pcluster_compute_resource), C(pcluster_pool), C(pcluster_slurm_node),
    C(pcluster_instance_id), C(pcluster_instance_type), C(pcluster_state), C(pcluster_region), C(pcluster_zone),
    C(pcluster_private_ip), C(pcluster_private_dns), C(pcluster_public_ip), C(pcluster_public_dns), C(pcluster_os),
    C(pcluster_architecture) (V(x86_64) or V(aarch64)), C(pcluster_scheduler), C(pcluster_version) (of
    ParallelCluster), C(pcluster_efa), C(pcluster_gpu), C(pcluster_neuron), C(pcluster_launch_time),
    C(pcluster_platform) (V(hyperpod)), C(pcluster_ssm_target) and C(pcluster_mounts) (of HyperPod; the last has
    C(path), C(type) and C(source) of each file system). What does not apply to a node or is not known is not defined.
  - Strings from AWS are never templates, whatever they contain.
requirements:
  - boto3 and botocore (with O(source=ec2))
  - amazon.aws 10.0.0 or newer, and the session-manager-plugin program (with O(connection=ssm))
  - the AWS command line interface, and the session-manager-plugin program (with O(connection=ssh_over_ssm))
notes:
  - The caller needs the permission C(ec2:DescribeInstances); C(ec2:DescribeRegions) for O(regions=all),
    C(ssm:DescribeInstanceInformation) for O(ssm_online), C(dynamodb:Scan) on the clusters' tables for O(slurm_names),
    and C(sts:AssumeRole) for O(assume_role_arn). HyperPod needs C(sagemaker:ListClusters),
    C(sagemaker:DescribeCluster) and C(sagemaker:ListClusterNodes), and C(ssm:GetConnectionStatus) for O(ssm_online).
  - Ansible itself goes on after an inventory source that failed, unless C([inventory] any_unparsed_is_failed) is set.
  - An endpoint other than AWS's is best set by boto3's own environment variables, such as E(AWS_ENDPOINT_URL).
extends_documentation_fragment:
  - ansible.builtin.constructed
  - ansible.builtin.inventory_cache
options:
  plugin:
    description: Marks the file as a configuration of this plugin.
    type: str
    required: true
    choices:
      - pcluster.postboot.pcluster
  source:
    description:
      - V(ec2) asks EC2 for the nodes of clusters.
      - V(node) makes no call to AWS. It lists C(localhost), in the groups of the ParallelCluster node on which it
        runs, for a play that runs from CustomActions. Only O(root), O(tags), O(compose), O(groups), O(keyed_groups),
        O(leading_separator) and O(strict) matter to it.
      - A node does not know C(pcluster_private_ip), C(pcluster_private_dns), C(pcluster_public_ip),
        C(pcluster_public_dns) and C(pcluster_launch_time). Of its tags it knows the C(Tags) of the cluster's
        configuration and ParallelCluster's C(Name), C(parallelcluster:cluster-name), C(parallelcluster:node-type),
        C(parallelcluster:version), C(parallelcluster:queue-name), C(parallelcluster:compute-resource-name),
        C(parallelcluster:login-nodes-pool) and C(parallelcluster:login-nodes-pool-name).
    type: str
    choices: [ec2, node]
    default: ec2
  root:
    description: Folder under which the node's files lie, with O(source=node).
    type: path
    default: /
  platforms:
    description:
      - What is asked for clusters. V(parallelcluster) asks EC2, V(hyperpod) asks SageMaker for HyperPod clusters with
        Slurm. A platform that is not listed costs no call.
      - A HyperPod node has the type that the API tells of its instance group (C(SlurmConfig.NodeType)), or else
        O(hyperpod_node_types), and is left out with a warning where neither does. A group's name says nothing.
      - What EC2 alone knows is not defined for HyperPod's nodes, such as C(pcluster_zone) and C(pcluster_tags), and
        their C(pcluster_instance_type) has no C(ml.) before it. They have EFA where the API tells of it, or where each
        instance of their type has.
      - C(pcluster_state) is V(pending) for C(SystemUpdating) and C(DeepHealthCheckInProgress), too, and V(stopping) for
        C(ShuttingDown).
    type: list
    elements: str
    choices: [parallelcluster, hyperpod]
    default: [parallelcluster]
    version_added: 0.2.0
  hyperpod_node_types:
    description:
      - V(head), V(login) or V(compute) by the name of the instance group, for clusters whose API tells no
        C(SlurmConfig.NodeType), which are those that lifecycle scripts configure by C(provisioning_parameters.json).
    type: dict
    default: {}
    version_added: 0.2.0
  regions:
    description:
      - Regions that are asked, all at once. V(all) stands for every region that the account has enabled.
      - Without any, the region of O(profile) or of boto3's own configuration is taken.
    type: list
    elements: str
    default: []
    env:
      - name: AWS_DEFAULT_REGION
      - name: AWS_REGION
  clusters:
    description:
      - Names of the clusters, or patterns with C(*), C(?) and C([...]).
      - A name that no cluster has fails; so does a list of patterns of which none matches.
    type: list
    elements: str
    default: ['*']
  node_types:
    description:
      - Which nodes are listed.
      - V(monitoring) stands for instances outside of the clusters with the tag
        C(pcluster-postboot:node-type)=C(monitoring), whatever O(clusters) says. They are in the group
        C(pcluster_monitoring), and the tag C(pcluster-postboot:name) is their C(pcluster_cluster).
    type: list
    elements: str
    choices: [head, login, compute, monitoring]
    default: [head, login, compute]
  queues:
    description: Queues, by name or pattern, whose compute nodes are listed; all when empty. Head and login nodes have
      none, and stay.
    type: list
    elements: str
    default: []
  states:
    description: States of the instances that are listed.
    type: list
    elements: str
    choices: [pending, running, stopping, stopped]
    default: [running]
  filters:
    description:
      - Further filters of the EC2 call DescribeInstances, each with one value or a list, such as C(vpc-id) or
        C(tag:Project). SageMaker has none of them, so that O(platforms) has no V(hyperpod) with them.
    type: dict
    default: {}
  hostnames:
    description:
      - Names that hosts get, in order of precedence; the first that is not empty counts.
      - V(default) is C(<cluster>-head) for a head node, C(<cluster>-<pool>-<id>) for a login node, and
        C(<cluster>-<queue>-<compute resource>-<id>) for a compute node, where C(<id>) is the last eight digits of the
        instance id. With O(slurm_names) a compute node is C(<cluster>-<Slurm node>).
      - Others are V(tag:Name) (the value of a tag), V(tag:Name=Value) (C(Name_Value), if the tag has that value), a
        variable (V(pcluster_slurm_node)), or one of V(instance-id), V(private-dns-name), V(private-ip-address),
        V(dns-name), V(ip-address), V(instance-type), V(instance-state-name), V(availability-zone), V(architecture),
        V(launch-time).
      - An entry can be a dictionary with C(name), C(prefix) (which also takes a literal string) and C(separator)
        (V(_) if not set).
      - Characters other than letters, digits, dots, hyphens and underscores become hyphens. Nodes that would have the
        same name, or that of a group, get their instance id appended.
    type: list
    elements: raw
    default: [default]
  tags:
    description:
      - Tags, by name or pattern, that hosts get as the dictionary C(pcluster_tags). Expressions of O(compose),
        O(groups) and O(keyed_groups) can use all tags in any case.
    type: list
    elements: str
    default: []
  connection:
    description:
      - How Ansible reaches the nodes.
      - V(ssm) uses the connection plugin amazon.aws.aws_ssm, which moves files through O(bucket). No port needs to be
        open.
      - V(ssh) connects to O(address).
      - V(ssh_over_ssm) is SSH through the SSM agent of the node (C(AWS-StartSSHSession)); much faster than V(ssm),
        as all tasks have one session, and no port needs to be open, but a key is needed.
      - V(ssh_via_head) is SSH with the cluster's head node as ProxyJump. The key for the jump comes from the SSH
        agent or C(~/.ssh/config), because SSH does not pass Ansible's key on.
      - V(none) sets no connection variable.
      - The SSH user is set by operating system, C(ubuntu), C(ec2-user) or C(rocky).
      - Variables of groups in C(group_vars) take precedence over those set here.
    type: str
    choices: [ssm, ssh, ssh_over_ssm, ssh_via_head, none]
    default: ssh
  address:
    description:
      - Address for SSH. V(auto) is the public one where there is one, else the private one.
      - With O(connection=ssh_via_head) it is about the head node; the others are reached by their private address.
    type: str
    choices: [auto, private, public]
    default: auto
  bucket:
    description: S3 bucket through which O(connection=ssm) moves files; it needs one.
    type: str
    default: ''
  ssm_timeout:
    description:
      - Seconds that one command may take with O(connection=ssm). It is wall clock, output does not prolong it; the
        connection plugin's own default of 60 is too short for installing drivers. What takes longer is begun anew, up
        to three times.
    type: int
    default: 3600
  ssm_online:
    description:
      - List only nodes whose SSM agent answers. The others are named in a warning.
      - Nodes need the policy AmazonSSMManagedInstanceCore, which ParallelCluster does not add by itself.
      - For HyperPod's nodes Session Manager is asked, one call for each node.
    type: bool
    default: false
  slurm_names:
    description:
      - Ask the clusters' DynamoDB tables C(parallelcluster-slurm-<cluster>) for the names that compute nodes have in
        Slurm, such as C(gpu-st-p5-1). EC2 does not know them. Those of HyperPod's nodes are known without a call.
    type: bool
    default: false
  allow_empty:
    description: Whether an inventory without nodes is a success, as where a queue has none right now. A cluster that
      does not exist still fails.
    type: bool
    default: false
  strict_permissions:
    description:
      - Whether a region that refuses the caller fails the inventory. Otherwise it is named in a warning, as long as
        one region answers.
    type: bool
    default: true
  profile:
    description: Named AWS profile. Excludes O(access_key), O(secret_key) and O(session_token).
    type: str
    aliases: [aws_profile]
    env:
      - name: AWS_DEFAULT_PROFILE
      - name: AWS_PROFILE
  access_key:
    description: AWS access key ID.
    type: str
    aliases: [aws_access_key_id, aws_access_key]
    env:
      - name: AWS_ACCESS_KEY
      - name: AWS_ACCESS_KEY_ID
  secret_key:
    description: AWS secret access key.
    type: str
    aliases: [aws_secret_access_key, aws_secret_key]
    env:
      - name: AWS_SECRET_KEY
      - name: AWS_SECRET_ACCESS_KEY
  session_token:
    description: AWS session token of temporary credentials.
    type: str
    aliases: [aws_session_token]
    env:
      - name: AWS_SESSION_TOKEN
  assume_role_arn:
    description: Role to assume before asking. The connections do not use it.
    type: str
    aliases: [iam_role_arn]
  endpoint_url:
    description: One endpoint for all AWS services that are asked.
    type: str
    aliases: [aws_endpoint_url]
    env:
      - name: AWS_URL
"""

EXAMPLES = r"""
# All nodes of all clusters of one region, by SSH
plugin: pcluster.postboot.pcluster
regions:
  - us-east-1

---

# Two clusters by name and all development clusters, over SSM, without those that do not answer
plugin: pcluster.postboot.pcluster
regions:
  - us-east-1
  - eu-west-1
clusters:
  - training
  - inference
  - dev-*
connection: ssm
bucket: example-ansible-files
ssm_online: true

---

# The compute nodes of two queues, by their Slurm names, through the head node
plugin: pcluster.postboot.pcluster
regions: [us-east-1]
clusters: [training]
node_types: [compute]
queues: [gpu, gpu-*]
slurm_names: true
hostnames:
  - pcluster_slurm_node
connection: ssh_via_head
allow_empty: true

---

# Own groups and variables, from variables and tags
plugin: pcluster.postboot.pcluster
regions: [all]
strict_permissions: false
filters:
  tag:Project: language-models
compose:
  scrape_address: pcluster_private_ip ~ ':9100'
groups:
  spot_queue: "'spot' in (pcluster_queue | default(''))"
keyed_groups:
  - prefix: version
    key: pcluster_version
  - prefix: team
    key: pcluster_tags.Team
    default_value: nobody

---

# The nodes of HyperPod clusters, by SSH over SSM; one of them has lifecycle scripts
plugin: pcluster.postboot.pcluster
regions: [us-west-2]
platforms: [hyperpod]
hyperpod_node_types:
  controller-machine: head
  worker-group-1: compute
connection: ssh_over_ssm

---

# A play that runs on the node itself, from CustomActions
plugin: pcluster.postboot.pcluster
source: node
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.inventory.group import to_safe_group_name
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import (
    Credentials,
    client_maker,
    regions_of,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.cloud import Cloud, Found
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.connection import Connection, plan
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.names import (
    group_names,
    host_name_rules,
    host_names,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.nodes import (
    HYPERPOD,
    NODE_TYPES,
    VARIABLES,
    Node,
    local_node,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.query import Query, matches
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal

TYPES = ("pcluster_head", "pcluster_login", "pcluster_compute")
GROUPS = (*TYPES, "pcluster_gpu", "pcluster_neuron", "pcluster_efa")
NAMES = tuple((key, f"pcluster_{key}") for key in VARIABLES)
CACHE_FORMAT = 2


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    NAME = "pcluster.postboot.pcluster"

    def verify_file(self, path: str) -> bool:
        return bool(super().verify_file(path)) and path.endswith(("pcluster.yml", "pcluster.yaml"))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        config = self._read_config_data(path)
        try:
            self._refuse_unknown(config)
            if self.get_option("source") == "node":
                asked = any(self.get_option(name) for name in ("compose", "groups", "keyed_groups", "tags"))
                node = local_node(self._option("root"), terminal.warn if asked else None)
                self.populate([node], Connection("none"), local=True)
                return
            connection = self._connection()
            host_name_rules(self.get_option("hostnames"))  # mistakes in it come before any call
            found = self._find(path, cache)
            for warning in found.warnings:
                terminal.warn(warning)
            if not found.nodes and not self.get_option("allow_empty"):
                reasons = "; ".join(found.warnings) or f"{', '.join(self.get_option('clusters'))}: no node was found"
                raise Problem(f"the inventory would be empty (allow_empty: true accepts that): {reasons}")
            self.populate(found.nodes, connection, found.heads)
        except Problem as error:
            raise AnsibleParserError(str(error)) from error

    # What is asked for

    def _option(self, name: str) -> Any:
        """Return an option; strings in it may be templates, such as lookups of the environment."""
        value = self.get_option(name)
        if isinstance(value, (str, list, dict)) and value:
            self.templar.available_variables = self._vars or {}
            return self.templar.template(value)
        return "" if value is None else value

    def _refuse_unknown(self, config: Mapping[str, Any]) -> None:
        known = set(self.option_definitions)
        for definition in self.option_definitions.values():
            known.update(definition.get("aliases") or ())
        unknown = sorted(str(name) for name in config if name not in known)
        if unknown:
            raise Problem(
                f"unknown option(s) {', '.join(unknown)}; known are {', '.join(sorted(self.option_definitions))}"
            )

    def _connection(self) -> Connection:
        connection = Connection(
            kind=self.get_option("connection"),
            address=self.get_option("address"),
            bucket=str(self._option("bucket")),
            timeout=self.get_option("ssm_timeout"),
            profile=str(self._option("profile")),
        )
        connection.check()
        return connection

    def _credentials(self) -> Credentials:
        names = ("profile", "access_key", "secret_key", "session_token", "assume_role_arn", "endpoint_url")
        return Credentials(**{name: str(self._option(name)) for name in names})

    def _query(self, regions: Sequence[str]) -> Query:
        clusters = tuple(map(str, self._option("clusters")))
        if not clusters:
            raise Problem("clusters is empty; list names or patterns, or leave it out for all clusters")
        platforms, filters = tuple(dict.fromkeys(self.get_option("platforms"))), self._option("filters")
        if HYPERPOD in platforms and filters:
            raise Problem(
                f"filters: found {', '.join(map(str, filters))} with platforms: {', '.join(platforms)}; needed: "
                "filters without hyperpod, because SageMaker has none of EC2's filters"
            )
        types = {str(group): str(kind) for group, kind in self.get_option("hyperpod_node_types").items()}
        wrong = [f"{group}: {kind}" for group, kind in types.items() if kind not in NODE_TYPES]
        if wrong:
            raise Problem(f"hyperpod_node_types: found {', '.join(wrong)}; needed: {', '.join(NODE_TYPES)} by group")
        return Query(
            regions=tuple(map(str, regions)),
            clusters=clusters,
            node_types=tuple(self.get_option("node_types")),
            queues=tuple(map(str, self._option("queues"))),
            states=tuple(self.get_option("states")),
            filters=filters,
            heads=self.get_option("connection") == "ssh_via_head",
            ssm_online=self.get_option("ssm_online"),
            slurm_names=self.get_option("slurm_names"),
            skip_denied=not self.get_option("strict_permissions"),
            platforms=platforms,
            hyperpod_node_types=types,
        )

    def _find(self, path: str, cache: bool) -> Found:
        """Return what AWS says, or what the cache keeps of its answer to the very same question."""
        credentials = self._credentials()
        regions = self._option("regions")
        if not self.get_option("cache"):
            return self._ask(credentials, regions)
        asked = {**asdict(self._query(regions)), **asdict(credentials), "secret_key": "", "session_token": ""}
        question = hashlib.sha256(json.dumps([CACHE_FORMAT, asked], sort_keys=True).encode()).hexdigest()
        key = self.get_cache_key(path)
        if cache:
            try:
                kept = self._cache[key]
            except KeyError:
                kept = None
            if isinstance(kept, dict) and kept.get("question") == question:
                return Found(kept["nodes"], kept["heads"], kept["warnings"])
        found = self._ask(credentials, regions)
        self._cache[key] = {"question": question, **asdict(found)}
        return found

    def _ask(self, credentials: Credentials, regions: Sequence[str]) -> Found:
        query = self._query(regions_of(credentials, regions))
        return Cloud(query, client_maker(credentials, query.regions[0])).find()

    # What is put into the inventory

    def populate(
        self, nodes: Iterable[Node], connection: Connection, heads: Iterable[Node] = (), local: bool = False
    ) -> None:
        nodes = sorted(
            nodes, key=lambda node: (node["cluster"], node["node_type"] != "head", node.get("instance_id", ""))
        )
        groups: dict[str, list[int]] = {group: [] for group in GROUPS}
        for number, node in enumerate(nodes):
            for group in group_names(node):
                groups.setdefault(group, []).append(number)
        if local:
            names = ["localhost"]
        else:
            names = host_names(nodes, host_name_rules(self.get_option("hostnames")), {*self.inventory.groups, *groups})
        self._add_groups(groups)
        self._add_hosts(nodes, names)
        for group, members in groups.items():
            for number in members:
                self.inventory.add_child(group, names[number])
        if local:
            self._set("localhost", {"ansible_connection": "local"})
        else:
            self._connect(nodes, names, connection, {(head["region"], head["cluster"]): head for head in heads})
        self._construct(nodes, names)
        self._show_tags(nodes, names)

    def _add_groups(self, groups: Iterable[str]) -> None:
        self.inventory.add_group("pcluster")
        for group in groups:
            self.inventory.add_group(group)
            # Every node is in a group of its type and in one of its cluster; as a child, the latter's variables win.
            if group in (*TYPES, "pcluster_monitoring") or group.startswith("pcluster_cluster_"):
                self.inventory.add_child("pcluster", group)

    def _add_hosts(self, nodes: Sequence[Node], names: Sequence[str]) -> None:
        for node, name in zip(nodes, names):
            self.inventory.add_host(name)
            self._set(name, self._variables(node))

    def _show_tags(self, nodes: Iterable[Node], names: Sequence[str]) -> None:
        """Give hosts the tags that were asked for. Expressions see all of them, and have been worked out before."""
        shown = [str(pattern) for pattern in self._option("tags")]
        for node, name in zip(nodes, names) if shown else ():
            tags = node.get("tags", {})
            self._set(name, {"pcluster_tags": {key: tags[key] for key in tags if matches(key, shown)}})

    @staticmethod
    def _variables(node: Node) -> dict[str, Any]:
        return {name: node[key] for key, name in NAMES if node.get(key, "") != ""}

    def _set(self, name: str, variables: Mapping[str, Any]) -> None:
        """Set variables of a host.

        They are plain and final, so they go past set_variable, which would cost more than all the rest: it copies each
        value and notes its origin. It would also take a group for the host, where a group has its name.
        """
        self.inventory.get_host(name).vars.update(variables)

    def _connect(
        self, nodes: Sequence[Node], names: Sequence[str], connection: Connection, heads: Mapping[tuple[str, str], Node]
    ) -> None:
        found, without_head = plan(nodes, connection, heads)
        for region, cluster in sorted(without_head):
            terminal.warn(
                f"{region}, cluster {cluster}: connection: ssh_via_head found no running head node with an address "
                f"({connection.address}) to jump through, so its nodes are reached directly"
            )
        for group, variables in found.groups.items():
            for variable, value in variables.items():
                self.inventory.set_variable(group, variable, value)
        for node, name in zip(nodes, names):
            self._set(name, found.hosts[node["instance_id"]])

    def _construct(self, nodes: Iterable[Node], names: Sequence[str]) -> None:
        compose, groups, keyed = (self.get_option(name) for name in ("compose", "groups", "keyed_groups"))
        if not (compose or groups or keyed):
            return
        strict = self.get_option("strict")
        self._keep_apart(names)
        for node, name in zip(nodes, names):
            variables = {**self._variables(node), "pcluster_tags": node.get("tags", {})}
            self._set_composite_vars(compose, variables, name, strict=strict)
            self._add_host_to_composed_groups(groups, variables, name, strict=strict)
            self._add_host_to_keyed_groups(keyed, variables, name, strict=strict)

    def _keep_apart(self, names: Iterable[str]) -> None:
        """Give the user's groups another name where a host has it already: Ansible would mix the two up."""
        hosts = frozenset(names)
        warned: set[str] = set()

        def sanitize(name: str) -> str:
            safe = str(to_safe_group_name(name, force=True, silent=True))
            if safe not in hosts:
                return safe
            if safe not in warned:
                warned.add(safe)
                terminal.warn(f"a host is called {safe}, so the group of that name becomes {safe}_group")
            return f"{safe}_group"

        self._sanitize_group_name = sanitize
