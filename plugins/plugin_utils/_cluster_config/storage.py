# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Shared file systems: those that are there, and those that ParallelCluster makes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import cluster as shared
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import instances
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.cluster import Cluster
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.draft import Entry

# By kind: ParallelCluster's name, that of its settings, the key of what is there, and the id's form.
_KINDS = {
    "lustre": ("FsxLustre", "FsxLustreSettings", "FileSystemId", r"fs-[0-9a-z]{17}"),
    "openzfs": ("FsxOpenZfs", "FsxOpenZfsSettings", "VolumeId", r"fsvol-[0-9a-f]{17}"),
    "ontap": ("FsxOntap", "FsxOntapSettings", "VolumeId", r"fsvol-[0-9a-f]{17}"),
    "efs": ("Efs", "EfsSettings", "FileSystemId", r"fs-([0-9a-z]{8}|[0-9a-z]{17})"),
    "ebs": ("Ebs", "EbsSettings", "VolumeId", r"vol-([0-9a-z]{8}|[0-9a-z]{17})"),
}
# What a new one of each kind takes; the others are made elsewhere.
_NEW = {
    "lustre": {"size", "deployment", "throughput", "compression", "data_repositories", "kms_key", "deletion"},
    "efs": {"throughput", "encrypted", "kms_key", "deletion"},
    "ebs": {"size", "throughput", "encrypted", "kms_key", "deletion"},
}
_OF_NEW = {"size", "deployment", "throughput", "compression", "data_repositories", "encrypted", "kms_key", "deletion"}
_THROUGHPUT = {"PERSISTENT_1": (50, 100, 200), "PERSISTENT_2": (125, 250, 500, 1000)}  # FSX_SSD_THROUGHPUT
_LUSTRE_STEP = 2400
_EVENTS = ("NEW", "CHANGED", "DELETED")
_MOUNT = re.compile(r"(/[^/.\\\s][^/\\\s]*)+")  # the schema's file_path, with its slash
_RESERVED = {
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/media", "/mnt", "/opt", "/opt/parallelcluster"),
    *("/opt/parallelcluster/shared", "/opt/parallelcluster/shared_login_nodes", "/opt/slurm", "/opt/intel", "/proc"),
    *("/root", "/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/var"),
}
_LONGEST_NAME = 30
_MOST_NEW = {"FsxLustre": 1, "Efs": 1, "Ebs": 5}
SCRATCH = "/scratch"  # DEFAULT_EPHEMERAL_DIR


def storage(cluster: Cluster) -> None:
    seen: dict[str, str] = {}
    for each in _wanted(cluster):
        marks = [f"at {each.mount}", f"called {each.name}", *([each.id] if each.id else [])]
        twice = [mark for mark in marks if mark in seen]
        if twice:
            cluster.refuse(f"{each.where} and {seen[twice[0]]} are both {twice[0]}; needed: one of them")
            continue
        seen.update(dict.fromkeys(marks, each.where))
        each.put()
    _places(cluster)


def _wanted(cluster: Cluster) -> Iterator[_Storage]:
    for variable, kind, mount in (("fsx_lustre", "lustre", "/fsx"), ("fsx_openzfs", "openzfs", "/home")):
        if cluster.given.get(variable):
            item = {"mount": mount, "type": kind, "id": cluster.given[variable]}
            yield _Storage(cluster, f"{shared.PREFIX}{variable}", item)
    for item in cluster.given.get("storage") or []:
        yield _Storage(cluster, f"{shared.PREFIX}storage[{item['mount']}]", item)


