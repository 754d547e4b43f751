# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The checks by jobs, with a Slurm that says what a test wants."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster as verify_cluster
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import containers, report, stages
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab, slurm
from ansible_collections.pcluster.postboot.tests.unit.plugins.slurm import USER, Run
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

# Answers a job as each of its nodes would: what `host` or `container` has, and `<node>.container` where one differs.
# A job that makes an image leaves one, unless it has an answer; in the folder of results each image has to be there.
SRUN = """#!/bin/sh
[ "$1" = --help ] && { cat ROOT/fake/help; exit; }
kind=host; nodes=
for word in "$@"; do case $word in
  --container-image=ROOT/results/*) kind=container; [ ! -f ROOT/fake/own ] || kind=own ;;
  --container-image=*) kind=container ;; --nodelist=*) nodes=${word#*=} ;; *'docker import'*) kind=docker ;;
  *mksquashfs*) kind=image; image=$(printf '%s\\n' "$word" | sed -n 's/^image=//p') ;;
esac; done
for word in "$@"; do case $word in --container-image=ROOT/results/*)
  [ -f "${word#*=}" ] || { echo "slurmstepd: error: pyxis:     [ERROR] No such file: ${word#*=}" >&2; exit 1; } ;;
esac; done
[ $kind = image ] && [ ! -f ROOT/fake/image ] && echo "image|$image" > ROOT/fake/$nodes.image && touch "$image"
printf '%s\\n' "$*" | head -n 1 >> ROOT/calls; env > ROOT/fake/environment; env > ROOT/fake/environment-$kind
for node in $(PYTHON -IS HOSTNAMES "$nodes"); do
  answer=ROOT/fake/$kind; [ -f ROOT/fake/$node.$kind ] && answer=ROOT/fake/$node.$kind
  sed "s/^/postboot-verify|$node|/" $answer
done
[ -f ROOT/fake/$kind.fails ] && { cat ROOT/fake/$kind.fails >&2; exit 1; }
exit 0
"""
HOST = "enroot|4.1.2\nroot|0:50 /\nos|Ubuntu 24.04.1 LTS\n"
CONTAINER = "root|0:77 /\nos|Sandbox tiny\n"


class Cluster(slurm.Cluster):
    USUAL = ["IDLE", "cpu", "(null)"]

    def __init__(self, root: Path, *more: Any) -> None:
        super().__init__(root, *more, stages=["containers"])
        self.fake, self.images, self.results = root / "fake", root / "containers", root / "results"
        for path in (self.fake, self.images, self.results):
            path.mkdir()
        os.chmod(root, 0o755)
        self.program("slurm/bin/srun", SRUN)
        self.says(help="  --container-image=[USER@][REGISTRY#]IMAGE\n", host=HOST, container=CONTAINER)
        self.nodes("gpu-st-p5-1 IDLE gpu", "cpu-st-c5-1 MIXED+CLOUD cpu")
        self.image("small.sqsh", 10)

    def says(self, **files: str) -> None:
        for name, text in files.items():
            (self.fake / name.replace("__", ".").replace("_", "-")).write_text(text)

    def image(self, name: str, size: int, mode: int = 0o644) -> None:
        (self.images / name).write_bytes(b"x" * size)
        (self.images / name).chmod(mode)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> Cluster:
    return Cluster(tmp_path, monkeypatch, run_module)


def results(result: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(check["subject"], check["name"]): check["status"] for check in result["report"]["checks"]}


