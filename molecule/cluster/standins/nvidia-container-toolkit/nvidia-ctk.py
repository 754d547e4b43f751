#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for NVIDIA's nvidia-ctk, for the sandbox.

It has the same commands, files, messages and exit codes where the collection touches it. What NVML would tell it,
nvidia-smi does. Not here: containerd and cri-o, libraries in the CDI specification, `hook`, `info`, and of `system` all
but `create-device-nodes`.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

VERSION = "@VERSION@"
CONFIG_FILE = "/etc/nvidia-container-runtime/config.toml"
SPEC_DIRS = ("/etc/cdi", "/var/run/cdi")
CONTROL_DEVICES = ("/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")
quiet = False

DEFAULT_CONFIG = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
environment = []
ldconfig = "@{ldconfig}"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""


class Failure(Exception):
    """What ends the program with exit code 1."""


def log(level: str, message: str) -> None:
    if level == "error" or not quiet:
        print(f'level={level} msg="{message}"', file=sys.stderr)


def info(message: str) -> None:
    log("info", message)


def runtime_configure(arguments: argparse.Namespace) -> None:
    if arguments.runtime not in ("docker", "containerd", "crio"):
        raise Failure(f"unrecognized runtime '{arguments.runtime}'")
    if arguments.runtime != "docker":
        raise Failure(f"the stand-in can not configure {arguments.runtime}")
    path = Path(arguments.config)
    try:
        config = read_daemon_json(path)
    except (OSError, ValueError) as error:
        raise Failure(f"unable to load config for runtime docker: {error}") from error
    # Another's runtimes stay, and the one of this name is written anew.
    runtimes = config.setdefault("runtimes", {})
    runtimes[arguments.name] = {"args": [], "path": arguments.path}
    if arguments.default:
        config["default-runtime"] = arguments.name
    if arguments.cdi:
        # The real program, too, loses other features that were set.
        config["features"] = {"cdi": True}
    text = json.dumps(config, indent=4, sort_keys=True)
    if arguments.dry_run:
        print(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    info(f"Wrote updated config to {path}")
    info("It is recommended that docker daemon be restarted.")


def read_daemon_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        info("Config file does not exist; using empty config")
        return {}
    info(f"Loading config from {path}")
    text = path.read_text()
    if not text.strip():
        raise ValueError("EOF")
    config = json.loads(text)
    if not isinstance(config, dict):
        raise ValueError("json: cannot unmarshal into Go value of type docker.Config")
    return config


def gpus() -> list[dict[str, str]]:
    """Index and UUID of each GPU, or a Failure without a driver."""
    query = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failure(
            "failed to generate CDI spec: failed to create device CDI specs: failed to initialize NVML: "
            + ("Driver Not Loaded" if isinstance(error, subprocess.CalledProcessError) else "ERROR_LIBRARY_NOT_FOUND")
        ) from error
    return [dict(zip(("index", "uuid"), line.split(", "))) for line in lines.splitlines()]


def specification(vendor: str, kind: str, strategies: list[str]) -> dict[str, Any]:
    found = gpus()
    devices = [
        {"name": gpu[strategy], "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{gpu['index']}"}]}}
        for gpu in found
        for strategy in strategies
    ]
    every = [{"path": f"/dev/nvidia{gpu['index']}"} for gpu in found]
    devices.append({"name": "all", "containerEdits": {"deviceNodes": every}})
    common = {
        "deviceNodes": [{"path": path} for path in CONTROL_DEVICES if os.path.exists(path)],
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "mounts": [
            {
                "containerPath": "/usr/bin/nvidia-smi",
                "hostPath": "/usr/bin/nvidia-smi",
                "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
            }
        ],
    }
    return {"cdiVersion": "0.5.0", "containerEdits": common, "devices": devices, "kind": f"{vendor}/{kind}"}


def yaml(value: Any, indent: str = "") -> str:
    """The little of YAML that a specification needs."""
    lines = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            lines.append(f"{indent}{key}:\n{yaml(inner, indent + '    ')}")
        elif isinstance(inner, list):
            lines.append(f"{indent}{key}:")
            for item in inner:
                text = yaml(item, indent + "      ") if isinstance(item, dict) else f"{indent}      {item}"
                lines.append(f"{indent}    - {text.lstrip()}")
        else:
            lines.append(f"{indent}{key}: " + (f'"{inner}"' if str(inner).isdigit() else str(inner)))
    return "\n".join(lines)


def cdi_generate(arguments: argparse.Namespace) -> None:
    strategies = arguments.strategy or ["index", "uuid"]
    if unknown := set(strategies) - {"index", "uuid"}:
        raise Failure(f"failed to generate CDI spec: failed to create device namer: the stand-in has no {unknown}")
    spec = specification(arguments.vendor, arguments.kind, strategies)
    text = json.dumps(spec) + "\n" if arguments.format == "json" else f"---\n{yaml(spec)}\n"
    if not arguments.output:
        print(text, end="")
        return
    path = Path(arguments.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)
    info(f"Generated CDI spec with version {spec['cdiVersion']}")


def create_device_nodes(arguments: argparse.Namespace) -> None:
    """A node is a second /dev/null, as those of the sandbox's GPUs are; one that is there stays."""
    for path in CONTROL_DEVICES if arguments.control_devices else ():
        if not os.path.exists(path):
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            os.chmod(path, 0o666)