class _Storage:
    def __init__(self, cluster: Cluster, where: str, item: Mapping[str, Any]) -> None:
        self.cluster, self.draft, self.where, self.item = cluster, cluster.draft, where, item
        self.kind, self.id = str(item["type"]), item.get("id") or ""
        self.type, self.settings, self.key, self.pattern = _KINDS[self.kind]
        self.mount = str(item["mount"])
        self.name = item.get("name") or self.mount.strip("/").replace("/", "-")

    def refuse(self, line: str) -> None:
        self.cluster.refuse(f"{self.where}{line}")

    def put(self) -> None:
        mount, name = self.mount, self.name
        if not _MOUNT.fullmatch(mount):
            self.refuse(f".mount is {mount or 'empty'}; needed: a directory, such as /fsx")
        elif mount in _RESERVED:
            self.refuse(f".mount is {mount}, which belongs to the system; needed: a directory of its own")
        if not name or name == "default" or len(name) > _LONGEST_NAME or not re.fullmatch(r"[\w+=.:@/-]*", name):
            self.refuse(
                f".name is {name}; needed: at most {_LONGEST_NAME} letters, digits, - and _, not the word default"
            )
        path = ("SharedStorage", Entry("Name", name))
        self.draft.ask(f"{self.where}.type", self.type, *path, "StorageType")
        self.draft.ask(f"{self.where}.mount", mount, *path, "MountDir")
        settings = (*path, self.settings)
        new = sorted(key for key in _OF_NEW if self.item.get(key) not in (None, [], ""))
        if self.id:
            if not re.fullmatch(self.pattern, self.id):
                self.refuse(
                    f".id is {self.id}; needed: {self.pattern.split('[')[0].split('(')[0]}…, as {self.kind} has it"
                )
            if new:
                self.refuse(f" has id, and {', '.join(new)}, which a new one has; needed: id alone, or no id")
            self.draft.ask(f"{self.where}.id", self.id, *settings, self.key)
            return
        if self.kind not in _NEW:
            self.refuse(f".id is not set, and ParallelCluster makes no {self.kind}; needed: the volume's id (fsvol-…)")
            return
        for key in new:
            if key not in _NEW[self.kind]:
                self.refuse(f".{key} is set, which no {self.kind} has; needed: {', '.join(sorted(_NEW[self.kind]))}")
        getattr(self, f"_new_{self.kind}")(settings)
        deletion = self.item.get("deletion")
        if deletion == "Snapshot" and self.kind != "ebs":
            self.refuse(f".deletion is Snapshot, which {self.kind} has not; needed: Retain or Delete")
        self.draft.ask(f"{self.where}.deletion", deletion, *settings, "DeletionPolicy")
        # Data outlives a cluster that somebody deletes in a hurry.
        self.draft.derive("Retain", *settings, "DeletionPolicy")

    def _new_lustre(self, settings: tuple[Any, ...]) -> None:
        item, where = self.item, self.where
        size, deployment = item.get("size"), item.get("deployment") or "PERSISTENT_2"
        if not size or (size != 1200 and size % (3600 if deployment == "SCRATCH_1" and size != 2400 else _LUSTRE_STEP)):
            step = "2400, or a multiple of 3600" if deployment == "SCRATCH_1" else "or a multiple of 2400"
            self.refuse(f".size is {size or 'not set'}; needed: 1200, {step} GiB, for {deployment}")
        self.draft.ask(f"{where}.size", size, *settings, "StorageCapacity")
        self.draft.ask(f"{where}.deployment", item.get("deployment"), *settings, "DeploymentType")
        self.draft.derive(deployment, *settings, "DeploymentType")
        allowed, throughput = _THROUGHPUT.get(deployment, ()), item.get("throughput")
        if throughput is not None and throughput not in allowed:
            words = ", ".join(str(each) for each in allowed) or "none"
            self.refuse(f".throughput is {throughput}; needed for {deployment}: {words}")
        self.draft.ask(f"{where}.throughput", throughput, *settings, "PerUnitStorageThroughput")
        if allowed:
            self.draft.derive(250 if 250 in allowed else 100, *settings, "PerUnitStorageThroughput")
        elif item.get("kms_key"):
            self.refuse(f".kms_key is set with {deployment}; needed: PERSISTENT_1 or PERSISTENT_2")
        self.draft.ask(f"{where}.kms_key", item.get("kms_key"), *settings, "KmsKeyId")
        if item.get("compression") is not False:
            self.draft.derive("LZ4", *settings, "DataCompressionType")
        repositories = item.get("data_repositories") or []
        if repositories and deployment in ("SCRATCH_1", "PERSISTENT_1"):
            self.refuse(f".data_repositories with {deployment}; needed: PERSISTENT_2 or SCRATCH_2")
        if len(repositories) > 8:
            self.refuse(f".data_repositories has {len(repositories)}; needed: 8 at most")
        for each in repositories:
            self._repository(each, (*settings, "DataRepositoryAssociations", Entry("Name", each["name"])))

    def _repository(self, item: Mapping[str, Any], path: tuple[Any, ...]) -> None:
        where = f"{self.where}.data_repositories[{item['name']}]"
        if not re.fullmatch(r"s3://[a-z0-9.-]{3,63}(/.*)?", item["bucket"]):
            self.cluster.refuse(f"{where}.bucket is {item['bucket']}; needed: s3://<bucket>/<prefix>")
        self.draft.ask(f"{where}.bucket", item["bucket"], *path, "DataRepositoryPath")
        self.draft.ask(f"{where}.directory", item["directory"], *path, "FileSystemPath")
        self.draft.derive(True, *path, "BatchImportMetaDataOnCreate")
        for key, policy in (("import", "AutoImportPolicy"), ("export", "AutoExportPolicy")):
            wrong = [event for event in item.get(key) or [] if event not in _EVENTS]
            if wrong:
                self.cluster.refuse(f"{where}.{key} has {', '.join(wrong)}; needed: {', '.join(_EVENTS)}")
            self.draft.ask(f"{where}.{key}", item.get(key), *path, policy)

    def _new_efs(self, settings: tuple[Any, ...]) -> None:
        throughput = self.item.get("throughput")
        if throughput is not None and not 1 <= throughput <= 1024:
            self.refuse(f".throughput is {throughput}; needed: 1 to 1024 MiB/s")
        self.draft.ask(f"{self.where}.throughput", throughput, *settings, "ProvisionedThroughput")
        self.draft.ask(f"{self.where}.throughput", throughput and "provisioned", *settings, "ThroughputMode")
        self._encryption(settings)

    def _new_ebs(self, settings: tuple[Any, ...]) -> None:
        size = self.item.get("size")
        if not size or not 1 <= size <= 16384:
            self.refuse(f".size is {size or 'not set'}; needed: 1 to 16384 GiB")
        self.draft.ask(f"{self.where}.size", size, *settings, "Size")
        throughput = self.item.get("throughput")
        if throughput is not None and not 125 <= throughput <= 1000:
            self.refuse(f".throughput is {throughput}; needed: 125 to 1000 MiB/s")
        self.draft.ask(f"{self.where}.throughput", throughput, *settings, "Throughput")
        self._encryption(settings)

    def _encryption(self, settings: tuple[Any, ...]) -> None:
        encrypted = self.item.get("encrypted")
        if self.item.get("kms_key") and encrypted is False:
            self.refuse(" has kms_key, and encrypted is false; needed: true, or no kms_key")
        self.draft.ask(f"{self.where}.encrypted", encrypted, *settings, "Encrypted")
        self.draft.ask(f"{self.where}.kms_key", self.item.get("kms_key"), *settings, "KmsKeyId")
        self.draft.derive(True, *settings, "Encrypted")