def test_everything_works(cluster: Cluster, run: Run) -> None:
    result = run()
    assert not result["changed"]
    assert results(result) == {
        ("cluster", "pyxis"): "ok",
        ("cpu", "enroot"): "ok",
        ("cpu", "container"): "ok",
        ("gpu", "enroot"): "ok",
        ("gpu", "container"): "ok",
    }
    assert result["complaints"] == []
    assert result["report"]["ok"]
    line = f"Sandbox tiny on cpu-st-c5-1, from {cluster.images}/small.sqsh"
    assert result["table"][3] == f"containers  cpu      container  ok      {line}"
    path = cluster.root / "var/verify.json"
    assert json.loads(path.read_text()) == result["report"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_jobs_are_an_ordinary_users_and_have_limits(cluster: Cluster, run: Run) -> None:
    run(time_limit=3, wait=7, partitions=["cpu"])
    assert (cluster.root / "user").read_text().strip() == USER
    environment = (cluster.fake / "environment").read_text()
    assert f"HOME={pwd.getpwnam(USER).pw_dir}\n" in environment
    assert not [line for line in environment.splitlines() if line.startswith(("SUDO", "ANSIBLE", "PYTEST"))]
    assert len(cluster.calls) == 2
    for call in cluster.calls:
        assert "--partition=cpu --nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist=cpu-st-c5-1 --time=3 " in call
        assert "--immediate=7" in call
        assert "--cpu-bind=none" in call
    assert f"--container-image={cluster.images}/small.sqsh" in cluster.calls[1]


@pytest.mark.parametrize(("user", "line"), [("root", "found root; needed"), ("nobody-here", "is no user of this node")])
def test_who_may_not_submit(run: Run, user: str, line: str) -> None:
    assert line in run(user=user)["msg"]


def test_the_image(cluster: Cluster, run: Run) -> None:
    cluster.image("smaller-but-private.sqsh", 5, 0o600)
    cluster.image(".importing.sqsh", 1)
    cluster.image("notes.txt", 1)
    (cluster.images / "gone.sqsh").symlink_to(cluster.root / "nowhere")
    run()
    assert "/small.sqsh" in cluster.calls[1]
    run(container_image="ubuntu:24.04")
    assert "--container-image=ubuntu:24.04" in cluster.calls[-1]
    assert not [call for call in cluster.calls if "image=" in call.partition("-c ")[2]]


@pytest.fixture
def none(cluster: Cluster) -> Cluster:
    """A cluster without an image."""
    (cluster.images / "small.sqsh").unlink()
    return cluster


def message(result: dict[str, Any], subject: str, name: str = "container") -> str:
    checks = result["report"]["checks"]
    return next(c["message"] for c in checks if (c["subject"], c["name"]) == (subject, name))


def test_without_an_image_one_of_the_nodes_own_files_is_made(none: Cluster, run: Run) -> None:
    none.nodes("gpu-st-p5-1 IDLE gpu", "gpu-st-p5-2 IDLE gpu", "cpu-st-c5-1 IDLE cpu")
    result = run()
    assert result["complaints"] == []
    assert message(result, "cpu") == "Sandbox tiny on cpu-st-c5-1, from an image of the node's own files"
    assert message(result, "gpu") == "Sandbox tiny on gpu-st-p5-[1-2], from an image of the node's own files"
    started = [call.partition("--container-image=")[2].split(" ")[0] for call in none.calls]
    folders = {os.path.dirname(path) for path in started if path}
    assert sorted(os.path.basename(path) for path in started if path) == [
        "cpu-cpu-st-c5-1.sqsh",
        "gpu-gpu-st-p5-1.sqsh",
    ]
    assert len(folders) == 1
    # One for each partition, made by the user, on one node, without its GPUs; none is left.
    (making,) = [call for call in none.calls if "--partition=gpu --nodes=1 " in call]
    assert "--nodelist=gpu-st-p5-1 " in making
    assert f"USER={USER}\n" in (none.fake / "environment-image").read_text()
    assert list(none.results.iterdir()) == []


def test_images_go_whatever_happens(none: Cluster, run: Run) -> None:
    none.says(container__fails="slurmstepd: error: pyxis:     [ERROR] it breaks\n", container="")
    assert len(run()["complaints"]) == 2
    assert list(none.results.iterdir()) == []
    none.program("slurm/bin/scontrol", "#!/bin/sh\ntest -e ROOT/asked || { touch ROOT/asked; exit 1; }\n")
    assert "scontrol" in run()["msg"]
    assert list(none.results.iterdir()) == []


def test_images_that_stay_cost_no_results(none: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = verify_cluster.Context._told

    def told(self: verify_cluster.Context, program: str, *argv: str) -> str:
        if program == "rm":
            raise Problem("rm ended with 1 and said: Directory not empty")
        return real(self, program, *argv)

    monkeypatch.setattr(verify_cluster.Context, "_told", told)
    assert run()["complaints"] == []


def test_an_image_that_cannot_be_made(none: Cluster, run: Run) -> None:
    what = f"there is no image in {none.images}, and none was made of the node's own files"
    do = "name one in container_images_list, or set verify_container_image"
    none.says(image="problem|there is no python3\n")
    assert run(partitions=["cpu"])["complaints"] == [
        f"cpu: container (containers): {what}, as cpu-st-c5-1 says: there is no python3; {do}"
    ]
    none.says(image="", image__fails="srun: error: Node failure on cpu-st-c5-1\n")
    assert run(partitions=["cpu"])["complaints"] == [
        f"cpu: container (containers): {what}, as cpu-st-c5-1 says: Node failure on cpu-st-c5-1; {do}"
    ]
    none.says(image__fails="srun: error: Unable to allocate resources: Requested nodes are busy\n")
    result = run(partitions=["cpu"], wait=3)
    assert results(result)[("cpu", "container")] == "skipped"
    assert message(result, "cpu") == "no room within 3 s on cpu-st-c5-1"
    none.results.rmdir()
    assert run(partitions=["cpu"])["complaints"] == [
        f"cpu: container (containers): {what}: verify_results_dir: {none.results} is not there; "
        f"run site with --tags nccl_tests; {do}"
    ]


def test_a_partition_with_gpus_on_some_nodes(cluster: Cluster, run: Run) -> None:
    """A job asks for GPUs on each of its nodes or on none, so there are two."""
    cluster.nodes(*(f"a{index} IDLE a" for index in (1, 2, 3)), *(f"g{index} IDLE a gpu:8" for index in (1, 2, 3)))
    seen = {
        f"g{index}__{kind}": text + "gpu|GPU\n" * 8
        for index in (1, 2)
        for kind, text in (("host", HOST), ("container", CONTAINER))
    }
    cluster.says(**seen)
    result = run()
    assert results(result) == {
        ("cluster", "pyxis"): "ok",
        ("a with GPUs", "enroot"): "ok",
        ("a with GPUs", "container"): "ok",
        ("a with GPUs", "gpus"): "ok",
        ("a without GPUs", "enroot"): "ok",
        ("a without GPUs", "container"): "ok",
    }
    asked = [
        ("--nodelist=g[1-2] " in call, "--gres=gpu:8 " in call, "--nodelist=a[1-2] " in call) for call in cluster.calls
    ]
    assert asked == [(True, True, False)] * 2 + [(False, False, True)] * 2


def test_which_nodes_of_both_kinds_are_booted(cluster: Cluster, run: Run) -> None:
    """No more than are asked for, and those with GPUs first."""
    down = "IDLE+CLOUD+POWERED_DOWN"
    cluster.nodes("a1 IDLE a", f"a2 {down} a", f"g1 {down} a gpu:8", f"g2 {down} a gpu:8")
    run(power_up=True)
    nodes = {call.partition("--nodelist=")[2].split(" ")[0] for call in cluster.calls}
    assert nodes == {"a1", "g1"}


def test_without_pyxis(cluster: Cluster, run: Run) -> None:
    cluster.says(help="nothing")
    result = run()
    assert len(result["complaints"]) == 1
    assert "srun knows no --container-image; run site with --tags enroot,pyxis" in result["complaints"][0]
    assert cluster.calls == []


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("IDLE+CLOUD+POWERED_DOWN", "; verify_power_up: true boots one"),
        ("IDLE+CLOUD+POWERED_DOWN+NOT_RESPONDING", ""),  # no job starts it
        ("DOWN+NOT_RESPONDING", ""),
        ("IDLE+DRAIN", ""),
        ("MIXED+POWERING_DOWN", ""),
    ],
)
def test_a_node_that_is_not_up_is_left_alone(cluster: Cluster, run: Run, state: str, advice: str) -> None:
    cluster.nodes(f"a-dy-x-1 {state} a", "b-st-x-1 ALLOCATED b")
    result = run()
    assert results(result)[("a", "container")] == "skipped"
    assert result["table"][2].endswith(f"no node of it is up ({state}){advice}"), result["table"][2]
    assert result["complaints"] == []
    assert result["report"]["verdict"].startswith(f"not measured: containers on a: no node of it is up ({state})")
    assert all("a-dy-x-1" not in call for call in cluster.calls)


