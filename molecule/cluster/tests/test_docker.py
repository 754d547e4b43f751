# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Docker on the compute nodes: containers start, its configuration belongs to more than one, and nothing is stopped.

On login nodes there is Docker where their group's variables say so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from .helpers import (
    Nodes,
    On,
    Play,
    as_user,
    docker_on_login,
    failed,
    image_in_docker,
    ok,
    said,
    variables,
)

IMAGE = "sandbox/test:1"
CONFIG = "/etc/docker/daemon.json"


def config(host: Host) -> Any:
    return json.loads(host.file(CONFIG).content_string)


@pytest.fixture
def image(on: On, compute: str) -> Iterator[str]:
    with image_in_docker(on(compute), IMAGE):
        yield IMAGE


@pytest.fixture
def node_with_container(on: On) -> Iterator[Host]:
    """The CPU node with a running container; its daemon.json is put back afterwards."""
    host = on("cpu-st-c5-1")
    before = host.file(CONFIG).content_string
    with image_in_docker(host, IMAGE):
        host.check_output(f"docker run --detach --name kept {IMAGE} /bin/sleep 600")
        yield host
    host.check_output(f"printf %s '{before}' > {CONFIG}; systemctl restart docker")


def test_service(on: On, compute: str) -> None:
    service = on(compute).service("docker")
    assert service.is_running
    assert service.is_enabled


def test_a_container_starts(on: On, compute: str, image: str) -> None:
    assert on(compute).check_output(f"docker run --rm {image} /bin/echo ok") == "ok"


def test_a_container_has_all_gpus_however_it_asks_for_them(on: On) -> None:
    host = on("gpu-st-p5-1")
    with image_in_docker(host, IMAGE):
        for ask in ("--gpus all", "--device nvidia.com/gpu=all"):
            found = host.check_output(f"docker run --rm {ask} {IMAGE} /bin/ls /dev").split()
            assert {"nvidiactl", *(f"nvidia{number}" for number in range(8))} <= set(found), ask


def test_data_and_configuration(on: On, compute: str) -> None:
    host = on(compute)
    info = json.loads(host.check_output("docker info --format '{{json .}}'"))
    assert config(host)["live-restore"] is True
    assert info["LiveRestoreEnabled"] is True
    assert info["DockerRootDir"] == config(host).get("data-root", "/var/lib/docker")
    assert info["Driver"] == "overlay2"


def test_nobody_was_put_into_the_group(on: On, compute: str) -> None:
    assert on(compute).check_output("getent group docker").endswith(":")


def test_head_and_login_nodes_have_none(on: On, nodes: Nodes) -> None:
    for name, node in nodes.items():
        if node["type"] != "Compute":
            assert not on(name).exists("dockerd"), name


@pytest.mark.long
def test_users_of_a_login_node_build_there_what_jobs_run(on: On, play: Play, tmp_path: Path) -> None:
    (tmp_path / "groups.yml").write_text("pcluster_login: {}\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/pcluster_login.yml").write_text("docker_enabled: true\ndocker_users: [alice]\n")
    with docker_on_login(on("login"), play, "--inventory", str(tmp_path)) as login, image_in_docker(login, IMAGE):
        refused = as_user(login, "bob", f"docker run --rm {IMAGE} /bin/true")
        assert (refused.rc != 0, "permission denied" in refused.stderr) == (True, True), refused.stderr
        try:
            build = (
                f"docker run --name kept {IMAGE} /bin/sh -c 'echo built > /made' && docker commit kept sandbox/made:1"
            )
            for line in (build, "enroot import --output made.sqsh dockerd://sandbox/made:1"):
                done = as_user(login, "alice", line, timeout=120)
                assert done.rc == 0, done.stdout + done.stderr
            done = as_user(login, "alice", "srun --partition cpu --container-image=$HOME/made.sqsh cat /made")
            assert (done.rc, done.stdout) == (0, "built\n"), done.stderr
        finally:
            login.run("docker rmi --force sandbox/made:1; gpasswd --delete alice docker; rm ~alice/made.sqsh")
    assert not on("head").exists("dockerd")


def test_what_a_person_wrote_stays_and_so_does_a_running_container(node_with_container: Host, play: Play) -> None:
    host = node_with_container
    host.check_output(f"""printf '{{"debug": true}}' > {CONFIG}""")
    ok(play("--tags", "docker", "--limit", "cpu-st-c5-1"))
    assert config(host) == {"debug": True, "live-restore": True}
    assert host.check_output("docker info --format '{{.Debug}}'") == "true"
    assert host.check_output("docker inspect --format '{{.State.Running}} {{.RestartCount}}' kept") == "true 0"


@pytest.mark.long
def test_what_the_unit_of_amazon_linux_sets_too_is_refused_before_anything_is_written(on: On, play: Play) -> None:
    host = on("el-cpu-st-c5-1")
    before = host.file(CONFIG).content_string
    limits = {"memlock": {"Name": "memlock", "Soft": -1, "Hard": -1}}
    asked = {"docker_daemon_config": {"live-restore": True, "default-ulimits": limits}}
    done = failed(play("--tags", "docker", "--limit", "el-cpu-st-c5-1", *variables(**asked)))
    text = said(done)
    assert "default-ulimits: (from flag: [nofile=1024:4096], from file: " in text
    assert "its flags are in docker.service and /etc/sysconfig/docker; correct docker_daemon_config" in text
    assert host.file(CONFIG).content_string == before
    assert host.service("docker").is_running


@pytest.mark.long
@pytest.mark.parametrize("package", ["docker-ce-cli", "docker-compose-plugin"])
def test_an_interrupted_installation_is_finished(on: On, play: Play, package: str) -> None:
    host = on("cpu-st-c5-1")
    before = host.service("docker").systemd_properties["MainPID"]
    host.check_output(
        f"cd /tmp && apt-get download -q {package} && dpkg --unpack {package}_*.deb && rm {package}_*.deb"
    )
    assert not host.package(package).is_installed
    ok(play("--tags", "docker", "--limit", "cpu-st-c5-1"))
    assert host.package(package).is_installed
    assert host.service("docker").systemd_properties["MainPID"] == before
