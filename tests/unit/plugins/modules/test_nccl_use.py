# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nccl_use on real files below a folder, with a small ldconfig that reads its files in the order of the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._nccl import environment as nccl_environment
from ansible_collections.pcluster.postboot.plugins.module_utils._nccl import ofi_plugin
from ansible_collections.pcluster.postboot.plugins.modules import nccl_use
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

ENVIRONMENT = {"NCCL_SOCKET_IFNAME": "^docker,lo,veth", "NCCL_DEBUG": "WARN"}
BLOCK = (
    "# BEGIN pcluster.postboot: nccl_environment\nNCCL_SOCKET_IFNAME=^docker,lo,veth\nNCCL_DEBUG=WARN\n"
    "# END pcluster.postboot\n"
)
LDCONFIG = """#!/bin/sh
echo "$*" >> {top}/calls
if [ "$1" = -p ]; then
  [ ! -e {top}/cache ] || cat {top}/cache
  exit
fi
for file in {top}/etc/ld.so.conf.d/*.conf; do
  sed -e '/^#/d' "$file" | while read -r folder; do
    for path in "$folder"/lib*.so*; do
      case $path in *-uncached.so) continue ;; esac
      if [ -e "$path" ]; then printf '\\t%s (libc6,x86-64) => %s\\n' "${{path##*/}}" "$path"; fi
    done
  done
done > {top}/cache
"""


class Node:
    def __init__(self, top: Path, run: lab.Run) -> None:
        self.top, self._run = top, run
        self.etc, self.home = top / "etc", top / "fsx/nccl/current"
        for folder in ("etc/ld.so.conf.d", "bin", "fsx/nccl/current/lib"):
            (top / folder).mkdir(parents=True)
        (self.home / "lib/libnccl.so.2").write_text("")
        lab.program(top / "bin/ldconfig", LDCONFIG.format(top=top))

    def __call__(self, check: bool = False, **args: Any) -> dict[str, Any]:
        given = {"home": str(self.home), "version": "2.32.3", "environment": ENVIRONMENT, "profile": ". setup\n"}
        return self._run(nccl_use, {**given, **args}, check=check)

    def file(self, name: str) -> str | None:
        path = self.etc / name
        return path.read_text() if path.exists() else None

    def calls(self) -> list[str]:
        return (self.top / "calls").read_text().splitlines()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: lab.Run) -> Node:
    monkeypatch.setattr(nccl_environment, "ETC", str(tmp_path / "etc"))
    monkeypatch.setattr(nccl_environment, "_loaded_version", lambda: "2.32.3")
    # root, whoever runs the tests
    monkeypatch.setattr(files, "user_id", lambda _name: os.getuid())
    monkeypatch.setattr(files, "group_id", lambda _name: os.getgid())
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Node(tmp_path, run_module)


def test_check_apply_check_apply(node: Node) -> None:
    checked = node(check=True, hook="#!/bin/bash\n")
    assert checked["changed"]
    assert node.file(nccl_environment.LINKER) is None
    applied = node(hook="#!/bin/bash\n")
    assert applied["diff"] == checked["diff"]
    assert node.file(nccl_environment.LINKER) == f"# Written by pcluster.postboot.nccl.\n{node.home}/lib\n"
    assert node.file(nccl_environment.CONF) == BLOCK
    assert node.file(nccl_environment.PROFILE) == ". setup\n"
    assert (node.etc / nccl_environment.HOOK).stat().st_mode & 0o777 == 0o755
    assert (applied["library"], applied["kept"]) == ("2.32.3", [])
    for check in (True, False):
        assert not node(check=check, hook="#!/bin/bash\n")["changed"]
    # Once, and without touching the links in what the cluster shares.
    assert [call for call in node.calls() if call != "-p"] == ["-X"]


def test_what_a_person_has_written_stays_and_counts(node: Node) -> None:
    own = "# ours\nNCCL_DEBUG=INFO\n#NCCL_SOCKET_IFNAME=eth0\nNCCL_NET_GDR_LEVEL=PHB"
    (node.etc / "nccl.conf").write_text(own)
    for _ in range(2):
        assert node()["kept"] == ["NCCL_DEBUG"]
        assert node.file("nccl.conf") == f"{own}\n{BLOCK}".replace("NCCL_DEBUG=WARN\n", "")
    # What was written behind our lines counts as well.
    with (node.etc / "nccl.conf").open("a") as stream:
        stream.write("NCCL_SOCKET_IFNAME=eth0\n")
    assert node()["kept"] == ["NCCL_SOCKET_IFNAME", "NCCL_DEBUG"]
    assert node.file("nccl.conf") == f"{own}\nNCCL_SOCKET_IFNAME=eth0\n"


