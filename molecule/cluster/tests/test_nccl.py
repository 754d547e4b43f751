# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL: NVIDIA's own build, published once, found by shells, by steps that no shell submitted, and in containers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from .helpers import On, Play, as_user, ended, failed, image_of_busybox, ok, said, system, variables

KIND = f"cuda13-{os.uname().machine}"
HOME = f"/fsx/nccl/current-{KIND}"
LINKER = "/etc/ld.so.conf.d/00-pcluster-postboot-nccl.conf"
HOOK = "/etc/enroot/hooks.d/70-nccl-shared.sh"
GPU = "gpu-st-p5-1"
WITH = ["head", "login", GPU, "el-head"]
WITHOUT = ["cpu-st-c5-1", "el-cpu-st-c5-1"]
IMAGE = "/fsx/containers/test-nccl.sqsh"
CUDA = "/usr/local/test-cuda"
ONLY = ("--tags", "nccl", "--limit", f"head,login,{GPU}")
MPI = "/fsx/test-openmpi"
# Each rank tells all others one number, over MPI.
RANKS = """#include <mpi.h>
#include <stdio.h>
int main(int count, char **words) {
  int rank, size, one = 1, sum = 0;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (!rank) printf("%d of %d\\n", sum, size);
  return MPI_Finalize();
}
"""
# What a program finds: NCCL's version, and what NCCL itself has set from /etc/nccl.conf once it is asked for anything.
PROBE = """import ctypes
nccl, libc = ctypes.CDLL("libnccl.so.2"), ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
found = ctypes.c_int()
nccl.ncclGetVersion(ctypes.byref(found))
def told(name): return (libc.getenv(name) or b"unset").decode()
before = told(b"NCCL_SOCKET_IFNAME")
nccl.ncclGetUniqueId(ctypes.create_string_buffer(128))
print(found.value, told(b"LD_LIBRARY_PATH"), before, told(b"NCCL_SOCKET_IFNAME"))
"""


@pytest.fixture(scope="module")
def probe(on: On) -> Iterator[str]:
    path = "/home/alice/test-nccl.py"
    on("head").check_output("printf %%s %s > " + path, PROBE)
    yield f"/usr/bin/python3 -I {path}"
    on("head").run(f"rm -f {path} /home/alice/test-nccl.out")


@pytest.fixture(scope="module")
def image(on: On) -> Iterator[str]:
    """An image that has an LD_LIBRARY_PATH of its own."""
    image_of_busybox(on("head"), IMAGE, "echo LD_LIBRARY_PATH=/image/lib > etc/environment")
    yield IMAGE
    on("head").run(f"rm -f {IMAGE}")


@pytest.fixture(scope="module")
def over_mpi(on: On) -> Iterator[str]:
    """A command that runs four ranks on two nodes: the distribution's Open MPI, started by Slurm's PMIx."""
    libraries = f"{MPI}/lib/{os.uname().machine}-linux-gnu"
    on("head").check_output(
        f"mkdir {MPI} && curl -sf http://mirror/sandbox/openmpi.tar.gz | tar xz -C {MPI} --strip-components=1 && "
        f"printf %%s %s | gcc -x c - -o {MPI}/ranks -I{libraries}/openmpi/include -L{libraries}/openmpi/lib -lmpi "
        "-Wl,--allow-shlib-undefined",
        RANKS,
    )
    yield (
        f"OPAL_PREFIX={MPI} LD_LIBRARY_PATH={libraries}/openmpi/lib:{libraries} PMIX_MCA_gds=hash "
        f"srun --mpi=pmix -w {GPU},cpu-st-c5-1 --nodes=2 --ntasks-per-node=2 --overcommit {MPI}/ranks"
    )
    on("head").run(f"rm -rf {MPI}")


# What there is


@pytest.mark.parametrize("name", ["head", "el-head"])
def test_the_real_library_is_published_once(on: On, name: str) -> None:
    host = on(name)
    pins = json.loads(host.check_output("curl -sf http://mirror/pins.json"))
    version = pins["nccl"]["version"]
    # By the well-known name, and by the one that nodes of this kind go by.
    for link in (HOME, "/fsx/nccl/current"):
        assert host.check_output(f"readlink {link}") == f"{version}-{KIND}"
    manifest = json.loads(host.file(f"{HOME}/manifest.json").content_string)
    assert (manifest["builder"], manifest["inputs"]["method"]) == (host.check_output("hostname"), "package")
    assert (manifest["key"], manifest["cluster"]) == (KIND, "main" if name == "head" else "el")
    assert manifest["files"]["lib/libnccl.so"] == {"link": "libnccl.so.2"}
    # NVIDIA's own file, and its headers down to the deepest.
    assert manifest["files"]["lib/libnccl.so.2"]["size"] > 100 << 20
    assert any(path.count("/") > 4 for path in manifest["files"] if path.startswith("include/"))
    assert host.file("/fsx/nccl/.nccl_version").content_string == f"{version}\n"
    assert host.check_output("find /fsx/nccl -maxdepth 1 -name '.stage-*'") == ""


