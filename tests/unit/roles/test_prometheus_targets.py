# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The program that tells Prometheus which nodes there are, with a scontrol that says what a test wants."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import nodes as slurm_nodes
from ansible_collections.pcluster.postboot.tests import strangers
from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import until

PROGRAM = Path(__file__).resolve().parents[3] / "roles/prometheus/files/prometheus_targets.py"
HEAD = socket.gethostname().split(".")[0]


targets = load("roles/prometheus/files/prometheus_targets.py")


def line(name: str, state: str, address: str = "10.0.0.9", partitions: str = "gpu", **more: str) -> str:
    gres, features = more.pop("gres", "(null)"), more.pop("features", "static,p5")
    rest = " ".join(f"{key}={value}" for key, value in more.items())
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUTot=2 AvailableFeatures={features} Gres={gres} "
        f"NodeAddr={address} NodeHostName={name} Version=22.05.8 OS=Linux 6.8.0 #1 SMP PREEMPT_DYNAMIC @0  "
        f"RealMemory=1024 State={state} Partitions={partitions}  BootTime=None {rest}"
    )


class Cluster:
    """A head node: its scontrol, its registrations, and what Prometheus would read."""

    def __init__(self, root: Path) -> None:
        self.slurm, self.registrations, self.output = root / "slurm", root / "login.d", root / "state/nodes.json"
        self.output.parent.mkdir()
        self.says("")

    def says(self, *lines: str, code: int = 0, errors: str = "", sleep: int = 0) -> None:
        text = "\n".join([*lines, ""])
        # A shell, because it starts sooner than Python does.
        lab.program(
            self.slurm / "bin/scontrol",
            f'#!/bin/sh\n[ {sleep} = 0 ] || exec sleep {sleep}\necho "$*" "$PATH" > {self.slurm}/called\n'
            f"printf %s {shlex.quote(text)}\nprintf %s {shlex.quote(errors)} >&2\nexit {code}\n",
        )

    def render(self, *more: str) -> int:
        # A machine that is busy with other tests may take longer than a node.
        words = ["render", f"--slurm={self.slurm}", "--cluster=main", f"--output={self.output}", "--timeout=60", *more]
        return int(targets.main([*words, f"--registrations={self.registrations}"]))

    def register(self, name: str, /, **entry: Any) -> Path:
        self.registrations.mkdir(mode=0o700, exist_ok=True)
        path = self.registrations / f"{name}.json"
        path.write_text(json.dumps({"name": name, "address": "10.0.0.11", "time": time.time(), **entry}))
        return path

    @property
    def found(self) -> dict[str, str]:
        groups = json.loads(self.output.read_text())
        return {group["labels"]["pc_node"]: group["targets"][0] for group in groups}

    def labels(self, name: str) -> dict[str, str]:
        groups = {group["labels"]["pc_node"]: group["labels"] for group in json.loads(self.output.read_text())}
        found: dict[str, str] = groups[name]
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.parametrize(
    ("state", "up"),
    [
        ("IDLE+CLOUD", True),
        ("ALLOCATED+CLOUD", True),
        ("MIXED+CLOUD+COMPLETING", True),
        ("IDLE+CLOUD+DRAIN", True),
        ("MIXED+CLOUD+DRAIN", True),
        ("IDLE+CLOUD+POWER_DOWN", True),  # it works until its jobs have ended
        ("IDLE+CLOUD+NOT_RESPONDING", True),  # too busy to answer is worth seeing
        ("DOWN+CLOUD", True),  # up, and somebody or a health check has set it down
        ("MIXED+CLOUD+REBOOT_REQUESTED", True),  # it works until its jobs have ended
        ("IDLE+CLOUD+MAINTENANCE+RESERVED", True),
        ("UNKNOWN+CLOUD", True),
        ("IDLE+CLOUD+POWERED_DOWN", False),
        ("DOWN+CLOUD+POWERED_DOWN", False),
        ("IDLE+CLOUD+POWERING_DOWN", False),
        ("IDLE+CLOUD+POWERING_UP", False),
        ("ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP", False),
        ("IDLE+CLOUD+POWER_UP", False),
        ("DOWN+CLOUD+REBOOT_ISSUED", False),  # `scontrol reboot`: a large node takes a quarter of an hour
        ("DOWN+CLOUD+NOT_RESPONDING", False),
        ("DOWN*+CLOUD", False),
        ("UNKNOWN+CLOUD+NOT_RESPONDING", False),
        ("IDLE+POWER", False),  # how Slurm before 21.08 said it
        ("IDLE+CLOUD+POWER_DOWN+NOT_RESPONDING", False),
        ("FUTURE", False),
    ],
)
def test_states(state: str, up: bool) -> None:
    assert targets.is_up(state) is up


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        *(("(null)", 0), ("", 0), ("shard:4", 0), ("gpu", 1), ("gpu:8", 8), ("gpu:h100:8", 8)),
        *(("gpu:h100:8(S:0-1),shard:32", 8), ("gpu:a100:4,gpu:l4:2", 6), ("efa:32,gpu:b200:8(S:0,2)", 8)),
        *(("gpu:h100:8(S:0-1),shard:8", 8), ("gpu:2", 2), ("gpu:a:1,gpu:b:2", 3)),
    ],
)
def test_gpus(gres: str, count: int) -> None:
    """The program runs alone on a node, so it counts them itself, and as modules do."""
    assert targets.gpus_of(gres) == slurm_nodes.gpus_of(gres) == count


