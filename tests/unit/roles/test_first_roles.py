# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What common, fsx and node_exporter work out from the facts of a node, with Ansible's own templating."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.pcluster.postboot.plugins.action import check_variables
from ansible_collections.pcluster.postboot.plugins.module_utils import _node_storage

LUSTRE = {"path": "/fsx", "type": "lustre", "source": "fs-1.fsx.us-east-1.amazonaws.com@tcp:/abc"}
HOME = {"path": "/home", "type": "nfs", "source": "10.0.0.4:/home"}
SHARED = {"path": "/shared", "type": "efs", "source": None}
Variables = Callable[..., Callable[[str], Any]]


def mounted(wanted: dict[str, Any], kind: str = "") -> dict[str, Any]:
    return {"path": wanted["path"], "type": kind or wanted["type"], "source": wanted["source"] or "x", "options": "rw"}


@pytest.fixture
def variables(repo: Path) -> Variables:
    """variables(node type, wanted, found, missing, **more) returns a function that works out a variable."""

    def make(kind: str, wanted: list[Any], found: list[Any], missing: tuple[str, ...] = (), **more: Any) -> Any:
        everything: dict[str, Any] = {}
        for role in ("common", "fsx", "node_exporter"):
            for part in ("defaults", "vars"):
                path = repo / "roles" / role / part / "main.yml"
                everything.update(yaml.safe_load(path.read_text()) or {})
        everything.update(more)
        facts = {
            "node_type": kind,
            "architecture": "aarch64",
            "go_architecture": "arm64",
            "image_build": False,
            "os": {"family": "debian"},
            "mounts": {"wanted": wanted, "found": found, "missing": list(missing)},
        }
        everything["ansible_facts"] = {"pcluster": facts}
        trusted = {name: check_variables._trusted(value) for name, value in everything.items()}
        templar = Templar(loader=DataLoader(), variables=trusted)
        return lambda name: templar.template(check_variables._trusted("{{ " + name + " }}"))

    return make


@pytest.mark.parametrize(
    ("wanted", "found", "shared", "cache", "mounts"),
    [
        ([HOME, LUSTRE], [HOME, LUSTRE], "/fsx", "/fsx/software/.cache", ["/fsx"]),
        (
            [HOME, {**LUSTRE, "path": "/scratch"}],
            [{**LUSTRE, "path": "/scratch"}],
            "/scratch",
            "/scratch/software/.cache",
            ["/scratch"],
        ),
        ([HOME, LUSTRE], [HOME], "/fsx", "", []),
        ([HOME], [HOME], "/fsx", "", []),
        ([], [], "/fsx", "", []),
        # Somebody's own script has mounted it.
        ([SHARED, HOME], [SHARED, HOME, LUSTRE], "/fsx", "/fsx/software/.cache", ["/fsx"]),
    ],
)
def test_the_shared_directory_and_what_lies_below(
    variables: Variables, wanted: list[Any], found: list[Any], shared: str, cache: str, mounts: list[str]
) -> None:
    value = variables("compute", wanted, [mounted(mount) for mount in found])
    assert (value("common_shared_dir"), value("common_cache_dir")) == (shared, cache)
    assert value("__common_shared_mounts") == mounts


ZFS = {"fsx_shared_dirs": "/zfs", "fsx_fs_ids": "fs-2", "fsx_fs_types": "OPENZFS", "fsx_volume_junction_paths": "/fsx"}
BOTH = {"fsx_shared_dirs": "/zfs,/lustre", "fsx_fs_ids": "fs-2,fs-1", "fsx_fs_types": "OPENZFS,LUSTRE"}
EFS = {"efs_shared_dirs": "/efs", "efs_fs_ids": "fs-3"}
EBS = {"ebs_shared_dirs": "/home,/data", "volume": "vol-1,vol-2"}
RAID = {"raid_shared_dir": "/raid", "raid_vol_ids": "vol-3"}
NO_EFS = {"efs_shared_dirs": "/shared", "efs_fs_ids": ""}


@pytest.mark.parametrize("kind", ["head", "login", "compute"])
@pytest.mark.parametrize(
    ("cluster", "shared"),
    [
        ({**BOTH, **EFS, **EBS}, "/lustre"),
        ({**ZFS, **EFS, **EBS}, "/zfs"),
        ({**EFS, **EBS, **RAID}, "/efs"),
        ({**EBS, **RAID, **NO_EFS}, "/data"),
        ({**RAID, **NO_EFS}, "/raid"),
        ({"ebs_shared_dirs": "/home", "volume": "vol-1", **NO_EFS}, "/fsx"),
        ({"shared_storage_type": "efs", **NO_EFS}, "/fsx"),
    ],
)
def test_every_node_takes_the_same_file_system(
    variables: Variables, kind: str, cluster: dict[str, Any], shared: str
) -> None:
    wanted = _node_storage.wanted_mounts({"region": "us-east-1", **cluster}, kind, "10.0.0.4")
    value = variables(kind, wanted, [mounted(mount) for mount in wanted])
    assert value("common_shared_dir") == shared
    assert value("__common_shared_mounts") == ([] if shared == "/fsx" else [shared])
    assert bool(value("__fsx_problems")) is (shared == "/fsx")


