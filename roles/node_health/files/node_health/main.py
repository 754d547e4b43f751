# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look at the node once, and write down what was found: a state, metrics, and a copy of the state for the head node."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any, Callable

from . import children, fabric, gpus, kernel_log, services, slow, storage
from .look import Hangs, Look

HELP = """usage: node-health [--config=FILE] [--kmsg=FILE] [--root=FOLDER] [--forget | --check | --help]

Looks at this node's health, and writes state.json and memory.json into the folder that the configuration names,
node_health.prom for node_exporter, and a copy of the state for the head node.

--config=FILE  what the node should have (default: /etc/pcluster-postboot/node-health.json)
--kmsg=FILE    the kernel's log, or a file in its format (default: /dev/kmsg)
--root=FOLDER  look at the files below a folder
--forget       forget what the kernel's log has said so far, as after a GPU was reset; then look
--check        only read the configuration
"""
BOOT = "/proc/sys/kernel/random/boot_id"
SHARED = "pcluster-postboot/health/nodes"  # below Slurm's folder, which the head node shares
SHARE_EVERY = 300.0
STEP = 1.0  # seconds; what two clocks differ by beyond that is a step of one of them
NEEDED = ("node", "gpus", "efa", "classes", "state", "textfiles", "page", "interval")


def _checks(kmsg: str) -> dict[str, Callable[[Look], None]]:
    """Return the checks by their names, in their order: the kernel's log has addresses of GPUs that are known then."""
    fabric_slow = (fabric.provider, services.clock, services.gdrdrv, services.pyxis)
    return {
        "gpus": gpus.check,
        "kernel_log": lambda look: kernel_log.check(look, kmsg),
        "gpu_xids": gpus.xids_of_page,
        "efa": fabric.check,
        "mounts": storage.check,
        "slurmd": services.slurmd,
        "programs": lambda look: slow.run(look, fabric_slow),
    }


def _alarm(_number: int, _frame: Any) -> None:
    raise Hangs("the check did not end")


def _limit(name: str, patience: float) -> float:
    """Return the seconds that a check may take, which are more than all that it asks may take together."""
    return 2 * max(patience, slow.LONGEST) + 2 * patience + 10 if name == "programs" else 3 * patience + 5


def longest(patience: float) -> float:
    """Return the seconds that a look may take, with the copy at its end; its unit allows more (TimeoutStartSec)."""
    return sum(_limit(name, patience) for name in _checks("")) + patience + 1


def look_once(look: Look, kmsg: str) -> None:
    """Run the checks. One that hangs or fails does not keep the others from looking."""
    signal.signal(signal.SIGALRM, _alarm)
    for name, check in _checks(kmsg).items():
        limit = _limit(name, look.patience)
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            check(look)
        except Hangs as error:
            look.skip(name, f"{error} within {limit:g} s")
            look.find("check_hangs", f"{error} within {limit:g} s", name)
        except Exception as error:
            look.skip(name, f"{type(error).__name__}: {error}")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def state(look: Look) -> dict[str, Any]:
    """Return what the head node reads: schema 1."""
    settings = look.settings
    return {
        "schema": 1,
        "node": settings["node"],
        "instance_id": settings["instance_id"],
        "instance_type": settings["instance_type"],
        "boot_id": look.text(BOOT).strip(),
        "time": round(look.now + look.ahead, 3),
        "gpus": sorted(look.remembered("gpus")),
        "findings": [{**one, "since": round(one["since"] + look.ahead, 3)} for one in look.result()],
        "skipped": dict(sorted(look.skipped.items())),
    }


def metrics(found: dict[str, Any], seconds: float) -> str:
    """Return the state as metrics, one series for each kind of finding."""
    kinds = sorted({(one["finding"], one["class"]) for one in found["findings"]})
    series = (
        (
            "finding",
            "What is wrong with the node",
            [(f'{{finding="{name}",class="{kind}"}}', 1) for name, kind in kinds],
        ),
        ("skipped", "A check that could not look", [(f'{{check="{check}"}}', 1) for check in found["skipped"]]),
        ("check_timestamp_seconds", "When the node was last looked at", [("", found["time"])]),
        ("check_seconds", "How long the last look took", [("", round(seconds, 3))]),
    )
    lines = []
    for name, text, values in series:
        name = f"pcluster_node_health_{name}"
        lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
        lines += [f"{name}{labels} {value}" for labels, value in values]
    return "\n".join(lines) + "\n"