@pytest.mark.parametrize(
    ("name", "partitions", "queue"),
    [
        ("gpu-st-p5-1", "gpu", "gpu"),
        ("gpu-st-p5-1", "all,gpu", "gpu"),
        ("a-st-b-dy-c-1", "a,a-st-b,x", "a-st-b"),
        ("odd-1", "x,y", "x"),
        ("gpu-dy-p5-1", "(null)", ""),
    ],
)
def test_queue(name: str, partitions: str, queue: str) -> None:
    assert targets.queue_of(name, partitions) == queue


def test_only_nodes_that_are_up_are_targets(cluster: Cluster) -> None:
    cluster.says(
        line("gpu-st-p5-1", "IDLE+CLOUD", "10.0.0.12", "static,gpu", gres="gpu:h100:8"),
        line("cpu-st-c5-1", "IDLE+CLOUD+DRAIN", "cpu-st-c5-1", "cpu"),
        line("burst-dy-c5-1", "IDLE+CLOUD+POWERED_DOWN", "burst-dy-c5-1", "burst"),
        line("burst-dy-c5-2", "DOWN+CLOUD+NOT_RESPONDING", "10.0.0.15", "burst"),
        line("six-st-c5-1", "MIXED+CLOUD", "fd00::5", "six"),
    )
    assert cluster.render() == 0
    assert cluster.found == {
        HEAD: "127.0.0.1",
        "gpu-st-p5-1": "10.0.0.12",
        "cpu-st-c5-1": "cpu-st-c5-1",
        "six-st-c5-1": "[fd00::5]",
    }
    assert cluster.labels("gpu-st-p5-1") == {
        "instance": "gpu-st-p5-1",
        "pc_node": "gpu-st-p5-1",
        "pc_node_type": "compute",
        "pc_queue": "gpu",
        "pc_cluster": "main",
        "__meta_pc_gpus": "8",
        "__meta_pc_neuron": "false",
    }
    assert cluster.labels(HEAD)["pc_node_type"] == "head"
    assert "pc_queue" not in cluster.labels(HEAD)
    assert cluster.output.stat().st_mode & 0o777 == 0o644
    called = (cluster.slurm / "called").read_text()
    assert called.startswith("-a -o show nodes ")
    assert called.split()[-1].startswith(f"{cluster.slurm}/bin:")


@pytest.mark.parametrize(
    ("features", "neuron"),
    [
        ("dynamic,trn1.32xlarge,trn1,efa", "true"),
        ("static,inf2.xlarge,inf2", "true"),
        ("dynamic,trn1,efa", "false"),  # a compute resource with several instance types, whose name is trn1
        ("static,p5.48xlarge,trn1.x-y,gpu", "false"),
        ("(null)", "false"),
    ],
)
def test_neuron_devices_are_known_by_the_instance_type(cluster: Cluster, features: str, neuron: str) -> None:
    cluster.says(line("trn-dy-trn1-1", "IDLE+CLOUD", "10.0.0.12", "trn", features=features))
    assert cluster.render() == 0
    assert cluster.labels("trn-dy-trn1-1")["__meta_pc_neuron"] == neuron