def test_the_shared_directory_may_lie_below_a_mount(variables: Variables) -> None:
    found = [mounted(SHARED), mounted({**SHARED, "path": "/shared/team"}), mounted({**SHARED, "path": "/sha"})]
    value = variables("head", [SHARED], found, common_shared_dir="/shared/team/a")
    assert value("__common_shared_mounts") == ["/shared", "/shared/team"]
    assert value("common_cache_dir") == "/shared/team/a/software/.cache"


@pytest.mark.parametrize(("family", "manager"), [("debian", "apt"), ("redhat", "dnf"), (None, "none")])
def test_the_package_manager(variables: Variables, family: str | None, manager: str) -> None:
    facts = {"pcluster": {"os": {"family": family}}}
    assert variables("head", [], [], ansible_facts=facts)("__common_package_manager") == {"debian": "apt"}.get(
        "debian", manager
    )


@pytest.mark.parametrize(
    ("found", "missing", "says"),
    [
        ([mounted(LUSTRE)], (), []),
        (
            [],
            ("/fsx",),
            [
                "/fsx: dna.json wants lustre from fs-1.fsx.us-east-1.amazonaws.com@tcp:/abc, found no mount; "
                "see `systemctl status /fsx`, then `mount /fsx`"
            ],
        ),
        (
            [mounted(LUSTRE)],
            ("/fsx",),
            [
                "/fsx: dna.json wants lustre from fs-1.fsx.us-east-1.amazonaws.com@tcp:/abc, found one that does not "
                "answer; see `systemctl status /fsx`, then `mount /fsx`"
            ],
        ),
        (
            [mounted(LUSTRE, "ext4")],
            (),
            [
                "/fsx: dna.json wants lustre from fs-1.fsx.us-east-1.amazonaws.com@tcp:/abc, found ext4 from "
                "fs-1.fsx.us-east-1.amazonaws.com@tcp:/abc; mount the right one, or add ext4 to fsx_fstypes"
            ],
        ),
    ],
)
def test_what_is_wrong_with_a_mount_is_one_line(
    variables: Variables, found: list[Any], missing: tuple[str, ...], says: list[str]
) -> None:
    value = variables("compute", [LUSTRE], found, missing)
    assert value("__fsx_problems") == says
    assert all("\n" not in line for line in says)
    assert variables("compute", [LUSTRE], found, missing, fsx_fstypes=["ext4", "lustre"])("__fsx_problems") == (
        says if missing else []
    )


def test_other_kinds_of_mounts_have_only_to_be_there(variables: Variables) -> None:
    found = [mounted(HOME, "nfs4"), mounted(SHARED, "nfs4")]
    value = variables("compute", [HOME, SHARED], found, common_shared_dir="/shared")
    assert value("__fsx_problems") == []
    value = variables("compute", [HOME, SHARED], [], ("/home", "/shared"))
    assert [line.split(":")[0] for line in value("__fsx_problems")] == ["/home", "/shared"]


def test_a_shared_directory_on_the_nodes_own_disk_is_refused(variables: Variables) -> None:
    (line,) = variables("compute", [HOME], [mounted(HOME)])("__fsx_problems")
    assert line == (
        "common_shared_dir is /fsx, which is on the disk of this node itself (mounted file systems: /home); "
        "set it to a directory that all nodes share, such as /home/shared, or set fsx_required to false"
    )
    assert "(mounted file systems: none)" in variables("head", [], [])("__fsx_problems")[0]
    for no in (False, "false"):
        assert variables("head", [], [], fsx_required=no)("__fsx_problems") == []


@pytest.mark.parametrize(
    ("kind", "directory", "shared"),
    [
        ("head", "/home/shared", True),
        ("head", "/home", True),
        ("head", "/homes", False),
        ("head", "/fsx", False),
        ("compute", "/home/shared", False),
    ],
)
def test_home_is_shared_by_the_head_node_itself(variables: Variables, kind: str, directory: str, shared: bool) -> None:
    assert variables(kind, [], [], common_shared_dir=directory)("__common_shared") is shared


