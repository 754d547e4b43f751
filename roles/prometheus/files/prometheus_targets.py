# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tell Prometheus which nodes there are, as Slurm and the login nodes themselves see it.

`render`, on the head node, writes every node that is up into a file that Prometheus watches. `register`, on a login
node, which Slurm does not know, leaves the node's address in a folder that only root can enter. Each says one line when
it fails, and what an earlier run has written stays.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import ipaddress
import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,126}[A-Za-z0-9])?")
# A node in one of these states has no running instance, or one that is still on its way up or already on its way down.
# POWER_DOWN is not among them: it only says that the node will be powered down once its jobs have ended.
AWAY = {"FUTURE", "POWER", "POWERED_DOWN", "POWERING_DOWN", "POWER_UP", "POWERING_UP", "REBOOT_ISSUED"}
# A node that is drained or failing has booted, and is worth looking at. One of these that is silent is lost.
LOST_WHEN_SILENT = {"DOWN", "ERROR", "FAIL", "POWER_DOWN", "UNKNOWN"}
LARGEST_ENTRY = 4096
MOUNTS = "/proc/self/mounts"
FIELDS = "NodeName|NodeAddr|State|Partitions|Gres|AvailableFeatures"
# ParallelCluster tells the instance type among the features, where a compute resource has one; HyperPod calls the same
# type ml.trn1.32xlarge.
NEURON = re.compile(r"(?:^|,)(?:ml\.)?(?:trn|inf)\d[a-z0-9]*\.[a-z0-9]+(?=,|$)")
Group = dict[str, Any]