def hyperpod(cluster: Cluster, text: str) -> str:
    """The option that names HyperPod's list of instances, as the controller has it."""
    path = cluster.slurm.parent / "resource_config.json"
    path.write_text(text)
    return f"--instances={path}"


def group(instance_type: str, *addresses: str) -> dict[str, Any]:
    instances = [{"InstanceName": f"g-{n}", "CustomerIpAddress": one} for n, one in enumerate(addresses, 1)]
    return {"Name": "g", "InstanceType": instance_type, "Instances": instances}


def test_neuron_devices_on_hyperpod_are_known_by_its_list_of_instances(cluster: Cluster) -> None:
    empty = {"Name": "scaled-down", "InstanceType": "ml.trn2.48xlarge"}
    groups = [group("ml.p5.48xlarge", "10.1.4.1"), group("ml.trn1.32xlarge", "10.1.4.2", "10.1.4.3"), empty]
    listed = hyperpod(cluster, json.dumps({"ClusterType": "Slurm", "InstanceGroups": groups}))
    addresses = {"ip-10-1-4-1": "10.1.4.1", "ip-10-1-4-2": "10.1.4.2", "ip-10-1-4-3": "ip-10-1-4-3"}
    cluster.says(*(line(name, "IDLE", where, features="(null)") for name, where in addresses.items()))
    assert cluster.render(listed) == 0
    assert [cluster.labels(name)["__meta_pc_neuron"] for name in addresses] == ["false", "true", "true"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is no list of instances: JSONDecodeError("),
        ("{}", "is no list of instances: KeyError('InstanceGroups')"),
        ('{"InstanceGroups": 1}', "is no list of instances: TypeError("),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_compute_nodes_stay_while_hyperpods_list_is_not_whole(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    cluster.says(line("ip-10-1-4-2", "IDLE", "10.1.4.2", features="(null)"))
    listed = hyperpod(cluster, json.dumps({"InstanceGroups": [group("ml.trn1.32xlarge", "10.1.4.2")]}))
    assert cluster.render(listed) == 0
    listed = hyperpod(cluster, text or "")
    if text is None:
        (cluster.slurm.parent / "resource_config.json").unlink()
    assert cluster.render(listed) == 1
    assert says in capsys.readouterr().out
    assert cluster.labels("ip-10-1-4-2")["__meta_pc_neuron"] == "true"


def test_free_text_cannot_pass_for_a_field(cluster: Cluster) -> None:
    cluster.says(line("a-st-b-1", "IDLE+CLOUD+DRAIN", Reason="x NodeAddr=6.6.6.6 State=DOWN Gres=gpu:8 [root@now]"))
    assert cluster.render() == 0
    assert cluster.found["a-st-b-1"] == "10.0.0.9"
    assert cluster.labels("a-st-b-1")["__meta_pc_gpus"] == "0"


def test_an_address_that_is_none_is_left_out(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.says(line("a-st-b-1", "IDLE+CLOUD", "evil/metrics?"), line("a-st-b-2", "IDLE+CLOUD"))
    assert cluster.render() == 0
    assert set(cluster.found) == {HEAD, "a-st-b-2"}
    assert "evil/metrics?" in capsys.readouterr().out


def test_nothing_is_written_when_nothing_changed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.says(line("a-st-b-1", "IDLE+CLOUD"))
    cluster.render()
    assert capsys.readouterr().out == f"2 targets; new: {', '.join(sorted([HEAD, 'a-st-b-1']))}\n"
    before = cluster.output.stat()
    cluster.render()
    assert capsys.readouterr().out == ""
    assert cluster.output.stat().st_ino == before.st_ino
    assert cluster.output.stat().st_mtime_ns == before.st_mtime_ns
    cluster.says(line("a-st-b-1", "IDLE+CLOUD", "10.0.0.10"))
    cluster.render()
    assert capsys.readouterr().out == "2 targets; an address or a label changed\n"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            {"code": 1, "errors": "slurm_load_node error: Unable to contact slurm controller (connect failure)"},
            "contact",
        ),
        ({"sleep": 30}, "no answer within 0.5 s"),
        ({"errors": "strange"}, "names no node"),
    ],
)
def test_compute_nodes_stay_while_slurm_is_silent(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], how: dict[str, Any], said: str
) -> None:
    cluster.says(line("a-st-b-1", "IDLE+CLOUD"))
    cluster.render()
    capsys.readouterr()
    cluster.says(**how)
    cluster.register("login-1")
    assert cluster.render("--timeout=0.5" if "sleep" in how else "--timeout=60") == 1
    out = capsys.readouterr().out
    assert said in out.splitlines()[-1]
    assert "compute nodes stay" in out.splitlines()[-1]
    assert "a-st-b-1" in cluster.found
    if "sleep" not in how:
        assert cluster.found["login-1"] == "10.0.0.11"