@pytest.mark.parametrize("state", ["IDLE+PLANNED", "IDLE+COMPLETING+PLANNED", "MIXED+CLOUD+COMPLETING+PLANNED"])
def test_a_node_is_up_while_a_job_ends_there_or_another_is_planned(cluster: Cluster, run: Run, state: str) -> None:
    """The jobs that verify itself has just ended leave nodes so; srun waits for them."""
    cluster.nodes(f"a-dy-x-1 {state} a")
    result = run(wait=120)
    assert results(result)[("a", "container")] == "ok"
    assert all("--immediate=120" in call for call in cluster.calls)


def test_a_node_is_booted_when_asked(cluster: Cluster, run: Run) -> None:
    cluster.nodes("a-dy-x-1 IDLE+CLOUD+POWERED_DOWN a", "a-dy-x-2 DOWN a")
    assert results(run(power_up=True))[("a", "container")] == "ok"
    assert all("--nodelist=a-dy-x-1 " in call and "--immediate" not in call for call in cluster.calls)


def test_nothing_to_check_is_no_success(cluster: Cluster, run: Run) -> None:
    cluster.nodes("a-dy-x-1 DOWN a")
    cluster.says(help="--container-image")
    result = run()
    assert results(result) == {("cluster", "pyxis"): "ok", ("a", "container"): "skipped"}
    assert result["complaints"] == ["nothing was measured: containers on a: no node of it is up (DOWN)"]
    assert not result["report"]["ok"]


def check(subject: str, status: str, message: str = "x", missed: bool = True) -> report.Check:
    return report.Check("its name", subject, status, message, missed=missed)


