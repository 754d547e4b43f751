# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What enroot and nvidia_container_toolkit work out from the facts of a node, with Ansible's own templating."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

Variables = Callable[..., Callable[[str], Any]]


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(family, scratch=…, enroot=…, gpus=…, **more) returns a function that works out a variable."""

    def make(
        family: str = "debian", scratch: str | None = None, enroot: str | None = None, gpus: int = 0, **more: Any
    ) -> Any:
        facts = {
            "architecture": "aarch64",
            "go_architecture": "arm64",
            "os": {"family": family, "id": {"debian": "ubuntu", "redhat": "amzn"}[family]},
            "scratch": scratch,
            "gpus": {"count": gpus},
            "components": {"enroot": enroot},
        }
        return work_out("common nvidia_container_toolkit enroot", facts, **more)

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


@pytest.mark.parametrize(
    ("platform", "prefix", "program"),
    [
        ("hyperpod", "/opt/slurm", "/opt/slurm/bin/scontrol"),
        ("hyperpod", None, ""),  # a node whose Slurm is not there yet
        ("parallelcluster", "/opt/slurm", ""),  # where role pyxis gives slurmd its path
    ],
)
def test_hooks_are_told_of_scontrol_where_nobody_else_does(
    work_out: Variables, platform: str, prefix: str | None, program: str
) -> None:
    facts = {"platform": platform, "slurm": {"prefix": prefix}}
    assert work_out("enroot", facts)("__enroot_scontrol") == program


def rendered(value: Callable[[str], Any], name: str) -> list[str]:
    """The lines of a template that are no comments."""
    return [line for line in value(name).splitlines() if not line.startswith("#")]


def test_nothing_is_made_on_the_scratch_disk_before_it_is_mounted(variables: Variables, repo: Path) -> None:
    value = variables(scratch="/scratch")
    assert rendered(value, "tmpfiles.conf.j2") == [
        "d /run/enroot 1777 root root -",
        "e /scratch/enroot/tmp 1777 root root 10d",  # which makes nothing
    ]
    assert rendered(value, "scratch.conf.j2") == [
        "d /scratch/enroot 0755 root root -",
        "d /scratch/enroot/data 1777 root root -",
        "d /scratch/enroot/cache 1777 root root -",
        "d /scratch/enroot/tmp 1777 root root -",
    ]
    unit = rendered(value, "enroot-directories.service.j2")
    assert "After=setup-ephemeral.service dlami-nvme.service" in unit
    made = "ExecStart=systemd-tmpfiles --create /etc/tmpfiles.d/enroot-directories.conf"
    assert unit[unit.index(value("__common_scratch_mounted")) + 1] == (
        f"{made} /etc/pcluster-postboot/tmpfiles.d/enroot-directories.conf"
    )

    value = variables()
    assert value("__enroot_on_scratch") == []
    assert rendered(value, "tmpfiles.conf.j2")[-1] == "d /var/lib/enroot/tmp 1777 root root 10d"
    assert made in rendered(value, "enroot-directories.service.j2")


def test_directories_of_ones_own_on_the_scratch_disk(variables: Variables, repo: Path) -> None:
    places = {
        "enroot_data_dir": "/scratch/data",
        "enroot_cache_dir": "/scratch/a/b/cache",
        "enroot_temp_dir": "/scratch2/tmp",
    }
    value = variables(scratch="/scratch", **places)
    assert [line.split()[1] for line in rendered(value, "scratch.conf.j2")] == [
        "/scratch/a",
        "/scratch/a/b",
        "/scratch/data",
        "/scratch/a/b/cache",
    ]


class Leftovers:
    """A data directory of Enroot with containers of two users, whom this machine does not know by name."""

    USERS = (54321, 54322)

    def __init__(self, top: Path, program: Path) -> None:
        self.data, self.program, self.bin = top / "data", program, top / "bin"
        self.data.mkdir()
        self.data.chmod(0o1777)
        self.slurm("")
        for uid in self.USERS:
            self.own(uid, self.data / f"user-{uid}", 0o700)

    def slurm(self, runs: str, code: int | None = None) -> None:
        """pgrep as procps 4.0.2 answers: 1 for no process."""
        code = code if code is not None else int(not runs)
        lab.program(self.bin / "pgrep", f"#!/bin/sh\n[ -z '{runs}' ] || echo '{runs}'\nexit {code}\n")

    def own(self, uid: int, path: Path, mode: int = 0o755) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        os.chown(path, uid, uid)
        return path

    def container(self, name: str, uid: int = USERS[0]) -> Path:
        """A container as Pyxis 0.24 leaves it; images have directories that their owner cannot write."""
        home = self.own(uid, self.data / f"user-{uid}" / name)
        for place in (home / "etc", home / "usr/lib"):
            self.own(uid, place)
            (place / "file").write_text("x")
            os.chown(place / "file", uid, uid)
        self.own(uid, home / "usr", 0o555)
        self.own(uid, home / "usr/lib", 0o111)
        return home

    def __call__(self, action: str) -> tuple[int, str]:
        given = {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        line = ["/bin/sh", str(self.program), action, str(self.data)]
        done = subprocess.run(line, env=given, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def names(self, uid: int = USERS[0]) -> list[str]:
        return sorted(path.name for path in (self.data / f"user-{uid}").iterdir())


@pytest.fixture
def leftovers(tmp_path: Path, repo: Path) -> Leftovers:
    if os.geteuid() != 0:
        pytest.skip("needs root, which becomes each user")
    return Leftovers(tmp_path, repo / "roles/enroot/files/enroot_leftovers.sh")


def test_containers_of_ended_steps_are_removed_and_no_others(leftovers: Leftovers) -> None:
    # A batch script's step, a step, a named container of a job, one of all jobs, and a user's own.
    keeps = ["pyxis_81_pytorch", "pyxis_pytorch", "pyxis_1.2.3", "pyxis_1.", "pyxis_.2", "pyxis_7", "mine.5"]
    for name in ("pyxis_81.4294967291", "pyxis_81.0", *keeps):
        leftovers.container(name)
    leftovers.container("pyxis_82.0", leftovers.USERS[1])
    leftovers.own(leftovers.USERS[0], leftovers.data / f"user-{leftovers.USERS[0]}" / "pyxis_1.2\npyxis_3.4")
    code, said = leftovers("aside")
    assert (code, len(said.splitlines())) == (0, 3)
    hidden = [name for name in leftovers.names() if name.startswith(".")]
    assert [name.rpartition(".")[0] for name in hidden] == [".pyxis_81.0", ".pyxis_81.4294967291"]
    # The job that is requeued has its names, and what it makes stays.
    leftovers.container("pyxis_81.0")
    code, said = leftovers("remove")
    assert (code, len(said.splitlines())) == (0, 3), said
    assert leftovers.names() == sorted([*keeps, "pyxis_1.2\npyxis_3.4", "pyxis_81.0"])
    assert leftovers.names(leftovers.USERS[1]) == []


@pytest.mark.parametrize(("runs", "code"), [("4711 slurmd", 0), ("4712 slurmstepd", 0), ("", 2), ("", 127)])
def test_nothing_is_renamed_while_a_step_may_be_alive(leftovers: Leftovers, runs: str, code: int) -> None:
    leftovers.container("pyxis_81.0")
    leftovers.slurm(runs, code)
    assert leftovers("aside")[0] == 0
    assert leftovers.names() == ["pyxis_81.0"]
    assert leftovers("remove") == (0, "")
    assert leftovers.names() == ["pyxis_81.0"]


def test_what_a_user_puts_there_harms_nobody_else(leftovers: Leftovers, tmp_path: Path) -> None:
    alice, bob = leftovers.USERS
    roots, bobs = tmp_path / "pyxis_1.0", leftovers.container("pyxis_9.0.kept", bob)
    roots.mkdir()
    (roots / "file").write_text("x")
    home = leftovers.data / f"user-{alice}"
    # Links in the place of a container, of what has been renamed, and of a file below.
    for name, target in {"pyxis_1.0": roots, ".pyxis_2.0.01234567": roots, ".pyxis_3.0.01234567": bobs}.items():
        (home / name).symlink_to(target)
    (leftovers.container(".pyxis_4.0.01234567") / "etc/link").symlink_to(roots)
    # A directory of another user's, and of root's, within one's own; and homes that Enroot would not use.
    leftovers.own(0, home / ".pyxis_5.0.01234567/sub", 0o755)
    (leftovers.data / "user-0").symlink_to(tmp_path)
    leftovers.own(alice, leftovers.data / "user-1/.pyxis_6.0.01234567")
    leftovers.own(alice, leftovers.data / "user-1")
    leftovers("aside")
    code, said = leftovers("remove")
    assert code != 0, "one could not be removed"
    assert "Permission denied" in said or "Operation not permitted" in said
    assert (roots / "file").exists()
    assert (home / "pyxis_1.0").is_symlink()
    assert bobs.exists()
    assert (leftovers.data / "user-1/.pyxis_6.0.01234567").exists()
    assert (home / ".pyxis_5.0.01234567/sub").exists()
    assert not (home / ".pyxis_4.0.01234567").exists()


def test_slurmd_waits_for_the_renaming_alone(variables: Variables) -> None:
    unit = rendered(variables(scratch="/scratch"), "enroot-leftovers.service.j2")
    program = "/usr/local/libexec/pcluster-postboot/enroot-leftovers"
    assert f"ExecStartPre={program} aside /scratch/enroot/data" in unit
    assert f"ExecStart={program} remove /scratch/enroot/data" in unit
    assert {"After=enroot-directories.service", "Before=slurmd.service"} <= set(unit)
    assert not [line for line in unit if line.startswith("Type=")], "a simple service has started before it ends"


def test_enroot_conf(variables: Variables, repo: Path) -> None:
    settings = {
        "ENROOT_ROOTFS_WRITABLE": True,
        "ENROOT_MOUNT_HOME": None,
        "ENROOT_TRANSFER_RETRIES": 3,
        "ENROOT_RESTRICT_DEV": False,
    }
    value = variables(scratch="/scratch", enroot_settings=settings)
    assert value("enroot.conf.j2").splitlines() == [
        "# Managed.",
        f"ENROOT_RUNTIME_PATH {value('__enroot_own') % '/run/enroot'}",
        f"ENROOT_DATA_PATH {value('__enroot_own') % '/scratch/enroot/data'}",
        f"ENROOT_CACHE_PATH {value('__enroot_own') % '/scratch/enroot/cache'}",
        "ENROOT_TEMP_PATH /scratch/enroot/tmp",
        "ENROOT_ROOTFS_WRITABLE yes",
        "ENROOT_RESTRICT_DEV no",
        "ENROOT_TRANSFER_RETRIES 3",
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
    complaints: Callable[..., list[str]], family: str, enroot: str | None, missing: str
) -> None:
    node = {"architecture": "aarch64", "os": {"family": family, "id": "x"}, "components": {"enroot": enroot}}
    assert [line.partition(" ")[0] for line in complaints("enroot", node)] == (
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


@pytest.mark.parametrize(
    ("resolves", "own", "address"),
    [
        ("", "", "{slurm}"),
        ("gpu-st-p5-1", "", "gpu-st-p5-1"),
        ("", "MASTER_ADDR=train.example.com\n", "train.example.com"),
    ],
)
def test_pytorch_finds_the_first_node_without_dns_of_slurms_names(
    variables: Variables, repo: Path, tmp_path: Path, resolves: str, own: str, address: str
) -> None:
    nodes = repo / "tests/unit/fixtures/slurm/nodes-24.11.5.txt"  # as scontrol has printed them
    (line,) = (line for line in nodes.read_text().splitlines() if line.startswith("NodeName=gpu-st-p5-1 "))
    (slurm,) = (word.partition("=")[2] for word in line.split() if word.startswith("NodeAddr="))
    lab.program(tmp_path / "bin/getent", f"#!/bin/sh\n[ \"$2\" = '{resolves}' ]\n")
    show = f"hostname) printf 'gpu-st-p5-%s\\n' 1 2 ;; *) grep \"^NodeName=$4 \" {nodes} ;;"
    lab.program(tmp_path / "bin/scontrol", f"#!/bin/sh\ncase $2 in {show} esac\n")
    environ, hook = tmp_path / "environment", tmp_path / "51-slurm-address.sh"
    environ.write_text(f"PYTORCH_VERSION=2.6.0\n{own}")
    hook.write_text(variables()("51-slurm-address.sh.j2"))
    given = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "ENROOT_ENVIRON": str(environ), "SLURM_STEP_NODELIST": "gpu-x"}
    for script in (repo / "molecule/cluster/standins/enroot/conf/hooks/extra/50-slurm-pytorch.sh", hook):
        subprocess.run(["bash", str(script)], env=given, check=True)
    lines = environ.read_text().splitlines()
    assert [one for one in lines if one.startswith("MASTER_ADDR")] == [f"MASTER_ADDR={address.format(slurm=slurm)}"]
    assert slurm != "gpu-st-p5-1"