@pytest.mark.parametrize("name", WITHOUT)
def test_a_node_without_a_gpu_has_nothing_of_it(on: On, name: str) -> None:
    for path in (LINKER, HOOK, "/etc/nccl.conf", "/etc/profile.d/nccl-shared.sh"):
        assert not on(name).file(path).exists, path


# Who finds it


@pytest.mark.parametrize("name", WITH)
def test_a_login_shell_and_a_program_without_one(on: On, name: str) -> None:
    done = as_user(on(name), "alice", "echo $LD_LIBRARY_PATH $NCCL_SOCKET_IFNAME $NCCL_DEBUG")
    assert done.stdout.split() == [f"{HOME}/lib", "^docker,lo,veth", "WARN"]
    assert done.stderr == ""
    found = on(name).check_output("env -i /usr/bin/python3 -I -c %s", PROBE).split()
    assert found[1:] == ["unset", "unset", "^docker,lo,veth"]
    assert int(found[0]) > 20000


def test_a_step_of_a_login_shell(on: On, probe: str) -> None:
    done = as_user(on("login"), "alice", f"srun -w {GPU} {probe}")
    assert done.stdout.split()[1:] == [f"{HOME}/lib", "^docker,lo,veth", "^docker,lo,veth"], done.stderr


def test_a_shell_knows_the_version_and_no_container_is_told(on: On, image: str) -> None:
    """As people look it up; an image without the variable may have another NCCL."""
    version = on("head").file("/fsx/nccl/.nccl_version").content_string.strip()
    line = "source /etc/profile.d/nccl-shared.sh && echo $NCCL_VERSION"
    assert as_user(on("login"), "alice", f"srun --partition=gpu --nodes=1 bash -c '{line}'").stdout.strip() == version
    told = as_user(on("login"), "alice", f"srun --partition=gpu --container-image={image} sh -c 'echo =$NCCL_VERSION='")
    assert told.stdout.strip() == "==", told.stderr


def test_a_step_that_no_login_shell_has_submitted(on: On, probe: str) -> None:
    host = on("head")
    line = f"runuser -u alice -- env -i /opt/slurm/bin/srun -w {GPU}"
    assert host.check_output(f"{line} {probe}").split()[1:] == ["unset", "unset", "^docker,lo,veth"]
    batch = f"runuser -u alice -- env -i PATH=/usr/bin:/bin /opt/slurm/bin/sbatch --parsable -w {GPU}"
    job = host.check_output(f"{batch} --output=/home/alice/test-nccl.out --wrap '/opt/slurm/bin/srun {probe}'")
    assert ended(host, job) == 0
    found = host.file("/home/alice/test-nccl.out").content_string.split()
    assert found[1:] == ["unset", "unset", "^docker,lo,veth"]


def test_a_container_has_it_when_its_job_says_so(on: On, image: str) -> None:
    inside = "'cat /fsx/nccl/.nccl_version; echo $LD_LIBRARY_PATH $NCCL_DEBUG; echo x > /fsx/nccl/x'"
    line = f"srun -w {GPU} --container-image={image} sh -c {inside}"
    done = as_user(on("login"), "alice", f"NCCL_SHARED=1 {line}")
    version, paths = done.stdout.splitlines()
    assert version == on("login").file("/fsx/nccl/.nccl_version").content_string.strip()
    assert paths.split()[0].startswith(f"{HOME}/lib:")
    assert paths.split()[0].endswith(":/image/lib")
    assert paths.split()[1] == "WARN"
    assert "Read-only file system" in done.stderr
    done = as_user(on("login"), "alice", line)
    assert done.stdout.split() == ["/image/lib", "WARN"], done.stderr
    line = line.replace(inside, "'echo $LD_PRELOAD'")
    done = as_user(on("login"), "alice", f"NCCL_SHARED=preload {line}")
    assert done.stdout == f"{HOME}/lib/libnccl.so.2\n", done.stderr


def test_a_program_of_a_job_is_asked_which_nccl_it_has(on: On, probe: str) -> None:
    version = on("login").file("/fsx/nccl/.nccl_version").content_string.strip()
    done = as_user(on("login"), "alice", f"srun -w {GPU} /fsx/nccl/which-nccl.sh -- {probe}")
    assert done.rc == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"python3: NCCL {version}, the cluster's: /fsx/nccl/{version}-{KIND}/lib/libnccl.so")


# Open MPI beside Docker


def test_a_users_mpi_reaches_other_nodes_beside_docker(on: On, over_mpi: str) -> None:
    for name in (GPU, "cpu-st-c5-1"):
        assert " 172.17.0.1/16 " in on(name).check_output("ip -oneline address show docker0")
    done = as_user(on("login"), "alice", over_mpi)
    assert (done.rc, done.stdout) == (0, "4 of 4\n"), done.stderr


@pytest.mark.long
def test_without_its_setting_it_would_hang(on: On, over_mpi: str) -> None:
    line = over_mpi.replace("srun", "timeout 20 srun")
    done = as_user(on("login"), "alice", f"unset OMPI_MCA_btl_tcp_if_exclude; {line}")
    assert (done.rc, done.stdout) == (124, ""), done.stderr