def test_a_stage_that_could_look_at_nothing_is_no_success() -> None:
    """Whoever does not want it leaves it out of verify_clusters."""
    well = [("nodes", check("cluster", "ok")), ("nodes", check("cpu", "ok"))]
    down = [(stage, check("gpu", "skipped", "no node of it is up")) for stage in ("nodes", "nccl")]
    assert report.complaints([*well, *down]) == ["nothing was measured: nccl on gpu: no node of it is up"]
    assert report.complaints([*well, *down[:1]]) == []
    # It failed before it came to nodes, and says so itself.
    broken = ("containers", check("cluster", "failed", "no Pyxis"))
    assert report.complaints([*well, broken]) == ["cluster: its name (containers): no Pyxis"]


def test_a_cluster_without_gpus_is_told_and_no_failure() -> None:
    none = ("nccl", check("cluster", "skipped", "no partition has GPUs", missed=False))
    assert report.complaints([("nodes", check("cpu", "ok")), none]) == []
    assert report.verdict([("nodes", check("cpu", "ok")), none]) == "1 checks passed"
    # Unless nothing else was asked for.
    assert report.complaints([none]) == ["nothing was measured: nccl: no partition has GPUs"]


def test_the_verdict_says_first_what_was_not_measured() -> None:
    well = [("nodes", check("cpu", "ok")), ("nccl", check("gpu", "unknown"))]
    down = [(stage, check("big", "skipped", "no node of it is up")) for stage in ("nodes", "containers")]
    busy, same = check("gpu", "skipped", "no room within 3 s on n1"), check("b", "skipped", missed=False)
    assert report.verdict([*well, *down, ("nodes", busy), ("nodes", same)]) == (
        "not measured: nodes, containers on big: no node of it is up; nodes on gpu: no room within 3 s on n1. "
        "1 checks passed, and 1 could not be judged"
    )
    assert report.verdict([*well, ("nccl", check("gpu", "failed")), *down[:1]]) == (
        "not measured: nodes on big: no node of it is up. 1 of 4 checks failed, and 1 could not be judged"
    )
    many = [("nodes", check(f"q{index}", "skipped")) for index in range(9)]
    assert "; nodes on q5: x; and 3 more. 1 checks passed" in report.verdict([*well, *many])


@pytest.mark.parametrize(("number", "nodes"), [(1, "a1"), (2, "a[1-2]"), (0, "a[1-3]")])
def test_how_many_nodes(cluster: Cluster, run: Run, number: int, nodes: str) -> None:
    cluster.nodes("a1 IDLE a", "a2 IDLE a", "a3 IDLE a")
    run(nodes=number)
    assert all(f"--nodelist={nodes} " in call for call in cluster.calls)


def test_a_partition_that_does_not_exist(run: Run) -> None:
    assert run(partitions=["cpu", "nope"])["msg"] == "verify_partitions: found nope; needed: some of gpu, cpu"


def test_one_partition_fails_and_the_other_is_checked(cluster: Cluster, run: Run) -> None:
    error = (
        "srun: job 7 queued and waiting for resources\npyxis: importing docker image: x\n"
        "slurmstepd: error: pyxis: child 9 failed with error code: 1\n"
        "slurmstepd: error: pyxis:     [ERROR] URL http://r/v2/x returned error code: 401 Unauthorized\n"
        "srun: error: cpu-st-c5-1: task 0: Exited with exit code 1\n"
    )
    fails = f"case $* in *=cpu*--container*) echo '{error}' >&2; exit 1;; esac\n"
    cluster.program("slurm/bin/srun", SRUN.replace("exit 0\n", fails))
    result = run(container_image="x")
    assert results(result)[("gpu", "container")] == "ok"
    assert result["complaints"] == [
        "cpu: container (containers): srun --container-image=x ended with 1: "
        "[ERROR] URL http://r/v2/x returned error code: 401 Unauthorized"
    ]


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("root|0:50 /\nos|Ubuntu 24.04.1 LTS\n", "the job on a2 ran on the host, and not in x"),
        ("root|0:77 /\n", "the container on a2 has no /etc/os-release"),
        ("", "the container on a2 said nothing"),
    ],
)
def test_what_a_container_must_show(cluster: Cluster, run: Run, answer: str, line: str) -> None:
    cluster.nodes("a1 IDLE a", "a2 IDLE a")
    cluster.says(a2__container=answer)
    result = run(container_image="x")
    assert result["complaints"] == [f"a: container (containers): {line}"]


def test_a_container_with_the_hosts_own_system_is_fine(cluster: Cluster, run: Run) -> None:
    cluster.says(container="root|0:77 /\nos|Ubuntu 24.04.1 LTS\n")
    assert run()["complaints"] == []