def test_slurm_that_is_not_there(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    (cluster.slurm / "bin/scontrol").unlink()
    assert cluster.render() == 1
    assert "No such file" in capsys.readouterr().out
    assert set(cluster.found) == {HEAD}  # the head node is worth watching just then


def test_a_cluster_without_nodes(cluster: Cluster) -> None:
    cluster.says("No nodes in the system")
    assert cluster.render() == 0
    assert set(cluster.found) == {HEAD}


def test_a_large_change_is_still_one_readable_line(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.says(*(line(f"a-st-b-{number:04}", "IDLE+CLOUD") for number in range(1, 1001)))
    assert cluster.render() == 0
    assert capsys.readouterr().out.endswith(" and 991 more\n")


def test_a_damaged_file_is_written_anew(cluster: Cluster) -> None:
    for text in ("", '[{"targets": ["a"', '{"a": 1}', "[1]", "null"):
        cluster.output.write_text(text)
        cluster.says(line("a-st-b-1", "IDLE+CLOUD"))
        assert cluster.render() == 0
        assert set(cluster.found) == {HEAD, "a-st-b-1"}


def test_a_login_node_that_slurm_knows_too_is_there_once(cluster: Cluster) -> None:
    cluster.says(line("ip-10-0-0-11", "IDLE", "10.0.0.11"), line("ip-10-0-0-12", "IDLE", "10.0.0.12"))
    cluster.register("ip-10-0-0-11", address="10.0.0.11")
    assert cluster.render() == 0
    assert cluster.labels("ip-10-0-0-11")["pc_node_type"] == "login"
    assert len(json.loads(cluster.output.read_text())) == 3


def test_login_nodes_come_and_expire(cluster: Cluster) -> None:
    cluster.says("No nodes in the system")
    cluster.register("login-1", address="10.0.0.11")
    cluster.register("login-2", address="fd00::11")
    cluster.register("login-3", time=time.time() - 1000)
    cluster.register("login-4", time=time.time() + 1000)
    assert cluster.render() == 0
    assert cluster.found == {HEAD: "127.0.0.1", "login-1": "10.0.0.11", "login-2": "[fd00::11]"}
    assert cluster.labels("login-1")["pc_node_type"] == "login"
    assert cluster.render("--max-age=2000") == 0
    assert set(cluster.found) == {HEAD, "login-1", "login-2", "login-3", "login-4"}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"address": "example.com"}, "IPv4 or IPv6"),
        ({"address": "169.254.169.254"}, "no address of a node"),
        ({"address": "127.0.0.1"}, "no address of a node"),
        ({"address": "10.0.0.1:22"}, "IPv4 or IPv6"),
        ({"name": "other"}, "not that of the file"),
        ({"name": 7}, "not that of the file"),
        ({"time": "now"}, "the time is"),
        ({"time": True}, "the time is"),
        ({"padding": "x" * 5000}, "longer than"),
    ],
)
def test_bad_registrations_are_left_out(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], entry: dict[str, Any], said: str
) -> None:
    cluster.says("No nodes in the system")
    cluster.register("bad", **entry)
    cluster.register("good")
    assert cluster.render() == 0
    assert set(cluster.found) == {HEAD, "good"}
    assert said in capsys.readouterr().out


def test_registrations_that_are_no_files(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.says("No nodes in the system")
    good = cluster.register("good")
    os.mkfifo(cluster.registrations / "pipe.json")
    (cluster.registrations / "link.json").symlink_to(good)
    (cluster.registrations / "folder.json").mkdir()
    (cluster.registrations / "list.json").write_text("[]")
    (cluster.registrations / ".hidden.json.new").write_text("{")
    assert cluster.render() == 0
    assert set(cluster.found) == {HEAD, "good"}
    out = capsys.readouterr().out
    for name in ("pipe", "link", "folder", "list"):
        assert f"{name}.json is left out" in out


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o707])
def test_a_folder_that_others_can_enter_is_not_trusted(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], mode: int
) -> None:
    cluster.says("No nodes in the system")
    cluster.register("login-1")
    cluster.registrations.chmod(mode)
    assert cluster.render() == 0
    assert set(cluster.found) == {HEAD}
    assert f"mode {mode:04o}; needed" in capsys.readouterr().out


