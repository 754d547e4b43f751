# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where each system's Docker comes from, and what it waits for, with Ansible's own templating."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Variables = Callable[..., Callable[[str], Any]]
SYSTEMS = {
    "ubuntu": {"id": "ubuntu", "version": "24.04", "codename": "noble", "family": "debian"},
    "debian": {"id": "debian", "version": "12", "codename": "bookworm", "family": "debian"},
    "amzn": {"id": "amzn", "version": "2023", "codename": None, "family": "redhat"},
    "rhel": {"id": "rhel", "version": "9.6", "codename": None, "family": "redhat"},
    "rocky": {"id": "rocky", "version": "9", "codename": None, "family": "redhat"},
}


@pytest.fixture
def variables(repo: Path, work_out: Variables) -> Variables:
    """variables(system, node_type, image_build, scratch, root, **more) returns a function that gives a variable."""

    def make(
        system: str,
        node_type: str = "compute",
        image: bool = False,
        scratch: Any = None,
        root: str = "/scratch/docker",
        **more: Any,
    ) -> Any:
        facts = {"os": SYSTEMS[system], "architecture": "x86_64", "node_type": node_type, "image_build": image}
        more = {"__docker_config": {"data_root": root}, "ansible_search_path": [str(repo / "roles/docker")], **more}
        return work_out("common docker", {**facts, "scratch": scratch}, **more)

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


@pytest.mark.parametrize(("system", "origin"), [("ubuntu", "docker"), ("rhel", "docker"), ("amzn", "distribution")])
def test_which_packages_carry_dockers_version(variables: Variables, system: str, origin: str) -> None:
    value = variables(system)
    assert value("__docker_packages") == (["docker-ce", "docker-ce-cli"] if origin == "docker" else ["docker"])
    assert [*value("__docker_packages"), *value("__docker_apart")] == value("__docker_source['packages']")
    assert value("__docker_packages")[0] not in value("__docker_alternatives")


@pytest.mark.parametrize(
    ("node_type", "image", "enabled"),
    [("compute", False, True), ("head", False, False), ("login", False, False), (None, True, True)],
)
def test_which_nodes_get_it(variables: Variables, node_type: str, image: bool, enabled: bool) -> None:
    assert variables("ubuntu", node_type, image)("docker_enabled") is enabled


@pytest.mark.parametrize(("tree", "has"), [("login-ubuntu2404", True), ("compute-cpu-ubuntu2404", False)])
def test_the_one_line_for_login_nodes_holds_on_a_node_that_configures_itself(
    ansible: Callable[..., Any], node_tree: Callable[[str], Path], tmp_path: Path, repo: Path, tree: str, has: bool
) -> None:
    inventory = (repo / "inventory/node.pcluster.yml").read_text()
    (tmp_path / "node.pcluster.yml").write_text(f"{inventory}root: {node_tree(tree)}\n")
    readme = (repo / "roles/docker/README.md").read_text().split("`group_vars/pcluster_login.yml`", 1)[1]
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/pcluster_login.yml").write_text(readme.split("```")[1].removeprefix("yaml\n"))
    plugins = "pcluster.postboot.pcluster"
    options = ("--inventory", str(tmp_path / "node.pcluster.yml"), "--host", "localhost")
    done = ansible("inventory", *options, ANSIBLE_INVENTORY_ENABLED=plugins)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = {"docker_enabled": True, "docker_users": ["alice", "bob"]} if has else {}
    assert {name: value for name, value in found.items() if name.startswith("docker_")} == expected


@pytest.mark.parametrize("scratch", [None, "/scratch", "/opt/dlami/nvme"])
@pytest.mark.parametrize("node_type", ["head", "login", "compute"])
def test_what_it_waits_for_at_boot(variables: Variables, node_type: str, scratch: str | None) -> None:
    value = variables("ubuntu", node_type=node_type, scratch=scratch)
    dropins, companions = value("__docker_dropins"), value("__docker_companions")
    on_scratch, rules = scratch == "/scratch", node_type != "compute"
    assert {name: text is not None for name, text in dropins.items()} == {
        "10-scratch.conf": on_scratch,
        "10-iptables.conf": rules,
    }
    assert sorted(companions) == [
        *(["parallelcluster-iptables.service.d/10-docker.conf"] if rules else []),
        *(["setup-ephemeral.service.d/10-postboot.conf"] if on_scratch else []),
    ]
    # After= means what it says only where the other unit has a type.
    assert all("\nType=oneshot\n" in text for text in companions.values())
    if rules:
        assert "After=parallelcluster-iptables.service\n" in dropins["10-iptables.conf"]
    if on_scratch:
        lines = dropins["10-scratch.conf"].splitlines()
        assert "After=setup-ephemeral.service dlami-nvme.service" in lines
        assert "RequiresMountsFor=/scratch/docker" in lines  # docker_config reads this one


def start(line: str, *names: str) -> subprocess.CompletedProcess[str]:
    """Run an ExecStartPre, with other folders in the place of /scratch."""
    command = line.removeprefix("ExecStartPre=/bin/sh -c '").removesuffix("'").replace("/scratch", names[0])
    return subprocess.run(["/bin/sh", "-c", command], text=True, capture_output=True, check=False)


def test_without_its_disk_it_says_so_and_does_not_start(variables: Variables, tmp_path: Path) -> None:
    mounted, made = (
        line
        for line in variables("ubuntu", scratch="/scratch")("__docker_dropins")["10-scratch.conf"].splitlines()
        if line.startswith("ExecStartPre=")
    )
    assert start(mounted, "/proc").returncode == 0
    absent = start(mounted, str(tmp_path))
    assert (absent.returncode, absent.stderr) == (
        1,
        f"No disk is mounted at {tmp_path}, where %n has its files: see journalctl -u setup-ephemeral -u dlami-nvme\n",
    )
    for _again in range(2):
        assert start(made, str(tmp_path)).returncode == 0
        assert (tmp_path / "docker").stat().st_mode & 0o777 == 0o710
    deep = variables("ubuntu", scratch="/scratch", root="/scratch/a/docker")("__docker_dropins")["10-scratch.conf"]
    above, below = deep.splitlines()[-2:]
    assert [start(line, str(tmp_path)).returncode for line in (above, below)] == [0, 0]
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/docker")] == [0o755, 0o710]
    # Who owned the folder above it could put another in its place.
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "a").symlink_to("b")
    assert start(above, str(tmp_path)).stderr.startswith(f"{tmp_path}/a has to be a folder of root: ")
    (tmp_path / "docker").rename(tmp_path / "elsewhere")
    (tmp_path / "docker").symlink_to("elsewhere")
    refused = start(made, str(tmp_path))
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"{tmp_path}/docker has to be a folder of root: ")


def test_the_manual_gives_a_container_efas_devices_alone(repo: Path, tmp_path: Path) -> None:
    """On p6-b200, mlx5 devices are beside EFA's (aws-do-eks#63)."""
    page = (repo / "roles/docker/README.md").read_text()
    (script,) = re.findall(r"^```bash\n(efa=.*?)^docker run", page, re.MULTILINE | re.DOTALL)
    for number, driver in enumerate(("mlx5_core", "efa", "efa")):
        device = tmp_path / f"sys/class/infiniband_verbs/uverbs{number}/device"
        device.mkdir(parents=True)
        (device / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    script = script.replace("/sys/", f"{tmp_path}/sys/") + "echo $efa"
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--device=/dev/infiniband/uverbs1", "--device=/dev/infiniband/uverbs2"]