@pytest.mark.parametrize(
    ("host", "inside", "cuda", "status", "line"),
    [
        (8, 8, "8", "ok", "8 GPUs in the container, and CUDA starts there"),
        (8, 0, "8", "failed", "the container on gpu-st-p5-1 sees 0 of 8 GPUs; see enroot's hook 98-nvidia.sh there"),
        (0, 0, "8", "failed", "nvidia-smi shows no GPU on gpu-st-p5-1, and Slurm has 8 there; see 'nvidia-smi' there"),
        # What libcuda answers without /dev/nvidia-uvm: CUDA_ERROR_UNKNOWN.
        (
            8,
            8,
            "error 999",
            "failed",
            "CUDA does not start in the container on gpu-st-p5-1: error 999; see 'ls -l /dev/nvidia-uvm' there, and "
            "run site with --tags nvidia_container_toolkit,enroot",
        ),
        (8, 8, "0", "failed", "CUDA does not start in the container on gpu-st-p5-1: it sees no GPU; see "),
        (8, 8, "none", "failed", "CUDA does not start in the container on gpu-st-p5-1: no libcuda.so.1; see "),
        (8, 8, "", "failed", "CUDA does not start in the container on gpu-st-p5-1: it said nothing; see "),
    ],
)
def test_gpus(cluster: Cluster, run: Run, host: int, inside: int, cuda: str, status: str, line: str) -> None:
    cluster.nodes("gpu-st-p5-1 IDLE gpu gpu:h100:8(S:0-1)")
    cluster.says(host=HOST + "libcuda|yes\n" + "gpu|GPU\n" * host)
    cluster.says(container=CONTAINER + "gpu|GPU\n" * inside + f"cuda|{cuda}\n")
    result = run()
    assert results(result)[("gpu", "gpus")] == status
    assert line in gpus_of(result)[1]
    assert all("--gres=gpu:8" in call for call in cluster.calls)


def gpus_of(result: dict[str, Any]) -> tuple[str, str]:
    (found,) = [(c["status"], c["message"]) for c in result["report"]["checks"] if c["name"] == "gpus"]
    return found


def test_gpus_on_nodes_without_libcuda(cluster: Cluster, run: Run) -> None:
    cluster.nodes("a1 IDLE gpu gpu:h100:8(S:0-1)")
    cluster.says(host=HOST + "gpu|GPU\n" * 8, container=CONTAINER + "gpu|GPU\n" * 8 + "cuda|none\n")
    assert gpus_of(run()) == ("ok", "8 GPUs in the container; CUDA was not tried, as a1 has no libcuda.so.1")


@pytest.mark.parametrize("made", [True, False])
def test_cuda_where_the_image_has_no_python(cluster: Cluster, run: Run, made: bool) -> None:
    """Then an image of the node's own files has one."""
    cluster.nodes("a1 IDLE gpu gpu:h100:8(S:0-1)")
    cluster.says(host=HOST + "libcuda|yes\n" + "gpu|GPU\n" * 8, own="cuda|8\n")
    cluster.says(container=CONTAINER + "gpu|GPU\n" * 8 + "cuda|untried\n")
    if not made:
        cluster.says(image="problem|there is no mksquashfs; run site with --tags enroot\n")
    status, message = gpus_of(run())
    if made:
        assert (status, message) == ("ok", "8 GPUs in the container, and CUDA starts there")
        cluster.says(own="cuda|error 999\n")
        assert gpus_of(run())[0] == "failed"
    else:
        assert status == "ok"
        assert message.startswith(
            f"8 GPUs in the container; CUDA was not tried, as {cluster.images}/small.sqsh has no python3, and there is "
        )
        assert "there is no mksquashfs" in message


@pytest.mark.parametrize("python", [True, False])
@pytest.mark.parametrize("code", ["0", "999"])
def test_the_job_in_the_container_starts_cuda(tmp_path: Path, code: str, python: bool) -> None:
    """Of programs an image may have nothing but its shell."""
    for name in ("bin", "driver"):
        (tmp_path / name).mkdir()
    text = (
        "#include <stdlib.h>\n"
        'int cuInit(unsigned flags) { return atoi(getenv("CODE")); }\n'
        "int cuDeviceGetCount(int *count) { *count = 2; return 0; }\n"
    )
    line = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{tmp_path}/driver/libcuda.so.1"]
    subprocess.run(line, input=text, text=True, check=True)
    if python:
        (tmp_path / "bin/python3").symlink_to(sys.executable)
    say = 'say() { printf "\npostboot-verify|n1|%s|%s\n" "$1" "$2"; }\n'
    environment = {"PATH": f"{tmp_path}/bin", "LD_LIBRARY_PATH": f"{tmp_path}/driver", "CODE": code}
    done = subprocess.run(
        ["/bin/sh", "-c", say + containers.CUDA], env=environment, capture_output=True, text=True, check=False
    )
    wanted = "untried" if not python else "2" if code == "0" else "error 999"
    assert verify_cluster.values_of(done.stdout)["n1"] == {"cuda": [wanted]}, done


# Docker


DOCKER = "cuda_host|8\ncuda|8\n" + "gpu|GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0a7a51b0)\n" * 8


