# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GPUs in containers: one version of the toolkit, fresh CDI files, and a Docker that knows the NVIDIA runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from testinfra.host import Host

from .helpers import Nodes, On, Play, failed, image_in_docker, ok, said

NODE = "gpu-st-p5-1"
CONFIG = "/etc/docker/daemon.json"
IMAGE = "sandbox/gpu:1"
NAMES = [
    "libnvidia-container-tools",
    "libnvidia-container1",
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
]
UNITS = ("nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
TAGS = ("--tags", "nvidia_container_toolkit", "--limit", NODE)


def config(host: Host) -> Any:
    return json.loads(host.file(CONFIG).content_string)


@pytest.fixture
def image(gpu: Host) -> Iterator[str]:
    with image_in_docker(gpu, IMAGE):
        yield IMAGE


def versions(host: Host) -> set[str]:
    return {host.package(name).version for name in NAMES}


def devices(host: Host) -> list[str]:
    return [line for line in host.check_output("nvidia-ctk cdi list").split() if line.startswith("nvidia.com/gpu=")]


def test_its_packages_have_one_version_and_are_held(gpu: Host) -> None:
    assert len(versions(gpu)) == 1
    assert set(NAMES) <= set(gpu.check_output("apt-mark showhold").split())


def test_nodes_without_a_gpu_have_none(on: On, nodes: Nodes) -> None:
    for name, node in nodes.items():
        if not node.get("gpus"):
            assert not on(name).exists("nvidia-ctk"), name


def test_cdi_offers_every_gpu_and_its_units_are_enabled(gpu: Host) -> None:
    assert {f"nvidia.com/gpu={number}" for number in range(8)} < set(devices(gpu))
    for unit in UNITS:
        assert gpu.service(unit).is_enabled


def test_cdi_offers_the_device_without_which_cuda_does_not_start(gpu: Host) -> None:
    """Nothing but the refresh of CDI files has made it on this node."""
    assert {"/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"} <= set(gpu.check_output("cat /var/run/cdi/nvidia.yaml").split())


def test_a_container_has_the_gpus_that_it_asks_for(gpu: Host, image: str) -> None:
    run = f"docker run --rm --runtime nvidia -e NVIDIA_VISIBLE_DEVICES=%s {image} /bin/ls /dev"
    found = gpu.check_output(run % "0,1").split()
    assert {"nvidia0", "nvidia1", "nvidiactl"} <= set(found)
    assert "nvidia2" not in found
    assert not [name for name in gpu.check_output(f"docker run --rm {image} /bin/ls /dev").split() if "nvidia" in name]


@pytest.mark.long
def test_gpus_by_dockers_own_flag(gpu: Host, image: str) -> None:
    """Docker older than 29.2 has NVIDIA's hook bring the GPUs, and that hook refuses a runtime in the mode cdi."""
    ls = f"docker run --rm --gpus all {image} /bin/ls /dev"
    assert {"nvidia0", "nvidia7", "nvidiactl"} <= set(gpu.check_output(ls).split())
    toml = "/etc/nvidia-container-runtime/config.toml"
    gpu.check_output(f"cp -p {toml} /root/toml && sed -i 's/^mode = .*/mode = \"cdi\"/' {toml}")
    try:
        assert "specifying the docker --gpus flag) is not supported" in gpu.run(ls).stderr
    finally:
        gpu.check_output(f"mv /root/toml {toml}")


def test_docker_knows_the_runtime_and_kept_its_own_settings(gpu: Host) -> None:
    assert "nvidia" in json.loads(gpu.check_output("docker info --format '{{json .Runtimes}}'"))
    assert gpu.check_output("docker info --format '{{.DefaultRuntime}}'") == "runc"
    assert config(gpu)["live-restore"] is True
    assert config(gpu)["features"]["cdi"] is True


def test_a_second_run_changes_nothing_and_stops_no_container(gpu: Host, image: str, play: Play) -> None:
    gpu.check_output(f"docker run --detach --name kept {image} /bin/sleep 600")
    before = gpu.service("docker").systemd_properties["MainPID"]
    done = ok(play("--tags", "docker,nvidia_container_toolkit", "--limit", NODE))
    assert "1 node, 0 changed, 0 failed" in done.stdout
    assert "NVIDIA Container Toolkit 1.19.1, 8 CDI devices" in done.stdout
    assert gpu.service("docker").systemd_properties["MainPID"] == before
    assert gpu.check_output("docker inspect --format '{{.State.Running}} {{.RestartCount}}' kept") == "true 0"


def test_the_runtime_comes_back_and_nobody_elses_key_goes(gpu: Host, play: Play) -> None:
    before = gpu.file(CONFIG).content_string
    features = {"containerd-snapshotter": False}
    gpu.check_output(f"printf '%s' '{json.dumps({'debug': True, 'features': features})}' > {CONFIG}")
    try:
        ok(play(*TAGS))
        assert config(gpu)["debug"] is True
        assert config(gpu)["features"] == {**features, "cdi": True}
        assert "nvidia" in json.loads(gpu.check_output("docker info --format '{{json .Runtimes}}'"))
    finally:
        gpu.check_output(f"printf '%s' '{before}' > {CONFIG}; systemctl restart docker")


@pytest.mark.long
def test_cdi_files_that_were_removed_come_back(gpu: Host, play: Play) -> None:
    gpu.check_output("rm -rf /var/run/cdi /etc/cdi")
    assert not devices(gpu)
    ok(play(*TAGS))
    assert len(devices(gpu)) == 17


@pytest.mark.long
def test_a_node_whose_driver_is_gone_fails_in_one_line(gpu: Host, play: Play) -> None:
    gpu.check_output("mv /usr/bin/nvidia-smi /usr/bin/nvidia-smi.away; rm -rf /var/run/cdi")
    try:
        done = failed(play(*TAGS))
        assert "'nvidia-ctk cdi list' offers no GPU, but this node has 8" in done.stdout
    finally:
        gpu.check_output("mv /usr/bin/nvidia-smi.away /usr/bin/nvidia-smi; systemctl reset-failed 'nvidia-cdi*'")
        ok(play(*TAGS))


@pytest.mark.long
def test_a_killed_installation_is_finished_and_a_version_that_is_asked_for_comes(gpu: Host, play: Play) -> None:
    newer, pinned = "1.20.0", next(iter(versions(gpu))).rpartition("-")[0]
    gpu.check_output("dpkg --remove --force-depends --force-remove-essential nvidia-container-toolkit")
    gpu.check_output("apt-mark unhold nvidia-container-toolkit-base")
    ok(play(*TAGS))
    assert versions(gpu) == {f"{pinned}-1"}
    ok(play(*TAGS, "-e", f"nvidia_container_toolkit_version={newer}"))
    assert versions(gpu) == {f"{newer}-1"}
    # What is there stays, until another version is asked for.
    ok(play(*TAGS))
    assert versions(gpu) == {f"{newer}-1"}
    ok(play(*TAGS, "-e", f"nvidia_container_toolkit_version={pinned}"))
    assert versions(gpu) == {f"{pinned}-1"}
    assert set(NAMES) <= set(gpu.check_output("apt-mark showhold").split())
    for unit in UNITS:
        assert gpu.service(unit).is_enabled


@pytest.mark.long
def test_a_toolkit_with_a_known_flaw_is_replaced_or_told(gpu: Host, play: Play) -> None:
    """An essential costs the node where it fails; an old toolkit that works does not."""
    flaw = "NVIDIA Container Toolkit 1.18.2, 8 CDI devices; it has CVE-2026-24260, which 1.19.1 mends"
    asked = play(*TAGS, "-e", "nvidia_container_toolkit_version=1.18.2")
    assert flaw in said(asked)
    kept = ok(play(*TAGS, "-e", "nvidia_container_toolkit_base_url=http://none.example"))
    text = said(kept)
    assert "its packages could not be replaced: url: apt-get cannot use nvidia-container-toolkit: " in text
    assert flaw in text
    ok(play(*TAGS))
    assert versions(gpu) == {"1.19.1-1"}


@pytest.mark.long
def test_dnf_installs_and_holds_it_too(on: On, play: Play) -> None:
    host = on("el-cpu-st-c5-1")
    arguments = (
        "--tags",
        "nvidia_container_toolkit",
        "--limit",
        "el-cpu-st-c5-1",
        "-e",
        "nvidia_container_toolkit_enabled=true",
    )
    files = "/etc/dnf/dnf.conf /etc/docker/daemon.json"
    host.check_output(f"tar cf /root/before.tar -C / {files.replace(' /', ' ').lstrip('/')}")
    try:
        ok(play(*arguments))
        assert host.check_output(f"rpm -q --qf '%{{VERSION}}\\n' {' '.join(NAMES)}").split() == ["1.19.1"] * 4
        assert set(NAMES) <= set(host.check_output("grep ^excludepkgs= /etc/dnf/dnf.conf").partition("=")[2].split())
        assert "1 node, 0 changed" in play(*arguments).stdout
    finally:
        host.check_output(
            f"rpm -e {' '.join(NAMES)}; tar xf /root/before.tar -C /; rm -f /root/before.tar "
            "/etc/yum.repos.d/nvidia-container-toolkit.repo /etc/pki/rpm-gpg/RPM-GPG-KEY-nvidia-container-toolkit "
            "/var/lib/pcluster-postboot/packages/nvidia-container-toolkit.json; systemctl restart docker"
        )
