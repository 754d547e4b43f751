# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a node runs site on itself: within its time, told on one line, and what is left goes on in a service.

The real thing runs in a process of its own, with small programs in the place of Ansible and systemctl.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import record
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock as host_lock
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import in_process
from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

PROGRAM = Path(__file__).resolve().parents[3] / "roles/pull/files/pull.py"
pull = load("roles/pull/files/pull.py")
# site, as the test says: it notes its progress as report does, and takes its time.
SITE = """#!{python}
import json, os, signal, subprocess, sys, time
root = os.environ["PCLUSTER_POSTBOOT_ROOT"]
with open(root + "/ansible.json", "w") as stream:
    json.dump({{"args": sys.argv[1:], "env": dict(os.environ)}}, stream)
print("PLAY [Configure the nodes]", flush=True)
print("TASK [Read what this node is] ***", flush=True)
plan = json.load(open(root + "/plan.json"))
if plan.get("progress"):
    with open(os.environ["PCLUSTER_POSTBOOT_PROGRESS"], "w") as stream:
        json.dump(plan["progress"], stream)
    os.makedirs(root + "/run/pcluster-postboot", exist_ok=True)
if plan.get("stubborn"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if plan.get("daemon"):
    # As Ansible's async tasks do: a session of its own, and a parent that is gone.
    code = "import os, time; os.setsid() if os.getpid() != os.getpgid(0) else None\\nif os.fork() == 0: time.sleep(600)"
    subprocess.run([sys.executable, "-c", code], check=True)
for line in plan.get("prints", []):
    print(line, flush=True)
open(root + "/begun", "w").close()
time.sleep(plan.get("seconds", 0))
sys.exit(plan.get("code", 0))
"""
# The program, with a clock that stands still until Ansible has done what it is to do here, and that does not run on
# while the program gets no turn on a busy machine.
FAIR = """
import os, runpy, sys, time
root, real = os.environ["PCLUSTER_POSTBOOT_ROOT"], time.monotonic
now = last = real()
def fair():
    global now, last
    passed, last = real() - last, real()
    if os.path.exists(root + "/begun"):
        now += min(passed, 0.6)
    return now
time.monotonic = fair
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
SYSTEM = """#!/bin/sh
echo "$@" >> "$PCLUSTER_POSTBOOT_ROOT/NAME.log"
if [ -e "$PCLUSTER_POSTBOOT_ROOT/NAME.fails" ]; then cat "$PCLUSTER_POSTBOOT_ROOT/NAME.fails"; exit 1; fi
"""


def entry(name: str, status: str = "unchanged", essential: bool = True, **more: Any) -> dict[str, Any]:
    return {"name": name, "status": status, "essential": essential, "seconds": 1.0, "changed": 0, "why": "", **more}


def ended(*components: dict[str, Any], **report: Any) -> dict[str, Any]:
    """Return the progress of a run that came to its end."""
    return {
        "component": "",
        "ended": True,
        "report": {"outcome": "ok", "changed": 3, "components": components, **report},
    }


def running(component: str, *components: dict[str, Any], **plans: Any) -> dict[str, Any]:
    """Return the progress of a run in which a component is at work, with the plans of all that it was to run."""
    given = {one["name"]: {"run": True, "essential": one["essential"]} for one in components}
    now = time.time()
    known = {"component": component, "since": now - 5, "started": now - 60, "ended": False}
    return {**known, "plans": {**given, **plans}, "report": {"outcome": "ok", "components": list(components)}}


class Node:
    """A node, and what Ansible will do on it."""

    def __init__(self, root: Path, collections: Path) -> None:
        self.root, self.home, self.collections = root, root / "opt/pcluster-postboot/1", collections
        self.program = PROGRAM
        lab.program(self.home / "venv/bin/ansible-playbook", SITE.format(python=sys.executable))
        for name in ("systemctl", "dpkg-query", "dpkg"):
            lab.program(root / "bin" / name, SYSTEM.replace("NAME", name))
        self.is_a("ComputeFleet")
        self.write("etc/os-release", "ID=ubuntu\nID_LIKE=debian\n")
        (root / "run/pcluster-postboot").mkdir(parents=True)

    def is_a(self, kind: str) -> None:
        self.write("etc/parallelcluster/cfnconfig", f"cfn_node_type={kind}\n")

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def plan(self, **plan: Any) -> None:
        self.write("plan.json", json.dumps(plan))

    def start(self, what: str, *arguments: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
        environment = {
            "PATH": f"{self.root}/bin:/usr/bin:/bin",
            "PYTHONPATH": str(self.collections),
            "PCLUSTER_POSTBOOT_ROOT": str(self.root),
            "AWS_REGION": "us-east-2",
            "SECRET": "x",
        }
        (self.root / "begun").unlink(missing_ok=True)
        line = [sys.executable, "-c", FAIR, str(self.program), what, "--home", str(self.home), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": stderr}
        return subprocess.Popen(line, env=environment, cwd=self.root, text=True, **pipes)  # type: ignore[call-overload, no-any-return]

    def run(self, what: str, *arguments: str) -> tuple[int, str, str]:
        process = self.start(what, *arguments)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def boot(self, *arguments: str, budget: str = "60") -> tuple[int, str, str]:
        return self.run("boot", "--budget", budget, *arguments)

    def lines(self, name: str) -> list[str]:
        return lab.lines(self.root / f"{name}.log")

    @property
    def ansible(self) -> Any:
        return json.loads((self.root / "ansible.json").read_text())

    @property
    def report(self) -> Any:
        return json.loads((self.root / "var/lib/pcluster-postboot/report.json").read_text())

    @property
    def log(self) -> str:
        return (self.root / "var/log/pcluster-postboot/pull.log").read_text()

    def started(self) -> bool:
        return "start --no-block pcluster-postboot.service" in self.lines("systemctl")


@pytest.fixture
def node(tmp_path: Path, collections: Path) -> Node:
    return Node(tmp_path / "node", collections)


def one_line(text: str) -> str:
    """Return what the only line says, without what each line has."""
    assert text.count("\n") == 1, text
    assert text.startswith("pcluster-postboot: ")
    return text[len("pcluster-postboot: ") :].strip()


def test_where_all_is_done_no_service_is_started(node: Node) -> None:
    node.plan(progress=ended(entry("docker", "changed"), entry("efa", "skipped"), entry("enroot")))
    code, out, err = node.boot()
    assert (code, err) == (0, "")
    assert one_line(out) == "2 components are as they should be, 3 changes, 0 s"
    assert not node.started()
    line = node.ansible["args"]
    assert line[0] == "pcluster.postboot.site"
    assert json.loads(line[line.index("--extra-vars") + 1]) == {"common_phase": "boot", "ansible_become": False}


def test_what_surrounds_it_does_not_reach_ansible(node: Node) -> None:
    node.plan(progress=ended())
    node.boot("--mode", "cpu")
    env = node.ansible["env"]
    assert "SECRET" not in env
    assert "PYTHONPATH" not in env
    assert env["AWS_REGION"] == "us-east-2"
    assert env[in_process.ASKED] == "1"
    assert env["ANSIBLE_CONFIG"].endswith("/1/ansible_collections/pcluster/postboot/roles/pull/files/ansible.cfg")
    assert json.loads(node.ansible["args"][2])["common_mode"] == "cpu"


def test_what_is_left_goes_on_in_the_service(node: Node) -> None:
    node.plan(progress=ended(entry("docker"), entry("node_exporter", "deferred", False), entry("x", "failed", False)))
    code, out, err = node.boot()
    assert (code, err) == (0, "")
    assert one_line(out).endswith("; deferred: node_exporter; failed: x; pcluster-postboot.service goes on")
    assert node.started()


def test_the_service_tries_again_what_only_failed(node: Node) -> None:
    node.plan(progress=ended(entry("docker"), entry("x", "failed", False)))
    assert node.boot()[0] == 0
    # How often it was started before does not count.
    unit = "pcluster-postboot.service"
    assert node.lines("systemctl") == [f"reset-failed {unit}", f"start --no-block {unit}"]


@pytest.mark.parametrize(
    ("plan", "defer", "goes_on"),
    [
        ({"progress": ended(entry("x")), "code": 1}, "yes", True),
        ({"progress": ended(entry("x", "failed", False))}, "no", True),
        ({"progress": ended(entry("x"))}, "no", False),
    ],
)
def test_a_service_that_was_stopped_goes_on_with_what_a_run_has_not_done(
    node: Node, plan: dict[str, Any], defer: str, goes_on: bool
) -> None:
    node.plan(**plan)
    node.boot("--stopped", "yes", "--defer", defer)
    assert node.started() is goes_on


def test_without_deferral_all_is_done_at_once(node: Node) -> None:
    node.plan(progress=ended(entry("x", "failed", False)))
    assert node.boot("--defer", "no")[0] == 0
    assert not node.started()
    assert json.loads(node.ansible["args"][2])["common_phase"] == "all"


def test_the_log_has_it_all_with_its_time(node: Node) -> None:
    node.plan(progress=ended(), prints=["ok: [localhost]", "a word: \u00fc"])
    node.boot()
    lines = node.log.splitlines()
    assert all(line[:4].isdigit() and line[19] == "Z" for line in lines)
    assert any(line.endswith("site: ok: [localhost]") for line in lines)
    assert [line for line in lines if "pull: the first task begins after 0." in line]


@pytest.mark.parametrize(
    ("stopped", "line"),
    [
        ({"component": "docker", "message": "no key"}, "docker failed: no key"),
        ({"component": "", "message": "one\ntwo\nthree"}, "one (and 2 more)"),
    ],
)
def test_what_stopped_the_node_is_one_line(node: Node, stopped: dict[str, str], line: str) -> None:
    node.plan(progress=ended(entry("docker", "failed"), outcome="stopped", stopped=stopped), code=2)
    code, out, err = node.boot()
    assert (code, out) == (1, err)
    assert one_line(err) == f"{line}; see {node.root}/var/log/pcluster-postboot/pull.log"
    both, _none = node.start("boot", "--budget", "60", stderr=subprocess.STDOUT).communicate(timeout=60)
    assert both == err
    assert not node.started()


def test_a_run_that_never_began_tells_why(node: Node) -> None:
    node.plan(prints=["[ERROR]: no node was found", "  more", "and more"], code=4)
    code, _out, err = node.boot()
    assert code == 1
    assert one_line(err).startswith("site ended with 4: no node was found; see ")


def test_an_older_runs_progress_does_not_count(node: Node) -> None:
    node.write("run/pcluster-postboot/progress.json", json.dumps(ended(entry("docker"))))
    node.plan()
    code, _out, err = node.boot()
    assert (code, one_line(err).split(":")[0]) == (1, "site ended with 0")


def test_a_run_that_dies_on_the_way_tells_so(node: Node) -> None:
    node.plan(progress=cut(), prints=["ERROR! Unexpected Exception, this is probably a bug: x"], code=250)
    code, _out, err = node.boot()
    assert code == 1
    assert one_line(err).startswith("site ended with 250: Unexpected Exception, this is probably a bug: x; see ")


def cut() -> dict[str, Any]:
    return running("docker", entry("fsx", seconds=50.0), entry("docker"), enroot={"run": True, "essential": True})


def test_a_boot_that_takes_too_long_fails_where_jobs_would_come(node: Node) -> None:
    node.plan(progress=cut(), seconds=600)
    start = time.monotonic()
    code, out, err = node.boot(budget="2")
    assert time.monotonic() - start < PATIENCE
    used = r"the budget of 2 s is used up while docker was running, for \d+ s; fsx took most, 50 s; "
    needed = "a longer DevSettings/Timeouts/ComputeNodeBootstrapTimeout, a larger --budget where one is given, "
    told = rf"{used}not done yet: docker, enroot; jobs would find the node unfinished; needed: {needed}"
    told += "or common_deferred; see "
    assert re.match(told, one_line(err))
    assert (code, out, node.started()) == (1, err, False)
    status = {one["name"]: one["status"] for one in node.report["components"]}
    assert status == {"fsx": "unchanged", "docker": "deferred", "enroot": "deferred"}
    assert (node.report["outcome"], node.report["stopped"]["component"]) == ("stopped", "docker")
    assert node.report["stopped"]["message"].startswith("the budget of 2 s is used up while docker was running")


def told(node: Node) -> dict[str, str]:
    """What others can read of the node while it boots; nothing before there is any of it."""
    path = node.root / "opt/slurm/pcluster-postboot/boots/cpu-st-c5-1"
    return record.parse(path.read_text()) if path.exists() else {}


def test_others_can_read_which_component_runs_and_how_the_boot_ended(node: Node) -> None:
    (node.root / "opt/slurm").mkdir(parents=True)
    node.write("etc/parallelcluster/slurm_plugin/slurm_nodename", "cpu-st-c5-1\n")
    node.write("var/lib/cloud/data/instance-id", "i-0123456789abcdef0\n")
    node.plan(progress=cut(), seconds=600)
    begin = int(time.time())
    process = node.start("boot", "--budget", "8", "--elapsed", "200")
    until(lambda: told(node).get("component") == "docker")
    found = told(node)
    assert (found["stage"], found["instance"]) == ("site", "i-0123456789abcdef0")
    assert (found["number"], found["of"]) == ("2", "3")
    assert begin + 6 <= int(found["deadline"]) <= time.time() + 6
    assert process.wait(PATIENCE) == 1
    found = told(node)
    assert (found["stage"], found["component"]) == ("failed", "docker")
    assert found["why"].startswith("the budget of 8 s is used up while docker was running")
    node.plan(progress=ended(entry("docker"), entry("node_exporter", "deferred", essential=False)))
    node.boot()
    assert told(node)["stage"] == "later"
    assert node.run("later")[0] == 75
    assert (told(node)["stage"], "deferred: node_exporter" in told(node)["why"]) == ("waits", True)
    node.plan(progress=ended(entry("docker")))
    assert node.run("later")[0] == 0
    assert (told(node)["stage"], "why" in told(node)) == ("done", False)
    before = told(node)
    node.run("check")
    assert told(node) == before


def test_a_cut_boot_that_has_all_essentials_is_well(node: Node) -> None:
    node.plan(
        progress=running("x", entry("docker"), entry("x", essential=False), y={"run": True, "essential": False}),
        seconds=600,
    )
    code, out, _err = node.boot(budget="1")
    assert code == 0
    assert "not done yet: x, y; pcluster-postboot.service goes on" in one_line(out)


def test_what_only_waits_for_another_node_fails_no_cut_boot(node: Node) -> None:
    nccl = {"run": True, "essential": True, "started": time.time() - 30}
    efa = {"run": False, "deferred": True, "essential": True, "reason": "it comes after the boot"}
    shown = [entry("docker"), entry("nccl", "deferred"), entry("x", essential=False)]
    node.plan(progress=running("x", *shown, nccl=nccl, efa=efa), seconds=600)
    code, out, _err = node.boot(budget="1")
    assert code == 0
    assert "not done yet: nccl, x, efa; pcluster-postboot.service goes on" in one_line(out)
    why = {one["name"]: one["why"] for one in node.report["components"]}
    assert (why["efa"], why["x"]) == ("it comes after the boot", "the budget was used up")
    # One that is at work does not wait, and one that has not begun does not either.
    node.plan(progress=running("nccl", *shown, nccl=nccl, efa=efa), seconds=600)
    assert node.boot(budget="1")[0] == 1
    nccl.pop("started")
    node.plan(progress=running("x", *shown, nccl=nccl, efa=efa), seconds=600)
    assert node.boot(budget="1")[0] == 1


@pytest.mark.parametrize("kind", ["HeadNode", "LoginNode"])
def test_a_cut_boot_is_well_where_no_jobs_run(node: Node, kind: str) -> None:
    node.is_a(kind)
    node.plan(progress=cut(), seconds=600)
    code, out, err = node.boot(budget="1")
    assert (code, err, node.started(), node.report["outcome"]) == (0, "", True, "unfinished")
    assert one_line(out).endswith("; not done yet: docker, enroot; pcluster-postboot.service goes on")


def test_a_cut_boot_that_nothing_would_finish_fails(node: Node) -> None:
    node.is_a("HeadNode")
    node.write("systemctl.fails", "Unit pcluster-postboot.service not found.\n")
    node.plan(progress=cut(), seconds=600)
    code, _out, err = node.boot(budget="1")
    assert code == 1
    assert "pcluster-postboot.service cannot be started: Unit pcluster-postboot.service not found." in one_line(err)
    node.plan(progress=cut(), seconds=600)
    assert node.boot("--defer", "no", budget="1")[0] == 1


def test_what_bootstrap_has_used_is_of_the_budget(node: Node) -> None:
    node.plan(progress=cut(), seconds=600)
    start = time.monotonic()
    assert node.boot("--elapsed", "5900", budget="60")[0] == 1
    assert time.monotonic() - start < PATIENCE


def test_a_service_that_does_not_start_fails_no_boot_that_has_all_essentials(node: Node) -> None:
    node.write("systemctl.fails", "Unit pcluster-postboot.service not found.\n")
    node.plan(progress=ended(entry("x", "deferred", False)))
    code, out, _err = node.boot()
    assert code == 0
    assert "pcluster-postboot.service cannot be started" in out


def test_a_head_node_waits_for_no_slurmd(node: Node) -> None:
    node.is_a("HeadNode")
    node.write("systemctl.fails", "inactive\n")
    node.plan(progress=ended())
    assert node.run("later")[0] == 0
    assert node.lines("systemctl") == []


def test_a_head_node_of_hyperpod_waits_for_slurmctld(node: Node, node_tree: Callable[[str], Path]) -> None:
    shutil.rmtree(node.root / "etc/parallelcluster")
    shutil.copytree(node_tree("hyperpod-controller"), node.root, dirs_exist_ok=True, symlinks=True)
    node.plan(progress=ended())
    assert node.run("later")[0] == 0
    assert node.lines("systemctl") == ["is-active --quiet slurmctld.service"]


def test_a_boot_that_is_cut_before_its_first_component_fails(node: Node) -> None:
    node.plan(prints=["waiting"], seconds=600)
    code, _out, err = node.boot(budget="1")
    assert code == 1
    assert one_line(err).startswith("the budget of 1 s is used up, and no component has had its turn: waiting")


@pytest.mark.parametrize(
    ("report", "code", "line"),
    [
        ({}, 0, "1 components are as they should be"),
        ({"stopped": {"component": "docker", "message": "no key"}}, 1, "docker failed: no key; see "),
        ({"ended_badly": "the lock is another's"}, 1, "the lock is another's; see "),
    ],
)
def test_a_run_that_is_cut_when_all_was_done_is_what_its_report_says(
    node: Node, report: dict[str, Any], code: int, line: str
) -> None:
    node.plan(progress=ended(entry("docker"), **report), seconds=600)
    found, out, err = node.boot(budget="1")
    assert (found, one_line(out or err).startswith(line)) == (code, True), out or err


def test_what_not_even_force_ends_does_not_hold_the_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "end", lambda _process: None)
    start = time.monotonic()
    done = pull.run(["sleep", "600"], pull.Log(str(tmp_path / "log")), dict(os.environ), 0.5)
    assert (done.cut, done.code) == (True, -signal.SIGKILL)
    assert time.monotonic() - start < PATIENCE
    for pid in pull.descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes(marker: str) -> list[int]:
    """Return the processes with a word in their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if marker.encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("how", [{}, {"daemon": True}, {"stubborn": True}])
