# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""access.md: somebody with a key of the cluster, and the key of one more person. No user and no key stays."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..bundles import STATE
from ..conftest import host

CLUSTER, NODES = "main", ("head", "login", "gpu-st-p5-1")
KEYS = "/home/ubuntu/.ssh/authorized_keys"
CAROL = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA carol"


@contextmanager
def scene(stage: Any) -> Iterator[None]:
    head = host("head")
    shutil.copy(STATE / "ssh/id", stage.folder / "my-key.pem")
    (stage.folder / "my-key.pem").chmod(0o600)
    # ssh looks for its configuration in the home directory of passwd, and not in HOME.
    program = Path(stage.environment["HOME"]) / "bin/ssh"
    options = f"-o UserKnownHostsFile={stage.folder}/known_hosts -o StrictHostKeyChecking=accept-new -o LogLevel=ERROR"
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} {options} "$@"\n')
    program.chmod(0o755)
    # The test removes the user afterwards, so nobody else may have this name.
    assert not [node for node in NODES if host(node).run("id carol").succeeded]
    head.check_output(f"cp -p {KEYS} {KEYS}.before && echo '{CAROL}' > /home/ubuntu/carol.pub")
    try:
        yield
    finally:
        line = [program, "-S", f"{CLUSTER}.ctl", "-O", "exit", "head"]
        subprocess.run(line, cwd=stage.folder, capture_output=True, check=False)
        head.check_output(f"mv {KEYS}.before {KEYS} && rm /home/ubuntu/carol.pub")
        for node in NODES:
            host(node).run("userdel carol")
        head.check_output("rm -rf /home/carol")
