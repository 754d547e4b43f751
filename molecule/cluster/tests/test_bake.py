# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""bake.yml: an image gets what is installed, and nothing of what is configured. site does the rest."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from testinfra.host import Host

On = Callable[[str], Host]
Play = Callable[..., subprocess.CompletedProcess[str]]
NODE = "cpu-st-c5-1"
BINARY, UNIT = "/usr/local/bin/node_exporter", "/etc/systemd/system/node_exporter.service"


def test_only_the_install_phases_run(on: On, play: Play) -> None:
    node = on(NODE)
    node.check_output(f"systemctl stop node_exporter && rm {BINARY} {UNIT} && systemctl daemon-reload")
    try:
        result = play("--limit", NODE, "--tags", "node_exporter", name="bake")
        assert result.returncode == 0, result.stdout[-3000:]
        assert node.file(BINARY).exists
        assert not node.file(UNIT).exists
        again = play("--limit", NODE, "--tags", "node_exporter", name="bake")
        assert "changed=0" in again.stdout, again.stdout[-3000:]
    finally:
        finished = play("--limit", NODE, "--tags", "node_exporter")
    assert finished.returncode == 0, finished.stdout[-3000:]
    assert node.service("node_exporter").is_running


@pytest.mark.parametrize(
    ("name", "component", "units"),
    [
        (NODE, "docker", ["docker.service", "docker.socket", "containerd.service"]),
        pytest.param(
            "gpu-st-p5-1",
            "nvidia_container_toolkit",
            ["nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"],
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_packages_enable_starts_only_on_nodes_that_want_it(
    on: On, play: Play, name: str, component: str, units: list[str]
) -> None:
    node = on(name)
    arguments = ("--limit", name, "--tags", component)
    try:
        result = play(*arguments, name="bake")
        assert result.returncode == 0, result.stdout[-3000:]
        assert node.run(f"systemctl is-enabled {' '.join(units)}").stdout.split() == ["disabled"] * len(units)
        again = play(*arguments, name="bake")
        assert "changed=0" in again.stdout, again.stdout[-3000:]
    finally:
        finished = play(*arguments)
    assert finished.returncode == 0, finished.stdout[-3000:]
    assert node.service(units[0]).is_enabled
