# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The scripts of fsx that people call: how one node is, and which nodes of the cluster are not up."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

pytestmark = pytest.mark.once

Variables = Callable[..., Callable[[str], Any]]
Done = subprocess.CompletedProcess[str]
CHECK, MONITOR = "check-compute-setup.sh", "monitor-compute-node-setup.sh"
FI_INFO = "provider: efa\n    fabric: efa\n    domain: rdmap0s6-rdm\n    version: 121.0\n    type: FI_EP_RDM\n"
# What a program of a node prints, and how it ends.
PROGRAMS = {
    "findmnt": "echo 'lustre  4.5T  3.2T /fsx'",
    "nvidia-smi": "printf '580.95.05, NVIDIA H200\\n%.0s' 1 2",
    "enroot": "echo 4.1.2",
    "srun": "echo '      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH'",
    # Two services and a timer are enabled here, and run.
    "systemctl": """case "$1 $2" in
      'is-enabled amazon-efa-metrics') echo static ;;
      is-*' docker' | is-*' node_exporter' | is-*' amazon-efa-metrics.timer') [ $1 = is-active ] || echo enabled ;;
      *) exit 1 ;;
    esac""",
    "sinfo": "echo 'idle none'",
    "env": "echo '2.32.3, /fsx/nccl/2.32.3-cuda13-x86_64/lib/libnccl.so.2.32.3'",
}


def component(name: str, status: str = "unchanged", **more: Any) -> dict[str, Any]:
    essential = more.pop("essential", True)
    return {"name": name, "status": status, "changed": 0, "seconds": 1.0, "why": "", "essential": essential, **more}


REPORT: dict[str, Any] = {
    "node": "gpu-st-p5en-1",
    "node_type": "compute",
    "kind": "compute, 2 GPU, 1 EFA",
    "finished": "2026-11-20T10:00:00Z",
    "outcome": "ok",
    "stopped": None,
    "components": [
        component("fsx"),
        component("docker", "changed", version="29.0.1", summary="Docker 29.0.1"),
        component("enroot", summary="Enroot 4.1.2, the AMI's own"),
        component("pyxis"),
        component("efa", version="1.50.0"),
        component("nccl", version="2.32.3"),
        component("grafana", "skipped", why="another kind of node"),
        component("dcgm_exporter", essential=False),
    ],
}


class Node:
    """A node with two GPUs and an EFA device, on which site has run; and the scripts as its cluster shares them."""

    def __init__(self, root: Path, scripts: Mapping[str, Mapping[str, str]]) -> None:
        self.root, self.bin, self.scripts = root, root / "bin", root / "scripts"
        self.scripts.mkdir()
        for name, one in scripts.items():
            lab.program(self.scripts / name, one["content"].replace("/fsx/scripts", str(self.scripts)) + "\n")
        for name, line in PROGRAMS.items():
            self.program(name, line)
        lab.program(root / "opt/amazon/efa/bin/fi_info", f"#!/bin/sh\ncat << 'END'\n{FI_INFO}END\n")
        devices = [("0x10de", "0x2335", "0x030200")] * 2 + [("0x1d0f", "0xefa2", "0x020000")]
        for number, (vendor, device, kind) in enumerate([*devices, ("0x10de", "0x22a3", "0x068000")]):
            folder = root / f"sys/bus/pci/devices/0000:{number:02x}:00.0"
            folder.mkdir(parents=True)
            for name, value in (("vendor", vendor), ("device", device), ("class", kind)):
                (folder / name).write_text(f"{value}\n")
        self.report(REPORT)

    def program(self, name: str, line: str) -> None:
        lab.program(self.bin / name, f"#!/bin/bash\n{line}\n")

    def report(self, report: Mapping[str, Any]) -> None:
        path = self.root / "var/lib/pcluster-postboot/report.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report))

    def at_work(self, holder: lock.Holder, component: str = "efa") -> None:
        folder = self.root / "run/pcluster-postboot"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").write_text(json.dumps(holder.__dict__))
        (folder / "progress.json").write_text(json.dumps({"component": component, "ended": False}))

    def run(self, name: str, *words: str, **more: str) -> Done:
        given = {"PATH": f"{self.bin}:/usr/bin:/bin", "PCLUSTER_POSTBOOT_ROOT": str(self.root), **more}
        line = ["bash", str(self.scripts / name), *words]
        return subprocess.run(line, env=given, text=True, capture_output=True, timeout=60, check=False)

    def check(self, **more: str) -> tuple[int, dict[str, str], str]:
        """Return the code of check-compute-setup.sh, its lines by what they are about, and the last one."""
        done = self.run(CHECK, **more)
        assert done.stderr == ""
        lines = [line.split(None, 1) for line in done.stdout.splitlines() if line.startswith("  ")]
        return done.returncode, dict(lines), done.stdout.splitlines()[-1]


