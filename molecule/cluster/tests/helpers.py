# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What several files of tests do with a node, and with a run of a playbook."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from testinfra.host import Host

from .bundles import SANDBOX

On = Callable[[str], Host]
Run = subprocess.CompletedProcess[str]
Play = Callable[..., Run]
Create = Callable[[dict[str, Any]], Run]
Command = Callable[..., list[str]]
Killed = Callable[[list[str], float, float], None]
Nodes = dict[str, dict[str, Any]]

BUSYBOX = "curl -sf http://mirror/sandbox/busybox.tar"


def variables(**values: Any) -> tuple[str, str]:
    """The arguments that give variables to a playbook."""
    return "-e", json.dumps(values)


def ok(done: Run) -> Run:
    """The same run, which has to have succeeded."""
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done


def failed(done: Run) -> Run:
    """The same run, which has to have failed."""
    assert done.returncode != 0, done.stdout[-3000:]
    return done


def said(done: Run) -> str:
    """All that a run has printed, on one line, because Ansible wraps warnings."""
    return " ".join((done.stdout + done.stderr).split())


def system(host: Host) -> str:
    """What the links of compiled releases name of a node's system, such as glibc2.36."""
    return host.check_output("getconf GNU_LIBC_VERSION").replace(" ", "")


def failure(done: Run, node: str, component: str) -> str:
    """The line that says why a component failed on a node; empty where there is none."""
    return next((line for line in done.stdout.splitlines() if line.startswith(f"failed on {node}: {component}: ")), "")


def until(done: Callable[[], Any], seconds: float = 60, what: str | Callable[[], str] = "") -> Any:
    """Wait until something is so, and return it. `what` was waited for, or says so once the time is over."""
    begin = time.monotonic()
    while not (found := done()):
        waited = time.monotonic() - begin
        if waited >= seconds:
            told = what() if callable(what) else what
            raise AssertionError(f"not within {seconds:.0f} s: {told or 'what the test waits for'}")
        time.sleep(min(2, 0.3 + waited / 30))  # looks cost time, too: the longer the wait, the rarer
    return found


def as_user(host: Host, user: str, line: str, timeout: int = 60) -> Any:
    """Run a line in a user's login shell; a job begins once no earlier job is on its way out.

    srun ends before the epilog of its job does, and for as long as the epilog of a node runs, Slurm has ParallelCluster
    launch another node for the next job.
    """
    if "srun " in line or "sbatch " in line:
        leaving = "/opt/slurm/bin/squeue --noheader --states=COMPLETING"
        until(lambda: not host.run(leaving).stdout, 30, "the epilogs of earlier jobs")
    return host.run(f"timeout {timeout} su - {user} -c %s", line)


def ended(host: Host, job: str, seconds: float = 60) -> int:
    """Wait for the end of a job, by its id, and return its exit code. `sbatch --wait` looks seldom."""

    def looked() -> Any:
        shown = host.check_output(f"/opt/slurm/bin/scontrol --oneliner show job {job.strip()}")
        return re.search(r" JobState=(?!PENDING|CONFIGURING|RUNNING|COMPLETING).* ExitCode=(\d+):", shown)

    return int(until(looked, seconds, f"the end of job {job}")[1])


def process(host: Host, unit: str) -> str:
    """The id of a service's main process."""
    return host.check_output(f"systemctl show --property=MainPID --value {unit}")


def exposure(host: Host, unit: str) -> float:
    """How much a service may do, from 0 (little) to 10, by systemd's own judgement."""
    line = host.check_output(f"systemd-analyze security --no-pager {unit} | tail -n 1")
    found = re.search(r": ([\d.]+) ", line)
    assert found, line
    return float(found[1])


def image_of_busybox(host: Host, path: str, more: str = "true") -> None:
    """Make a container image of busybox and of what a shell line adds to its root folder."""
    host.check_output(
        f"d=$(mktemp -d) && cd $d && {BUSYBOX} | tar x && mkdir -p etc dev home proc root run sys tmp "
        f"&& chmod 1777 tmp && {more} && mksquashfs . {path} -noappend -quiet -no-progress "
        f"&& chmod 644 {path} && rm -r $d"
    )


@contextmanager
def image_in_docker(host: Host, name: str) -> Iterator[str]:
    """An image of busybox in a node's Docker. Afterwards the image and its container `kept`, if there is one, go."""
    host.check_output(f"{BUSYBOX} | docker import - {name}")
    try:
        yield name
    finally:
        host.run(f"docker rm -f kept; docker rmi -f {name}")


@contextmanager
def docker_on_login(host: Host, play: Play, *options: str) -> Iterator[Host]:
    """The login node with Docker, which a run with these options brings; then without Docker, as it was."""
    ok(play("--limit", "login", "--tags", "docker", *options))
    try:
        yield host
    finally:
        host.check_output("systemctl disable --now docker.service docker.socket containerd.service")
        host.check_output(
            "dpkg --purge docker-ce docker-ce-cli containerd.io docker-buildx-plugin docker-compose-plugin"
        )
        drop_ins = "docker.service.d parallelcluster-iptables.service.d"
        host.check_output(f"cd /etc/systemd/system && rm -r /etc/docker {drop_ins} && systemctl daemon-reload")


@contextmanager
def joined(name: str) -> Iterator[None]:
    """A dynamic node: a job asks for the node, ParallelCluster launches it, and Slurm powers it down afterwards."""
    subprocess.run([sys.executable, SANDBOX, "join", name], check=True, timeout=1600)
    try:
        yield
    finally:
        subprocess.run([sys.executable, SANDBOX, "leave", name], check=True, timeout=600)
