# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nccl works out from the facts of a node, and what its files do in a shell and in a container."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

Value = Callable[[str], Any]
Variables = Callable[..., Value]
NCCL, PLUGIN = "nccl/current-cuda13-x86_64", "aws-ofi-nccl/current-x86_64"
SHELLS = [shell for shell in ("dash", "bash", "zsh") if any(Path(f, shell).exists() for f in ("/bin", "/usr/bin"))]


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(node type, gpus=…, cuda=…, facts=…, **more) returns a function that works out a variable or text."""

    def make(
        kind: str = "head", gpus: int = 0, cuda: str | None = None, facts: dict[str, Any] | None = None, **more: Any
    ) -> Value:
        node = {"node_type": kind, "gpus": {"count": gpus}, "components": {"cuda": cuda}}
        host = {"inventory_hostname": "one", "ansible_managed": "x", "ansible_check_mode": False}
        return work_out("common nccl", {**node, **(facts or {})}, **{**host, **more})

    return make


# Which node does what


@pytest.mark.parametrize(
    ("kind", "builder", "is_it"),
    [
        ("head", "", True),
        ("login", "", False),
        ("compute", "", False),
        ("head", "gpu-st-p5-1", False),
        ("compute", "ip-10-0-0-5", True),
        ("compute", "one", True),
        (None, "", False),
    ],
)
def test_who_builds(variables: Variables, kind: str, builder: str, is_it: bool) -> None:
    assert variables(kind, common_builder=builder)("__common_builder") is is_it
    assert variables(kind, common_builder=builder, facts={"image_build": True})("__common_builder") is False
    assert bool(variables(kind, common_builder=builder)("__nccl_downloads")) is is_it


@pytest.mark.parametrize(
    ("kind", "given", "gets"),
    [
        ("head", {}, True),
        ("login", {}, True),
        ("compute", {}, False),
        ("compute", {"gpus": 8}, True),
        ("compute", {"common_builder": "one"}, True),
        ("head", {"facts": {"image_build": True}}, False),
        ("head", {"facts": {"mounts": {"wanted": [], "found": [], "missing": []}}}, False),
    ],
)
def test_who_gets_it(variables: Variables, kind: str, given: dict[str, Any], gets: bool) -> None:
    assert variables(kind, **given)("nccl_enabled") is gets


@pytest.mark.parametrize(("method", "within"), [("package", (14, 26)), ("source", (21, 39))])
def test_nodes_that_wait_look_at_moments_of_their_own(
    variables: Variables, method: str, within: tuple[int, int]
) -> None:
    def pause(node: str | None, **more: Any) -> int:
        return int(variables("compute", facts={"node_name": node}, nccl_method=method, **more)("__nccl_pause"))

    found = [pause(f"gpu-st-p5-{number}") for number in range(20)]
    assert within[0] <= min(found) < max(found) <= within[1]
    assert len(set(found)) > 5
    assert found[:2] == [pause(f"gpu-st-p5-{number}") for number in range(2)]
    assert pause(None) == pause(None)
    assert [pause("one", nccl_wait=wait) for wait in (0, 10, "10")] == [10, 10, 10]


# What is published


@pytest.mark.parametrize(
    ("cuda", "more", "release", "file"),
    [
        ("12.8.1", {}, "2.32.3-cuda12-x86_64", "nccl_cu12"),
        ("13.3.1", {}, "2.32.3-cuda13-x86_64", "nccl_cu13"),
        (None, {}, "2.32.3-cuda13-x86_64", "nccl_cu13"),
        ("unknown", {}, "2.32.3-cuda13-x86_64", "nccl_cu13"),
        # What is compiled does not start where the C library is older.
        ("13.0", {"nccl_method": "source"}, "2.30.7-1-cuda13-x86_64-glibc2.39", "nccl_source"),
        ("13.0", {"nccl_cuda": 12, "nccl_version": "2.29.2"}, "2.29.2-cuda12-x86_64", "nccl_cu12"),
    ],
)
def test_the_release_and_its_download(
    variables: Variables, cuda: str | None, more: dict[str, Any], release: str, file: str
) -> None:
    value = variables(cuda=cuda, **more)
    assert value("__nccl_release_dir") == f"/fsx/nccl/{release}"
    assert value("__nccl_downloads") == [file]
    assert value("__nccl_problems") == []
    assert release.startswith(str(value("__nccl_inputs")["version"]))
    assert value("__nccl_home") == f"/fsx/nccl/current-{release[release.index('cuda') :]}"
    # The links of nccl-tests, which are compiled in any case.
    assert value("__nccl_links")["/opt/nccl-tests/build"].endswith("-x86_64-glibc2.39/bin")


def test_where_the_downloads_are(variables: Variables) -> None:
    value = variables(facts={"architecture": "aarch64"})
    pypi = "https://files.pythonhosted.org/packages/py3/n"
    for major in (12, 13):
        assert value(f"__nccl_cu{major}_url") == (
            f"{pypi}/nvidia-nccl-cu{major}/nvidia_nccl_cu{major}-2.32.3-py3-none-manylinux_2_27_aarch64.whl"
        )
    # Each has the version of its own method, whichever is chosen.
    assert value("__nccl_source_url").endswith("/NVIDIA/nccl/archive/refs/tags/v2.30.7-1.tar.gz")
    value = variables(nccl_method="source", nccl_version="2.31.1-1")
    assert value("__nccl_source_url").endswith("/v2.31.1-1.tar.gz")
    assert "-2.32.3-" in value("__nccl_cu13_url")


def test_a_source_is_compiled_for_the_gpus_that_are_named(variables: Variables) -> None:
    value = variables(cuda="13.0", nccl_method="source", nccl_cuda_architectures=[80, 90])
    make = value("__nccl_steps")["source"][0]
    assert (
        "NVCC_GENCODE=-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90 "
        "-gencode=arch=compute_90,code=compute_90"
    ) in make
    assert {"--directory={source}", "--jobs={jobs}", "BUILDDIR={scratch}/build"} <= set(make)
    assert value("__nccl_inputs")["cuda_architectures"] == [80, 90]
    assert value("__nccl_needs")[0] == "/usr/local/cuda/bin/nvcc"
    assert variables()("__nccl_inputs")["cuda_architectures"] == []
    assert value("__nccl_proof")[-1] == "2.30.7"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"nccl_cuda": 11}, "nccl_cuda: found 11; needed: 12 or 13"),
        ({"nccl_dir": "/fsx/a b"}, "nccl_dir: found /fsx/a b; needed: an absolute path"),
        ({"aws_ofi_nccl_dir": "x"}, "aws_ofi_nccl_dir: found x; needed: an absolute path"),
        (
            {"nccl_mpi_exclude": "lo docker0"},
            "nccl_mpi_exclude: found lo docker0; needed: names of interfaces or networks",
        ),
        ({"common_shared_dir": "/mnt"}, "common_shared_dir: found /mnt, which is on the disk of this node itself"),
        ({"nccl_method": "source", "nccl_cuda_architectures": []}, "nccl_cuda_architectures: found none"),
        (
            {"nccl_method": "source", "cuda": "12.6.3"},
            "nccl_cuda_architectures: found 75, 80, 90, 100; needed: less than 100 for CUDA 12.6.3, or CUDA 12.8",
        ),
    ],
)
def test_a_mistake_is_one_line(variables: Variables, given: dict[str, Any], says: str) -> None:
    (line,) = variables(**given)("__nccl_problems")
    assert line.startswith(says)


@pytest.mark.parametrize(
    ("kind", "method", "missing"),
    [("head", "source", ["nccl_source_sha256['noarch']"]), ("head", "package", []), ("login", "source", [])],
)
def test_only_who_builds_needs_a_hash_and_only_that_of_its_method(
    complaints: Callable[..., list[str]], kind: str, method: str, missing: list[str]
) -> None:
    node = {"node_type": kind, "architecture": "aarch64", "components": {"cuda": "12.8"}}
    said = complaints("nccl", node, nccl_method=method, nccl_source_sha256={"noarch": ""})
    assert [line.partition(" ")[0] for line in said] == missing
    # Each pinned version comes with its own.
    assert complaints("nccl", node, nccl_method=method) == []


def test_why_a_node_has_none(variables: Variables) -> None:
    seen = {"published": False, "why": "NCCL 2.32.3-cuda13-x86_64 is not in /fsx/nccl yet", "building": ""}
    hosts = {"one": {"ansible_facts": {"pcluster": {"node_type": "compute", "node_name": "n", "cluster": "main"}}}}
    head = {"ansible_facts": {"pcluster": {"node_type": "head", "node_name": "h", "cluster": "main"}}}
    play: dict[str, Any] = {"ansible_play_hosts_all": ["one"], "hostvars": hosts, "__nccl_seen": seen}
    assert variables("compute", 8, **play)("__nccl_missing") == (
        f"{seen['why']}, and 600 s passed without it; needed is that the head node publishes it: run the playbook "
        "there, with the same variables"
    )
    # One that is at it is waited for much longer.
    building = {**play, "__nccl_seen": {**seen, "building": "ip-10-0-0-6 (pid 17)"}}
    assert ", and 21600 s passed without it; needed" in variables("compute", 8, **building)("__nccl_missing")
    boot = variables("compute", 8, common_phase="boot", **play)
    assert boot("__nccl_missing").startswith(f"{seen['why']}, and a boot waits for nothing; needed is")
    # A head node of this play has had its turn: nobody waits for it. That of another cluster does not count.
    play.update(ansible_play_hosts_all=["one", "h", "unreachable"], hostvars={**hosts, "h": head, "unreachable": {}})
    value = variables("compute", 8, **play)
    assert value("__nccl_builder_here") is True
    assert ", and the node that builds has failed in this run; needed" in value("__nccl_missing")
    assert variables("compute", 8, facts={"cluster": "el"}, **play)("__nccl_builder_here") is False
    assert variables("compute", 8, **{**play, "__nccl_seen": {"msg": "gone"}})("__nccl_missing") == "gone"


@pytest.mark.parametrize(
    ("seen", "seconds", "goes_on"),
    [
        ({"published": True}, 0, False),
        ({"published": False, "building": ""}, 600, True),
        ({"published": False, "building": ""}, 630, False),
        ({"msg": "the file system is not there"}, 600, True),
        ({"msg": "the file system is not there"}, 630, False),
        ({"published": False, "building": "ip-10-0-0-6 (pid 17)"}, 20000, True),
    ],
)
def test_who_is_seen_building_is_waited_for(
    variables: Variables, repo: Path, seen: dict[str, Any], seconds: int, goes_on: bool
) -> None:
    block = yaml.safe_load((repo / "roles/nccl/tasks/configure.yml").read_text())[0]["block"]
    (task,) = [task for task in block if "until" in task]
    pause = int(variables("compute", 8)(task["delay"].strip("{} ")))
    play = {"ansible_play_hosts_all": [], "hostvars": {}, "__nccl_seen": {**seen, "attempts": max(seconds // pause, 1)}}
    value = variables("compute", 8, common_phase="later", **play)
    assert value(task["until"].strip()) is not goes_on
    assert 21600 - pause < int(value(task["retries"].strip("{} "))) * pause <= 21600
    boot = variables("compute", 8, common_phase="boot", **play)
    assert int(boot(task["retries"].strip("{} "))) == 0


@pytest.mark.parametrize(
    ("kind", "more", "says"),
    [
        ("compute", {"nccl_method": "source"}, True),
        ("compute", {}, False),  # that takes seconds
        ("head", {"nccl_method": "source"}, False),
        ("compute", {"nccl_method": "source", "ansible_play_hosts_all": ["one"]}, False),  # it looks again and again
    ],
)
def test_who_waits_for_hours_says_so_before(
    variables: Variables, repo: Path, kind: str, more: dict[str, Any], says: bool
) -> None:
    head = {"ansible_facts": {"pcluster": {"node_type": "head", "node_name": "h", "cluster": "main"}}}
    first, second, *_more = yaml.safe_load((repo / "roles/nccl/tasks/main.yml").read_text())
    assert (first["ansible.builtin.import_tasks"], second["name"]) == ("announce.yml", "Publish")
    play = {"ansible_play_hosts_all": ["one", "h"], "hostvars": {"one": {}, "h": head}, **more}
    value = variables(kind, 8, cuda="13.0", **play)
    assert all(value(condition) for condition in first["when"]) is says
    (task,) = yaml.safe_load((repo / "roles/nccl/tasks/announce.yml").read_text())
    args = task["pcluster.postboot.shared_build"]
    assert (args["builder"], args["wait"], args["silence"]) == (False, 0, "{{ nccl_build_timeout }}")


def test_what_is_remembered_is_what_a_user_has_set(repo: Path, ansible: Callable[..., Any]) -> None:
    """With the lookup itself, as Ansible finds it."""
    secret = {"common_mirrors": ["https://user:secret@mirror"], "common_phase": "boot", "nccl_jobs": 4}
    line = ["localhost", "-m", "ansible.builtin.debug", "-a", "msg={{ __nccl_remembered }}", "-e"]
    given = {**secret, **yaml.safe_load((repo / "roles/nccl/vars/main.yml").read_text())}
    done = ansible("adhoc", *line, json.dumps(given), cwd=repo / "tests/unit/roles")
    assert done.returncode == 0, done.stdout
    told = json.loads(json.loads(done.stdout[done.stdout.index("{") :])["msg"])
    assert told == {"common_mirrors": ["https://user:secret@mirror"], "nccl_jobs": 4}


# What users source


@pytest.fixture
def shared(tmp_path: Path, variables: Variables, repo: Path) -> Callable[..., Path]:
    """shared(**more) lays out what a cluster shares, renders the role's templates, and returns the folder."""

    def lay_out(**more: Any) -> Path:
        for folder in (NCCL, "nccl/current", PLUGIN, "amazon/efa", "amazon/ofi-nccl"):
            (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / NCCL / "lib/libnccl.so.2").write_text("")
        linker = tmp_path / "linker.conf"
        linker.write_text(f"# ours\n{tmp_path}/{NCCL}/lib\n{tmp_path}/{PLUGIN}/lib\n")
        places = {"__nccl_amazon": str(tmp_path / "amazon"), "__nccl_linker_file": str(linker)}
        value = variables(common_shared_dir=str(tmp_path), **places, **more)
        for name, place in (
            ("setup-nccl-env.sh", "nccl/setup-nccl-env.sh"),
            ("nccl-shared.sh", "nccl-shared.sh"),
            ("70-nccl-shared.sh", "hook"),
        ):
            text = (repo / f"roles/nccl/templates/{name}.j2").read_text()
            (tmp_path / place).write_text(value(text) + "\n")
        (tmp_path / "hook").chmod(0o755)
        return tmp_path

    return lay_out