def test_nothing_of_a_cut_run_is_left(node: Node, how: dict[str, Any]) -> None:
    # Stubborn ones get less time here than on a node.
    node.program = node.root / "pull.py"
    node.program.write_text(PROGRAM.read_text().replace("GRACE = 20.0", "GRACE = 1.0"))
    node.plan(progress=cut(), seconds=600, **how)
    assert node.boot(budget="2")[0] == 1
    assert processes(f"PCLUSTER_POSTBOOT_ROOT={node.root}\0") == []


def test_what_a_cut_run_has_held_is_released(node: Node) -> None:
    node.write("var/lib/pcluster-postboot/holds.json", json.dumps({"held": ["linux-aws"], "original": ""}))
    gone = subprocess.Popen(["true"])
    gone.wait()
    lock = host_lock.Holder.of_process(os.getpid(), "pull")
    dead = {**lock.__dict__, "pid": gone.pid, "run_id": "dead", "pid_started": "1"}
    node.write("run/pcluster-postboot/lock", json.dumps(dead))
    node.plan(progress=cut(), seconds=600)
    node.boot(budget="1")
    assert not (node.root / "var/lib/pcluster-postboot/holds.json").exists()
    assert not (node.root / "run/pcluster-postboot/lock").exists()


def test_what_another_run_holds_stays_its_own(node: Node) -> None:
    node.write("var/lib/pcluster-postboot/holds.json", json.dumps({"held": ["linux-aws"], "original": ""}))
    node.write("run/pcluster-postboot/lock", json.dumps(host_lock.Holder.of_process(os.getpid(), "push").__dict__))
    node.plan(progress=cut(), seconds=600)
    node.boot(budget="1")
    assert (node.root / "var/lib/pcluster-postboot/holds.json").exists()
    assert (node.root / "run/pcluster-postboot/lock").exists()
    assert "another run holds the node" in node.log