# What goes wrong


@pytest.mark.usefixtures("as_before")
@pytest.mark.long
def test_what_a_person_has_written_stays_and_a_lost_cache_is_made_anew(on: On, play: Play) -> None:
    host = on(GPU)
    host.check_output("printf 'NCCL_DEBUG=INFO\\n' | cat - /etc/nccl.conf > /tmp/conf && mv /tmp/conf /etc/nccl.conf")
    host.check_output(f"mv {LINKER} /tmp/linker && ldconfig -X && mv /tmp/linker {LINKER}")
    assert host.run("env -i /usr/bin/python3 -I -c %s", PROBE).rc != 0
    try:
        ok(play("--tags", "nccl", "--limit", GPU))
        names = [line.split("=")[0] for line in host.file("/etc/nccl.conf").content_string.splitlines() if "=" in line]
        assert sorted(names) == ["NCCL_DEBUG", "NCCL_SOCKET_IFNAME"]
        assert host.run("env -i /usr/bin/python3 -I -c %s", PROBE).rc == 0
    finally:
        host.run("sed -i 1d /etc/nccl.conf")


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_a_node_to_which_nobody_publishes_says_so_in_one_line(on: On, play: Play) -> None:
    done = failed(play("--tags", "nccl", "--limit", GPU, *variables(nccl_dir="/fsx/test-nccl", nccl_wait=10)))
    assert (
        "is not in /fsx/test-nccl yet, and 10 s passed without it; needed is that the head node publishes it: run the "
        "playbook there, with the same variables"
    ) in said(done)
    # What it has still works.
    assert on(GPU).run("env -i /usr/bin/python3 -I -c %s", PROBE).rc == 0
    assert not on(GPU).file("/fsx/test-nccl").exists


@pytest.mark.long
def test_from_source(on: On, play: Play) -> None:
    """A stand-in's source, with a program in the place of CUDA's compiler that fails first."""
    head = on("head")
    pins = json.loads(head.check_output("curl -sf http://mirror/pins.json"))["nccl"]["source"]
    given = json.dumps(
        {"nccl_method": "source", "nccl_cuda_home": CUDA, "nccl_source_sha256": {"noarch": pins["sha256"]}}
    )
    before = head.check_output(f"readlink {HOME}")
    # What is compiled does not start where the C library is older, and so its link names that.
    compiled = f"{HOME}-{system(head)}"
    compilers = ("/usr/local/bin/g++", f"{CUDA}/bin/nvcc")
    try:
        head.check_output(f"mkdir -p {CUDA}/bin")
        for path in compilers:
            head.check_output(f"printf '#!/bin/sh\\necho error: no luck; exit 3\\n' > {path} && chmod +x {path}")
        done = failed(play(*ONLY, "-e", given))
        assert "error: no luck; its log is /fsx/nccl/logs/" in said(done)
        assert "and the node that builds has failed in this run" in said(done)  # for which the others did not wait
        assert head.check_output(f"readlink {HOME}") == before
        for path in compilers:
            head.check_output(f"printf '#!/bin/sh\\necho compiler 1.0\\n' > {path}")
        done = ok(play(*ONLY, "-e", given))
        assert head.check_output(f"readlink {compiled}").startswith(f"{pins['version']}-cuda13-")
        assert head.check_output(f"readlink {HOME}") == before
        assert on(GPU).check_output("env -i /usr/bin/python3 -I -c %s", PROBE.replace("nccl.ncclGetU", "#")).split()
        # Another cluster, whose CUDA differs, has a link of its own, and switches nobody else's.
        second = {"nccl_cuda": 12, "common_node_overrides": {"cluster": "second"}}
        done = ok(play("--tags", "nccl", "--limit", "head", "-e", given, *variables(**second)))
        assert "current is cluster main's, " in done.stdout
        other = compiled.replace("cuda13", "cuda12")
        assert "-cuda12-" in head.check_output(f"readlink {other}")
        assert head.check_output("readlink /fsx/nccl/current") == head.check_output(f"readlink {compiled}")
        assert f"{other}/lib" in as_user(head, "alice", "echo $LD_LIBRARY_PATH").stdout.split(":")[0]
        assert f"{compiled}/lib" in as_user(on(GPU), "alice", "echo $LD_LIBRARY_PATH").stdout.split(":")[0]
        # The one before is kept beside it, and a node that is asked for that one has it.
        assert head.file(f"/fsx/nccl/{before}/manifest.json").exists
        ok(play("--tags", "nccl", "--limit", GPU))
        assert f"{HOME}/lib" in as_user(on(GPU), "alice", "echo $LD_LIBRARY_PATH").stdout.split(":")[0]
    finally:
        head.run(f"rm -rf {CUDA} {' '.join(compilers)}")
    done = ok(play(*ONLY))
    assert head.check_output(f"readlink {HOME}") == head.check_output("readlink /fsx/nccl/current") == before
    head.check_output(f"rm -r /fsx/nccl/{pins['version']}-cuda1[23]-* {compiled} {other}")
