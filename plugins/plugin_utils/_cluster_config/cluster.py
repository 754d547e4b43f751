# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What all parts of a configuration share: the variables, what they are judged by, and what every kind of node has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import needs, versions
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.draft import Draft, Step
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.instances import (
    Catalog,
    Instance,
    is_name,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.components import Component

PREFIX = "cluster_config_"
# As ParallelCluster's schema and validators have them.
NAME = re.compile(r"(?!default$)[a-z][a-z0-9-]{0,24}")
NAME_IS = "a lowercase letter, and then at most 24 lowercase letters, digits and hyphens, but not the word default"
_OCTET = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
_EVERYBODY = "0.0.0.0/0"  # also ParallelCluster's default
_IDS = {
    "subnet": (re.compile(r"subnet-([0-9a-z]{8}|[0-9a-z]{17})"), "a subnet, as subnet-0123456789abcdef0"),
    "group": (re.compile(r"sg-([0-9a-z]{8}|[0-9a-z]{17})"), "a security group, as sg-0123456789abcdef0"),
    "image": (re.compile(r"ami-([0-9a-z]{8}|[0-9a-z]{17})"), "an image, as ami-0123456789abcdef0"),
    "policy": (re.compile(r"arn:(?:(?!arn:).)+:policy/.+"), "the ARN of a policy"),
    "role": (re.compile(r"arn:(?:(?!arn:).)+:role/.+"), "the ARN of a role"),
    "bucket": (re.compile(r"[*a-z0-9.-]+"), "the name of a bucket"),
    "cidr": (
        re.compile(rf"({_OCTET}\.){{3}}{_OCTET}/(3[0-2]|[12]?\d)|pl-[a-zA-Z0-9]+"),
        "a CIDR, as 192.0.2.0/24, or a prefix list",
    ),
    "region": (re.compile(r"[a-z]{2,4}(-[a-z]+){1,4}-\d{1,2}"), "a region, as us-east-2"),
}


@dataclass
class Cluster:
    given: Mapping[str, Any]  # the variables, without the prefix
    version: versions.Version
    system: versions.System
    draft: Draft
    catalog: Catalog = field(default_factory=Catalog)
    components: Sequence[Component] = ()
    sizes: Mapping[str, float] = field(default_factory=dict)  # by the words of needs[].times in meta/component.yml
    unknown: set[str] = field(default_factory=set)  # instance types that the region does not have
    arm: dict[str, bool] = field(default_factory=dict)  # "<variable> (<instance type>)": whether it is arm64
    former: Mapping[str, Any] | None = None  # the configuration of the cluster that is to be updated

    def refuse(self, line: str) -> None:
        self.draft.problems.append(line)

    def check_id(self, where: str, value: Any, kind: str) -> None:
        """Refuse a value that is not of this kind. What is empty is not set."""
        pattern, needed = _IDS[kind]
        for each in value if isinstance(value, list) else [value]:
            if each not in (None, "") and not pattern.fullmatch(str(each)):
                self.refuse(f"{where} is {each}; needed: {needed}")

    def check_name(self, where: str, name: str) -> None:
        if not NAME.fullmatch(name):
            self.refuse(f"{where} is {name or 'empty'}; needed: {NAME_IS}")

    def instance(self, where: str, name: str) -> Instance:
        if not is_name(name) or name in self.unknown:
            words = "which the region does not have" if is_name(name) else "which is no instance type"
            self.refuse(f"{where} is {name}, {words}; needed: one such as p5.48xlarge")
        for line in versions.instance_problems(where, name, self.system, self.version):
            self.refuse(line)
        found = self.catalog[name]
        self.arm[f"{where} ({name})"] = found.arm
        return found

    def iam(self, where: str, item: Mapping[str, Any], policies: Sequence[str], *path: Step) -> None:
        """Write the part Iam. An instance role of the user's own takes the place of policies and access to S3."""
        own = [str(each) for each in item.get("policies") or []]
        asked, buckets = item.get("instance_role"), item.get("s3_access") or []
        there, whose = self.draft.get(*path, "Iam") or {}, f"{'/'.join(map(str, path))}/Iam of {self.draft.name}"
        role = asked or there.get("InstanceRole") or there.get("InstanceProfile")
        self.check_id(f"{where}.policies", own, "policy")
        self.check_id(f"{where}.instance_role", asked, "role")
        if role:
            keys = [key for key in ("policies", "s3_access") if item.get(key)]
            clashes = [f"instance_role and {key}" if asked else f"{key}, and {whose} has {role}" for key in keys]
            if asked:
                keys = [key for key in ("AdditionalIamPolicies", "S3Access") if there.get(key)]
                clashes += [f"instance_role, and {whose} has {key}" for key in keys]
            for clash in clashes:
                self.refuse(
                    f"{where} has {clash}; needed: one of them, because ParallelCluster adds nothing to a role of yours"
                )
            self.draft.ask(f"{where}.instance_role", asked, *path, "Iam", "InstanceRole")
            if policies:
                self.draft.notes.append(f"{where}: the role {role} has to allow what {', '.join(policies)} allow")
            return
        for bucket in buckets:
            self.check_id(f"{where}.s3_access", bucket["bucket"], "bucket")
            entry = {
                "BucketName": bucket["bucket"],
                "KeyName": bucket.get("key"),
                "EnableWriteAccess": bucket.get("write"),
            }
            self.draft.add({key: value for key, value in entry.items() if value is not None}, *path, "Iam", "S3Access")
        for arn in dict.fromkeys([*policies, *own]):
            self.draft.add({"Policy": arn}, *path, "Iam", "AdditionalIamPolicies")

    def security(self, where: str, item: Mapping[str, Any], *path: Step) -> None:
        own, more = item.get("security_groups") or [], self.given.get("security_groups") or []
        self.check_id(f"{where}.security_groups", own, "group")
        if own and more:
            self.refuse(
                f"{where}.security_groups take the place of ParallelCluster's, and cluster_config_security_groups come "
                "beside these; needed: one of the two variables"
            )
        self.draft.ask(f"{where}.security_groups", own, *path, "Networking", "SecurityGroups")
        if not own and not self.draft.get(*path, "Networking", "SecurityGroups"):
            for group in more:
                self.draft.add(group, *path, "Networking", "AdditionalSecurityGroups")

    def ssh_access(self, where: str, item: Mapping[str, Any], *path: Step) -> bool:
        """Write who may reach port 22; return whether that is everybody."""
        given = item.get("allowed_ips")
        self.check_id(f"{where}.allowed_ips", given, "cidr")
        place = (*path, "Ssh", "AllowedIps")
        self.draft.ask(f"{where}.allowed_ips", given, *place)
        # The user's own security groups take the place of ParallelCluster's, which alone has the rule for SSH.
        own = self.draft.get(*path, "Networking", "SecurityGroups")
        return not own and str(self.draft.get(*place) or _EVERYBODY).endswith("/0")

    def root_volume(self, where: str, item: Mapping[str, Any], node: str, disks: bool, *path: Step) -> None:
        """Write the size of a root volume: what was asked for, and at least what the components need."""
        required = needs.disk(self.components, node, disks, versions.root_volume(self.version), self.sizes)
        place = (*path, "LocalStorage", "RootVolume", "Size")
        asked = item.get("root_volume_size")
        there = asked or self.draft.get(*place)
        if there and int(there) < required.total:
            whose = f"{where}.root_volume_size" if asked else f"{'/'.join(map(str, place))} of {self.draft.name}"
            self.refuse(f"{whose} is {there}; needed: {required.total} GiB or more ({required})")
        self.draft.ask(f"{where}.root_volume_size", asked, *place)
        if not there and len(required.parts) > 1:
            self.draft.derive(required.total, *place)
            self.draft.notes.append(f"{'/'.join(map(str, place))}: {required.total} GiB ({required})")

    def one_architecture(self) -> None:
        kinds = {arm: where for where, arm in self.arm.items()}
        if len(kinds) > 1:
            self.refuse(f"{kinds[True]} is arm64, and {kinds[False]} x86_64; needed: one architecture in a cluster")


def duplicates(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