def test_without_variables_only_what_is_not_ours_is_left(node: Node) -> None:
    node()
    assert node(environment={})["changed"]
    assert node.file("nccl.conf") is None
    assert not node(environment={})["changed"]
    (node.etc / "nccl.conf").write_text(f"{BLOCK}NCCL_IB_HCA=x\n")
    node(environment={})
    assert node.file("nccl.conf") == "NCCL_IB_HCA=x\n"


def test_a_cache_that_was_made_without_the_shared_file_system_is_made_anew(node: Node) -> None:
    node()
    (node.top / "cache").write_text("")
    checked = node(check=True)
    assert checked["diff"] == [{"prepared": "ld.so.cache: libnccl.so.2 leads to nothing\n"}]
    assert (node.top / "cache").read_text() == ""
    assert node()["diff"] == checked["diff"]
    assert str(node.home) in (node.top / "cache").read_text()
    assert not node()["changed"]


def test_another_file_that_comes_first_is_named(node: Node) -> None:
    (node.top / "old").mkdir()
    (node.top / "old/libnccl.so.2").write_text("")
    other = node.etc / "ld.so.conf.d/000_cuda.conf"
    other.write_text(f"{node.top}/old\n")
    assert not node()["failed"]  # ours comes first
    other.rename(other.with_name("!first.conf"))
    (node.top / "cache").unlink()
    done = node()
    assert done["failed"]
    assert done["msg"] == (
        f"after ldconfig, libnccl.so.2 leads to {node.top}/old/libnccl.so.2; needed is {node.home}/lib/libnccl.so.2: "
        f"look for what comes before {node.etc}/{nccl_environment.LINKER}"
    )


@pytest.mark.parametrize("hangs", ["-p", "-X"])
def test_an_ldconfig_that_hangs_is_one_line(node: Node, monkeypatch: pytest.MonkeyPatch, hangs: str) -> None:
    """It looks into each folder of its configuration, and one of them may be on a file system that does not answer."""
    monkeypatch.setattr(nccl_environment, "TIMEOUT", 2)
    program = node.top / "bin/ldconfig"
    program.write_text(f'#!/bin/sh\n[ "$1" != {hangs} ] || exec sleep 60\n')
    done = node()
    assert done["failed"]
    assert done["msg"].endswith(
        f"ldconfig {hangs}' did not end within 2 s; needed: an answer of each file system with a folder "
        f"that {node.etc}/ld.so.conf.d names"
    )


def test_a_plugin_is_found_where_there_is_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ofi_plugin, "refusal", lambda library: "")
    plugin = node.top / "fsx/aws-ofi-nccl/current/lib"
    node(plugins=[str(plugin)])
    assert str(plugin) not in str(node.file(nccl_environment.LINKER))
    plugin.mkdir(parents=True)
    (plugin / "libnccl-net.so").write_text("")
    (plugin / "libnccl-uncached.so").write_text("")  # as it was built, the linker knows it by another name
    old = node.top / "amazon"
    old.mkdir()
    (old / "libnccl-net.so").write_text("")
    (node.etc / "ld.so.conf.d/100_ofinccl.conf").write_text(f"{old}\n")
    assert node(plugins=[str(plugin)])["changed"]
    assert str(node.file(nccl_environment.LINKER)).splitlines()[1:] == [f"{node.home}/lib", str(plugin)]
    assert f"libnccl-net.so (libc6,x86-64) => {plugin}" in (node.top / "cache").read_text().splitlines()[1]
    assert not node(plugins=[str(plugin)])["changed"]
    # The one that is called as it used to be counts until the first is there.
    first = node.top / "fsx/aws-ofi-nccl/current-new/lib"
    both = [str(first), str(plugin)]
    assert not node(plugins=both)["changed"]
    with monkeypatch.context() as other:  # it is of a cluster with another C library
        other.setattr(ofi_plugin, "refusal", lambda library: "version `GLIBC_2.38' not found")
        assert node(plugins=both)["changed"]
        assert str(node.file(nccl_environment.LINKER)).splitlines()[1:] == [f"{node.home}/lib"]
    first.mkdir(parents=True)
    (first / "libnccl-net.so").write_text("")
    assert node(plugins=both)["changed"]
    assert str(node.file(nccl_environment.LINKER)).splitlines()[1:] == [f"{node.home}/lib", str(first)]


@pytest.mark.parametrize(("own", "is_found"), [("1.13.2", True), ("1.21.1", False), ("1.22.0", False)])
def test_a_plugin_of_the_cluster_that_is_not_newer_stays_behind(node: Node, own: str, is_found: bool) -> None:
    """Shared storage outlives nodes, and an image that came later may bring a newer one."""
    shared, installed = node.top / "fsx/current/lib", node.top / "amazon/lib"
    for folder, version in ((shared, "1.21.1"), (installed, own)):
        folder.mkdir(parents=True)
        (folder / "libnccl-net.so").write_text(f"Initializing aws-ofi-nccl {version}\0")
    assert not node(plugins=[str(shared)], installed=str(installed.parent))["failed"]
    assert (str(shared) in str(node.file(nccl_environment.LINKER))) == is_found


