# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""bake.yml: an image gets what is installed, and nothing of what is configured. site does the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import yaml

from .bundles import Bundle, printed, queue_of
from .helpers import On, Play, Run, joined, ok

NODE, SPARE = "cpu-st-c5-1", "burst-dy-c5-1"
BINARY, UNIT = "/usr/local/bin/node_exporter", "/etc/systemd/system/node_exporter.service"


def test_only_the_install_phases_run(on: On, play: Play) -> None:
    node = on(NODE)
    node.check_output(f"systemctl stop node_exporter && rm {BINARY} {UNIT} && systemctl daemon-reload")
    try:
        ok(play("--limit", NODE, "--tags", "node_exporter", name="bake"))
        assert node.file(BINARY).exists
        assert not node.file(UNIT).exists
    finally:
        finished = play("--limit", NODE, "--tags", "node_exporter")
    ok(finished)
    assert node.service("node_exporter").is_running


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "component", "units"),
    [
        (NODE, "docker", ["docker.service", "docker.socket", "containerd.service"]),
        ("gpu-st-p5-1", "nvidia_container_toolkit", ["nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path"]),
    ],
)
def test_what_packages_enable_starts_only_on_nodes_that_want_it(
    on: On, play: Play, name: str, component: str, units: list[str]
) -> None:
    node = on(name)
    arguments = ("--limit", name, "--tags", component)
    try:
        ok(play(*arguments, name="bake"))
        assert node.run(f"systemctl is-enabled {' '.join(units)}").stdout.split() == ["disabled"] * len(units)
        again = play(*arguments, name="bake")
        assert "changed=0" in again.stdout, again.stdout[-3000:]
    finally:
        finished = play(*arguments)
    ok(finished)
    assert node.service(units[0]).is_enabled


@dataclass
class Image:
    """What publish.yml gives for an image: each phase's commands, and the bundle."""

    commands: dict[str, str]
    bundle: Bundle


@pytest.fixture(scope="module")
def image(publishing: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory) -> Image:
    file = tmp_path_factory.mktemp("image") / "component.yaml"
    done = publishing("main", publish_image_component=str(file))
    phases = yaml.safe_load(file.read_text())["phases"]
    commands = {phase["name"]: phase["steps"][0]["inputs"]["commands"][0] for phase in phases}
    action = queue_of(printed(done), "cpu")["CustomActions"]["OnNodeConfigured"]
    return Image(commands, Bundle.of(action))


@pytest.mark.long
def test_a_machine_becomes_an_image_and_its_node_fetches_no_bundle(on: On, image: Image) -> None:
    with joined(SPARE):
        node = on(SPARE)
        # Other tests may have the queue boot with a bundle.
        node.check_output(f"rm -rf {BINARY} {UNIT} /opt/pcluster-postboot && systemctl daemon-reload")
        built = node.run("bash -c %s", image.commands["build"])
        assert built.rc == 0, built.stdout + built.stderr
        assert "components are as they should be" in built.stdout
        assert (node.file(BINARY).exists, node.file(UNIT).exists) == (True, False)
        validated = node.run("bash -c %s", image.commands["validate"])
        assert validated.rc == 0, validated.stdout[-3000:] + validated.stderr
        node.check_output(f"rm {BINARY}")
        refused = node.run("bash -c %s", image.commands["test"])
        assert refused.rc == 1, refused.stdout[-3000:]
        assert re.search(r"the image is not what bake makes of it: .* 1 would change", refused.stderr), refused.stderr
        assert node.run("bash -c %s", image.commands["build"]).rc == 0

        fetch = f"aws s3 cp --quiet {image.bundle.script} /root/bootstrap.sh"
        booted = node.run(f"{fetch} && bash /root/bootstrap.sh {' '.join(image.bundle.args)}")
        assert booted.rc == 0, booted.stdout + booted.stderr
        assert "is here after" not in booted.stdout
        assert node.service("docker").is_running
