# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What enroot and nvidia_container_toolkit work out from the facts of a node, with Ansible's own templating."""

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


@pytest.fixture
def variables(repo: Path) -> Variables:
    """variables(family, scratch=…, enroot=…, gpus=…, **more) returns a function that works out a variable."""

    def make(
        family: str = "debian", scratch: str | None = None, enroot: str | None = None, gpus: int = 0, **more: Any
    ) -> Any:
        everything: dict[str, Any] = {}
        for role in ("common", "enroot", "nvidia_container_toolkit"):
            for part in ("defaults", "vars"):
                everything.update(yaml.safe_load((repo / f"roles/{role}/{part}/main.yml").read_text()) or {})
        everything.update(more)
        facts = {
            "architecture": "aarch64",
            "go_architecture": "arm64",
            "image_build": False,
            "os": {"family": family, "id": {"debian": "ubuntu", "redhat": "amzn"}[family]},
            "scratch": scratch,
            "gpus": {"count": gpus},
            "components": {"enroot": enroot},
        }
        everything["ansible_facts"] = {"pcluster": facts}
        trusted = {name: check_variables._trusted(value) for name, value in everything.items()}
        templar = Templar(loader=DataLoader(), variables=trusted)
        return lambda name: templar.template(check_variables._trusted("{{ " + name + " }}"))

    return make


def test_containers_are_on_the_nodes_own_disk(variables: Variables) -> None:
    on = variables(scratch="/scratch")
    assert (on("enroot_data_dir"), on("enroot_cache_dir"), on("enroot_temp_dir")) == (
        "/scratch/enroot/data",
        "/scratch/enroot/cache",
        "/scratch/enroot/tmp",
    )
    assert variables()("__enroot_directories") == [
        "/run/enroot",
        "/var/lib/enroot/data",
        "/var/lib/enroot/cache",
        "/var/lib/enroot/tmp",
    ]


def rendered(repo: Path, value: Callable[[str], Any], name: str) -> list[str]:
    """The lines of a template that are no comments."""
    template = (repo / f"roles/enroot/templates/{name}").read_text()
    words = (
        "__enroot_directories",
        "__enroot_on_scratch",
        "__enroot_above",
        "__common_scratch_after",
        "__common_scratch_mounted",
        "enroot_temp_dir",
    )
    known = {word: check_variables._trusted(value(word)) for word in (*words, "ansible_facts")}
    text = Templar(loader=DataLoader(), variables={**known, "ansible_managed": "x"}).template(
        check_variables._trusted(template)
    )
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_nothing_is_made_on_the_scratch_disk_before_it_is_mounted(variables: Variables, repo: Path) -> None:
    value = variables(scratch="/scratch")
    assert rendered(repo, value, "tmpfiles.conf.j2") == [
        "d /run/enroot 1777 root root -",
        "e /scratch/enroot/tmp 1777 root root 10d",  # which makes nothing
    ]
    assert rendered(repo, value, "scratch.conf.j2") == [
        "d /scratch/enroot 0755 root root -",
        "d /scratch/enroot/data 1777 root root -",
        "d /scratch/enroot/cache 1777 root root -",
        "d /scratch/enroot/tmp 1777 root root -",
    ]
    unit = rendered(repo, value, "enroot-directories.service.j2")
    assert "After=setup-ephemeral.service dlami-nvme.service" in unit
    made = "ExecStart=systemd-tmpfiles --create /etc/tmpfiles.d/enroot-directories.conf"
    assert unit[unit.index(value("__common_scratch_mounted")) + 1] == (
        f"{made} /etc/pcluster-postboot/tmpfiles.d/enroot-directories.conf"
    )

    value = variables()
    assert value("__enroot_on_scratch") == []
    assert rendered(repo, value, "tmpfiles.conf.j2")[-1] == "d /var/lib/enroot/tmp 1777 root root 10d"
    assert made in rendered(repo, value, "enroot-directories.service.j2")


def test_directories_of_ones_own_on_the_scratch_disk(variables: Variables, repo: Path) -> None:
    places = {
        "enroot_data_dir": "/scratch/data",
        "enroot_cache_dir": "/scratch/a/b/cache",
        "enroot_temp_dir": "/scratch2/tmp",
    }
    value = variables(scratch="/scratch", **places)
    assert [line.split()[1] for line in rendered(repo, value, "scratch.conf.j2")] == [
        "/scratch/a",
        "/scratch/a/b",
        "/scratch/data",
        "/scratch/a/b/cache",
    ]