@pytest.fixture
def scripts(work_out: Variables, repo: Path) -> Callable[..., dict[str, dict[str, str]]]:
    def make(**more: Any) -> dict[str, dict[str, str]]:
        value = work_out("common fsx", {}, ansible_search_path=[str(repo / "roles/fsx")], **more)
        return {one["path"]: one for one in value("__fsx_files")}

    return make


@pytest.fixture
def node(tmp_path: Path, scripts: Callable[..., dict[str, dict[str, str]]]) -> Node:
    return Node(tmp_path, scripts())


def test_the_names_are_the_known_ones(scripts: Callable[..., dict[str, dict[str, str]]], node: Node) -> None:
    files = scripts()
    assert {name: one.get("mode", "0644") for name, one in files.items()} == {
        CHECK: "0755",
        MONITOR: "0755",
        "check_compute_setup.py": "0644",
    }
    for name in (CHECK, MONITOR):
        path = str(node.scripts / name)
        for line in [["bash", "-n", path]] + ([["shellcheck", path]] if shutil.which("shellcheck") else []):
            done = subprocess.run(line, text=True, capture_output=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_checked_before_the_files_are_written(work_out: Variables, node: Node) -> None:
    line = ["/bin/sh", "-ec", work_out("common fsx", {})("__fsx_reader"), str(node.scripts)]
    assert subprocess.run(line, capture_output=True, check=False).returncode == 0
    for path in node.scripts.iterdir():
        text = path.read_text()
        path.write_text(f"{text}\nif (\n")
        assert subprocess.run(line, capture_output=True, check=False).returncode != 0, path.name
        path.write_text(text)


def test_a_node_that_is_well(node: Node) -> None:
    code, lines, end = node.check()
    assert (code, end) == (0, "all is well")
    assert lines["docker"] == "ok       Docker 29.0.1"
    assert lines["efa"] == "ok       1.50.0"
    assert "grafana" not in lines
    assert lines["/fsx"] == "ok       lustre at /fsx, 3.2T of 4.5T are free"
    assert lines["GPUs"] == "ok       2 of 2, driver 580.95.05, NVIDIA H200"
    assert lines["EFA"] == "ok       1 of 1 devices answer to libfabric"
    assert lines["NCCL"].startswith("ok       2.32.3, /fsx/nccl/")
    assert lines["containers"] == "ok       Enroot 4.1.2, Pyxis"
    assert lines["services"] == "ok       amazon-efa-metrics.timer, docker, node_exporter"
    assert lines["Slurm"] == "ok       idle"
    assert node.run(CHECK, "--help").returncode == 2


def test_a_run_of_some_components_leaves_the_others(node: Node) -> None:
    before = {"efa": {"version": "1.50.0", "summary": "", "finished": "2026-11-19T10:00:00Z"}}
    node.report({**REPORT, "components": [component("fsx")], "versions": {**before, "fsx": {"version": ""}}})
    code, lines, _end = node.check()
    assert code == 0
    assert lines["efa"] == "ok       1.50.0 (run of 2026-11-19T10:00:00Z)"
    assert lines["fsx"] == "ok"
    assert lines["EFA"] == "ok       1 of 1 devices answer to libfabric"
    assert "docker" not in lines


def test_an_ordinary_user_may_ask(node: Node) -> None:
    """Nothing that is asked needs root: the report is for all to read, and so is what the programs tell."""
    if os.getuid():
        pytest.skip("this is an ordinary user already")
    for path in [node.root, *node.root.parents]:
        if path != Path("/tmp") and path != Path("/"):
            path.chmod(0o755)
    line = ["bash", str(node.scripts / CHECK)]
    given = {"PATH": f"{node.bin}:/usr/bin:/bin", "PCLUSTER_POSTBOOT_ROOT": str(node.root)}
    done = subprocess.run(line, env=given, user=65534, text=True, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "all is well", "")


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
def test_the_nccl_that_programs_load(repo: Path, tmp_path: Path) -> None:
    """This is what the fake `env` of the other tests stands for."""
    source = "int ncclGetVersion(int *number) { *number = 23203; return 0; }"
    line = ["cc", "-x", "c", "-", "-shared", "-fPIC", "-o", str(tmp_path / "libnccl.so.2")]
    subprocess.run(line, input=source, text=True, check=True, timeout=60)
    text = (repo / "roles/fsx/files/check_compute_setup.py").read_text()
    (code,) = re.findall(r'^LIBRARY = """\n(.*?)"""', text, re.MULTILINE | re.DOTALL)
    given = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-I", "-c", code], env=given, text=True, capture_output=True, check=True)
    assert done.stdout == f"2.32.3, {tmp_path}/libnccl.so.2\n"


@pytest.mark.parametrize(
    ("program", "line", "what", "says"),
    [
        ("findmnt", "echo 'ext4 8G 2G /'", "/fsx", "no file system is mounted there: sudo mount -a"),
        ("nvidia-smi", "echo '580.95.05, NVIDIA H200'", "GPUs", "1 of 2, driver 580.95.05, NVIDIA H200"),
        ("nvidia-smi", "echo 'Unable to determine the device handle' >&2; exit 15", "GPUs", "0 of 2: Unable to"),
        (
            "env",
            "echo 'OSError: libnccl.so.2: cannot open shared object file'; exit 1",
            "NCCL",
            "OSError: libnccl.so.2",
        ),
        ("enroot", "exit 127", "containers", "enroot: no word"),
        ("srun", "echo usage", "containers", "Pyxis: srun has no --container-image"),
        (
            "systemctl",
            "[ $2 = docker ] && [ $1 = is-enabled ] && echo enabled",
            "services",
            "docker does not run: systemctl status docker",
        ),
        ("sinfo", "echo 'drained* Kill task failed'", "Slurm", "drained*: Kill task failed"),
    ],
)
def test_what_is_not_well_is_named(node: Node, program: str, line: str, what: str, says: str) -> None:
    node.program(program, line)
    code, lines, end = node.check()
    assert lines[what].startswith(f"FAILED   {says}")
    assert (code, end) == (1, f"not well: {what}")


def test_slurm_is_asked_by_its_own_name_where_the_host_has_another(node: Node) -> None:
    node.program("sinfo", "case $* in *--nodes=gpu-st-p5en-1\\ *) echo 'drained maintenance' ;; esac")
    code, lines, end = node.check()
    assert lines["Slurm"] == "FAILED   drained: maintenance"
    assert (code, end) == (1, "not well: Slurm")


def test_a_users_settings_of_sinfo_hide_no_node(node: Node) -> None:
    """sinfo(1): SINFO_PARTITION is like --partition, and a node of another partition is not printed."""
    node.program("sinfo", '[ -n "$SINFO_PARTITION" ] || echo "drained maintenance"')
    assert node.check(SINFO_PARTITION="cpu")[1]["Slurm"] == "FAILED   drained: maintenance"


def test_efa_that_does_not_answer(node: Node) -> None:
    (node.root / "opt/amazon/efa/bin/fi_info").write_text(
        "#!/bin/sh\necho 'fi_getinfo: -61 (No data available)'\nexit 61"
    )
    code, lines, end = node.check()
    assert lines["EFA"] == "FAILED   0 of 1 devices answer to libfabric: fi_getinfo: -61 (No data available)"
    assert (code, end) == (1, "not well: EFA")


def test_a_job_that_has_no_gpus_says_nothing_of_them(node: Node) -> None:
    node.program("nvidia-smi", "echo 'No devices were found'; exit 6")
    assert node.check()[0] == 1
    code, lines, _end = node.check(SLURM_JOB_ID="7")
    assert lines["GPUs"].startswith(
        "unknown  0 of 2: No devices were found; this job may have no more: srun --exclusive"
    )
    assert code == 0


def test_what_has_failed_or_waits_in_the_last_run(node: Node) -> None:
    why = {"why": "found no sha256 for aarch64"}
    failed = [component("fsx"), component("node_exporter", "failed", essential=False, **why)]
    node.report({**REPORT, "outcome": "failed", "components": failed})
    code, lines, end = node.check()
    assert lines["node_exporter"] == "FAILED   found no sha256 for aarch64"
    assert (code, end) == (1, "not well: node_exporter")
    stopped = {"component": "", "message": "nccl_cuda: found 11; needed: 12 or 13"}
    node.report({**REPORT, "outcome": "stopped", "stopped": stopped, "components": []})
    done = node.run(CHECK)
    assert done.returncode == 1
    assert "nccl_cuda: found 11; needed: 12 or 13" in done.stdout
    waits = component("nccl", "deferred", why="the head node has not published it")
    node.report({**REPORT, "components": [component("fsx"), waits]})
    code, lines, end = node.check()
    assert (code, end) == (3, "not done yet; later: nccl")
    assert lines["nccl"] == "later    the head node has not published it"


def test_a_run_that_is_at_work(node: Node) -> None:
    node.at_work(lock.Holder.of_process(os.getpid(), "pull"))
    assert node.check()[::2] == (3, "not done yet: a run is at work, at efa")
    (node.root / "var/lib/pcluster-postboot/report.json").unlink()
    done = node.run(CHECK)
    assert done.returncode == 3
    assert done.stdout.splitlines()[-1].startswith(
        "site has not ended on this node yet: a run is at work, at efa; see "
    )
    # One that was killed has left its lock, and one from another machine has not been seen for long.
    node.report(REPORT)
    with subprocess.Popen(["true"]) as gone:
        pass
    node.at_work(lock.Holder(run_id="x", pid=gone.pid, machine=f"{os.uname().nodename} boot pid:[1]"))
    assert node.check()[0] == 0
    node.at_work(lock.Holder(run_id="x", pid=1, machine="workstation boot pid:[1]"))
    assert node.check()[0] == 3
    os.utime(node.root / "run/pcluster-postboot/lock", (0, 0))  # a lock of an earlier version
    assert node.check()[0] == 0


@pytest.mark.parametrize(
    ("ago", "silence", "of_boot", "at_work"),
    [
        (10, 0, None, True),
        (3700, 0, None, False),
        (3700, 600, None, True),
        (-60, 0, None, False),  # no sign can be of a time to come
        (10, 0, "00000000-0000-4000-8000-000000000000", False),
    ],
)
def test_a_run_of_another_machine_is_seen_by_the_nodes_boot_clock(
    node: Node, ago: float, silence: float, of_boot: str | None, at_work: bool
) -> None:
    other = lock.Lock(str(node.root / "run/pcluster-postboot"))
    node.at_work(lock.Holder(run_id="x"))
    os.unlink(other.path)
    assert other.take(lock.Holder(run_id="x", pid=1, machine="workstation boot pid:[1]"), 1).taken
    other.show(silence)
    for path in (Path(other.path), Path(other.seen)):
        found = json.loads(path.read_text())
        sign = found.get("seen", found)
        sign.update(at=sign["at"] - ago, boot=of_boot or sign["boot"])
        path.write_text(json.dumps(found))
    os.utime(other.path, (0, 0))  # the wall clock was set meanwhile
    assert node.check()[0] == (3 if at_work else 0)


# As sinfo 24.11.5 prints the script's format: a node of two partitions comes twice.
STATES = """gpu-st-p5-1|idle|idle+cloud|10.0.0.1|none|
gpu-st-p5-1|idle|idle+cloud|10.0.0.1|none|
gpu-st-p5-2|allocated|allocated+cloud|10.0.0.2|none|
gpu-dy-p5-1|allocated#|allocated+cloud+not_responding+powering_up|10.0.0.3|none|
gpu-dy-p5-2|idle~|idle+cloud+powered_down|gpu-dy-p5-2|none|
gpu-dy-p5-3|idle%|idle+cloud+powering_down|gpu-dy-p5-3|none|
gpu-dy-p5-4|idle~|idle+cloud+powered_down+not_responding|gpu-dy-p5-4|ResumeTimeout reached|
gpu-dy-p5-5|idle~|idle+cloud+power_down+powered_down+not_responding|gpu-dy-p5-5|none|
gpu-st-p5-3|down*|down+cloud+not_responding|10.0.0.4|Not responding|
gpu-st-p5-4|drained|idle+cloud+drain|10.0.0.5|Kill task failed|
gpu-st-p5-5|mixed*|mixed+cloud+not_responding|10.0.0.6|none|
gpu-st-p5-6|reboot^|down+cloud+reboot_issued|10.0.0.7|reboot issued|"""
FORMAT = "--noheader --Node --Format=NodeList:|,StateLong:|,StateComplete:|,NodeAddr:|,Reason:|"


def test_nodes_that_boot_or_are_not_well(node: Node) -> None:
    node.program("sinfo", f"[ \"$*\" = '{FORMAT}' ] && cat << 'END'\n{STATES}\nEND")
    done = node.run(MONITOR, "my-cluster", "us-east-2")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    assert lines[:8] == [
        ["gpu-dy-p5-1", "allocated#", "boots"],
        ["gpu-dy-p5-4", "idle~", "no job starts it: ResumeTimeout reached"],
        ["gpu-st-p5-3", "down*", "does not answer: Not responding"],
        ["gpu-st-p5-4", "drained", "takes no jobs: Kill task failed"],
        ["gpu-st-p5-5", "mixed*", "does not answer"],
        ["gpu-st-p5-6", "reboot^", "boots: reboot issued"],
        ["2 nodes are up, 2 boot, 4 are not well, 3 do not run"],
        ["no job starts a node: an administrator runs scontrol update nodename=NODE state=power_down_force"],
    ]
    assert lines[8] == [f"one node: srun --nodelist=NODE {node.scripts}/{CHECK}"]
    assert lines[9][0].endswith("ansible-playbook -i INVENTORY pcluster.postboot.status")
    assert node.run(MONITOR, "--help").stderr == ""
    assert node.run(MONITOR, "--help").returncode == 2
    node.program("sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    done = node.run(MONITOR)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Unable to contact slurm controller" in done.stderr


def test_where_reports_are_is_told(scripts: Callable[..., dict[str, dict[str, str]]]) -> None:
    assert "reports" not in scripts()[MONITOR]["content"].replace("the last report", "")
    assert "/fsx/logs/reports" in scripts(common_report_dir="/fsx/logs/reports")[MONITOR]["content"]


def test_a_reason_commands_no_terminal(node: Node) -> None:
    node.program(
        "sinfo", r"printf 'gpu-st-p5-1|drained|idle+drain|10.0.0.1|a\033[2Jb\302\233c\342\200\256d\r \303\274 \233|\n'"
    )
    done = node.run(MONITOR)
    line = "  gpu-st-p5-1               drained        takes no jobs: a\\x1b[2Jb\\x9bc\\u202ed\\r ü \\udc9b"
    assert done.stdout.splitlines()[0] == line
    assert "1 are not well" in done.stdout
