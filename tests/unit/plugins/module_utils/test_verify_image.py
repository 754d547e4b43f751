# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The image of the node's own files: made here, by the real mksquashfs, and started from by chroot."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster, containers, image
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

SAY = 'say() { printf "\\npostboot-verify|n1|%s|%s\\n" "$1" "$2"; }\n'
# A node's, and not that of the tests' own Python.
PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AS_ROOT = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]


class Node:
    """A node of which an image is made, with what NCCL's tests need on a shared file system."""

    def __init__(self, root: Path) -> None:
        self.root, self.image, self.shared = root, root / "results/x.sqsh", root / "fsx"
        for folder in ("results", "system/libibverbs", "fsx/lib", "fsx/bin", "tmp"):
            (root / folder).mkdir(parents=True)
        self.nccl = cluster.Nccl(tests_dir=str(self.shared / "bin"), environment=str(self.shared / "setup.sh"))
        (self.shared / "setup.sh").write_text(f"export LD_LIBRARY_PATH={self.shared}/lib\n")

    @property
    def squashfs(self) -> Path:
        found = shutil.which("mksquashfs")
        assert found, "mksquashfs is not there; scripts/setup.sh installs it"
        return Path(found).parent

    def make(self, **environment: str) -> dict[str, list[str]]:
        given = {"PATH": f"{self.squashfs}:{PATH}", "TMPDIR": str(self.root / "tmp"), **environment}
        script = SAY + image.script(str(self.image), self.nccl)
        done = subprocess.run(["sh", "-c", script], env=given, capture_output=True, text=True, check=True)
        assert not list((self.root / "tmp").iterdir())
        return cluster.values_of(done.stdout)["n1"]

    def unpack(self) -> Path:
        inside = self.root / "inside"
        subprocess.run(["unsquashfs", "-no-progress", "-d", inside, self.image], check=True, capture_output=True)
        return inside

    def compile(self, name: str, source: str, *options: str) -> None:
        (self.root / "source.c").write_text(source)
        subprocess.run(["cc", "-o", self.root / name, self.root / "source.c", *options], check=True)


