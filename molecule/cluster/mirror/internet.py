# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Upstream's own releases in the sandbox's mirror (SANDBOX_SOURCES=internet), in place of what the sites/ make.

The product's own job, the playbook `mirror`, fetches what the roles pin and verifies it, into the directory that has
the stand-ins' files at the same places. Repositories of packages are no pinned files: the mirror's nginx passes them
on, and the nodes verify them by the keys that the roles name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
import pins

ROOT = Path(__file__).resolve().parents[3]

# What runs without a GPU and without a module for the kernel. DCGM, NVIDIA's toolkit, the EFA installer, aws-ofi-nccl
# and nccl-tests stay stand-ins; Amazon Linux's repository stays the sandbox's own.
COMPONENTS = (
    "alertmanager",
    "cloudwatch_agent",
    "enroot",
    "node_exporter",
    "prometheus",
    "pyxis",
    "slurm_exporter",
)
# By component, the sites of packages that the mirror passes on.
SITES = {"docker": ("download.docker.com",), "grafana": ("apt.grafana.com", "rpm.grafana.com")}

PASSED_ON = """\
location /{site}/ {{
  proxy_pass {origin}/;
  proxy_set_header Host {site};
  proxy_ssl_name {site};
  proxy_ssl_server_name on;
  proxy_ssl_verify on;
  proxy_ssl_verify_depth 4;
  proxy_ssl_trusted_certificate /etc/ssl/certs/ca-certificates.crt;
  proxy_max_temp_file_size 0;
}}
"""


def fill(
    mirror: Path, machine: str, root: Path = ROOT, components: Sequence[str] = COMPONENTS, ask: Sequence[str] = ()
) -> list[str]:
    """Put the pinned releases into the mirror's directory, and return what is new there.

    The mirrors of `ask` are asked before the publishers.
    """
    fetch(mirror, machine, root, components, ask)
    told = json.loads((mirror / "pins.json").read_text())
    real = {name: {**told.get(name, {}), **pinned(root / "roles" / name, machine)} for name in (*components, *SITES)}
    write(mirror / "sites.conf", "".join(passed_on(site) for sites in SITES.values() for site in sites))
    new = [f"{name} {one['version']}".rstrip() for name, one in sorted(real.items()) if told.get(name) != one]
    write(mirror / "pins.json", json.dumps({**told, **real}, indent=2, sort_keys=True) + "\n")
    return new


def fetch(mirror: Path, machine: str, root: Path, components: Sequence[str], ask: Sequence[str]) -> None:
    """Run the playbook `mirror` of a checkout."""
    wanted = {
        "mirror_dir": str(mirror),
        "mirror_components": list(components),
        "mirror_architectures": [machine],
        "mirror_from": list(ask),
    }
    program = ["ansible-playbook", "--inventory", "localhost,", "--connection", "local", "pcluster.postboot.mirror"]
    line = [*program, "--extra-vars", json.dumps({**wanted, "ansible_python_interpreter": sys.executable})]
    config = {"ANSIBLE_CONFIG": str(ROOT / "inventory/ansible.cfg")}
    told = {**os.environ, **config, "ANSIBLE_COLLECTIONS_PATH": str(root / ".venv/collections")}
    done = subprocess.run(line, env=told, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"SANDBOX_SOURCES=internet: upstream's files could not be fetched: {done.stdout.strip()}")


def pinned(role: Path, machine: str) -> dict[str, Any]:
    """What a role pins for a machine, as pins.json has it: an unknown hash is empty, as in the role."""
    found, variables = pins.pins_of(role)
    told: dict[str, Any] = {"version": str(variables[f"{role.name}_version"])}
    if f"{role.name}_key_fingerprints" in variables:
        told["key_fingerprints"] = variables[f"{role.name}_key_fingerprints"]
    hashes = {
        pin.variable[len(role.name) : -len("_sha256")].lstrip("_"): pin.recorded
        for pin in found
        if pin.architecture in (machine, "noarch")
    }
    return {**told, "sha256": hashes.get("", hashes)} if hashes else told


def passed_on(site: str, origin: str = "") -> str:
    """nginx's part for a site whose files come from upstream each time."""
    return PASSED_ON.format(site=site, origin=origin or f"https://{site}")


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)