def put(path: str, text: str, mode: int = 0o644) -> None:
    """Put a file in place whole: whoever reads it finds the old one or the new one."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        os.fchmod(descriptor, mode)
    os.rename(temporary, path)


def share(look: Look, found: dict[str, Any]) -> None:
    """Put a copy of the state where the head node reads it, when the findings have changed, and now and then."""
    slurm = look.settings["slurm"]
    told = [[one["finding"], one["class"], one["subject"], one["since"]] for one in look.result()]
    last = look.remembered("shared")
    if not slurm or not look.settings["node"]:
        return
    if last.get("told") == told and 0 <= look.now - last["at"] < SHARE_EVERY:
        return
    folder, text = f"{look.root}{slurm}/{SHARED}", json.dumps(found) + "\n"

    def write(_question: str) -> str:
        # Before the share is mounted the copy would lie on the disk, and be hidden by the mount.
        if not look.exists(f"{slurm}/bin/scontrol"):
            return f"{slurm} has no bin/scontrol, so nothing is mounted there"
        try:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            put(f"{folder}/{look.settings['node']}.json", text)
        except OSError as error:
            return f"{folder}: {error.strerror}"
        return ""

    answers, hangs = children.ask(look, ["shared copy"], write)
    why = hangs.get("shared copy") or answers.get("shared copy")
    if why:
        print(f"the head node is not told: {why}", file=sys.stderr)
    else:
        look.memory["shared"] = {"told": told, "at": look.now}


def read_settings(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as stream:
        settings: dict[str, Any] = json.load(stream)
    missing = [name for name in NEEDED if name not in settings]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    return settings


def read_memory(path: str, boot: str) -> dict[str, Any]:
    """Return what earlier looks of this boot have kept."""
    try:
        with open(path, encoding="utf-8") as stream:
            memory = json.load(stream)
    except (OSError, ValueError):
        memory = {}
    return memory if isinstance(memory, dict) and memory.get("boot") == boot else {"boot": boot}


def forget(memory: dict[str, Any]) -> None:
    memory["kernel"] = {**memory.get("kernel", {}), "events": []}
    for key in ("gpus", "nvlink", "slow"):
        memory.pop(key, None)


def boot_clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def run(
    settings: dict[str, Any],
    root: str,
    kmsg: str,
    forgetting: bool = False,
    now: Callable[[], float] = time.time,
    up: Callable[[], float] = boot_clock,
) -> dict[str, Any]:
    """Look once, and write down what was found; return the state."""
    begun = time.monotonic()
    folder = root + settings["state"]
    memory = read_memory(f"{folder}/memory.json", Look(settings, {}, root).text(BOOT).strip())
    # All times of the memory are by the boot clock, from where the other clock was at the first look of this boot.
    booted = memory.setdefault("booted", now() - up())

    def steady() -> float:
        return float(booted + up())

    if forgetting:
        kernel_log.check(Look(settings, memory, root, steady), kmsg)  # what the log has said is read, and forgotten
        forget(memory)
    look = Look(settings, memory, root, steady)
    ahead = now() - look.now
    look.ahead = ahead if abs(ahead) > STEP else 0.0

    def save() -> None:
        put(f"{folder}/memory.json", json.dumps(memory) + "\n", 0o600)

    look.save = save
    look_once(look, kmsg)
    found = state(look)
    share(look, found)
    put(f"{folder}/state.json", json.dumps(found) + "\n")
    save()
    put(f"{root}{settings['textfiles']}/node_health.prom", metrics(found, time.monotonic() - begun))
    return found


def main(words: list[str]) -> int:
    options = {"--config": "/etc/pcluster-postboot/node-health.json", "--kmsg": "/dev/kmsg", "--root": ""}
    flags = set()
    for word in words:
        name, is_option, value = word.partition("=")
        if is_option and name in options:
            options[name] = value
        elif word in ("--forget", "--check", "--help"):
            flags.add(word)
        else:
            print(f"node-health: {word} is no option of this program; see --help", file=sys.stderr)
            return 2
    if "--help" in flags:
        print(HELP, end="")
        return 0
    try:
        settings = read_settings(options["--config"])
    except (OSError, ValueError) as error:
        print(f"node-health: {options['--config']}: {error}", file=sys.stderr)
        return 2
    if "--check" in flags:
        return 0
    try:
        run(settings, options["--root"], options["--kmsg"], "--forget" in flags)
    except OSError as error:
        print(f"node-health: {error}", file=sys.stderr)
        return 1
    return 0
