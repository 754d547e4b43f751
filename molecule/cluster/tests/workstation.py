# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A workstation that reaches the sandbox's nodes as users do, by the options of the inventory plugin.

Of the sandbox it has the endpoint and the credentials of AWS, a key and known hosts in an SSH configuration, and the
variables for roles. session-manager-plugin is a stand-in, the AWS CLI is AWS's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

SCENARIO = Path(__file__).resolve().parent.parent
STATE = SCENARIO.parent.parent / ".sandbox"
CONNECTIONS = ("ssh", "ssh_via_head", "ssh_over_ssm", "ssm")
KEYS = """\
IdentityFile {state}/ssh/id
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking accept-new
LogLevel ERROR
"""


class Workstation:
    """Inventories in a folder, one for each connection, and the environment in which programs are run."""

    def __init__(self, folder: Path, bucket: str) -> None:
        self.folder, self.bucket = folder, bucket
        keys = folder / "ssh_config"
        keys.write_text(KEYS.format(state=STATE, folder=folder))
        self.variables = {"sandbox_state": str(STATE), "ansible_ssh_extra_args": f"-F {keys}"}
        programs = [
            SCENARIO / "standins/session-manager-plugin",
            *sorted((STATE / "cache").glob("awscli-*/bin")),
            Path(sys.executable).parent,
        ]
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
            "AWS_DEFAULT_REGION": "us-east-1",
            # Connections that stay open would be sessions that stay, too.
            "ANSIBLE_SSH_ARGS": "-C -o ControlMaster=auto -o ControlPersist=5s",
        }

    def inventory(self, connection: str, **options: Any) -> Path:
        """Write the inventory that a user of this connection has, and return its folder."""
        folder = self.folder / connection
        folder.mkdir(exist_ok=True)
        plain = {"plugin": "pcluster.postboot.pcluster", "regions": ["us-east-1"], "clusters": ["main", "el"]}
        plain.update(hostnames=["tag:sandbox:name"], connection=connection)
        needed = {"bucket": self.bucket} if connection == "ssm" else {}
        (folder / "my.pcluster.yml").write_text(yaml.safe_dump({**plain, **needed, **options}))
        if not (folder / "group_vars").exists():
            (folder / "group_vars").symlink_to(SCENARIO / "inventory/group_vars")
        return folder

    def command(self, connection: str, name: str, *arguments: str, **options: Any) -> list[str]:
        """The command line of one of the collection's playbooks, or of a playbook by its path."""
        program = Path(sys.executable).parent / "ansible-playbook"
        line = [str(program), "--inventory", str(self.inventory(connection, **options))]
        playbook = name if "/" in name else f"pcluster.postboot.{name}"
        return [*line, "-e", json.dumps(self.variables), playbook, *arguments]

    def play(
        self, connection: str, name: str, *arguments: str, timeout: int = 300, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return self.run(self.command(connection, name, *arguments, **options), timeout=timeout)

    def run(self, line: Sequence[str], timeout: int = 60, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        how = {"text": True, "capture_output": True, "check": False}
        return subprocess.run(line, env=self.environment, input=given, timeout=timeout, **how)


def sessions(**wanted: Any) -> dict[str, Any]:
    """Tell the sandbox's Session Manager what a test wants of it, and return what there is."""
    url = f"{os.environ['AWS_ENDPOINT_URL']}/sandbox/sessions"
    with urllib.request.urlopen(url, json.dumps(wanted).encode(), timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found