def test_a_run_that_is_asked_to_end_cleans_up(node: Node) -> None:
    node.plan(progress=cut(), seconds=600)
    process = node.start("boot", "--budget", "50", "--stopped", "yes")
    until((node.root / "run/pcluster-postboot/progress.json").exists)
    process.send_signal(signal.SIGTERM)
    _out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert node.started()
    assert one_line(err).startswith("ended by SIGTERM; see ")
    assert processes(f"PCLUSTER_POSTBOOT_ROOT={node.root}\0") == []
    assert node.report["outcome"] == "stopped"
    assert "asked to end while docker was running" in node.log


def test_output_that_something_else_holds_open_does_not_hold_the_boot(node: Node) -> None:
    node.plan(progress=ended(), daemon=True)
    start = time.monotonic()
    assert node.boot()[0] == 0
    assert time.monotonic() - start < PATIENCE
    for pid in processes(f"PCLUSTER_POSTBOOT_ROOT={node.root}\0"):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("components", "code", "exit_code"),
    [
        ([entry("docker")], 0, 0),
        ([entry("docker"), entry("x", "failed", False)], 0, 0),
        ([entry("nccl", "deferred")], 0, 75),
        ([entry("docker", "failed")], 2, 1),
    ],
)
def test_the_service_comes_again_for_what_others_have_to_publish(
    node: Node, components: list[dict[str, Any]], code: int, exit_code: int
) -> None:
    stopped = {"component": "docker", "message": "m"} if code else None
    node.plan(progress=ended(*components, stopped=stopped), code=code)
    found, _out, err = node.run("later")
    assert (found, bool(err)) == (exit_code, exit_code == 1)
    assert json.loads(node.ansible["args"][2])["common_phase"] == "later"
    assert node.lines("systemctl")[0] == "is-active --quiet slurmd.service"