@pytest.fixture
def gpus(cluster: Cluster) -> Cluster:
    """Two nodes with GPUs, Enroot and Docker, on which all is well."""
    cluster.nodes("a1 IDLE gpu gpu:h100:8(S:0-1)", "a2 IDLE gpu gpu:h100:8(S:0-1)")
    cluster.says(host=HOST + "libcuda|yes\n" + "gpu|GPU\n" * 8 + "docker|enabled\n", docker=DOCKER)
    cluster.says(container=CONTAINER + "gpu|GPU\n" * 8 + "cuda|8\n")
    return cluster


def docker(result: dict[str, Any]) -> tuple[str, str]:
    (found,) = [(c["status"], c["message"]) for c in result["report"]["checks"] if c["name"] == "docker"]
    return found


def test_docker_gives_containers_gpus_on_which_cuda_starts(gpus: Cluster, run: Run) -> None:
    assert docker(run()) == ("ok", "8 GPUs in a container of Docker's, and CUDA starts there")
    calls = [call for call in gpus.calls if "--nodelist=a[1-2] " in call and "--ntasks=2" in call]
    assert "--gres=gpu:8" in calls[2]
    # Before Docker, whose hook would make the device that CUDA needs, for Enroot's container as well.
    assert ["--container-image=" in call for call in calls] == [False, True, False]
    # Only root may use Docker, unless docker_users says otherwise.
    assert "USER=root\n" in (gpus.fake / "environment-docker").read_text()
    assert f"USER={USER}\n" in (gpus.fake / "environment-container").read_text()


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (
            'cuda_host|8\nproblem|docker: Error response from daemon: could not select device driver "" with '
            "capabilities: [[gpu]].\n",
            'a2: docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        ),
        (DOCKER.replace("cuda|8", "cuda|error 999"), "a2: CUDA does not start in a container of Docker's: error 999"),
        (DOCKER.replace("cuda|8", "cuda|none"), "a2: CUDA does not start in a container of Docker's: no libcuda.so.1"),
        (DOCKER.replace("cuda|8", "cuda|7"), "a2: CUDA sees 7 GPUs in a container of Docker's, and 8 outside of it"),
        (DOCKER.replace("cuda_host|8", "cuda_host|error 802"), "a2: CUDA does not start on the node itself: error 802"),
        ("cuda_host|8\ncuda|8\ngpu|GPU 0\n", "a2: nvidia-smi sees 1 of 8 GPUs in a container of Docker's"),
        ("", "a2: the job said nothing"),
    ],
)
def test_what_docker_may_lack(gpus: Cluster, run: Run, answer: str, line: str) -> None:
    gpus.says(a2__docker=answer)
    result = run()
    assert docker(result) == ("failed", f"{line}; run site with --tags docker,nvidia_container_toolkit")
    assert results(result)[("gpu", "container")] == "ok"


def test_docker_on_nodes_without_libcuda(gpus: Cluster, run: Run) -> None:
    gpus.says(docker=DOCKER.replace("cuda_host|8\ncuda|8", "cuda_host|none\ncuda|none"))
    assert docker(run()) == (
        "ok",
        "8 GPUs in a container of Docker's; CUDA was not tried, as a[1-2] have no libcuda.so.1",
    )


def test_docker_where_it_is_not_wanted(gpus: Cluster, run: Run) -> None:
    """No node has it, or the nodes have no GPUs; of several only those are asked that have it."""
    gpus.says(a1__host=HOST + "gpu|GPU\n" * 8)
    run()
    assert [call for call in gpus.calls if "--nodelist=a2 " in call]
    gpus.says(host=HOST + "gpu|GPU\n" * 8)
    assert ("gpu", "docker") not in results(run())
    gpus.says(host=HOST + "docker|enabled\n", a1__host=HOST + "docker|enabled\n", container=CONTAINER)
    gpus.nodes("a1 IDLE cpu", "a2 IDLE cpu")
    assert ("cpu", "docker") not in results(run())


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("Unable to allocate resources: Requested nodes are busy", "no room within 120 s on a[1-2]"),
        (
            "Unable to allocate resources: Access/permission denied",
            "Slurm takes no job of root's, who alone may use Docker: "
            "Unable to allocate resources: Access/permission denied",
        ),
    ],
)
def test_docker_that_could_not_be_asked(gpus: Cluster, run: Run, error: str, line: str) -> None:
    gpus.says(docker="", docker__fails=f"srun: error: {error}\n")
    result = run()
    assert docker(result) == ("skipped", line)
    assert result["report"]["verdict"].startswith(f"not measured: containers on gpu: {line}. ")


