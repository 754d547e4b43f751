# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which file systems a node should have, and which it has."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from typing import Any, Callable

from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree

MOUNTS = "/proc/self/mounts"
# The file systems of a network, on which no overlay works, and so neither Docker nor Enroot; "efs" appears as nfs4.
NETWORK_TYPES = (
    *("lustre", "nfs", "nfs4", "efs", "cifs", "smb3", "beegfs", "weka", "wekafs", "gpfs", "ceph", "glusterfs"),
    *("afs", "9p"),
)
_SCRATCH_PLACES = ("/opt/dlami/nvme", "/scratch", "/local_scratch")
_TOUCH_SECONDS = 6.0
# What sets up the disks of the instance store: ParallelCluster's unit, at every boot but the first, and the DLAMI's.
_SETUP = ("setup-ephemeral.service", "dlami-nvme.service")
_SETUP_SECONDS = 600.0


def mounts(path: str = "") -> list[dict[str, str]]:
    """Return the mounts that this process sees now."""
    with open(path or MOUNTS, "rb") as stream:
        return parse_mounts(stream.read().decode("utf-8", "surrogateescape"))


def parse_mounts(text: str) -> list[dict[str, str]]:
    """Return the mounts of a /proc/self/mounts, in its order, with its octal escapes undone.

    A user may mount by FUSE at any path, and the kernel escapes no other blank and no other end of a line than these.
    """
    mounts = []
    for line in text.split("\n"):
        fields = [re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field) for field in line.split(" ")]
        if len(fields) >= 4:
            mounts.append({"path": fields[1], "type": fields[2], "source": fields[0], "options": fields[3]})
    return mounts


def lies_on(path: str, point: str) -> bool:
    """Tell whether a path is a folder or lies below it, by its name alone."""
    return (path + "/").startswith(point.rstrip("/") + "/")


def file_system(path: str, shared: dict[str, str]) -> tuple[str, str]:
    """Return the mount point and the type of the file system on which a path lies, without touching the path.

    A file system that the cluster shares is one even while it is not mounted.
    """
    for point, kind in shared.items():
        if kind in NETWORK_TYPES and lies_on(path, point):
            return point, kind
    best = ("/", "")
    for mount in mounts():
        # Of several on one mount point the last is seen, and the real one lies over an automount's stand-in.
        if lies_on(path, mount["path"]) and len(mount["path"]) >= len(best[0]):
            best = (mount["path"], mount["type"])
    return best


def is_network(kind: str) -> bool:
    """Tell whether a type of file system is one over which no overlay can be laid."""
    return kind in (*NETWORK_TYPES, "autofs") or kind.startswith("fuse.")


def words(value: Any) -> list[str]:
    """Return the parts of a comma-joined string as ParallelCluster writes it; NONE and empty parts stay as ''."""
    if isinstance(value, list):
        parts = [str(part) for part in value]
    elif isinstance(value, str):
        parts = value.split(",")
    else:
        return []
    parts = [part.strip() for part in parts]
    return ["" if part.upper() == "NONE" else part for part in parts]


def _absolute(path: str) -> str:
    return os.path.normpath("/" + path.strip("/"))


