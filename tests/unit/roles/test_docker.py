# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where each system's Docker comes from, and how its packages are written, with Ansible's own templating."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.pcluster.postboot.plugins.action import check_variables

Variables = Callable[..., Callable[[str], Any]]
SYSTEMS = {
    "ubuntu": {"id": "ubuntu", "version": "24.04", "codename": "noble", "family": "debian"},
    "debian": {"id": "debian", "version": "12", "codename": "bookworm", "family": "debian"},
    "amzn": {"id": "amzn", "version": "2023", "codename": None, "family": "redhat"},
    "rhel": {"id": "rhel", "version": "9.6", "codename": None, "family": "redhat"},
    "rocky": {"id": "rocky", "version": "9", "codename": None, "family": "redhat"},
}


@pytest.fixture
def variables(repo: Path) -> Variables:
    """variables(system, version, node_type, image_build, **more) returns a function that works out a variable."""

    def make(system: str, version: str = "", node_type: str = "compute", image: bool = False, **more: Any) -> Any:
        everything: dict[str, Any] = {}
        for role in ("common", "docker"):
            for part in ("defaults", "vars"):
                everything.update(yaml.safe_load((repo / "roles" / role / part / "main.yml").read_text()) or {})
        facts = {"os": SYSTEMS[system], "architecture": "x86_64", "node_type": node_type, "image_build": image}
        everything.update(ansible_facts={"pcluster": facts}, __docker_config={"install": {"version": version}}, **more)
        trusted = {name: check_variables._trusted(value) for name, value in everything.items()}
        templar = Templar(loader=DataLoader(), variables=trusted)
        return lambda name: templar.template(check_variables._trusted("{{ " + name + " }}"))

    return make


@pytest.mark.parametrize(
    ("system", "origin", "first", "url"),
    [
        ("ubuntu", "docker", "docker-ce", "https://download.docker.com/linux/ubuntu"),
        ("rhel", "docker", "docker-ce", "https://download.docker.com/linux/rhel/9/x86_64/stable"),
        ("rocky", "docker", "docker-ce", "https://download.docker.com/linux/rhel/9/x86_64/stable"),
        ("amzn", "distribution", "docker", None),
        ("debian", "distribution", "docker.io", None),
    ],
)
def test_where_it_comes_from(variables: Variables, system: str, origin: str, first: str, url: str | None) -> None:
    value = variables(system)
    assert value("docker_origin") == origin
    assert value("__docker_packages")[0] == first
    assert first not in value("__docker_source['conflicts']")
    if url:
        assert value("__docker_repository_url") == url


@pytest.mark.parametrize(
    ("system", "version", "first", "last"),
    [
        ("ubuntu", "", "docker-ce", "docker-compose-plugin"),
        ("ubuntu", "29", "docker-ce=5:29.*", "docker-compose-plugin"),
        ("ubuntu", "29.7.2", "docker-ce=5:29.7.2[-+~]*", "docker-compose-plugin"),
        ("debian", "20.10", "docker.io=20.10.*", "docker.io=20.10.*"),
        ("rhel", "29", "docker-ce-29.*", "docker-compose-plugin"),
        ("rhel", "29.7.2", "docker-ce-29.7.2", "docker-compose-plugin"),
        ("amzn", "25.0.16", "docker-25.0.16", "docker-25.0.16"),
    ],
)
def test_how_packages_are_written(variables: Variables, system: str, version: str, first: str, last: str) -> None:
    wanted = variables(system, version)("__docker_wanted")
    assert (wanted[0], wanted[-1]) == (first, last)


def test_packages_of_ones_own(variables: Variables) -> None:
    value = variables("ubuntu", "29", docker_packages=["docker-ce", "docker-ce-rootless-extras", "pigz"])
    assert value("__docker_wanted") == ["docker-ce=5:29.*", "docker-ce-rootless-extras=5:29.*", "pigz"]


@pytest.mark.parametrize(
    ("node_type", "image", "enabled"),
    [("compute", False, True), ("head", False, False), ("login", False, False), (None, True, True)],
)
def test_which_nodes_get_it(variables: Variables, node_type: str, image: bool, enabled: bool) -> None:
    assert variables("ubuntu", "", node_type, image)("docker_enabled") is enabled