def test_the_service_waits_for_slurmd(node: Node) -> None:
    node.write("systemctl.fails", "inactive\n")
    node.plan(progress=ended())
    process = node.start("later")
    time.sleep(2)
    assert not (node.root / "ansible.json").exists()
    (node.root / "systemctl.fails").unlink()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert (node.root / "ansible.json").exists()


def test_the_service_waits_for_a_bootstrap_that_is_at_work(node: Node) -> None:
    node.plan(progress=ended())
    with open(node.root / "run/pcluster-postboot/bootstrap.lock", "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        process = node.start("later")
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=2)
        assert not (node.root / "ansible.json").exists()
    process.communicate(timeout=PATIENCE)
    assert (process.returncode, (node.root / "ansible.json").exists()) == (0, True)


def test_a_check_notes_and_changes_nothing(node: Node) -> None:
    node.plan(prints=["pcluster.postboot: 1 node, 2 would change"])
    code, out, _err = node.run("check")
    assert code == 0
    assert "pcluster.postboot: 1 node, 2 would change\n" in out
    assert node.ansible["args"][-2:] == ["--check", "--diff"]
    assert "PCLUSTER_POSTBOOT_PROGRESS" not in node.ansible["env"]


def test_an_image_is_baked_by_its_own_playbook_without_a_limit_of_time(node: Node) -> None:
    node.plan(progress=ended(entry("docker", "changed"), entry("dcgm_exporter", "failed", essential=False)))
    code, out, err = node.run("bake", "--mode", "cpu")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"1 components are as they should be, 3 changes, \d+ s; failed: dcgm_exporter", one_line(out))
    playbook, *options = node.ansible["args"]
    assert playbook == "pcluster.postboot.bake"
    assert options[:3] == ["--inventory", f"{node.home}/inventory/image.yml", "--extra-vars"]
    assert json.loads(options[3]) == {"common_phase": "all", "ansible_become": False, "common_mode": "cpu"}
    assert "bake begins: phase all, mode cpu" in node.log
    assert not node.started()


