#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for SageMakerHostAgent: provisions a node once, by what its AMI does itself and by the cluster's script.

README.md says which of this is known, and from where.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

CONFIG, FSX, UNITS = Path("/opt/ml/config"), Path("/fsx"), Path("/etc/systemd/system")
SLURM_CONF = Path("/opt/slurm/etc/slurm.conf")
LOG = Path("/var/log/provision/provisioning.log")
TOLD, RESULT = Path("/etc/sandbox/hyperpod.json"), Path("/var/lib/sandbox-provisioned")
SOFTWARE = "/usr/libexec/sandbox-ami-software"
USER = "ubuntu"


def run(*line: str) -> None:
    subprocess.run(line, check=True)


def until(done: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not (found := done()) and time.monotonic() < end:
        time.sleep(0.5)
    return bool(found)


def home(controller: bool) -> None:
    """Copy the user's home to /fsx, if that is mounted, and use the copy; the controller adds a pair of SSH keys."""
    if not os.path.ismount(FSX):
        return
    wanted, user = FSX / USER, pwd.getpwnam(USER)
    if not wanted.is_dir():
        shutil.copytree(user.pw_dir, wanted, dirs_exist_ok=True)
        run("chown", "-R", f"{USER}:{USER}", str(wanted))
    run("usermod", "-d", str(wanted), USER)
    if controller and not (wanted / ".ssh/id_rsa").exists():
        keys = wanted / ".ssh"
        keys.mkdir(mode=0o700, exist_ok=True)
        run("ssh-keygen", "-t", "rsa", "-b", "4096", "-q", "-f", str(keys / "id_rsa"), "-N", "")
        with (keys / "authorized_keys").open("a") as known:
            known.write((keys / "id_rsa.pub").read_text())
        (keys / "authorized_keys").chmod(0o600)
        run("chown", "-R", f"{USER}:{USER}", str(keys))


def slurm(controller: str, is_controller: bool) -> None:
    """Start the daemon that this node is to have, and put the other one's unit out of the way."""
    for folder in ("/var/spool/slurmctld", "/var/log/slurm"):
        os.makedirs(folder, exist_ok=True)
        shutil.chown(folder, "slurm", "slurm")
    mine, other = ("slurmctld", "slurmd") if is_controller else ("slurmd", "slurmctld")
    if is_controller:
        until(SLURM_CONF.exists, 60)
    else:
        unit = UNITS / "slurmd.service"
        unit.write_text(unit.read_text().replace("$SLURMD_OPTIONS", f"--conf-server {controller}"))
    # HyperPod gives this suffix to either unit, also to slurmctld's on a node that is no controller.
    (UNITS / f"{other}.service").rename(UNITS / f"{other}_DO_NOT_START_ON_CONTROLLER.service")
    run("systemctl", "daemon-reload")
    run("systemctl", "enable", "--quiet", "--now", mine)


def script(wanted: dict[str, str]) -> int:
    """Fetch all that lies beside the script that the cluster's owner names, run the script, return its exit status."""
    name = wanted.get("OnInitComplete")
    if not name:
        return 0
    folder = Path("/tmp", wanted["SourceS3Uri"].removeprefix("s3://").rstrip("/"))
    run("aws", "s3", "cp", "--recursive", "--quiet", wanted["SourceS3Uri"], str(folder))
    (folder / name).chmod(0o755)
    # The script has no HOME.
    environment = {key: value for key, value in os.environ.items() if key != "HOME"}
    with LOG.open("ab") as log:
        done = subprocess.run([folder / name], cwd=folder, env=environment, stdout=log, stderr=log, check=False)
    return done.returncode


def main() -> None:
    if not RESULT.exists():
        LOG.parent.mkdir(parents=True, exist_ok=True)
        LOG.touch()
        told, code = json.loads(TOLD.read_text()), 1
        with LOG.open("ab") as log:
            subprocess.run([SOFTWARE, *told["software"]], stdout=log, stderr=log, check=True)
        resources = json.loads((CONFIG / "resource_config.json").read_text())
        is_controller = told["node_type"] == "Controller"
        try:
            home(is_controller)
            slurm(resources["SlurmConfig"]["PrimaryControllerIp"], is_controller)
            code = script(json.loads((CONFIG / "life_cycle_config.json").read_text()))
        finally:
            RESULT.write_text(f"{code}\n")
    signal.pause()


if __name__ == "__main__":
    main()
