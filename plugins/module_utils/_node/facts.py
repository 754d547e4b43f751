# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a node of a cluster is. Everything that asks reads it here; nothing else parses the cluster's files."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import select
import signal
import socket
import time
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run
from ansible_collections.pcluster.postboot.plugins.module_utils._node import (
    hardware,
    monitoring,
    parallelcluster,
    platforms,
    software,
    storage,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._node.identity import inner, node_type, truth
from ansible_collections.pcluster.postboot.plugins.module_utils._node.parallelcluster import parse_cfnconfig
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree

_FAMILIES = {
    "debian": ("debian", "ubuntu"),
    "redhat": ("rhel", "fedora", "centos", "amzn", "rocky", "almalinux", "ol"),
}


def parse_os_release(text: str) -> dict[str, str | None]:
    """Return the fact `os` from the text of an os-release file."""
    values = {key: value for key, value in parse_cfnconfig(text).items() if isinstance(value, str)}
    identity = values.get("ID", "").lower()
    version = values.get("VERSION_ID", "")
    kin = [identity, *values.get("ID_LIKE", "").lower().split()]
    family = next((name for name, members in _FAMILIES.items() if any(word in members for word in kin)), None)
    major = version.split(".")[0]
    if identity == "amzn":
        name = f"alinux{major}"
    elif identity == "ubuntu":
        name = f"ubuntu{version.replace('.', '')}"
    else:
        name = f"{identity}{major}"
    codename = values.get("VERSION_CODENAME") or values.get("UBUNTU_CODENAME")
    return {
        "id": identity or None,
        "version": version or None,
        "codename": codename or None,
        "family": family,
        "name": name or None,
    }


def run_program(argv: list[str]) -> str | None:
    """Run a program with a time limit; return what it printed, or None when it could not be run."""
    try:
        return run(argv, 3).out
    except NotRun:
        return None


def empty_facts() -> dict[str, Any]:
    """Return the facts of a node of which nothing is known; its keys are all the facts there are."""
    return {
        "is_parallelcluster": False,
        "platform": None,
        "reason": None,
        "node_type": None,
        "cluster": None,
        "region": None,
        "vpc": None,
        "scheduler": None,
        "cluster_user": None,
        "node_name": None,
        "queue": None,
        "compute_resource": None,
        "instance_group": None,
        "head_node_ip": None,
        "instance_id": None,
        "instance_type": None,
        "instance_types": {},
        "os": {"id": None, "version": None, "codename": None, "family": None, "name": None},
        "architecture": None,
        "go_architecture": None,
        "glibc": None,
        "version": None,
        "slurm": {"prefix": None, "version": None},
        "gpus": {"count": 0, "devices": [], "driver": None},
        "nvswitch": {"count": 0},
        "efa": {"count": 0, "devices": [], "pci_count": 0, "driver": None},
        "neuron": {"devices": 0, "cores": 0, "driver": None, "tools": None},
        "scratch": None,
        "mounts": {"wanted": [], "found": [], "missing": []},
        "imds_secured": None,
        "exporter_ports": [],
        "gpu_jobs_dir": None,
        "components": dict.fromkeys(software.COMPONENTS),
        "image_build": False,
        "container": False,
        "problems": [],
    }


def _machine(tree: Tree, facts: dict[str, Any]) -> None:
    """Fill in the instance and the host name, where the platform's files do not tell them."""
    dmi = "/sys/class/dmi/id"
    asset = tree.line(f"{dmi}/board_asset_tag") or ""
    cloud = tree.line("/var/lib/cloud/data/instance-id") or ""
    candidates = (facts["instance_id"] or "", asset, cloud)
    facts["instance_id"] = next((one for one in candidates if re.fullmatch(r"i-[0-9a-f]{8,17}", one)), None)
    if not facts["instance_type"] and tree.line(f"{dmi}/sys_vendor") == "Amazon EC2":
        facts["instance_type"] = tree.line(f"{dmi}/product_name")
    if not facts["node_name"]:
        name = socket.gethostname() if tree.live else tree.line("/etc/hostname")
        facts["node_name"] = name.split(".")[0] if name else None


def _kinds(tree: Tree) -> tuple[bool, bool]:
    """Return image_build and container."""
    container = any(tree.exists(path) for path in ("/run/.containerenv", "/.dockerenv", "/run/systemd/container"))
    return not tree.is_dir("/run/systemd/system"), container


def read_node(
    root: str = "/",
    overrides: dict[str, Any] | None = None,
    run: software.Run | None = None,
    tree: Tree | None = None,
) -> dict[str, Any]:
    """Return every fact of the node whose files lie under `root`. Programs are run only where root is "/"."""
    tree = tree or Tree(root)
    if tree.live and run is None:
        run = run_program
    facts = empty_facts()
    text = tree.read("/etc/os-release", required=True)
    if text:
        facts["os"] = parse_os_release(text)
    identity = platforms.identify(tree, facts["os"]["name"])
    facts.update(identity.facts)
    _machine(tree, facts)
    if facts["node_type"]:
        facts["platform"] = identity.platform
        facts["is_parallelcluster"] = identity.platform == parallelcluster.PLATFORM
    facts.update(monitoring.identity(tree, facts["platform"] is not None))
    facts["architecture"] = hardware.architecture(tree)
    facts["go_architecture"] = hardware.GO_ARCHITECTURES.get(facts["architecture"] or "")
    facts["glibc"] = hardware.glibc(tree)
    # Mounts come before anything that may lie on one: a dead one is known, and left alone, from here on.
    facts["mounts"] = storage.read_mounts(tree, inner(overrides, "mounts").get("wanted") or identity.mounts)
    facts["scratch"] = storage.scratch(tree, identity.scratch)
    facts["version"] = parallelcluster.version(tree)
    prefix = str(inner(overrides, "slurm").get("prefix") or "/opt/slurm")
    if tree.is_dir(prefix):
        facts["slurm"] = {"prefix": prefix, "version": software.slurm_version(tree, prefix, run)}
    facts.update(hardware.read_hardware(tree))
    facts["components"] = software.read_components(tree, run)
    facts["neuron"]["tools"] = facts["components"]["neuron"]
    facts["image_build"], facts["container"] = _kinds(tree)
    facts = merge(facts, overrides or {})
    if identity.backup and facts["node_type"] == "head":
        # A cluster has one head node, which alone serves and builds what there is once.
        facts["node_type"] = "login"
    for line in hardware.hardware_problems(facts):
        tree.problem(line)
    facts["problems"] = [*tree.problems, *facts["problems"]]
    return facts


def merge(facts: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the facts with what variables say put over them. ValueError names a fact that does not exist."""
    facts = _put_over(facts, empty_facts(), overrides, "")
    if "node_type" in overrides and facts["node_type"] is not None:
        facts["node_type"] = node_type(facts["node_type"])
        facts.update(monitoring.overridden(facts))
    if "architecture" in overrides and "go_architecture" not in overrides:
        facts["go_architecture"] = hardware.GO_ARCHITECTURES.get(facts["architecture"])
    if facts["is_parallelcluster"] and not facts["platform"]:
        facts["platform"] = parallelcluster.PLATFORM
    if facts["platform"]:
        facts["reason"] = None
    return facts


def _put_over(facts: dict[str, Any], model: dict[str, Any], overrides: dict[str, Any], above: str) -> dict[str, Any]:
    merged = dict(facts)
    for key, value in overrides.items():
        name = f"{above}{key}"
        if key not in model:
            raise ValueError(f"overrides: there is no fact {name!r}; known are {', '.join(sorted(model))}")
        expected = model[key]
        if isinstance(expected, dict):
            if not isinstance(value, dict):
                raise ValueError(f"overrides: {name} must be a dictionary, found {type(value).__name__}")
            merged[key] = _put_over(facts[key], expected, value, f"{name}.")
        else:
            merged[key] = _as_expected(name, expected, value)
    return merged


def _as_expected(name: str, expected: Any, value: Any) -> Any:
    """Return an override's value in the type of the fact; a templated number or boolean may arrive as a string."""
    if name == "imds_secured":
        expected = False
    if isinstance(expected, bool):
        said = value if isinstance(value, bool) else {"yes": True, "no": False}.get(str(value).lower(), truth(value))
        if said is None:
            raise ValueError(f"overrides: {name} must be true or false, found {value!r}")
        return said
    if isinstance(expected, int):
        if isinstance(value, bool) or not re.fullmatch(r"\d+", str(value)):
            raise ValueError(f"overrides: {name} must be a whole number, found {value!r}")
        return int(value)
    if isinstance(expected, list):
        if not isinstance(value, list):
            raise ValueError(f"overrides: {name} must be a list, found {type(value).__name__}")
        return value
    if value is not None and not isinstance(value, (str, int, float)):
        raise ValueError(f"overrides: {name} must be a string, found {type(value).__name__}")
    return None if value is None else str(value)


def read_node_within(seconds: float, root: str = "/", overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return read_node()'s facts, or raise TimeoutError naming the path at which the reading stopped.

    The reading happens in a child, because a process that touches a dead file system cannot be interrupted from within.
    """
    merge(empty_facts(), overrides or {})  # a mistake in the variables is reported before anything is read
    where = mmap.mmap(-1, 4096)

    def watch(path: str) -> None:
        note = path.encode("utf-8", "surrogateescape")[:4000]
        where[: len(note) + 1] = note + b"\0"

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            try:
                answer: dict[str, Any] = {"facts": read_node(root, overrides, tree=Tree(root, watch))}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            with open(writer, "wb") as stream:
                stream.write(json.dumps(answer).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    deadline = time.monotonic() + seconds
    chunks = []
    ended = False
    try:
        while not ended:
            if not select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
                path = where[:4096].split(b"\0")[0].decode("utf-8", "replace")
                raise TimeoutError(f"{path} did not answer within {seconds:g} s: unmount or repair its file system")
            chunks.append(os.read(reader, 65536))
            ended = not chunks[-1]
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            # After a time-out the child may not be killable: it is left behind rather than waited for.
            os.waitpid(child, 0 if ended else os.WNOHANG)
    answer = json.loads(b"".join(chunks) or b"{}")
    if "facts" not in answer:
        raise RuntimeError(" ".join(str(answer.get("error") or "the reader ended without an answer").split()))
    facts: dict[str, Any] = answer["facts"]
    return facts