def test_enroot_conf(variables: Variables, repo: Path) -> None:
    settings = {
        "ENROOT_ROOTFS_WRITABLE": True,
        "ENROOT_MOUNT_HOME": None,
        "ENROOT_TRANSFER_RETRIES": 3,
        "ENROOT_RESTRICT_DEV": False,
    }
    value = variables(scratch="/scratch", enroot_settings=settings)
    template = (repo / "roles/enroot/templates/enroot.conf.j2").read_text()
    templar = Templar(
        loader=DataLoader(), variables={"__enroot_settings": value("__enroot_settings"), "ansible_managed": "x"}
    )
    assert templar.template(check_variables._trusted(template)).splitlines() == [
        "# x",
        f"ENROOT_RUNTIME_PATH {value('__enroot_own') % '/run/enroot'}",
        f"ENROOT_DATA_PATH {value('__enroot_own') % '/scratch/enroot/data'}",
        f"ENROOT_CACHE_PATH {value('__enroot_own') % '/scratch/enroot/cache'}",
        "ENROOT_TEMP_PATH /scratch/enroot/tmp",
        "ENROOT_ROOTFS_WRITABLE yes",
        "ENROOT_TRANSFER_RETRIES 3",
        "ENROOT_RESTRICT_DEV no",
    ]


@pytest.mark.parametrize(
    ("family", "main", "caps"),
    [
        ("debian", "enroot_4.2.1-1_arm64.deb", "enroot+caps_4.2.1-1_arm64.deb"),
        ("redhat", "enroot-4.2.1-1.el8.aarch64.rpm", "enroot+caps-4.2.1-1.el8.aarch64.rpm"),
    ],
)
def test_the_packages_of_a_release(variables: Variables, family: str, main: str, caps: str) -> None:
    value = variables(family)
    suffix = value("__enroot_format")
    assert value(f"__enroot_{suffix}_url").rpartition("/")[2] == main
    assert value(f"__enroot_caps_{suffix}_url").rpartition("/")[2] == caps
    assert list(value("__enroot_packages").values())[1] == f"/var/cache/pcluster-postboot/enroot+caps.{suffix}"


def test_only_what_is_needed_needs_a_hash(variables: Variables) -> None:
    assert variables()("__enroot_downloads") == ["enroot_deb", "enroot_caps_deb"]
    assert variables("redhat")("__enroot_downloads") == ["enroot_rpm", "enroot_caps_rpm"]
    assert variables(enroot="4.2.1")("__enroot_downloads") == []
    assert variables(enroot="3.4.1", enroot_upgrade=True)("__enroot_downloads") == ["enroot_deb", "enroot_caps_deb"]
    assert variables(enroot="4.2.1", enroot_upgrade=True)("__enroot_downloads") == []


@pytest.mark.parametrize(
    ("family", "enroot", "missing"),
    [("debian", None, "deb"), ("redhat", None, "rpm"), ("debian", "4.2.1", ""), ("redhat", "4.2.1", "")],
)
def test_a_hash_that_is_not_known_is_named_before_anything_is_touched(
    family: str, enroot: str | None, missing: str
) -> None:
    action = check_variables.ActionModule.__new__(check_variables.ActionModule)
    action._templar = Templar(loader=DataLoader(), variables={})
    node = {
        "architecture": "aarch64",
        "go_architecture": "arm64",
        "os": {"family": family, "id": "x"},
        "scratch": None,
        "gpus": {"count": 0},
        "components": {"enroot": enroot},
    }
    checker = action._checker(check_variables.read_roles(), {"ansible_facts": {"pcluster": node}})
    assert checker.run(["enroot"], node, bool)["enroot"].run
    assert [line.partition(" ")[0] for line in checker.errors] == (
        [f"enroot_{missing}_sha256['aarch64']", f"enroot_caps_{missing}_sha256['aarch64']"] if missing else []
    )


def test_which_nodes_get_the_toolkit(variables: Variables) -> None:
    assert variables(gpus=8)("nvidia_container_toolkit_enabled") is True
    assert variables()("nvidia_container_toolkit_enabled") is False
    assert variables(docker_enabled=False)("nvidia_container_toolkit_docker") is False
    assert variables()("nvidia_container_toolkit_docker") is True


@pytest.mark.parametrize(("family", "path"), [("debian", "deb/$(ARCH)"), ("redhat", "rpm/$basearch")])
def test_where_the_toolkit_comes_from(variables: Variables, family: str, path: str) -> None:
    url = variables(family)("__nvidia_container_toolkit_repository_url")
    assert url == f"https://nvidia.github.io/libnvidia-container/stable/{path}"