def run(*line: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(line, env=known, text=True, capture_output=True, timeout=60, check=False)


def sourced(folder: Path, shell: str, before: str = ":", times: int = 2, **more: str) -> dict[str, str]:
    script = f"set -eu; {before}; " + f". {folder}/nccl-shared.sh; " * times + "env"
    done = run(shell, "-c", script, **more)
    assert (done.returncode, done.stderr) == (0, "")
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_finds_it(shared: Callable[..., Path], shell: str) -> None:
    folder = shared(nccl_environment={"NCCL_SOCKET_IFNAME": "^docker,lo", "ODD": 'it\'s "$HOME"', "NOT": None})
    ours = f"{folder}/{NCCL}/lib:{folder}/{PLUGIN}/lib"
    found = sourced(folder, shell)
    assert found["LD_LIBRARY_PATH"] == ours  # without a colon at its end, which would mean the current directory
    assert found["NCCL_HOME"] == f"{folder}/{NCCL}"
    assert (found["NCCL_SOCKET_IFNAME"], found["ODD"]) == ("^docker,lo", 'it\'s "$HOME"')
    # Nothing of its own is left behind.
    ours_alone = {name for name in found if name.startswith(("NCCL", "_nccl", "NOT"))}
    assert ours_alone == {"NCCL_HOME", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG"}
    own = sourced(folder, shell, before="export LD_LIBRARY_PATH=/mine NCCL_SOCKET_IFNAME=eth0 ODD=")
    assert own["LD_LIBRARY_PATH"] == f"{ours}:/mine"
    assert (own["NCCL_SOCKET_IFNAME"], own["ODD"]) == ("eth0", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_without_efa_or_without_the_file_system(shared: Callable[..., Path], shell: str) -> None:
    folder = shared()
    (folder / "linker.conf").write_text(f"{folder}/{NCCL}/lib\n")  # this node's own plugin is newer, or none is
    assert sourced(folder, shell)["LD_LIBRARY_PATH"] == f"{folder}/{NCCL}/lib"
    (folder / NCCL).rename(folder / "nccl/other")
    assert "LD_LIBRARY_PATH" not in sourced(folder, shell)
    (folder / "nccl").rename(folder / "gone")
    assert "LD_LIBRARY_PATH" not in sourced(folder, shell)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_node_says_which_of_several_it_is(shared: Callable[..., Path], shell: str) -> None:
    """Clusters with another CUDA or architecture share the file, and a job may come from a node of another kind."""
    folder = shared()
    other = f"{folder}/nccl/current-cuda12-x86_64"
    (folder / "nccl/current-cuda12-x86_64/lib").mkdir(parents=True)
    found = sourced(folder, shell, NCCL_HOME=other)
    assert found["NCCL_HOME"] == f"{folder}/{NCCL}"
    assert other not in found["LD_LIBRARY_PATH"]
    assert sourced(folder, shell, NCCL_HOME="/mine")["NCCL_HOME"] == "/mine"
    # In a container, where there is no such file, the hook has said it; on a node without NCCL nobody has.
    (folder / "linker.conf").unlink()
    found = sourced(folder, shell, NCCL_HOME=other)
    assert (found["NCCL_HOME"], found["LD_LIBRARY_PATH"]) == (other, f"{other}/lib")
    found = sourced(folder, shell)
    assert (found["NCCL_HOME"], found["LD_LIBRARY_PATH"]) == (f"{folder}/nccl/current", f"{folder}/nccl/current/lib")


def test_what_is_shared_is_the_same_for_all_clusters(variables: Variables, repo: Path) -> None:
    text = (repo / "roles/nccl/templates/setup-nccl-env.sh.j2").read_text()
    assert variables(cuda="12.4")(text) == variables(cuda="13.0", facts={"architecture": "aarch64"})(text)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_file_system_that_hangs_holds_no_shell(shared: Callable[..., Path], shell: str) -> None:
    folder = shared(__nccl_patience=1)
    setup = folder / "nccl/setup-nccl-env.sh"
    setup.unlink()
    os.mkfifo(setup)  # whoever opens it waits
    begun = time.monotonic()
    assert "NCCL_HOME" not in sourced(folder, shell, times=1)
    assert time.monotonic() - begun > 0.9


@pytest.mark.parametrize("shell", SHELLS)
def test_a_login_starts_only_two_programs_for_it(shared: Callable[..., Path], tmp_path: Path, shell: str) -> None:
    folder = shared()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in (shell, "env", "sh", "timeout"):
        (programs / name).symlink_to(shutil.which(name) or name)
    assert sourced(folder, shell, PATH=str(programs))["NCCL_HOME"] == f"{folder}/{NCCL}"


# The beginning of NVIDIA's header.
HEADER = """/*
 * See LICENSE.txt for more license information
 */

#ifndef NCCL_H_
#define NCCL_H_

#include <cuda_runtime.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 32
#define NCCL_PATCH 3
#define NCCL_SUFFIX ""
"""


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_knows_the_version(shared: Callable[..., Path], shell: str) -> None:
    folder = shared()
    header = folder / NCCL / "include/nccl.h"
    header.parent.mkdir()
    header.write_text(HEADER)

    def told(before: str = ":", between: str = ":", **given: str) -> str:
        lines = f"set -eu; {before}; . {folder}/nccl-shared.sh; {between}; . {folder}/nccl-shared.sh"
        done = run(shell, "-c", f'{lines}; echo "${{NCCL_VERSION-none}}"', **given)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    assert told() == "2.32.3"
    assert told(NCCL_VERSION="mine") == told(before="NCCL_VERSION=mine") == "mine"
    assert told(NCCL_HOME="/mine") == "none"
    # A shell that was there before another NCCL was published knows that one's version.
    assert told(between=f"sed -i s/32/33/ {header}") == "2.33.3"
    assert told(between="NCCL_VERSION=mine") == "mine"
    header.unlink()
    assert told() == "none"


@pytest.mark.parametrize("shell", SHELLS)
def test_no_job_and_no_container_is_told_the_version_of_the_shell(shared: Callable[..., Path], shell: str) -> None:
    """An image that does not set NCCL_VERSION has an NCCL of its own, and Pyxis adds what the caller exports."""
    folder = shared()
    (folder / NCCL / "include").mkdir()
    (folder / NCCL / "include/nccl.h").write_text(HEADER)
    found = sourced(folder, shell)
    assert not [name for name in found if name == "NCCL_VERSION" or name.startswith("_nccl")]


@pytest.mark.parametrize("shell", SHELLS)
def test_open_mpi_leaves_out_what_docker_has_on_every_node(shared: Callable[..., Path], shell: str) -> None:
    folder = shared()
    name = "OMPI_MCA_btl_tcp_if_exclude"
    assert sourced(folder, shell)[name] == "lo,docker0"
    assert sourced(folder, shell, **{name: "lo,br0"})[name] == "lo,br0"
    # Who names interfaces leaves out the others; Open MPI aborts where both are set.
    assert name not in sourced(folder, shell, OMPI_MCA_btl_tcp_if_include="eth0")
    (folder / NCCL).rename(folder / "nccl/other")
    assert sourced(folder, shell)[name] == "lo,docker0"


def test_open_mpi_is_left_alone_where_that_is_wanted(variables: Variables, repo: Path) -> None:
    text = (repo / "roles/nccl/templates/setup-nccl-env.sh.j2").read_text()
    assert "OMPI_" in variables()(text)
    assert "OMPI_" not in variables(nccl_mpi_exclude="")(text)


# Which NCCL a program uses


def library(folder: Path, version: str) -> Path:
    """Make what says of itself what NVIDIA's library does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "libnccl.so.2"
    source = f"""const char other[] = "NCCL version information%s", version[] = "NCCL version {version}+cuda13.4";
int ncclGetVersion(int *number) {{ *number = version[13] - 48; return 0; }}"""
    compile_c(source, path, "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2")
    return path


def compile_c(source: str, to: Path, *more: str | Path) -> None:
    line = ["cc", "-x", "c", "-", "-x", "none", "-o", to, *more]
    subprocess.run(line, input=source, text=True, check=True, timeout=60)


class Which:
    """which-nccl.sh on this machine, with a cluster's NCCL 2.32.3 and a program's own 2.27.5."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder, self.script = folder, folder / "nccl/which-nccl.sh"
        self.script.write_text(text + "\n")
        self.script.chmod(0o755)
        release = folder / "nccl/2.32.3-cuda13-x86_64"
        self.shared, self.own = library(release / "lib", "2.32.3"), library(folder / "venv/nvidia/nccl/lib", "2.27.5")
        shutil.rmtree(folder / NCCL)
        (folder / NCCL).symlink_to(release)

    def __call__(self, *words: str | int, **given: str) -> tuple[int, list[str]]:
        done = run("bash", self.script, *map(str, words), **given)
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()


@pytest.fixture
def which(shared: Callable[..., Path], variables: Variables, repo: Path) -> Which:
    folder = shared()
    text = variables(common_shared_dir=str(folder))((repo / "roles/nccl/templates/which-nccl.sh.j2").read_text())
    return Which(folder, text)


WAITS = "import ctypes, sys; [ctypes.CDLL(one) for one in sys.argv[1:]]; print(flush=True); sys.stdin.read()"


@contextmanager
def running(*libraries: Path) -> Iterator[int]:
    """A process that has loaded these."""
    line = [sys.executable, "-c", WAITS, *map(str, libraries)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.stdin.close()


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_a_process_is_asked_which_nccl_it_has(which: Which) -> None:
    plugin = which.folder / "amazon/lib/libnccl-net.so"
    plugin.parent.mkdir(parents=True, exist_ok=True)
    compile_c("int nothing;", plugin, "-shared", "-fPIC")
    name = Path(sys.executable).name[:15]
    link = which.folder / NCCL / "lib/libnccl.so.2"
    with running(link, plugin) as good, running(which.own) as other, running() as no:
        told = f"{name}: NCCL 2.32.3, the cluster's: {which.shared}; plugin {plugin}"
        assert which(good) == (0, [f"{good} {told}"])
        assert which(other) == (1, [f"{other} {name}: NCCL 2.27.5, not the cluster's: {which.own}"])
        assert which(no) == (3, [f"{no} {name}: no libnccl.so; it has loaded none, or has NCCL built in"])
        code, lines = which(good, other, no)
        assert (code, len(lines)) == (1, 3)
        # Without a name all that have one, and only those.
        code, lines = which()
        assert code == 1
        assert {f"{good} {told}", f"{other} {name}: NCCL 2.27.5, not the cluster's: {which.own}"} <= set(lines)
        assert not [line for line in lines if line.startswith(f"{no} ")]
    assert which(no) == (3, [f"{no}: there is no such process on {os.uname().nodename}"])


def test_a_process_name_commands_no_terminal(which: Which) -> None:
    """A user names processes by the name of a file, or by prctl()."""
    code = "import sys; open('/proc/self/comm', 'w').write('a\\x1b[2Jb\\x9b'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        told = "a?[2Jb??: no libnccl.so; it has loaded none, or has NCCL built in"
        assert which(process.pid) == (3, [f"{process.pid} {told}"])
        process.stdin.close()


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_what_brings_its_own_has_the_clusters_only_where_that_is_preloaded(which: Which) -> None:
    """PyTorch's wheels are linked with an RPATH, which the dynamic linker takes before LD_LIBRARY_PATH."""
    program = which.folder / "venv/python"
    source = "int ncclGetVersion(int *); int main(void) { int found; return ncclGetVersion(&found); }"
    compile_c(source, program, which.own, f"-Wl,--disable-new-dtags,-rpath,{which.own.parent}")
    words = ("--", str(program))
    shell = {"LD_LIBRARY_PATH": f"{which.folder}/{NCCL}/lib"}
    assert which(*words, **shell) == (1, [f"python: NCCL 2.27.5, not the cluster's: {which.own}"])
    preloaded = {**shell, "LD_PRELOAD": f"{which.folder}/{NCCL}/lib/libnccl.so.2"}
    code, lines = which("--", "env", *(f"{name}={value}" for name, value in preloaded.items()), str(program))
    assert (code, lines) == (0, [f"python: NCCL 2.32.3, the cluster's: {which.shared}"])
    # A newer tag is searched later.
    compile_c(source, program, which.own, f"-Wl,--enable-new-dtags,-rpath,{which.own.parent}")
    assert which(*words, **shell)[0] == 0
    assert which("--", "true") == (3, ["true: no libnccl.so; it has loaded none, or has NCCL built in"])


# What a container gets


def hook(
    folder: Path, environ: str, **given: str
) -> tuple[list[str], dict[str, str], subprocess.CompletedProcess[str]]:
    """Run the hook; return the mounts, what the container's environment comes to, and the run itself."""
    (folder / "mounts").write_text("")
    (folder / "environ").write_text(environ)
    files = {f"ENROOT_{name.upper()}": str(folder / name) for name in ("mounts", "environ", "rootfs")}
    done = run(folder / "hook", **files, **given)
    lines = (folder / "environ").read_text().splitlines()
    return (folder / "mounts").read_text().splitlines(), dict(line.split("=", 1) for line in lines), done


def test_a_container_gets_it_when_its_job_says_so(shared: Callable[..., Path]) -> None:
    folder = shared()
    libraries = [f"{folder}/{at}/lib" for at in (NCCL, PLUGIN, "amazon/ofi-nccl", "amazon/efa")]
    mounts, environ, done = hook(
        folder, "LD_LIBRARY_PATH=/a\nLD_LIBRARY_PATH=/image\nNCCL_DEBUG=INFO\n", NCCL_SHARED="1"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    tops = ("nccl", "aws-ofi-nccl", "amazon/ofi-nccl", "amazon/efa")
    assert mounts == [f"{folder}/{top} {folder}/{top} none x-create=dir,bind,ro,nosuid,nodev,private" for top in tops]
    assert environ["LD_LIBRARY_PATH"] == ":".join([*libraries, "/image"])
    # What the image or the job has set, stays.
    assert (environ["NCCL_DEBUG"], environ["NCCL_SOCKET_IFNAME"]) == ("INFO", "^docker,lo,veth")
    _mounts, environ, _done = hook(folder, "", NCCL_SHARED="1", NCCL_SOCKET_IFNAME="eth0")
    home = f"{folder}/{NCCL}"
    assert environ == {"LD_LIBRARY_PATH": ":".join(libraries), "NCCL_DEBUG": "WARN", "NCCL_HOME": home}


class RdmaCore:
    """Libraries of rdma-core with the symbols' versions of a release, and a libfabric that needs them, all by cc.

    rdma-core 59: libefa has EFA_1.4, libibverbs IBVERBS_1.14 and IBVERBS_PRIVATE_59, which libefa needs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.image = folder, folder / "rootfs"
        self.verbs(self.image / LINUX, "59")
        self.efa(self.image / LINUX, ["1.1", "1.4"])
        places = [self.image / LINUX / name for name in ("libefa.so.1", "libibverbs.so.1")]
        calls = ["efa_1_1", "efa_1_4", "ibv_1_14"]
        shared_library(folder / "amazon/efa/lib/libfabric.so.1", calls, {}, *places)

    def verbs(self, place: Path, private: str, public: str = "1.14") -> None:
        versions = {f"IBVERBS_{public}": f"ibv_{public}", f"IBVERBS_PRIVATE_{private}": f"ibv_{private}"}
        shared_library(place / "libibverbs.so.1", [], versions)

    def efa(self, place: Path, versions: list[str], private: str = "59", verbs: Path | None = None) -> None:
        names = {f"EFA_{version}": f"efa_{version}" for version in versions}
        needed = (verbs or place) / "libibverbs.so.1"
        shared_library(place / "libefa.so.1", [f"ibv_{private}"], names, needed)

    def loader_says(self, *paths: str) -> str:
        """What the loader of this machine says of libfabric, with the image's directories in the order given."""
        places = ":".join(f"{self.image}{path}" for path in paths)
        done = run("ldd", "-r", self.folder / "amazon/efa/lib/libfabric.so.1", LD_LIBRARY_PATH=places)
        return done.stdout + done.stderr


LINUX = f"usr/lib/{os.uname().machine}-linux-gnu"


def shared_library(path: Path, calls: list[str], versions: dict[str, str], *needed: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    names = {version: re.sub(r"\W", "_", name) for version, name in versions.items()}
    script = path.with_name(f"{path.name}.map")
    script.write_text("".join(f"{version} {{ global: {name}; }};\n" for version, name in names.items()))
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names.values())
    source += "".join(f"int {name}(void);\n" for name in calls)
    source += f"int calls(void) {{ return {' + '.join([f'{name}()' for name in calls] or ['0'])}; }}\n"
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-Wl,--allow-shlib-undefined"]
    compile_c(source, path, *flags, *([f"-Wl,--version-script,{script}"] if names else []), *needed)
    script.unlink()


@pytest.fixture
def rdma_core(shared: Callable[..., Path]) -> RdmaCore:
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    return RdmaCore(shared())


TOPS = ["nccl", "aws-ofi-nccl", "amazon/ofi-nccl", "amazon/efa"]


def kept_own_efa(core: RdmaCore, environ: str = "") -> str:
    """Run the hook; return why the image keeps its own EFA, or nothing where the container gets the host's."""
    mounts, environment, done = hook(core.folder, environ, NCCL_SHARED="1")
    assert (done.returncode, done.stdout) == (0, "")
    assert environment["LD_LIBRARY_PATH"].startswith(f"{core.folder}/{NCCL}/lib")
    tops = TOPS[:1] if done.stderr else TOPS
    assert [line.split()[0] for line in mounts] == [f"{core.folder}/{top}" for top in tops]
    start = "[WARN] NCCL_SHARED is 1, and EFA is the image's own: "
    assert done.stderr.startswith(start) or not done.stderr
    return done.stderr.removeprefix(start).rstrip("\n")


def test_an_image_with_an_older_rdma_core_keeps_its_own_efa(rdma_core: RdmaCore) -> None:
    """libefa 1.4 is of rdma-core 59. libfabric of EFA installer 1.50 does not load without."""
    assert kept_own_efa(rdma_core, "LD_LIBRARY_PATH=/image\n") == ""
    rdma_core.efa(rdma_core.image / LINUX, ["1.1", "1.3"])
    assert "version `EFA_1.4' not found" in rdma_core.loader_says(f"/{LINUX}")
    older = f"its rdma-core is older than the node's {rdma_core.folder}/amazon/efa, which needs "
    # The loader's own directories have links: /lib is /usr/lib.
    (rdma_core.image / "lib").symlink_to("usr/lib")
    own = LINUX.removeprefix("usr")
    takes = f"; the loader takes {own}/libefa.so.1 and {own}/libibverbs.so.1"
    assert kept_own_efa(rdma_core, "LD_LIBRARY_PATH=/image\n") == f"{older}EFA_1.4{takes}"
    for name in ("libefa.so.1", "libibverbs.so.1"):
        (rdma_core.image / LINUX / name).unlink()
    assert kept_own_efa(rdma_core) == f"{older}EFA_1.1 EFA_1.4 IBVERBS_1.14"


def test_an_image_with_two_rdma_cores_does_not_lose_efa_silently(rdma_core: RdmaCore) -> None:
    """NeMo 26.02 has that of Ubuntu, and that of HPC-X in /opt/rdma-core (Megatron-Bridge#2824)."""
    second = "/opt/rdma-core/build/lib"
    rdma_core.verbs(rdma_core.image / second.lstrip("/"), "60")
    assert kept_own_efa(rdma_core, "LD_LIBRARY_PATH=/image\n") == ""  # nothing leads there
    assert "version `IBVERBS_PRIVATE_59' not found" in rdma_core.loader_says(second, f"/{LINUX}")
    assert kept_own_efa(rdma_core, f"LD_LIBRARY_PATH=/old\nLD_LIBRARY_PATH=/image:{second}\n") == (
        f"the loader takes /{LINUX}/libefa.so.1 and {second}/libibverbs.so.1 of two rdma-core; the first needs "
        f"IBVERBS_PRIVATE_59 of the second; change LD_LIBRARY_PATH, as the image has /{LINUX}/libibverbs.so.1 too"
    )
    # Two whole ones are no fault, whichever comes first.
    rdma_core.efa(rdma_core.image / second.lstrip("/"), ["1.1", "1.4"], private="60")
    assert "not found" not in rdma_core.loader_says(second, f"/{LINUX}")
    assert kept_own_efa(rdma_core, f"LD_LIBRARY_PATH={second}\n") == ""


@pytest.mark.parametrize("way", ["LD_LIBRARY_PATH", "a link", "ld.so.conf.d", "a subfolder's include"])
def test_a_newer_rdma_core_that_the_loader_takes_first_counts(rdma_core: RdmaCore, way: str) -> None:
    newer, image = rdma_core.image / "opt/newer/lib", rdma_core.image
    newer.mkdir(parents=True)
    for name in ("libefa.so.1", "libibverbs.so.1"):
        (image / LINUX / name).rename(newer / name)
    rdma_core.verbs(image / LINUX, "34", "1.12")
    rdma_core.efa(image / LINUX, ["1.1"], private="34")
    assert kept_own_efa(rdma_core, "LD_LIBRARY_PATH=/image\n").endswith(
        f"needs EFA_1.4 IBVERBS_1.14; the loader takes /{LINUX}/libefa.so.1 and /{LINUX}/libibverbs.so.1"
    )
    environ = "LD_LIBRARY_PATH=/image:/opt/newer/lib\n"
    etc = image / "etc"
    (etc / "ld.so.conf.d").mkdir(parents=True)
    if way == "a link":  # absolute, as /etc/alternatives makes them; on the host it would lead elsewhere
        (image / "opt/current").symlink_to("/opt/newer")
        environ = "LD_LIBRARY_PATH=/opt/current/lib\n"
    elif way == "ld.so.conf.d":  # Ubuntu's file, and another that comes earlier than the multiarch directories'
        environ = ""
        (etc / "ld.so.conf").write_text("include /etc/ld.so.conf.d/*.conf\n\n")
        (etc / "ld.so.conf.d/x86_64-linux-gnu.conf").write_text(f"# Multiarch support\n/{LINUX}\n")
        (etc / "ld.so.conf.d/hpcx.conf").write_text("/opt/newer/lib\n")
    elif way == "a subfolder's include":  # RHEL's is relative
        environ = ""
        (etc / "ld.so.conf").write_text("include ld.so.conf.d/*.conf\n")
        (etc / "ld.so.conf.d/a.conf").write_text("include more/*.conf\ninclude /etc/ld.so.conf\n")
        (etc / "ld.so.conf.d/more").mkdir()
        (etc / "ld.so.conf.d/more/b.conf").write_text("hwcap 1 nosegneg\n/opt/newer/lib # ours")
    assert kept_own_efa(rdma_core, environ) == ""


def test_a_library_for_another_machine_is_passed_over(rdma_core: RdmaCore) -> None:
    other = rdma_core.image / "opt/other"
    other.mkdir(parents=True)
    library = bytearray((rdma_core.image / LINUX / "libibverbs.so.1").read_bytes().replace(b"IBVERBS", b"XXVERBS"))
    library[18] ^= 0xFF  # e_machine
    (other / "libibverbs.so.1").write_bytes(library)
    assert kept_own_efa(rdma_core, "LD_LIBRARY_PATH=/opt/other\n") == ""
    (other / "libibverbs.so.1").write_text("no library")
    assert kept_own_efa(rdma_core, "LD_LIBRARY_PATH=/opt/other:relative::\n") == ""


def test_odd_files_of_an_image_end_no_container(rdma_core: RdmaCore) -> None:
    odd = rdma_core.image / "opt/odd"
    odd.mkdir(parents=True)
    os.mkfifo(odd / "libefa.so.1")
    (odd / "libibverbs.so.1").symlink_to("libibverbs.so.1")
    (rdma_core.image / "etc").mkdir()
    (rdma_core.image / "etc/ld.so.conf").write_bytes(b"include /etc/ld.so.conf\n\xff\ninclude\n/opt/../opt/odd\n")
    assert kept_own_efa(rdma_core, "LD_LIBRARY_PATH=/opt/odd\nODD=\xfc\n") == ""


def test_a_container_whose_programs_bring_their_own_has_it_preloaded(shared: Callable[..., Path]) -> None:
    folder = shared()
    before = hook(folder, "LD_PRELOAD=/image/libjemalloc.so\n", NCCL_SHARED="1")
    assert before[1]["LD_PRELOAD"] == "/image/libjemalloc.so"
    mounts, environ, done = hook(folder, "LD_PRELOAD=/image/libjemalloc.so\n", NCCL_SHARED="preload")
    assert (mounts, done.returncode, done.stderr) == (before[0], 0, "")
    assert environ.pop("LD_PRELOAD") == f"{folder}/{NCCL}/lib/libnccl.so.2:/image/libjemalloc.so"
    del before[1]["LD_PRELOAD"]
    assert environ == before[1]
    assert hook(folder, "", NCCL_SHARED="preload")[1]["LD_PRELOAD"] == f"{folder}/{NCCL}/lib/libnccl.so.2"


def test_a_container_of_any_other_job_gets_nothing(shared: Callable[..., Path]) -> None:
    folder = shared()
    for given in ({}, {"NCCL_SHARED": "0"}):
        mounts, environ, done = hook(folder, "A=b\n", **given)
        assert (mounts, environ, done.returncode) == ([], {"A": "b"}, 0)


def test_a_container_on_a_node_without_efa_or_without_nccl(shared: Callable[..., Path]) -> None:
    folder = shared()
    (folder / "amazon/efa/lib").rmdir()
    (folder / "amazon/efa").rmdir()
    mounts, environ, _done = hook(folder, "", NCCL_SHARED="1")
    assert [line.split()[0] for line in mounts] == [f"{folder}/nccl"]
    assert environ["LD_LIBRARY_PATH"] == f"{folder}/{NCCL}/lib"
    (folder / NCCL / "lib/libnccl.so.2").unlink()
    mounts, _environ, done = hook(folder, "", NCCL_SHARED="1")
    assert (mounts, done.returncode) == ([], 1)
    assert done.stderr.startswith(f"[ERROR] NCCL_SHARED is 1, and {folder}/{NCCL}/lib/libnccl.so.2 is not there")