def cdi_list(arguments: argparse.Namespace) -> None:
    # As cache.go of container-device-interface v1.1.0: two files of one directory hide a device that both name.
    names: set[str] = set()
    hidden: set[str] = set()
    errors: list[str] = []
    for folder in arguments.spec_dir or SPEC_DIRS:
        owners: dict[str, str] = {}
        for name in sorted(glob.glob(f"{folder}/*.yaml") + glob.glob(f"{folder}/*.json")):
            text = Path(name).read_text()
            if name.endswith(".json"):
                spec = json.loads(text)
                kind, found = spec["kind"], [device["name"] for device in spec["devices"]]
            else:
                # Written by `yaml`, above.
                kind = re.findall(r"^kind: (.+)$", text, re.MULTILINE)[0]
                found = re.findall(r'^\s+- name: "?([^"\n]+)"?$', text, re.MULTILINE)
            for device in (f"{kind}={device}" for device in found):
                if (first := owners.setdefault(device, name)) != name:
                    hidden.add(device)
                    told = f'[conflicting device \\"{device}\\" (specs \\"{first}\\", \\"{name}\\")]'
                    errors += [f"{first}: {told}", f"{name}: {told}"]
            names |= set(owners)
    names -= hidden
    if errors:
        log("warning", "The following registry errors were reported:")
    for error in errors:
        log("warning", error)
    info(f"Found {len(names)} CDI devices")
    for device in sorted(names):
        print(device)


def config(arguments: argparse.Namespace) -> None:
    path = Path(arguments.config_file)
    ldconfig = next((p for p in ("/sbin/ldconfig.real", "/sbin/ldconfig") if os.path.exists(p)), "/sbin/ldconfig")
    text = path.read_text() if path.exists() else DEFAULT_CONFIG.format(ldconfig=ldconfig)
    for setting in arguments.set or []:
        text = set_value(text, *setting.partition("=")[::2])
    if not arguments.in_place and not arguments.output:
        print(text, end="")
        return
    target = path if arguments.in_place else Path(arguments.output)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def set_value(text: str, dotted: str, value: str) -> str:
    """The configuration with one key set. A key that it does not have, not even as a comment, is refused."""
    section, _, key = dotted.rpartition(".")
    value = value or "true"
    value = value if value in ("true", "false") or value.startswith("[") else json.dumps(value)
    at, lines = "", text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("["):
            at = line.strip("[]")
        elif at == section and re.match(rf"#?{re.escape(key)} = ", line):
            lines[number] = f"{key} = {value}"
            return "\n".join(lines) + "\n"
    raise Failure(f"invalid --set option {dotted}: invalid config option: undefined field")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="nvidia-ctk", description=__doc__, allow_abbrev=False)
    top.add_argument("--version", "-v", action="version", version=f"NVIDIA Container Toolkit CLI version {VERSION}")
    top.add_argument("--quiet", action="store_true")
    top.add_argument("--debug", "-d", action="store_true")
    commands = top.add_subparsers(dest="command", required=True)

    runtime = commands.add_parser("runtime").add_subparsers(dest="sub", required=True)
    configure = runtime.add_parser("configure", allow_abbrev=False)
    configure.set_defaults(run=runtime_configure)
    configure.add_argument("--runtime", default="docker")
    configure.add_argument("--config", default="/etc/docker/daemon.json")
    configure.add_argument("--dry-run", action="store_true")
    configure.add_argument("--nvidia-runtime-name", dest="name", default="nvidia")
    configure.add_argument("--nvidia-runtime-path", "--runtime-path", dest="path", default="nvidia-container-runtime")
    configure.add_argument("--nvidia-set-as-default", "--set-as-default", dest="default", action="store_true")
    configure.add_argument("--cdi.enabled", "--cdi.enable", "--enable-cdi", dest="cdi", action="store_true")

    cdi = commands.add_parser("cdi").add_subparsers(dest="sub", required=True)
    generate = cdi.add_parser("generate", allow_abbrev=False)
    generate.set_defaults(run=cdi_generate)
    generate.add_argument("--output", default=os.environ.get("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH", ""))
    generate.add_argument("--format", choices=("yaml", "json"), default="yaml")
    generate.add_argument("--mode", default="auto")
    generate.add_argument("--device-name-strategy", dest="strategy", action="append")
    generate.add_argument("--vendor", default="nvidia.com")
    generate.add_argument("--class", dest="kind", default="gpu")
    listing = cdi.add_parser("list", allow_abbrev=False)
    listing.set_defaults(run=cdi_list)
    listing.add_argument("--spec-dir", action="append")

    system = commands.add_parser("system").add_subparsers(dest="sub", required=True)
    nodes = system.add_parser("create-device-nodes", allow_abbrev=False)
    nodes.set_defaults(run=create_device_nodes)
    nodes.add_argument("--control-devices", action="store_true")
    nodes.add_argument("--load-kernel-modules", action="store_true")

    settings = commands.add_parser("config", allow_abbrev=False)
    settings.set_defaults(run=config)
    settings.add_argument("--config-file", "--config", "-c", default=CONFIG_FILE)
    settings.add_argument("--set", action="append")
    settings.add_argument("--in-place", "-i", action="store_true")
    settings.add_argument("--output", "-o", default="")
    return top


def main() -> int:
    global quiet
    arguments = parser().parse_args()
    quiet = arguments.quiet
    try:
        arguments.run(arguments)
    except Failure as failure:
        log("error", str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