def wanted_mounts(cluster: dict[str, Any], node_type: str | None, head_ip: str | None) -> list[dict[str, str | None]]:
    """Return the mounts that dna.json promises to this node."""
    region = cluster.get("region")
    wanted: dict[str, dict[str, str | None]] = {}

    def part(key: str, index: int) -> str:
        values = words(cluster.get(key))
        return values[index] if index < len(values) else ""

    def add(path: str, kind: str, source: str | None) -> None:
        wanted.setdefault(_absolute(path), {"path": _absolute(path), "type": kind, "source": source or None})

    for index, path in enumerate(words(cluster.get("fsx_shared_dirs"))):
        if not path:
            continue
        domain = "amazonaws.com.cn" if str(region).startswith("cn-") else "amazonaws.com"
        identity = part("fsx_fs_ids", index)
        name = part("fsx_dns_names", index) or (f"{identity}.fsx.{region}.{domain}" if identity and region else "")
        if (part("fsx_fs_types", index) or "LUSTRE").upper() in ("LUSTRE", "FILECACHE"):
            mount_name = part("fsx_mount_names", index)
            add(path, "lustre", f"{name}@tcp:/{mount_name}" if name and mount_name else None)
        else:
            add(path, "nfs", f"{name}:{_absolute(part('fsx_volume_junction_paths', index))}" if name else None)
    for index, path in enumerate(words(cluster.get("efs_shared_dirs"))):
        # The key's default is "/shared" even where there is no EFS file system at all.
        if path and part("efs_fs_ids", index):
            add(path, "efs", f"{part('efs_fs_ids', index)}:/")
    for key, volumes in (("ebs_shared_dirs", "volume"), ("raid_shared_dir", "raid_vol_ids")):
        for index, path in enumerate(words(cluster.get(key))):
            if not path:
                continue
            if node_type == "head":
                add(path, "ebs", part(volumes, index))
            else:
                add(path, "nfs", f"{head_ip}:{_absolute(path)}" if head_ip else None)
    if node_type in ("compute", "login"):
        efs = cluster.get("shared_storage_type") == "efs"
        for path in ("/home", "/opt/slurm"):
            add(path, "efs" if efs else "nfs", f"{head_ip}:{path}" if head_ip and not efs else None)
    return list(wanted.values())


def touch(paths: list[str], seconds: float = _TOUCH_SECONDS) -> list[str]:
    """Ask for each path in a child of its own, so that automounts happen, and return those that do not answer.

    A child that waits for a dead file system may not even be killable, so none is waited for beyond the time given.
    """
    children = {}
    for path in paths:
        child = os.fork()
        if child == 0:
            try:
                # A child that outlives this process must not hold its standard output open.
                null = os.open(os.devnull, os.O_RDWR)
                for descriptor in (0, 1, 2):
                    os.dup2(null, descriptor)
                os.closerange(3, 256)
                with os.scandir(path) as entries:
                    next(entries, None)
            except BaseException:
                # An error is an answer: the file system is not dead.
                os._exit(1)
            os._exit(0)
        children[child] = path
    deadline = time.monotonic() + seconds
    pause = 0.0005
    while children:
        for child in list(children):
            if os.waitpid(child, os.WNOHANG)[0]:
                del children[child]
        if not children or time.monotonic() >= deadline:
            break
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, os.WNOHANG)
    return sorted(children.values())


def read_mounts(tree: Tree, wanted: list[dict[str, str | None]], seconds: float = _TOUCH_SECONDS) -> dict[str, Any]:
    """Return {wanted, found, missing}. On the running node every wanted mount point is asked for first."""
    paths = [str(mount["path"]) for mount in wanted]
    if tree.live and paths:
        for path in touch(paths, seconds):
            tree.dead.append(path)
            tree.problem(f"{path} did not answer within {seconds:g} s: its file system is dead or cannot be reached")
    everything = parse_mounts(tree.read(MOUNTS, required=True) or "")
    real = {mount["path"]: mount for mount in everything if mount["type"] != "autofs"}
    found = [mount for path, mount in real.items() if path in paths or mount["type"] in NETWORK_TYPES]
    missing = [path for path in paths if path not in real or path in tree.dead]
    return {"wanted": wanted, "found": sorted(found, key=lambda mount: mount["path"]), "missing": missing}


def wait_for_setup(run: Callable[[list[str]], str | None], seconds: float = _SETUP_SECONDS) -> None:
    """Wait while the disks of the instance store are set up: until then a node seems to have no scratch folder."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        # A unit that works has a process, and one that has yet to begin has a job.
        said = run(["systemctl", "show", "--property=MainPID", "--property=Job", *_SETUP])
        if not re.search("=[1-9]", said or ""):
            return
        time.sleep(1)


def scratch(tree: Tree, named: list[str | None]) -> str | None:
    """Return the first scratch folder that is the mount of a local file system."""
    text = tree.read(MOUNTS) or ""
    local = {mount["path"] for mount in parse_mounts(text) if mount["type"] not in (*NETWORK_TYPES, "autofs")}
    for path in (*named, *_SCRATCH_PLACES):
        if path and _absolute(path) in local:
            return _absolute(path)
    return None