class TargetError(Exception):
    """Why there are no new targets, on one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Node(NamedTuple):
    name: str
    address: str
    node_type: str
    queue: str = ""
    gpus: int = 0
    neuron: bool = False


# A copy of visible() of module_utils/_host/text.py, which is not there where this runs; a unit test compares both.
def visible(line: str) -> str:
    """Return one line with each character that a terminal or browser obeys written out, as in \\x1b[2J or \\u202e.

    These are control characters (C0, DEL and C1, so line breaks too), separators of lines and paragraphs, overrides of
    the writing direction and other characters of no width.
    """
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def say(line: str, level: int = 4) -> None:
    """Print one line: a warning, unless it is less (5) or more (3). The journal is told so; a person is spared it."""
    print(visible(f"<{level}>" * ("JOURNAL_STREAM" in os.environ) + " ".join(line.split())), flush=True)


def shown(value: Any) -> str:
    """Write what somebody else has written, on one line and not too long."""
    return repr(str(value)[:60])


# What Slurm knows


def is_up(state: str) -> bool:
    """Say whether a node in this state of Slurm has booted and can be reached."""
    words = {word.rstrip("~#!%$@^-*") for word in state.split("+")}
    silent = "NOT_RESPONDING" in words or "*" in state
    return not words & AWAY and not (silent and words & LOST_WHEN_SILENT)


def queue_of(name: str, partitions: str) -> str:
    """Return the queue of a node: the partition for which ParallelCluster named it, else the first that it is in."""
    names = [part for part in partitions.split(",") if part and part != "(null)"]
    own = [part for part in names if name.startswith((f"{part}-st-", f"{part}-dy-"))]
    return max(own, key=len) if own else names[0] if names else ""


def gpus_of(gres: str) -> int:
    """Count the GPUs of a generic resource list such as gpu:h100:8(S:0-1),shard:8."""
    count = 0
    for part in re.sub(r"\([^()]*\)", "", gres).split(","):
        words = part.split(":")
        if words[0] == "gpu":
            count += int(words[-1]) if len(words) > 1 and re.fullmatch("[0-9]{1,9}", words[-1]) else 1
    return count


def address_of(text: str) -> str | None:
    """Return an address as it stands before a port; None for what is neither an address nor a host name."""
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(text)
        return f"[{found}]" if found.version == 6 else str(found)
    return text if NAME.fullmatch(text) else None


def parse_nodes(text: str) -> list[Node]:
    """Return the nodes that are up from the output of `scontrol -o show nodes`."""
    nodes = []
    for line in text.splitlines():
        fields: dict[str, str] = {}
        # The first of a kind counts: free text, such as a reason, stands at the end of the line.
        for key, value in re.findall(rf"(?:^|\s)({FIELDS})=(\S*)", line):
            fields.setdefault(key, value)
        name = fields.get("NodeName", "")
        if not name or not is_up(fields.get("State", "UNKNOWN*")):
            continue
        address = address_of(fields.get("NodeAddr", ""))
        if not NAME.fullmatch(name) or not address:
            say(f"node {shown(name)} has the address {shown(fields.get('NodeAddr'))}: it is left out")
            continue
        queue = queue_of(name, fields.get("Partitions", ""))
        neuron = bool(NEURON.search(fields.get("AvailableFeatures", "")))
        nodes.append(Node(name, address, "compute", queue, gpus_of(fields.get("Gres", "")), neuron))
    if "NodeName=" not in text and "No nodes" not in text:
        raise TargetError(f"scontrol names no node, it says {shown(text.strip())}")
    return nodes


def slurm_nodes(prefix: str, seconds: float) -> list[Node]:
    """Ask the controller for all nodes, those of hidden partitions included."""
    program = os.path.join(prefix, "bin/scontrol")
    path = f"{prefix}/bin:{prefix}/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    try:
        done = subprocess.run(
            [program, "-a", "-o", "show", "nodes"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
            env={**os.environ, "PATH": path, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise TargetError(f"{program} gave no answer within {seconds:g} s") from error
    except OSError as error:
        raise TargetError(f"{program} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[0]
        raise TargetError(f"{program} ended with {done.returncode}: {said}")
    return parse_nodes(done.stdout)


def neuron_addresses(path: str) -> set[str]:
    """Return the addresses of HyperPod's nodes with Neuron devices, by its list of instances; Slurm does not tell."""
    try:
        with open(path, encoding="utf-8") as stream:
            groups = json.load(stream)["InstanceGroups"]
        return {
            str(instance["CustomerIpAddress"])
            for group in groups
            if NEURON.fullmatch(group["InstanceType"])
            for instance in group.get("Instances") or ()
        }
    except OSError as error:
        raise TargetError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise TargetError(f"{path} is no list of instances: {error!r}") from error


def compute_nodes(prefix: str, seconds: float, instances: str) -> list[Node]:
    """Return the nodes that Slurm knows; `instances` is HyperPod's list of them, which tells more."""
    nodes = slurm_nodes(prefix, seconds)
    if not instances:
        return nodes
    told = neuron_addresses(instances)
    # A node without an address of its own in Slurm has its name in that place, which HyperPod makes of the address.
    told |= {"ip-" + address.replace(".", "-") for address in told}
    return [node._replace(neuron=node.neuron or node.address in told) for node in nodes]


# What login nodes say of themselves


@contextlib.contextmanager
def private(directory: str) -> Iterator[int]:
    """Open a folder into which nobody but us could have put something."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise TargetError(
                f"{directory} belongs to user {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):04o}; "
                f"needed: user {os.geteuid()}, mode 0700, so that nobody else can add targets"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def read_entry(directory: int, file: str, now: float, max_age: float) -> list[Node]:
    """Return the login node of one file; none when it is too old. ValueError says what is wrong with it."""
    # Not blocking: it could be a pipe.
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    with open(descriptor, "rb") as stream:
        raw = stream.read(LARGEST_ENTRY + 1)
    if len(raw) > LARGEST_ENTRY:
        raise ValueError(f"it is longer than {LARGEST_ENTRY} bytes")
    try:
        entry = json.loads(raw)
    except RecursionError:
        entry = None
    if not isinstance(entry, dict):
        raise ValueError("it is no object")
    name, written = entry.get("name"), entry.get("time")
    if not isinstance(name, str) or not NAME.fullmatch(name) or file != f"{name}.json":
        raise ValueError(f"the name {shown(name)} is not that of the file")
    if isinstance(written, bool) or not isinstance(written, (int, float)):  # NaN is no time near now
        raise ValueError(f"the time is {shown(written)}")
    if not now - max_age <= written <= now + max_age:
        return []
    address = ipaddress.ip_address(str(entry.get("address")))
    if address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified:
        raise ValueError(f"{address} is no address of a node")
    return [Node(name, str(address_of(str(address))), "login")]


def entries(options: argparse.Namespace) -> None:
    """Print the login nodes that have registered lately, and a line for each file that is not taken."""
    nodes, lines = [], []
    with contextlib.suppress(FileNotFoundError), private(options.directory) as directory:
        for file in sorted(os.listdir(directory)):
            if file.startswith(".") or not file.endswith(".json"):
                continue
            try:
                nodes += read_entry(directory, file, time.time(), options.max_age)
            except (OSError, ValueError) as error:
                lines.append(f"{options.directory}/{file} is left out: {error}")
    print(json.dumps({"nodes": nodes, "lines": lines}))


def login_nodes(directory: str, max_age: float, seconds: float, lock: str) -> list[Node]:
    """Read the entries in a process of its own, so that a shared file system that hangs does not stop the rest.

    That process keeps the lock for as long as it hangs, and no second one is started beside it.
    """
    holder = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child = subprocess.Popen(
            [sys.executable, "-I", os.path.abspath(__file__), "entries", directory, str(max_age)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[holder],
            cwd="/",
        )
        out, _err = child.communicate(timeout=seconds)
    except BlockingIOError as error:
        raise TargetError(f"{directory} still does not answer") from error
    except subprocess.TimeoutExpired as error:
        child.kill()  # and it is not waited for: it may not be killable
        raise TargetError(f"{directory} gave no answer within {seconds:g} s") from error
    finally:
        os.close(holder)
    try:
        answer = json.loads(out)
    except ValueError as error:
        said = (out.decode("utf-8", "replace").strip() or f"ended with {child.returncode}").splitlines()[-1]
        raise TargetError(said) from error
    for line in answer["lines"]:
        say(line)
    return [Node(*entry) for entry in answer["nodes"]]


# What Prometheus reads


def group_of(node: Node, cluster: str) -> Group:
    """Return a node as Prometheus' file discovery wants it. The port is each job's own affair."""
    labels = {
        "instance": node.name,
        "pc_cluster": cluster,
        "pc_node": node.name,
        "pc_node_type": node.node_type,
        # Not kept with the samples: only for a job to choose by.
        "__meta_pc_gpus": str(node.gpus),
        "__meta_pc_neuron": str(node.neuron).lower(),
    }
    if node.queue:
        labels["pc_queue"] = node.queue
    return {"targets": [node.address], "labels": labels}


def names_of(groups: Iterable[Mapping[str, Any]]) -> set[str]:
    return {str(group["labels"]["pc_node"]) for group in groups}


def listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def read_groups(path: str) -> list[Group]:
    """Return what was written last; nothing when there is none, or when it is no longer whole."""
    try:
        with open(path, encoding="utf-8") as stream:
            groups = json.load(stream)
    except (OSError, ValueError, RecursionError):
        return []
    return groups if isinstance(groups, list) and all(map(is_group, groups)) else []


def is_group(group: Any) -> bool:
    """Say whether this is what group_of() makes."""
    labels, addresses = (group.get("labels"), group.get("targets")) if isinstance(group, dict) else (None, None)
    named = isinstance(labels, dict) and all(isinstance(labels.get(key), str) for key in ("pc_node", "pc_node_type"))
    return named and isinstance(addresses, list) and all(isinstance(one, str) for one in addresses)


def put(path: str, text: str, mode: int) -> None:
    """Put a file in place in one step."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    os.rename(temporary, path)


def render(options: argparse.Namespace) -> None:
    """Write the file that Prometheus watches, if something in it changed.

    What a source no longer tells stays as it was last told, and the others are still followed.
    """
    before = read_groups(options.output)
    nodes = [Node(socket.gethostname().split(".")[0], options.head_address, "head")]
    sources = {"compute": lambda: compute_nodes(options.slurm, options.timeout, options.instances)}
    if options.registrations:
        lock = os.path.join(os.path.dirname(options.output), ".registrations.lock")
        sources["login"] = lambda: login_nodes(options.registrations, options.max_age, options.timeout, lock)
    failures = {}
    for node_type, ask in sources.items():
        try:
            nodes += ask()
        except TargetError as error:
            failures[node_type] = f"{error}: the {node_type} nodes stay as they were"
    # On HyperPod Slurm knows login nodes too, as nodes like all others.
    logins = {word for node in nodes if node.node_type == "login" for word in (node.name, node.address)}
    nodes = [node for node in nodes if node.node_type == "login" or not {node.name, node.address} & logins]
    groups = [group_of(node, options.cluster) for node in nodes]
    groups += [group for group in before if group["labels"].get("pc_node_type") in failures]
    update(options.output, before, groups)
    if "login" in failures:
        say(failures["login"])
    if "compute" in failures:
        raise TargetError(failures["compute"])


def update(path: str, before: list[Group], groups: list[Group]) -> None:
    """Write the targets if they are others than before, and say what changed."""
    groups.sort(key=lambda group: (group["labels"]["pc_node_type"], group["labels"]["pc_node"], group["targets"]))
    if groups == before:
        return
    put(path, json.dumps(groups, indent=1, sort_keys=True) + "\n", 0o644)
    came, went = sorted(names_of(groups) - names_of(before)), sorted(names_of(before) - names_of(groups))
    parts = [f"{word} {listed(names)}" for word, names in (("new:", came), ("gone:", went)) if names]
    say(f"{len(groups)} targets; {'; '.join(parts) or 'an address or a label changed'}", 5)


# A login node's own part


def is_mounted(path: str) -> bool:
    """Say whether a file system is mounted there now. An automount is asked to appear first."""
    with contextlib.suppress(OSError):
        os.stat(os.path.join(path, "."))
    # A user may mount by FUSE at any path, and the kernel escapes no other blank and no other end of a line than these.
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        mounts = [line.split(" ") for line in stream]
    points = {fields[1].replace("\\040", " ") for fields in mounts if fields[2] != "autofs"}
    return os.path.normpath(path) in points


def own_address(toward: str) -> str:
    """Return the address from which this node would speak to another. Nothing is sent."""
    family = socket.AF_INET6 if ":" in toward else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((toward, 9))
        return str(probe.getsockname()[0])


def register(options: argparse.Namespace) -> None:
    """Leave this node's name and address, and clear away those of nodes that are long gone."""
    if options.mount and not is_mounted(options.mount):
        raise TargetError(f"{options.mount} is not mounted: this login node is not registered for its metrics")
    directory = options.directory
    os.makedirs(os.path.dirname(directory), mode=0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    with private(directory) as descriptor:
        name = socket.gethostname().split(".")[0]
        entry = {"name": name, "address": own_address(options.toward), "time": int(time.time())}
        own = f"{name}.json"
        put(os.path.join(directory, own), json.dumps(entry) + "\n", 0o600)
        # Both times come from the clock of the file server.
        now = os.stat(own, dir_fd=descriptor).st_mtime
        for file in os.listdir(descriptor):
            with contextlib.suppress(FileNotFoundError):
                if now - os.stat(file, dir_fd=descriptor, follow_symlinks=False).st_mtime > options.forget:
                    os.unlink(file, dir_fd=descriptor)


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The nodes that Prometheus scrapes.")
    steps = parser.add_subparsers(required=True, metavar="STEP")

    step = steps.add_parser("render", help="on the head node: write the file that Prometheus watches")
    step.add_argument("--slurm", default="/opt/slurm", help="where Slurm is installed (default: %(default)s)")
    step.add_argument("--instances", default="", help="HyperPod's list of instances, by their types")
    step.add_argument("--cluster", required=True, help="the label pc_cluster of every target")
    step.add_argument("--head-address", default="127.0.0.1", help="where the head node is scraped")
    step.add_argument("--output", required=True, help="the file to write")
    step.add_argument("--registrations", default="", help="the folder in which login nodes register")
    step.add_argument("--max-age", type=float, default=250, help="seconds after which a registration is void")
    step.add_argument("--timeout", type=float, default=10, help="seconds that each source has to answer")
    step.set_defaults(step=render)

    step = steps.add_parser("register", help="on a login node: leave its address")
    step.add_argument("--directory", required=True, help="the folder in which login nodes register")
    step.add_argument("--mount", default="", help="a mount point that must be mounted")
    step.add_argument("--toward", default="192.0.2.1", help="the address of the head node")
    step.add_argument("--forget", type=float, default=86400, help="seconds after which others' files are removed")
    step.set_defaults(step=register)

    step = steps.add_parser("entries", help="print the registered login nodes, for `render`")
    step.add_argument("directory")
    step.add_argument("max_age", type=float)
    step.set_defaults(step=entries)
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    os.umask(0o022)
    try:
        options.step(options)
    except (OSError, TargetError) as error:
        say(str(error), 3)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