def _directory(path: Any) -> str:
    return f"/{str(path).strip('/')}"


def _nested(one: str, other: str) -> bool:
    return one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _places(cluster: Cluster) -> None:
    """Refuse directories that two file systems would have, or one within the other, the nodes' own disks included.

    A file system in the very directory of a node's own disks is only noted, because ParallelCluster warns of it.
    """
    entries = cluster.draft.get("SharedStorage") or []
    mounts = [(_directory(each["MountDir"]), str(each.get("Name"))) for each in entries if each.get("MountDir")]
    for (one, name), (other, second) in itertools.combinations(mounts, 2):
        if one == other:
            cluster.refuse(f"{shared.PREFIX}storage: {name} and {second} are both at {one}; needed: one of them")
        elif _nested(one, other):
            cluster.refuse(
                f"{shared.PREFIX}storage: {one} and {other} lie within each other; needed: separate directories"
            )
    for local, nodes in _disks(cluster).items():
        whose = f"the own disks of {', '.join(nodes)}"
        for mount, name in mounts:
            if mount == local:
                cluster.draft.notes.append(
                    f"SharedStorage {name} and {whose} have the same directory, {mount}. ParallelCluster warns of it; "
                    "scratch_dir of a queue, or LocalStorage/EphemeralVolume/MountDir, separates the two"
                )
            elif _nested(mount, local):
                where = f"{shared.PREFIX}storage: {name} is at {mount}"
                cluster.refuse(f"{where}, and {whose} at {local}; needed: separate directories")
    _counts(cluster, entries)


def _disks(cluster: Cluster) -> dict[str, list[str]]:
    """Return by directory which nodes have instance storage there, as local_mount_dir_instance_types_dict (3.16.1)."""
    head = cluster.draft.get("HeadNode") or {}
    nodes = [("the head node", instances.named(head), head)]
    for queue in cluster.draft.get("Scheduling", "SlurmQueues") or []:
        types = [name for resource in queue.get("ComputeResources") or [] for name in instances.named(resource)]
        nodes.append((f"queue {queue.get('Name')}", types, queue.get("ComputeSettings") or {}))
    found: dict[str, list[str]] = {}
    for name, types, settings in nodes:
        with_disks = list(dict.fromkeys(each for each in types if cluster.catalog[each].disks))
        if with_disks:
            volume = (settings.get("LocalStorage") or {}).get("EphemeralVolume") or {}
            place = _directory(volume.get("MountDir") or SCRATCH)
            found.setdefault(place, []).append(f"{name} ({', '.join(with_disks)})")
    return found


def _counts(cluster: Cluster, entries: list[dict[str, Any]]) -> None:
    for kind, (name, settings, key, _pattern) in _KINDS.items():
        new = [each for each in entries if each.get("StorageType") == name and key not in (each.get(settings) or {})]
        most = _MOST_NEW.get(name, 0)
        if kind in _NEW and len(new) > most:
            cluster.refuse(f"{shared.PREFIX}storage has {len(new)} new {kind}; needed: {most} at most")
        if kind == "lustre" and new and _several_subnets(cluster):
            cluster.refuse(
                f"{shared.PREFIX}storage has a new lustre, and a queue several subnets; needed: one subnet, or id"
            )


def _several_subnets(cluster: Cluster) -> bool:
    queues = cluster.draft.get("Scheduling", "SlurmQueues") or []
    return any(len((queue.get("Networking") or {}).get("SubnetIds") or []) > 1 for queue in queues)
