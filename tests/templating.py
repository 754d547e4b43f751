# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What roles make of the facts of a node, with Ansible's own templating, for tests and benchmarks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.pcluster.postboot.plugins.action import check_variables

ROLES = Path(__file__).resolve().parents[1] / "roles"
# What a test says nothing of: a head node without devices, where /fsx is mounted.
NODE: dict[str, Any] = {
    "architecture": "x86_64",
    "cluster": "main",
    "efa": {"count": 0, "pci_count": 0},
    "exporter_ports": [],
    "glibc": "2.39",
    "go_architecture": "amd64",
    "gpu_jobs_dir": None,
    "gpus": {"count": 0},
    "image_build": False,
    "instance_types": {},
    "mounts": {"wanted": [], "found": [{"path": "/fsx"}], "missing": []},
    "neuron": {"devices": 0, "cores": 0, "driver": None, "tools": None},
    "node_name": "ip-10-0-0-5",
    "node_type": "head",
    "os": {"family": "debian", "id": "ubuntu"},
    "platform": "parallelcluster",
    "queue": None,
    "scratch": None,
    "slurm": {"prefix": "/opt/slurm"},
    "vpc": None,
}


@functools.cache
def _variables(role: str) -> dict[str, Any]:
    """Return the defaults and the internal variables of a role, which are read once."""
    found: dict[str, Any] = {}
    for path in (ROLES / role / part / "main.yml" for part in ("defaults", "vars")):
        found.update((yaml.safe_load(path.read_text()) or {}) if path.exists() else {})
    return {name: check_variables._trusted(value) for name, value in found.items()}


def work_out(roles: str, facts: dict[str, Any], **variables: Any) -> Callable[[str], Any]:
    """work_out("common enroot", facts, **variables) returns a function that works out what its argument names.

    That is a variable or an expression, a text with templates, or a file in templates/ of the last role.
    The facts are those of NODE, unless the test says otherwise.
    """
    given = {"ansible_managed": "Managed.", **variables, "ansible_facts": {"pcluster": {**NODE, **facts}}}
    everything: dict[str, Any] = {}
    for role in roles.split():
        everything.update(_variables(role))
    everything.update({name: check_variables._trusted(value) for name, value in given.items()})
    templar = Templar(loader=DataLoader(), variables=everything)

    def value(name: str) -> Any:
        if name.endswith(".j2"):
            name = (ROLES / role / "templates" / name).read_text()
        text = name if "{{" in name or "\n" in name else "{{ " + name + " }}"
        return templar.template(check_variables._trusted(text))

    return value
