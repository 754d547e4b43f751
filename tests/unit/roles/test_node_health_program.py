# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""node-health as its unit starts it: the state, the metrics, the copy for the head node, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import (
    children,
    main,
    services,
    slow,
    storage,
    units,
)
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health.look import Look
from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_tree import Node, address
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

SHARED = "opt/slurm/pcluster-postboot/health/nodes/gpu-st-p5-1.json"
STATE = {
    *("schema", "node", "instance_id", "instance_type", "boot_id", "time", "gpus", "findings", "skipped"),
}  # fmt: skip


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(units, "SYSTEMCTL", "/nowhere/systemctl")
    node = Node(tmp_path)
    with node.exporter():
        yield node


def start(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program as the unit does."""
    settings = node.write("settings.json", json.dumps(node.settings))
    files = Path(main.__file__).resolve().parents[1]
    line = ["python3", "-I", "-S", "-X", f"pycache_prefix={node.root}/bytecode", str(files / "node-health")]
    line += [f"--config={settings}", f"--root={node.root}", f"--kmsg={node.kmsg}", *words]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def test_the_program_writes_state_metrics_and_a_copy(node: Node) -> None:
    node.log("NVRM: Xid (PCI:0000:1c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    node.values[0]["DCGM_FI_DEV_ROW_REMAP_PENDING"] = 1
    done = start(node)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    state = json.loads((node.root / "state/state.json").read_text())
    assert set(state) == STATE
    assert state["schema"] == 1
    assert (state["node"], state["instance_type"]) == ("gpu-st-p5-1", "p5.48xlarge")
    assert state["boot_id"] == "f0000000-0000-4000-8000-000000000001"
    assert abs(state["time"] - time.time()) < 60
    assert [one["finding"] for one in state["findings"]] == ["gpu_row_remap_pending", "gpu_xid_79"]
    assert all(set(one) == {"finding", "class", "subject", "evidence", "since"} for one in state["findings"])
    assert json.loads((node.root / SHARED).read_text()) == state
    text = (node.root / "textfiles/node_health.prom").read_text()
    assert 'pcluster_node_health_finding{finding="gpu_row_remap_pending",class="reset"} 1\n' in text
    assert 'pcluster_node_health_finding{finding="gpu_xid_79",class="replace"} 1\n' in text
    assert 'pcluster_node_health_skipped{check="nvlink_down"} 1\n' in text
    assert re.search(r"^pcluster_node_health_check_timestamp_seconds 17\d{8}\.", text, re.MULTILINE)
    assert re.search(r"^pcluster_node_health_check_seconds 0\.\d+$", text, re.MULTILINE)
    # Memory is nobody else's, and everybody may read the others.
    modes = {name: oct((node.root / name).stat().st_mode)[-3:] for name in ("state/state.json", "state/memory.json")}
    assert modes == {"state/state.json": "644", "state/memory.json": "600"}


def test_a_finding_on_two_gpus_is_one_series(node: Node) -> None:
    for gpu in (1, 2):
        node.values[gpu]["DCGM_FI_DEV_ROW_REMAP_PENDING"] = 1
    assert len(node.look()["findings"]) == 2
    text = (node.root / "textfiles/node_health.prom").read_text()
    assert text.count("\npcluster_node_health_finding{") == 1


def test_since_when_is_kept_from_look_to_look(node: Node) -> None:
    node.values[1]["DCGM_FI_DEV_ROW_REMAP_PENDING"] = 1
    first = node.look()["findings"][0]["since"]
    assert node.look()["findings"][0]["since"] == first
    node.values[1]["DCGM_FI_DEV_ROW_REMAP_PENDING"] = 0
    node.look()
    node.values[1]["DCGM_FI_DEV_ROW_REMAP_PENDING"] = 1
    assert node.look()["findings"][0]["since"] > first


def test_what_a_boot_has_not_brought_yet_has_a_minute_to_come(node: Node) -> None:
    node.write("proc/uptime", "21.08 300.11\n")
    efa = node.root / "sys/class/infiniband"
    efa.rename(node.root / "later")
    node.log("NVRM: Xid (PCI:0000:1c:00): 79, GPU has fallen off the bus.")
    assert node.found() == {("gpu_xid_79", "GPU 3"): "replace"}  # which no minute mends
    assert ("efa_missing", "") in node.found(60)
    (node.root / "later").rename(efa)
    assert ("efa_missing", "") not in node.found()
    node.write("proc/uptime", "301.5 3000.11\n")
    efa.rename(node.root / "later")
    assert ("efa_missing", "") in node.found()


def test_the_copy_is_written_when_findings_change_and_every_five_minutes(node: Node) -> None:
    copy = node.root / SHARED

    def written(later: float) -> bool:
        before = json.loads(copy.read_text())["time"]
        node.look(later)
        return bool(json.loads(copy.read_text())["time"] != before)

    node.look()
    assert not written(30)
    node.values[1]["DCGM_FI_DEV_ROW_REMAP_PENDING"] = 1
    assert written(30)
    assert not written(30)
    node.values[1]["DCGM_FI_DEV_ROW_REMAP_PENDING"] = 0
    assert written(30)
    assert not written(270)
    assert written(30)


def test_a_share_that_hangs_costs_the_copy_alone(
    node: Node, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    node.settings["patience"] = 3
    monkeypatch.setattr(main, "put", lambda path, *rest: time.sleep(600) if path.endswith(SHARED) else put(path, *rest))
    state = node.look()
    assert state["skipped"]
    assert not (node.root / SHARED).exists()
    assert json.loads((node.root / "state/state.json").read_text()) == state
    assert "the head node is not told: no answer within 3 s" in capfd.readouterr().err


put = main.put


def test_a_share_that_is_not_mounted_yet_gets_no_copy_on_the_disk_below(
    node: Node, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first look of a boot may come before the mount, and would hide its copy and its folders below that."""
    scontrol = node.root / "opt/slurm/bin/scontrol"
    scontrol.rename(node.root / "scontrol")
    node.look()
    assert list((node.root / "opt/slurm").iterdir()) == [scontrol.parent]
    said = "the head node is not told: /opt/slurm has no bin/scontrol, so nothing is mounted there\n"
    assert capfd.readouterr().err.endswith(said)
    (node.root / "scontrol").rename(scontrol)
    node.look()
    assert (node.root / SHARED).exists()


def test_a_node_without_slurm_has_no_copy(node: Node) -> None:
    node.settings["slurm"] = ""
    node.look()
    assert not (node.root / SHARED).exists()


def test_a_check_that_hangs_does_not_keep_the_others_from_looking(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sysfs file that a driver does not answer."""
    (node.root / "sys/class/infiniband/rdmap64s0/ports/1/state").write_text("1: DOWN\n")
    monkeypatch.setattr(storage, "check", lambda look: time.sleep(600))
    monkeypatch.setattr(main, "_limit", lambda name, patience: 0.3 if name == "mounts" else PATIENCE)
    found = node.found()
    assert found == {("check_hangs", "mounts"): "watch", ("efa_link_down", "rdmap64s0"): "replace"}


def hang(monkeypatch: pytest.MonkeyPatch, *paths: str) -> None:
    """Have file systems hang for as long as somebody waits."""
    real = os.statvfs
    there = lambda path: time.sleep(600) if path.endswith(paths) else real(path)  # noqa: E731
    monkeypatch.setattr(os, "statvfs", there)


def test_a_child_that_hangs_ends_with_its_check(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: begun.append(fork()) or begun[-1])
    hang(monkeypatch, "/fsx")
    monkeypatch.setattr(main, "_limit", lambda name, patience: 0.5 if name == "mounts" else PATIENCE)
    monkeypatch.setattr(children, "ENDS_WITHIN", 60)  # a busy machine may run the killed child only after a while
    assert ("check_hangs", "mounts") in node.found()
    assert begun
    for child in begun:  # other tests of this process may have children, too
        with pytest.raises(ChildProcessError):
            os.waitpid(child, os.WNOHANG)


def test_a_child_that_cannot_be_ended_is_remembered_although_the_look_is_killed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each look would begin another one."""

    def killed(_look: Look) -> None:
        raise KeyboardInterrupt

    hang(monkeypatch, "/fsx")
    node.settings["patience"] = 1
    ends: list[int] = []
    monkeypatch.setattr(children, "_end", lambda begun: ends.extend(begun) or [*begun])
    monkeypatch.setattr(services, "slurmd", killed)
    try:
        with pytest.raises(KeyboardInterrupt):
            node.look()
        memory = json.loads((node.root / "state/memory.json").read_text())
        assert memory["stuck"]["/fsx"][0] == ends[0]
    finally:
        for child in ends:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_however_many_file_systems_hang_a_look_takes_no_longer(tmp_path: Path) -> None:
    """Thirty dead mounts, one after the other, would take a minute."""
    look, paths = Look({"patience": 2, "classes": {}, "ignored": []}, {}, str(tmp_path)), [f"/{n}" for n in range(31)]
    begun = time.monotonic()
    answers, hangs = children.ask(look, paths, lambda path: "well" if path == "/30" else str(time.sleep(600)))
    assert time.monotonic() - begun < 40
    assert answers == {"/30": "well"}
    assert hangs == dict.fromkeys(paths[:30], "no answer within 2 s")


@pytest.mark.parametrize("patience", [1, 5, 29, 120])
def test_no_check_is_ended_that_waits_as_long_as_it_may(patience: int) -> None:
    """Two programs, the files of Pyxis and what a check does beside; a page and a service; a mount and all others."""
    assert main._limit("programs", patience) > 2 * max(patience, slow.LONGEST) + patience + 3 * 0.5
    assert main._limit("gpus", patience) > 2 * patience + 0.5
    assert main._limit("mounts", patience) > 2 * (patience + 0.5)


def test_a_check_that_fails_is_told_and_keeps_no_other_from_looking(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "check", lambda look: {}["x"])
    state = node.look()
    assert state["skipped"]["mounts"] == "KeyError: 'x'"
    assert "slurmd" not in state["skipped"]


def test_memory_that_is_broken_or_of_another_boot_begins_anew(node: Node) -> None:
    node.look()
    for text in ("{", "[]", '{"boot": "another"}'):
        (node.root / "state/memory.json").write_text(text)
        assert node.look()["findings"] == []


def test_a_head_node_without_gpus_and_efa(node: Node) -> None:
    node.settings.update(node_type="head", gpus=0, gpu_addresses=[], efa=0, nvswitch=False)
    shutil.rmtree(node.root / "sys")
    shutil.rmtree(node.root / "proc/driver")
    state = node.look()
    assert state["findings"] == []
    assert set(state["skipped"]) <= {"clock"}


def test_settings_that_are_none_are_refused(node: Node) -> None:
    assert start(node, "--check").returncode == 0
    assert not (node.root / "state/state.json").exists()
    del node.settings["gpus"]
    done = start(node, "--check")
    assert (done.returncode, done.stderr) == (2, f"node-health: {node.root}/settings.json: it has no gpus\n")
    done = start(node, "--chek")
    assert (done.returncode, done.stderr) == (2, "node-health: --chek is no option of this program; see --help\n")


def test_forget_by_the_program(node: Node) -> None:
    node.log("NVRM: Xid (PCI:0000:1c:00): 79, GPU has fallen off the bus.")
    start(node)
    assert "gpu_xid_79" in (node.root / "state/state.json").read_text()
    assert start(node, "--forget").returncode == 0
    assert "gpu_xid_79" not in (node.root / "state/state.json").read_text()


def test_evidence_is_one_line_that_is_not_too_long() -> None:
    look = Look({"classes": {}, "ignored": []}, {})
    look.find("gpu_missing", "a\n  b " + "x" * 1000)
    (finding,) = look.result()
    assert finding["evidence"].startswith("a b xxx")
    assert len(finding["evidence"]) == 300


def test_a_process_that_is_gone_has_no_start() -> None:
    assert children.started(2**22 + 1) == ""


def test_a_gpu_that_is_gone_is_written_for_everybody(node: Node) -> None:
    shutil.rmtree(node.root / f"sys/bus/pci/devices/{address(7)}")
    start(node)
    state: dict[str, Any] = json.loads((node.root / SHARED).read_text())
    assert state["findings"][0]["class"] == "replace"


@pytest.mark.parametrize("step", [3600.0, -6 * 3600.0])
def test_a_step_of_the_clock_neither_makes_a_finding_nor_hides_one(node: Node, step: float) -> None:
    """A GPU's clocks count once they were slowed for five minutes."""
    node.values[3]["DCGM_FI_DEV_CLOCKS_EVENT_REASONS"] = 0x40
    assert node.found(30) == {}
    node.ahead = step
    assert node.found(30) == {}
    state = node.look(300)
    assert [(one["finding"], one["subject"]) for one in state["findings"]] == [("gpu_clocks_slowed", "GPU 3")]
    # People read both times by the clock as it is now.
    assert state["time"] == node.now + step
    assert state["findings"][0]["since"] == node.now - 330 + step


def test_the_copy_for_the_head_node_is_as_rare_after_a_step_of_the_clock(node: Node) -> None:
    node.look()
    (copy,) = (node.root / "opt/slurm/pcluster-postboot/health/nodes").iterdir()
    first = copy.stat().st_mtime_ns
    node.ahead = 3600.0
    node.look(30)
    assert copy.stat().st_mtime_ns == first
    node.look(300)
    assert copy.stat().st_mtime_ns != first