# An engine that unpacks an image, and runs its programs with its libraries and those that --gpus brings along.
ENGINE = """#!/bin/sh
case $1 in
  import) mkdir -p ROOT/image && tar -x -C ROOT/image && echo sha256:1 ;;
  rmi) rm -r ROOT/image ;;
  run)
    shift; gpus=
    while [ "$1" != "postboot-verify:7" ]; do case $1 in all) gpus=:ROOT/driver ;; esac; shift; done
    shift
    [ "$gpus" ] && [ -e ROOT/hook ] || { printf 'docker: Error response from daemon: no driver\\n\\n' >&2; exit 125; }
    [ "$1" = nvidia-smi ] && exec env PATH=ROOT/image/bin:ROOT/image/usr/bin sh ROOT/bin/nvidia-smi "$2"
    program=$1; shift
    exec env -i PYTHONHOME=ROOT/image$(dirname "$(dirname "$program")") ROOT/image/LOADER --library-path \\
      "$(find ROOT/image -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)$gpus" ROOT/image"$program" "$@"
esac
"""


@pytest.mark.parametrize("trouble", ["", "no hook", "no device", "engine"])
def test_the_job_of_docker_makes_its_image_of_the_nodes_own_files(tmp_path: Path, trouble: str) -> None:
    """Nothing is downloaded. What runs in it is the image's, with the driver's libraries as --gpus brings them."""
    for name in ("bin", "driver"):
        (tmp_path / name).mkdir()
    python = os.path.realpath("/usr/bin/python3")
    loader = subprocess.check_output(["ldd", python], text=True).split("\n")[-2].split()[0]
    engine = "exit 1\n" if trouble == "engine" else ENGINE.replace("ROOT", str(tmp_path)).replace("/LOADER", loader)
    programs = {"docker": engine, "nvidia-smi": "#!/bin/sh\necho 'GPU 0: NVIDIA H100'\necho 'GPU 1: NVIDIA H100'\n"}
    for name, text in programs.items():
        lab.program(tmp_path / "bin" / name, text)
    # As libcuda does: on the node it has nvidia-modprobe make /dev/nvidia-uvm, without which it does not start.
    (tmp_path / "driver/cuda.c").write_text(
        "#include <fcntl.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        "int cuInit(unsigned flags) {\n"
        f'  if (getenv("SLURM_JOB_ID")) return close(open("{tmp_path}/nvidia-uvm", O_CREAT, 0644));\n'
        f'  return access("{tmp_path}/nvidia-uvm", R_OK) ? 999 : 0;\n'
        "}\n"
        "int cuDeviceGetCount(int *count) { *count = 2; return 0; }\n"
    )
    if trouble != "no device":
        (tmp_path / "nvidia-uvm").touch()
    line = ["cc", "-shared", "-fPIC", "-o", f"{tmp_path}/driver/libcuda.so.1", f"{tmp_path}/driver/cuda.c"]
    subprocess.run(line, check=True)
    if trouble != "no hook":
        (tmp_path / "hook").touch()
    say = 'say() { printf "\\npostboot-verify|n1|%s|%s\\n" "$1" "$2"; }\n'
    environment = {
        "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
        "SLURM_JOB_ID": "7",
        "LD_LIBRARY_PATH": f"{tmp_path}/driver",
    }
    done = subprocess.run(
        ["sh", "-c", say + containers.DOCKER], env=environment, capture_output=True, text=True, check=False
    )
    seen = verify_cluster.values_of(done.stdout)["n1"]
    if trouble == "no hook":
        assert seen == {"problem": ["docker: Error response from daemon: no driver"]}
    elif trouble == "engine":
        assert seen["problem"][0].startswith("docker import failed: "), seen
    else:
        assert len(seen["gpu"]) == 2
        assert seen["cuda"] == ["error 999" if trouble == "no device" else "2"], done
        assert seen["cuda_host"] == ["2"], done
    assert not (tmp_path / "image").exists()


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ("enroot|3.4.1", "its nodes have different versions: a1 has 4.1.2, a2 has 3.4.1"),
        ("enroot|sh: enroot: not found", "a2 has no Enroot: sh: enroot: not found"),
    ],
)
def test_enroots_version(cluster: Cluster, run: Run, other: str, line: str) -> None:
    cluster.nodes("a1 IDLE a", "a2 IDLE a")
    cluster.says(a2__host=f"{other}\nroot|0:50 /\nos|x\n")
    assert run()["complaints"] == [f"a: enroot (containers): {line}"]


def test_busy_nodes_are_skipped(cluster: Cluster, run: Run) -> None:
    cluster.says(host__fails="srun: error: Unable to allocate resources: Requested nodes are busy\n", host="")
    result = run(partitions=["cpu"], wait=5)
    assert results(result)[("cpu", "container")] == "skipped"
    assert "its nodes had no room within 5 s" in result["complaints"][0]


