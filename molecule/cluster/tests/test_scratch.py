# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Scratch disks at a boot: nothing starts on them before they are mounted, and nothing at all where they cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from testinfra.host import Host

from .helpers import On, Play, docker_on_login, failed, ok

NODE = "gpu-st-p5-1"
ARGUMENTS = ("--limit", NODE, "--tags", "docker,enroot")
UNITS = "docker.service enroot-directories.service"
STORE = "/sandbox/instance-store"
DROPIN = "/etc/systemd/system/setup-ephemeral.service.d/sandbox.conf"
RULES = "parallelcluster-iptables.service"
IMAGE = "sandbox/scratch:1"


class Disk:
    """The scratch disk of a node."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def gone(self) -> None:
        """Take it away, as a reboot does, with what works on it."""
        self.host.run(f"systemctl stop docker.socket {UNITS}; umount /scratch/docker; systemctl reset-failed")
        self.host.check_output("umount /scratch")
        assert self.below() == []

    def boot(self, setting: str) -> None:
        """Start what a boot starts, with jobs for all of it at once, and wait until all of them are done."""
        self.host.check_output(f"printf '[Service]\\nEnvironment={setting}\\n' > {DROPIN} && systemctl daemon-reload")
        self.host.check_output(f"systemctl start --no-block setup-ephemeral.service {UNITS}")
        self.host.check_output("while systemctl list-jobs --no-legend | grep -q .; do sleep 0.2; done")

    def below(self) -> list[str]:
        """What is on the root disk below the mount point."""
        line = "top=$(mktemp -d); mount --bind / $top; ls -A $top/scratch; umount $top; rmdir $top"
        return self.host.check_output(line).split()

    def data_root(self) -> str:
        return str(json.loads(self.host.check_output("docker info --format '{{json .DockerRootDir}}'")))


@pytest.fixture
def disk(on: On) -> Iterator[Disk]:
    """The disk of the node, which a test may take away; it is back afterwards."""
    disk = Disk(on(NODE))
    yield disk
    disk.host.run(f"rm -f {DROPIN}; systemctl daemon-reload; systemctl start setup-ephemeral.service")
    disk.host.run(f"systemctl reset-failed; systemctl start {UNITS}; docker rmi --force {IMAGE}")


@pytest.mark.parametrize("emptied", [pytest.param(False, marks=pytest.mark.long), True])
def test_nothing_starts_before_the_disk_is_mounted(disk: Disk, emptied: bool) -> None:
    host = disk.host
    host.check_output(f"curl -sf http://mirror/sandbox/busybox.tar | docker import - {IMAGE}")
    disk.gone()
    if emptied:
        host.check_output(f"find {STORE} -mindepth 1 -delete")
    disk.boot("SANDBOX_TAKES=5")
    assert host.service("docker").is_running
    assert disk.data_root() == "/scratch/docker"
    assert host.run(f"docker image inspect {IMAGE}").succeeded is not emptied
    for name in ("data", "cache"):
        assert host.file(f"{STORE}/enroot/{name}").mode == 0o1777
    assert (host.file(f"{STORE}/enroot").mode, host.file(f"{STORE}/enroot").user) == (0o755, "root")
    assert disk.below() == []


def test_without_the_disk_docker_does_not_start_and_says_why(disk: Disk) -> None:
    host = disk.host
    disk.gone()
    disk.boot("SANDBOX_FAILS=yes")
    for unit in UNITS.split():
        assert not host.service(unit).is_running
        said = host.check_output(f"journalctl --unit {unit} --since -30s --output cat")
        assert f"No disk is mounted at /scratch, where {unit} has its files: see journalctl -u setup-ephemeral" in said
    assert disk.below() == []


@pytest.mark.long
def test_a_run_says_that_the_disk_is_missing_and_goes_on_once_it_is_there(disk: Disk, play: Play) -> None:
    host = disk.host
    disk.gone()
    disk.boot("SANDBOX_FAILS=yes")
    done = failed(play(*ARGUMENTS))
    assert "Docker's data is in /scratch/docker, on a scratch disk that is not mounted now" in done.stdout
    assert not host.service("docker").is_running
    disk.boot("SANDBOX_TAKES=0")
    done = ok(play(*ARGUMENTS))
    assert host.service("docker").is_running


@pytest.mark.long
def test_a_run_waits_while_the_disk_is_set_up(disk: Disk, play: Play) -> None:
    host = disk.host
    disk.gone()
    host.check_output(f"printf '[Service]\\nEnvironment=SANDBOX_TAKES=20\\n' > {DROPIN} && systemctl daemon-reload")
    host.check_output(f"systemctl start --no-block setup-ephemeral.service {UNITS}")
    done = ok(play(*ARGUMENTS))
    assert "1 node, 0 changed, 0 failed" in done.stdout
    assert disk.data_root() == "/scratch/docker"


def test_what_another_user_has_made_in_the_place_of_the_data_is_not_used(disk: Disk) -> None:
    host = disk.host
    disk.gone()
    host.check_output(f"find {STORE} -mindepth 1 -delete; systemctl start setup-ephemeral.service; mountpoint /scratch")
    host.check_output("runuser -u bob -- mkdir --mode 777 /scratch/docker /scratch/enroot")
    try:
        assert host.run("systemctl start docker").rc != 0
        said = host.check_output("journalctl --unit docker --since -30s --output cat")
        assert "/scratch/docker has to be a folder of root" in said
        host.check_output("systemctl start enroot-directories")
        assert (host.file("/scratch/enroot").mode, host.file("/scratch/enroot").user) == (0o755, "root")
    finally:
        host.check_output("rmdir /scratch/docker")


@pytest.fixture
def login(on: On, play: Play) -> Iterator[Host]:
    """The login node with Docker, for as long as a test runs."""
    with docker_on_login(on("login"), play, "-e", "docker_enabled=true") as host:
        yield host
        host.run(f"docker rm --force web; docker rmi --force {IMAGE}")


@pytest.mark.long
@pytest.mark.parametrize("docker_runs", [False, True])
def test_dockers_rules_survive_those_of_parallelcluster(login: Host, docker_runs: bool) -> None:
    login.check_output(f"curl -sf http://mirror/sandbox/busybox.tar | docker import - {IMAGE}")
    login.check_output(
        f"docker run --detach --name web --publish 8080:80 {IMAGE} /bin/sh -c "
        "'mkdir /www && echo hello > /www/index.html && httpd -f -h /www'"
    )
    started = login.check_output("docker inspect --format '{{.State.StartedAt}}' web")
    # What is saved is as the first boot left it: the rules that were there before Docker came.
    saved = "/etc/parallelcluster/sysconfig/iptables.rules"
    login.check_output(f"iptables-save -t filter | grep -v -i docker > {saved}")
    slow = "printf '[Service]\\nEnvironment=SANDBOX_TAKES=3\\n' > "
    login.check_output(f"{slow} /etc/systemd/system/{RULES}.d/sandbox.conf && systemctl daemon-reload")
    if not docker_runs:
        login.check_output("systemctl stop docker.socket docker.service")
    both = "" if docker_runs else "docker.service"
    login.check_output(f"systemctl start --no-block {RULES} {both}")
    login.check_output(f"until systemctl show --property ActiveState {RULES} | grep -q inactive; do sleep 0.2; done")
    login.check_output("while systemctl list-jobs --no-legend | grep -q .; do sleep 0.2; done")
    assert "--dport 80 -j ACCEPT" in login.check_output("iptables --list-rules DOCKER")
    assert login.check_output("curl -sf --max-time 5 http://$(hostname --ip-address | cut -d ' ' -f 1):8080") == "hello"
    assert login.check_output("docker inspect --format '{{.State.StartedAt}}' web") == started
    assert login.check_output(f"docker run --rm --publish 8081:80 {IMAGE} /bin/echo ok") == "ok"