def test_the_hook_goes_when_it_is_not_wanted(node: Node) -> None:
    node(hook="#!/bin/bash\n")
    assert node()["changed"]
    assert node.file(nccl_environment.HOOK) is None


def test_before_anything_is_published(node: Node) -> None:
    shutil.rmtree(node.top / "fsx")
    assert node(check=True)["changed"]
    done = node()
    assert done["msg"].startswith(f"{node.home}/lib/libnccl.so.2 is not there; needed is the NCCL that")
    assert node.file(nccl_environment.LINKER) is None


def test_another_version_is_named(node: Node) -> None:
    done = node(version="2.30.7")
    assert done["msg"] == (
        f"programs of this node load NCCL 2.32.3 from {node.home}, and nccl_version is 2.30.7; needed is one "
        "nccl_version for all nodes of the cluster"
    )


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"NCCL-DEBUG": "x"}, "nccl_environment has 'NCCL-DEBUG'; needed is the name of a variable"),
        ({"NCCL_DEBUG": "a\nb"}, "nccl_environment[NCCL_DEBUG] is 'a\\nb'"),
        ({"NCCL_DEBUG": "ä" * 512}, "needed is one line of 1023 bytes at most"),
    ],
)
def test_what_nccl_would_read_as_something_else_is_refused(node: Node, environment: dict[str, str], said: str) -> None:
    done = node(environment=environment)
    assert done["failed"]
    assert said in done["msg"]
    assert node.file("nccl.conf") is None


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_the_version_is_asked_of_the_library_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libnccl.so.2"
    source = "int ncclGetVersion(int *version) { *version = 23203; return 0; }"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=source, text=True, check=True, timeout=60
    )
    monkeypatch.setattr(nccl_environment, "LIBRARY", str(library))
    assert nccl_environment._loaded_version() == "2.32.3"
    source = "#include <unistd.h>\nint ncclGetVersion(int *version) { *version = sleep(60); return 0; }"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=source, text=True, check=True, timeout=60
    )
    with monkeypatch.context() as hurried:
        hurried.setattr(nccl_environment, "TIMEOUT", 0.3)
        with pytest.raises(Problem, match=r"did not load within 0.3 s; look at the shared file system"):
            nccl_environment._loaded_version()
    library.write_text("")
    with pytest.raises(Problem, match=r"does not load on this node: OSError: .*: file too short"):
        nccl_environment._loaded_version()


def test_well_known_paths_lead_to_it(node: Node) -> None:
    home, tests = node.top / "opt/nccl/build", node.top / "opt/nccl-tests/build"
    links = {str(home): "/fsx/nccl/current-cuda13-x86_64", str(tests): "/fsx/nccl-tests/current-cuda13-x86_64/bin"}
    node()
    checked = node(check=True, links=links)
    assert checked["diff"] == [{"prepared": f"{path} -> {target}\n"} for path, target in links.items()]
    assert not home.parent.exists()
    assert node(links=links)["changed"]
    assert {path: os.readlink(path) for path in links} == links
    assert home.parent.stat().st_mode & 0o777 == 0o755
    assert not node(links=links)["changed"]
    # The image has another CUDA by now.
    links = {path: target.replace("cuda13", "cuda12") for path, target in links.items()}
    assert node(links=links)["changed"]
    assert {path: os.readlink(path) for path in links} == links
    assert [path.name for path in home.parent.iterdir()] == ["build"]
    # A link that leads somewhere stays until the release with the new name is published.
    shared = node.top / "fsx/nccl-tests"
    (shared / "current-cuda12/bin").mkdir(parents=True)
    old, new = {str(tests): f"{shared}/current-cuda12/bin"}, {str(tests): f"{shared}/current-cuda12-glibc2.35/bin"}
    tests.unlink()
    assert node(links=old)["changed"]
    assert not node(links=new)["changed"]
    assert os.readlink(tests) == old[str(tests)]
    (shared / "current-cuda12-glibc2.35/bin").mkdir(parents=True)
    assert node(links=new)["changed"]
    assert os.readlink(tests) == new[str(tests)]


def test_what_is_at_a_well_known_path_stays(node: Node) -> None:
    own, folder, file = (node.top / name for name in ("own/build", "folder/build", "file"))
    own.parent.mkdir()
    own.symlink_to("/usr/local/nccl")
    folder.mkdir(parents=True)
    file.write_text("")
    node()
    assert not node(links={str(path): "/fsx/nccl/current" for path in (own, folder, file / "build")})["changed"]
    assert os.readlink(own) == "/usr/local/nccl"
    assert folder.is_dir()