def test_an_essential_that_fails_fails_the_image(node: Node) -> None:
    node.plan(code=2, progress=ended(stopped={"component": "docker", "message": "no repository"}))
    code, _out, err = node.run("bake")
    assert code == 1
    assert one_line(err).startswith("docker failed: no repository")


@pytest.mark.parametrize(
    ("last", "code", "fails"),
    [
        ("pcluster.postboot: 1 node, 0 would change, 1 failed, 3 s", 0, False),  # a non-essential, as the table says
        ("pcluster.postboot: 1 node, 1 would change, 0 failed, 3 s", 0, True),
        ("pcluster.postboot: 1 node, 10 would change, 0 failed, 3 s", 0, True),
        ("pcluster.postboot: 1 node, 0 would change, 1 failed, 3 s", 2, True),
        ("a table without its last line", 0, True),
    ],
)
def test_an_image_is_complete_where_bake_would_change_nothing(node: Node, last: str, code: int, fails: bool) -> None:
    node.plan(prints=[last], code=code)
    found, out, err = node.run("baked")
    assert bool(found) is fails
    assert last in out
    assert (f"the image is not what bake makes of it: check mode, nothing was changed: {last}" in err) is (
        fails and not code
    )
    assert node.ansible["args"][0] == "pcluster.postboot.bake"
    assert node.ansible["args"][-2:] == ["--check", "--diff"]
    assert "PCLUSTER_POSTBOOT_PROGRESS" not in node.ansible["env"]


def test_what_is_wrong_here_is_one_line_too(node: Node) -> None:
    node.plan()
    (node.home / "venv/bin/ansible-playbook").unlink()
    code, _out, err = node.boot()
    assert code == 1
    assert one_line(err).startswith("FileNotFoundError: ")
    assert "Traceback" in node.log