def test_the_tree_is_complete_and_its_parents_are_in_it(repo: Path) -> None:
    tree = yaml.safe_load((repo / "roles/fsx/defaults/main.yml").read_text())["fsx_directories"]
    paths = [entry["path"] for entry in tree]
    assert paths == sorted(set(paths))
    for path in paths:
        assert "/" not in path or path.rpartition("/")[0] in paths
    wanted = {"containers", "scripts", "config", "logs", "nccl", "software", "datasets", "checkpoints", "results"}
    assert wanted <= set(paths)
    assert {entry["mode"] for entry in tree} == {"0755", "1777"}


def test_the_archive_of_node_exporter(variables: Variables) -> None:
    value = variables("compute", [], [])
    assert value("__node_exporter_url") == (
        "https://github.com/prometheus/node_exporter/releases/download/v1.12.1/node_exporter-1.12.1.linux-arm64.tar.gz"
    )


@pytest.mark.parametrize(
    ("listen", "local"),
    [
        (":9100", "127.0.0.1:9100"),
        ("0.0.0.0:9200", "127.0.0.1:9200"),
        ("[::]:9100", "127.0.0.1:9100"),
        ("10.0.0.4:9100", "10.0.0.4:9100"),
        ("[::1]:9100", "[::1]:9100"),
    ],
)
def test_where_the_node_reaches_its_own_exporter(variables: Variables, listen: str, local: str) -> None:
    assert variables("head", [], [], node_exporter_listen_address=listen)("__node_exporter_local_address") == local


def test_the_command_line_reaches_node_exporter_word_by_word(variables: Variables, repo: Path) -> None:
    flags = [r"--collector.filesystem.mount-points-exclude=^/(dev|proc)($|/)", "--a=100%", 'say "so" \\.']
    value = variables(
        "head",
        [],
        [],
        node_exporter_efa=False,
        node_exporter_flags=flags,
        node_exporter_collectors_enabled=["systemd", "processes"],
        node_exporter_collectors_disabled=["zfs"],
    )
    arguments = value("__node_exporter_arguments")
    assert arguments[2:] == ["--collector.systemd", "--collector.processes", "--no-collector.zfs", *flags]
    template = (repo / "roles/node_exporter/templates/node_exporter.service.j2").read_text()
    line = template.split("ExecStart=")[1].split("\n\n")[0]
    rendered = Templar(loader=DataLoader(), variables={"__node_exporter_arguments": arguments}).template(
        check_variables._trusted(line)
    )
    # systemd undoes C escapes in quotes as a shell does, and doubles of % and $.
    words = shlex.split(rendered.replace("\\\n", " "))
    assert [word.replace("%%", "%").replace("$$", "$") for word in words][1:] == arguments
    assert "ansible_managed" in template.splitlines()[0]


# What each collector gives, as seen of node_exporter 1.11; netclass has its names among those of netdev.
SWITCHED_OFF = {
    "cpu.guest": "node_cpu_guest_",
    "infiniband": "node_infiniband_",
    "netclass": r"node_network_(?!(?:receive|transmit)_\w+_total)",
    "nfs": "node_nfs_",
    "schedstat": "node_schedstat_",
    "softnet": "node_softnet_",
}


def test_no_panel_and_no_rule_asks_for_what_node_exporter_leaves_out(repo: Path) -> None:
    defaults = yaml.safe_load((repo / "roles/node_exporter/defaults/main.yml").read_text())
    assert sorted(defaults["node_exporter_collectors_disabled"]) == sorted(SWITCHED_OFF)
    files = [*repo.glob("roles/grafana/files/dashboards/*.json"), *repo.glob("roles/prometheus/files/rules/*.yml")]
    assert len(files) > 8
    text = "".join(path.read_text() for path in files)
    assert "node_network_receive_bytes_total" in text
    for name, pattern in SWITCHED_OFF.items():
        assert re.findall(f"{pattern}\\w*", text) == [], name
    assert "--web.disable-exporter-metrics" in defaults["node_exporter_flags"]
    # Prometheus tells of its own process under the same names, and no panel and no rule asks for them.
    assert re.findall(r"\b(?:go|process|promhttp)_\w+", text) == []


@pytest.mark.parametrize(
    ("unit", "told"),
    [
        ("supervisord.service", True),  # ParallelCluster's daemons run under it
        ("slurmctld.service", True),
        ("nvidia-dcgm-exporter.service", True),
        ("supervisord-other.service", False),
        ("ssh.service", False),
    ],
)
def test_the_units_on_which_a_cluster_lives(variables: Variables, unit: str, told: bool) -> None:
    flags = dict(flag.split("=", 1) for flag in variables("head", [], [])("node_exporter_flags") if "=" in flag)
    pattern = flags["--collector.systemd.unit-include"]
    assert bool(re.fullmatch(pattern, unit)) is told  # node_exporter puts ^(?:…)$ around it