def test_a_node_without_an_answer(cluster: Cluster, run: Run) -> None:
    cluster.nodes("a1 IDLE a", "a2 IDLE a")
    cluster.says(host__fails="srun: error: Node failure on a2\n", a2__host="")
    assert run()["complaints"] == ["a: job (containers): srun ended with 1 (no word from a2): Node failure on a2"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_job_that_hangs_is_ended_whether_or_not_slurm_answers(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    hangs = "" if answers else "exec sleep 600\n"
    cluster.program("slurm/bin/scancel", f'#!/bin/sh\necho "$*" > ROOT/cancelled\n{hangs}')
    cluster.program("slurm/bin/srun", SRUN.replace("kind=host;", "kind=host; echo $$ > ROOT/pid; exec sleep 600;"))
    monkeypatch.setattr(verify_cluster, "_SPARE", 4)
    monkeypatch.setattr(verify_cluster, "_PATIENCE", 2)
    result = run(partitions=["cpu"], time_limit=0, wait=0)
    assert "the job did not end within" in result["complaints"][0]
    assert (cluster.root / "cancelled").read_text().startswith("--name=postboot-verify-")
    with pytest.raises(ProcessLookupError):
        os.kill(int((cluster.root / "pid").read_text()), 0)


def test_what_is_known_is_written_after_each_stage(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed leaves it."""
    path = cluster.root / "var/verify.json"
    context = verify_cluster.Context(verify_cluster.Options(user=USER))
    seen: list[dict[str, Any]] = []
    log = path.with_suffix(".log")

    def first(_context: verify_cluster.Context) -> Any:
        assert not path.exists()
        assert log.read_text() == "stage nodes, 0 checks made: begins\n"
        yield check("cpu", "ok", "first")
        yield check("cpu", "ok", "second")

    def second(context: verify_cluster.Context) -> Any:
        seen.append(json.loads(path.read_text()))
        monkeypatch.setattr(stages, "_SAVED_EVERY", 0)
        context.runs.append({"stage": "one_node"})
        context.save()
        seen.append(json.loads(path.read_text()))
        context.note("a job on gpu-1")
        assert log.read_text() == "stage nccl, 2 checks made: a job on gpu-1\n"
        yield check("gpu", "failed", "third")

    checks = stages.carry_out(context, {"nodes": first, "nccl": second}, str(path), {"cluster": "main"})
    assert [one.message for _stage, one in checks] == ["first", "second", "third"]
    told, later, last = *seen, json.loads(path.read_text())
    assert [one["message"] for one in told["checks"]] == ["first", "second"]
    assert (told["ok"], told["finished"], told["verdict"]) == (False, "", "not finished: nccl. 2 checks passed")
    assert later["runs"] == [{"stage": "one_node"}]
    assert (last["verdict"], len(last["checks"]), last["cluster"]) == ("1 of 3 checks failed", 3, "main")
    assert last["finished"]


def test_a_run_ends_before_its_time_is_over(cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it Ansible would end it, and nobody would know what it has found."""
    real = verify_cluster.time.monotonic
    monkeypatch.setattr(verify_cluster.time, "monotonic", lambda: real() + 3600 * bool(cluster.calls))
    result = run(limit=60, stages=["containers", "nodes"])
    line = (
        "verify_limit: 60 minutes were over before this stage was, and nodes not begun; needed: more of them, or fewer"
    )
    assert result["complaints"] == [f"cluster: time (containers): {line} checks"]
    assert len(cluster.calls) == 1
    assert results(result)[("cluster", "pyxis")] == "ok"
    assert not result["report"]["ok"]
    assert result["report"]["finished"]


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_sruns_end_with_the_module(cluster: Cluster, kill: int) -> None:
    """However it ends: Ansible kills one that takes longer than it may."""
    cluster.program("slurm/bin/srun", "#!/bin/sh\necho $$ > ROOT/new; mv ROOT/new ROOT/pid; exec sleep 60\n")
    top = Path(verify_cluster.__file__).parents[6]
    package = "ansible_collections.pcluster.postboot.plugins.module_utils"
    code = f"""
from concurrent.futures import ThreadPoolExecutor
from {package}._verify import cluster
context = cluster.Context(cluster.Options(user={USER!r}, slurm={str(cluster.root / "slurm")!r}))
with ThreadPoolExecutor(2) as pool:
    pool.submit(context.srun, "cpu", [cluster.Node("n1", "IDLE", ("cpu",), 0)], "true").result()
"""
    child = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(top)})
    until((cluster.root / "pid").exists)
    os.kill(child.pid, kill)
    child.wait(timeout=PATIENCE)
    srun = Path("/proc") / (cluster.root / "pid").read_text().strip()
    until(lambda: not srun.exists())


def test_a_check_submits_nothing(cluster: Cluster, run: Run) -> None:
    result = run(check=True)
    assert (result["changed"], result["complaints"]) == (False, [])
    assert cluster.calls == []
    assert not (cluster.root / "var").exists()


def test_the_script_needs_no_more_than_a_shell() -> None:
    line = f'say() {{ printf "%s|%s\\n" "$1" "$2"; }}\n{containers.SEES}'
    out = subprocess.run(["/bin/sh", "-c", line], env={"PATH": "/nowhere"}, capture_output=True, text=True, check=False)
    assert "root|" in out.stdout
    assert "os|" in out.stdout
