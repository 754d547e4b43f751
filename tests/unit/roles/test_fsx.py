# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which file system the nodes share, and what fsx says of mounts that are not as the cluster promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage

Variables = Callable[..., Callable[[str], Any]]
LUSTRE = {"path": "/fsx", "type": "lustre", "source": "fs-1.fsx.us-east-1.amazonaws.com@tcp:/abc"}
HOME = {"path": "/home", "type": "nfs", "source": "10.0.0.4:/home"}
SHARED = {"path": "/shared", "type": "efs", "source": None}


def mounted(wanted: dict[str, Any], kind: str = "") -> dict[str, Any]:
    return {"path": wanted["path"], "type": kind or wanted["type"], "source": wanted["source"] or "x", "options": "rw"}


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(node type, wanted, found, missing, **more) returns a function that works out a variable."""

    def make(kind: str, wanted: list[Any], found: list[Any], missing: tuple[str, ...] = (), **more: Any) -> Any:
        mounts = {"wanted": wanted, "found": found, "missing": list(missing)}
        return work_out("common fsx", {"node_type": kind, "image_build": False, "mounts": mounts}, **more)

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
    wanted = storage.wanted_mounts({"region": "us-east-1", **cluster}, kind, "10.0.0.4")
    value = variables(kind, wanted, [mounted(mount) for mount in wanted])
    assert value("common_shared_dir") == shared
    assert value("__common_shared_mounts") == ([] if shared == "/fsx" else [shared])
    assert bool(value("__fsx_problems")) is (shared == "/fsx")


def test_the_shared_directory_may_lie_below_a_mount(variables: Variables) -> None:
    found = [mounted(SHARED), mounted({**SHARED, "path": "/shared/team"}), mounted({**SHARED, "path": "/sha"})]
    value = variables("head", [SHARED], found, common_shared_dir="/shared/team/a")
    assert value("__common_shared_mounts") == ["/shared", "/shared/team"]
    assert value("common_cache_dir") == "/shared/team/a/software/.cache"


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


def test_a_promised_mount_has_to_be_there_as_promised(variables: Variables) -> None:
    assert variables("compute", [LUSTRE], [mounted(LUSTRE)])("__fsx_problems") == []
    (line,) = variables("compute", [LUSTRE], [], ("/fsx",))("__fsx_problems")
    assert line.startswith(
        "/fsx: the cluster promises lustre from fs-1.fsx.us-east-1.amazonaws.com@tcp:/abc, found no mount;"
    )
    other = [mounted(LUSTRE, "ext4")]
    assert len(variables("compute", [LUSTRE], other)("__fsx_problems")) == 1
    assert variables("compute", [LUSTRE], other, fsx_fstypes=["ext4"])("__fsx_problems") == []


def test_other_kinds_of_mounts_have_only_to_be_there(variables: Variables) -> None:
    found = [mounted(HOME, "nfs4"), mounted(SHARED, "nfs4")]
    value = variables("compute", [HOME, SHARED], found, common_shared_dir="/shared")
    assert value("__fsx_problems") == []
    value = variables("compute", [HOME, SHARED], [], ("/home", "/shared"))
    assert [line.split(":")[0] for line in value("__fsx_problems")] == ["/home", "/shared"]


def test_a_shared_directory_on_the_nodes_own_disk_is_refused(variables: Variables) -> None:
    (line,) = variables("compute", [HOME], [mounted(HOME)])("__fsx_problems")
    assert line == (
        "common_shared_dir: found /fsx, which is on the disk of this node itself (mounted file systems: /home); "
        "needed: a directory that all nodes share, such as /home/shared, or fsx_required: false"
    )
    assert "(mounted file systems: none)" in variables("head", [], [])("__fsx_problems")[0]
    for no in (False, "false"):
        assert variables("head", [], [], fsx_required=no)("__fsx_problems") == []


def test_the_tree_is_complete_and_its_parents_are_in_it(repo: Path) -> None:
    tree = yaml.safe_load((repo / "roles/fsx/defaults/main.yml").read_text())["fsx_directories"]
    paths = [entry["path"] for entry in tree]
    assert paths == sorted(set(paths))
    for path in paths:
        assert "/" not in path or path.rpartition("/")[0] in paths
    wanted = {"containers", "scripts", "config", "logs", "nccl", "software", "datasets", "checkpoints", "results"}
    assert wanted <= set(paths)
    # What root builds for all nodes is in directories that no user can have made before.
    for role in ("nccl", "nccl_tests", "aws_ofi_nccl"):
        defaults = yaml.safe_load((repo / f"roles/{role}/defaults/main.yml").read_text())
        assert defaults[f"{role}_dir"].removeprefix("{{ common_shared_dir }}/") in paths
    assert {entry["mode"] for entry in tree} == {"0755", "1777"}