def test_login_nodes_stay_while_their_file_system_hangs(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster.says(line("a-st-b-1", "IDLE+CLOUD"))
    cluster.register("login-1")
    cluster.render()
    # The reader becomes one that hangs, keeping its descriptors, until it is told otherwise.
    hang = lab.program(tmp_path / "hang", f"#!/bin/sh\ntrap '' TERM\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    monkeypatch.setattr(targets.sys, "executable", str(hang))
    monkeypatch.setattr(targets.subprocess.Popen, "kill", lambda self: None)  # as if it could not be killed
    cluster.says(line("a-st-b-2", "IDLE+CLOUD"))
    assert cluster.render("--timeout=3") == 0
    assert set(cluster.found) == {HEAD, "a-st-b-2", "login-1"}
    assert "gave no answer within" in capsys.readouterr().out
    monkeypatch.undo()
    assert cluster.render() == 0  # the first one still hangs: no second is started
    assert "still does not answer" in capsys.readouterr().out
    assert "login-1" in cluster.found
    os.kill(int((tmp_path / "pid").read_text()), 9)
    until(lambda: not cluster.render() and "still" not in capsys.readouterr().out)
    cluster.register("login-2")
    cluster.render()
    assert set(cluster.found) == {HEAD, "a-st-b-2", "login-1", "login-2"}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", str(PROGRAM), *words], text=True, capture_output=True, check=False)


def test_a_login_node_registers(cluster: Cluster, tmp_path: Path) -> None:
    directory = tmp_path / "fsx/config/login.d"
    for _ in range(2):
        done = run("register", f"--directory={directory}", "--toward=127.0.0.1")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "fsx/config").stat().st_mode & 0o777 == 0o755
    (file,) = directory.iterdir()
    entry = json.loads(file.read_text())
    assert file.name == f"{HEAD}.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert (entry["name"], entry["address"]) == (HEAD, "127.0.0.1")
    assert abs(entry["time"] - time.time()) < 60


def test_old_registrations_are_cleared_away(tmp_path: Path) -> None:
    directory = tmp_path / "login.d"
    directory.mkdir(mode=0o700)
    for name, age in (("old.json", 90000), ("recent.json", 100), (".old.json.new", 90000)):
        (directory / name).write_text("{}")
        os.utime(directory / name, (time.time() - age,) * 2)
    assert run("register", f"--directory={directory}", "--toward=127.0.0.1").returncode == 0
    assert {path.name for path in directory.iterdir()} == {"recent.json", f"{HEAD}.json"}


def test_a_login_node_does_not_register_underneath_a_missing_mount(tmp_path: Path) -> None:
    done = run("register", f"--directory={tmp_path}/login.d", f"--mount={tmp_path}", "--toward=127.0.0.1")
    assert done.returncode == 1
    assert done.stdout == f"{tmp_path} is not mounted: this login node is not registered for its metrics\n"
    assert not (tmp_path / "login.d").exists()
    assert run("register", f"--directory={tmp_path}/login.d", "--mount=/proc", "--toward=127.0.0.1").returncode == 0


def test_no_path_of_a_user_forges_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounts").write_bytes(f"/dev/root / ext4 rw 0 0\n{strangers.mount_list()}".encode())
    monkeypatch.setattr(targets, "MOUNTS", str(tmp_path / "mounts"))
    assert targets.is_mounted("/")
    assert not targets.is_mounted("/var")


def test_a_login_node_does_not_register_where_others_could(tmp_path: Path) -> None:
    (tmp_path / "login.d").mkdir(mode=0o755)
    done = run("register", f"--directory={tmp_path}/login.d", "--toward=127.0.0.1")
    assert done.returncode == 1
    assert "mode 0755; needed: user" in done.stdout
    assert list((tmp_path / "login.d").iterdir()) == []


def test_the_journal_is_told_what_is_an_error(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    done = run("register", f"--directory={cluster.output.parent}/x/login.d", "--mount=/nowhere")
    assert done.stdout.startswith("<3>/nowhere is not mounted")
