# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Docker on the compute nodes: containers start, its configuration belongs to more than one, and nothing is stopped."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from testinfra.host import Host

On = Callable[[str], Host]
Play = Callable[..., subprocess.CompletedProcess[str]]
IMAGE = "sandbox/test:1"
CONFIG = "/etc/docker/daemon.json"


def config(host: Host) -> Any:
    return json.loads(host.file(CONFIG).content_string)


@pytest.fixture
def image(on: On, compute: str) -> Iterator[str]:
    """An image on a compute node, for as long as a test runs."""
    host = on(compute)
    host.check_output(f"curl -sf http://mirror/sandbox/busybox.tar | docker import - {IMAGE}")
    yield IMAGE
    host.run(f"docker rm -f kept; docker rmi -f {IMAGE}")


@pytest.fixture
def node_with_container(on: On) -> Iterator[Host]:
    """The CPU node with a running container; its daemon.json is put back afterwards."""
    host = on("cpu-st-c5-1")
    before = host.file(CONFIG).content_string
    host.check_output(f"curl -sf http://mirror/sandbox/busybox.tar | docker import - {IMAGE}")
    host.check_output(f"docker run --detach --name kept {IMAGE} /bin/sleep 600")
    yield host
    host.run(f"docker rm -f kept; docker rmi -f {IMAGE}; printf %s '{before}' > {CONFIG}; systemctl restart docker")


def test_service(on: On, compute: str) -> None:
    service = on(compute).service("docker")
    assert service.is_running
    assert service.is_enabled


def test_a_container_starts(on: On, compute: str, image: str) -> None:
    assert on(compute).check_output(f"docker run --rm {image} /bin/echo ok") == "ok"


def test_a_container_has_all_gpus_however_it_asks_for_them(on: On) -> None:
    host = on("gpu-st-p5-1")
    host.check_output(f"curl -sf http://mirror/sandbox/busybox.tar | docker import - {IMAGE}")
    try:
        for ask in ("--gpus all", "--device nvidia.com/gpu=all"):
            found = host.check_output(f"docker run --rm {ask} {IMAGE} /bin/ls /dev").split()
            assert {"nvidiactl", *(f"nvidia{number}" for number in range(8))} <= set(found), ask
    finally:
        host.check_output(f"docker rmi -f {IMAGE}")


def test_data_and_configuration(on: On, compute: str) -> None:
    host = on(compute)
    info = json.loads(host.check_output("docker info --format '{{json .}}'"))
    assert config(host)["live-restore"] is True
    assert info["LiveRestoreEnabled"] is True
    assert info["DockerRootDir"] == config(host).get("data-root", "/var/lib/docker")
    assert info["Driver"] == "overlay2"


def test_nobody_was_put_into_the_group(on: On, compute: str) -> None:
    assert on(compute).check_output("getent group docker").endswith(":")


def test_head_and_login_nodes_have_none(on: On, nodes: dict[str, dict[str, Any]]) -> None:
    for name, node in nodes.items():
        if node["type"] != "Compute":
            assert not on(name).exists("dockerd"), name


def test_what_a_person_wrote_stays_and_so_does_a_running_container(node_with_container: Host, play: Play) -> None:
    host = node_with_container
    host.check_output(f"""printf '{{"debug": true}}' > {CONFIG}""")
    done = play("--tags", "docker", "--limit", "cpu-st-c5-1")
    assert done.returncode == 0, done.stdout
    assert config(host) == {"debug": True, "live-restore": True}
    assert host.check_output("docker info --format '{{.Debug}}'") == "true"
    assert host.check_output("docker inspect --format '{{.State.Running}} {{.RestartCount}}' kept") == "true 0"


def test_a_broken_file_is_named_in_one_line_and_left(node_with_container: Host, play: Play) -> None:
    host = node_with_container
    host.check_output(f"""printf '{{"debug": true,' > {CONFIG}""")
    done = play("--tags", "docker", "--limit", "cpu-st-c5-1")
    assert done.returncode != 0
    assert f"{CONFIG} is no valid JSON (line 1, column 16: " in done.stdout
    assert host.file(CONFIG).content_string == '{"debug": true,'
    assert host.check_output("docker inspect --format '{{.State.Running}}' kept") == "true"


def test_what_the_unit_of_amazon_linux_sets_too_is_refused_before_anything_is_written(on: On, play: Play) -> None:
    host = on("el-cpu-st-c5-1")
    before = host.file(CONFIG).content_string
    limits = {"memlock": {"Name": "memlock", "Soft": -1, "Hard": -1}}
    asked = {"docker_daemon_config": {"live-restore": True, "default-ulimits": limits}}
    done = play("--tags", "docker", "--limit", "el-cpu-st-c5-1", "-e", json.dumps(asked))
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert "default-ulimits: (from flag: [nofile=1024:4096], from file: " in said
    assert "its flags are in docker.service and /etc/sysconfig/docker; correct docker_daemon_config" in said
    assert host.file(CONFIG).content_string == before
    assert host.service("docker").is_running


def test_data_on_shared_storage_is_refused(on: On, play: Play) -> None:
    done = play("--check", "--tags", "docker", "--limit", "cpu-st-c5-1", "-e", "docker_data_root=/fsx/docker")
    assert done.returncode != 0
    assert "docker_data_root is /fsx/docker, on lustre (mounted at /fsx)" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("package", ["docker-ce-cli", "docker-compose-plugin"])
def test_an_interrupted_installation_is_finished(on: On, play: Play, package: str) -> None:
    host = on("cpu-st-c5-1")
    before = host.service("docker").systemd_properties["MainPID"]
    host.check_output(
        f"cd /tmp && apt-get download -q {package} && dpkg --unpack {package}_*.deb && rm {package}_*.deb"
    )
    assert not host.package(package).is_installed
    done = play("--tags", "docker", "--limit", "cpu-st-c5-1")
    assert done.returncode == 0, done.stdout
    assert host.package(package).is_installed
    assert host.service("docker").systemd_properties["MainPID"] == before