def test_names_of_images_that_no_image_has_are_no_failure(tmp_path: Path) -> None:
    for name in ("pytorch-24.10.sqsh", "pytorch-24.9.sqsh", "pytorch-1\N{SUPERSCRIPT TWO}2.sqsh"):
        (tmp_path / name).write_text("")
    os.mkfifo(tmp_path / "pytorch-0.sqsh")
    assert image.newest_pytorch(str(tmp_path)) == str(tmp_path / "pytorch-24.10.sqsh")
    assert image.smallest(str(tmp_path)) != str(tmp_path / "pytorch-0.sqsh")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def inside(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    line = [*AS_ROOT, "chroot", str(folder), "/bin/sh", "-c", SAY + script]
    return subprocess.run(line, env={"PATH": PATH}, capture_output=True, text=True, check=False)


def test_a_container_of_it_answers(node: Node) -> None:
    assert node.make() == {"image": [str(node.image)]}
    # Another node's user has to read it, and another's container all that is in it.
    assert node.image.stat().st_mode & 0o777 == 0o644
    told = subprocess.run(["unsquashfs", "-lls", node.image], check=True, capture_output=True, text=True).stdout
    listed = [line.split() for line in told.splitlines() if re.match("[-dl]", line)]
    assert {words[1] for words in listed} == {"root/root"}
    assert [words for words in listed if words[0][0] in "-d" and words[0][7] != "r"] == []
    assert node.image.stat().st_size < 60e6
    folder = node.unpack()
    # As nvidia-container-cli would.
    lab.program(folder / "usr/bin/nvidia-smi", "#!/bin/sh\necho 'GPU 0: NVIDIA H100'\n")
    (folder / "dev").mkdir()
    (folder / "dev/null").touch()
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mountinfo").write_text("22 1 0:77 / / rw - ext4 x rw\n")
    seen = cluster.values_of(inside(folder, containers.SEES).stdout)["n1"]
    name = next(line for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("PRETTY_NAME="))
    assert seen == {"root": ["0:77 /"], "os": [name.split('"')[1]], "gpu": ["GPU 0: NVIDIA H100"]}


LIBRARY = "int {name}_answer(void) {{ return 7; }}\n"
PERF = """
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
int nccl_answer(void), efa_answer(void), ibverbs_answer(void), system_answer(void);
int main(int argc, char **argv) {
  volatile double one = argc;
  void *provider = dlopen(argv[1], RTLD_NOW), *efa = dlopen("libefa.so.1", RTLD_NOW | RTLD_NOLOAD);
  printf("%d %d %s\\n", nccl_answer() + efa_answer() + ibverbs_answer() + system_answer(), (int)cos(one - one),
         provider && provider == efa ? "once" : dlerror());
}
"""


def test_what_nccl_tests_need_of_the_system(node: Node) -> None:
    """What is mounted in the container is not in its image; a library by two names is one."""
    system, lib, root = node.root / "system", node.shared / "lib", node.root
    for name in ("ibverbs", "efa", "system"):
        node.compile(
            f"system/lib{name}.so.1", LIBRARY.format(name=name), "-shared", "-fPIC", f"-Wl,-soname,lib{name}.so.1"
        )
    node.compile("fsx/lib/libnccl.so.2", LIBRARY.format(name="nccl"), "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2")
    os.symlink("../libefa.so.1", system / "libibverbs/libefa-rdmav34.so")
    (system / "libibverbs/libmlx5-rdmav34.so").touch()
    names = [f"-l:lib{name}" for name in ("ibverbs.so.1", "efa.so.1", "system.so.1", "nccl.so.2")]
    node.compile(
        "fsx/bin/all_reduce_perf", PERF, f"-L{system}", f"-L{lib}", f"-Wl,-rpath,{system}", *names, "-lm", "-ldl"
    )
    assert node.make() == {"image": [str(node.image)]}
    folder = node.unpack()
    assert sorted(path.name for path in (folder / str(system)[1:]).rglob("*.so*")) == [
        "libefa-rdmav34.so",
        "libefa.so.1",
        "libibverbs.so.1",
        "libsystem.so.1",
    ]
    assert not (folder / str(node.shared)[1:]).exists()
    # As container-mounts would.
    shutil.copytree(node.shared, folder / str(node.shared)[1:])
    script = f". {root}/fsx/setup.sh; exec {root}/fsx/bin/all_reduce_perf {system}/libibverbs/libefa-rdmav34.so"
    done = inside(folder, script)
    assert done.stdout == "28 1 once\n", done


@pytest.mark.parametrize(
    ("missing", "problem"),
    [("mksquashfs", "there is no mksquashfs; run site with --tags enroot"), ("python3", "there is no python3")],
)
def test_programs_that_are_not_there(node: Node, missing: str, problem: str) -> None:
    (node.root / "bin").mkdir()
    for name in ("sh", "mktemp", "python3", "mksquashfs", "tar", "rm"):
        if name != missing:
            found = shutil.which(name, path=f"{node.squashfs}:{PATH}")
            assert found, name
            (node.root / "bin" / name).symlink_to(found)
    assert node.make(PATH=str(node.root / "bin")) == {"problem": [problem]}
    assert not node.image.exists()


def test_what_went_wrong_is_one_line(node: Node) -> None:
    """It is what failed first, and not what came of it."""
    (node.root / "bin").mkdir()
    lab.program(node.root / "bin/python3", "#!/bin/sh\necho 'PermissionError: [Errno 13]' >&2; exit 1\n")
    assert node.make(PATH=f"{node.root}/bin:{node.squashfs}:{PATH}") == {"problem": ["PermissionError: [Errno 13]"]}
    node.image = node.root / "nowhere/x.sqsh"
    (problem,) = node.make()["problem"]
    assert "No such file or directory" in problem
