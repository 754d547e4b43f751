#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for NVIDIA's nvidia-container-runtime, for the sandbox.

It adds to a container the GPUs that its environment asks for, and runs runc.

Not here: other modes than this one, requests by volume mounts, NVIDIA_DRIVER_CAPABILITIES.
"""

from __future__ import annotations

import glob
import json
import os
import stat
import subprocess
import sys
from typing import Any

VERSION = "@VERSION@"
CONTROL_DEVICES = ("/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")


def option(name: str, default: str = "") -> str:
    """The value of one of runc's options on this command line."""
    for at, word in enumerate(sys.argv):
        if word == name and at + 1 < len(sys.argv):
            return sys.argv[at + 1]
        if word.startswith(name + "="):
            return word.partition("=")[2]
    return default


def fail(message: str) -> None:
    """Write the reason where runc would, so that Docker shows it, and end."""
    if log := option("--log"):
        with open(log, "a") as file:
            file.write(json.dumps({"level": "error", "msg": message, "time": "1970-01-01T00:00:00Z"}) + "\n")
    sys.exit(f"nvidia-container-runtime: {message}")


def requested(config: dict[str, Any]) -> str:
    words = [word.partition("=") for word in config.get("process", {}).get("env") or []]
    return next((value for name, _, value in reversed(words) if name == "NVIDIA_VISIBLE_DEVICES"), "")


def device_paths(wanted: str) -> list[str]:
    if wanted == "none":
        return []
    query = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        fail("failed to construct OCI spec modifier: failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND")
    paths = {}
    for line in lines.splitlines():
        index, uuid = line.split(", ")
        paths[index] = paths[uuid] = f"/dev/nvidia{index}"
    if wanted == "all":
        return sorted(set(paths.values()))
    names = [name.rpartition("=")[2] for name in wanted.split(",")]
    if unknown := [name for name in names if name not in paths]:
        fail(f"failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu={unknown[0]}")
    return [paths[name] for name in names]


def add(config: dict[str, Any], paths: list[str]) -> None:
    linux = config.setdefault("linux", {})
    allowed = linux.setdefault("resources", {}).setdefault("devices", [])
    devices = linux.setdefault("devices", [])
    there = {device["path"] for device in devices}
    for path in paths:
        number = os.stat(path).st_rdev
        device = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if path not in there:
            devices.append({"path": path, **device, "fileMode": mode})
        allowed.append({"allow": True, **device, "access": "rwm"})
    for source in glob.glob("/usr/bin/nvidia-smi"):
        mount = {"destination": source, "source": source, "type": "bind"}
        config.setdefault("mounts", []).append({**mount, "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"]})


def main() -> None:
    if sys.argv[1:2] == ["--version"]:
        print(f"NVIDIA Container Runtime version {VERSION}", flush=True)
    if "create" in sys.argv:
        path = os.path.join(option("--bundle", option("-b", ".")), "config.json")
        with open(path) as file:
            config = json.load(file)
        wanted = requested(config)
        if wanted not in ("", "void"):
            add(config, device_paths(wanted) + [path for path in CONTROL_DEVICES if os.path.exists(path)])
            with open(path, "w") as file:
                json.dump(config, file)
    os.execvp("runc", ["runc", *sys.argv[1:]])


if __name__ == "__main__":
    main()
