# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stage health of verify: its job runs here, with the sandbox's fi_pingpong and a dcgmi of the test's."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster as verify_cluster
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import health, health_jobs
from ansible_collections.pcluster.postboot.plugins.plugin_utils._verify.page import render
from ansible_collections.pcluster.postboot.tests.unit.plugins import slurm
from ansible_collections.pcluster.postboot.tests.unit.plugins.slurm import Run, checks

FIXTURES = Path(__file__).parents[2] / "fixtures/dcgm"
PINGPONG = Path(__file__).parents[4] / "molecule/cluster/standins/efa/fi_pingpong.py"
DCGMI = """#!/bin/sh
node=ROOT/$SLURMD_NODENAME
echo "$*" >> $node/asked
pwd >> $node/folder
case $1 in
  discovery) [ ! -e $node/no-engine ] || { echo; echo 'Error: Unable to connect to host engine.'; exit 235; } ;;
  diag)
    case $* in *--help*) [ -e $node/old ] || echo '  --enable-heartbeat'; exit ;; esac
    [ ! -e $node/hangs ] || sleep 60
    cat $node/diag; echo muttered >&2
    exit "$(cat $node/code)" ;;
esac
"""


class Cluster(slurm.Cluster):
    USUAL = ["IDLE", "gpu", "gpu:h100:8"]

    def __init__(self, root: Path, *more: Any) -> None:
        self.states = root / "slurm" / health.STATES
        super().__init__(root, *more, stages=["health"])
        self.states.mkdir(parents=True)
        self.options["health"] = {"checks": ["node_health", "gpu_diag", "efa_loopback"]}
        self.program("slurm/bin/srun", slurm.SRUN)
        self.program("slurm/bin/scancel", "#!/bin/sh\n")
        self.program("slurm/bin/dcgmi", DCGMI)
        self.nodes("n1", "n2")

    def nodes(self, *lines: str, feature: str = "g6.8xlarge,efa", cpus: int = 192) -> None:
        super().nodes(*lines, feature=feature, cpus=cpus)

    def node(self, name: str) -> None:
        if (self.root / name).exists():
            return
        (self.root / name).mkdir()
        self.diag(name, "r2-passed", 0)
        self.efa_devices(name, 2)
        text = PINGPONG.read_text().replace("/sys/class/infiniband", f"{self.root}/{name}/sys/class/infiniband")
        # Else libfabric would send through shared memory.
        real = 'assert os.environ["FI_EFA_ENABLE_SHM_TRANSFER"] == "0"'
        text = text.replace("def main() -> int:", f"def main() -> int:\n    {real}")
        self.program(
            f"{name}/opt/amazon/efa/bin/fi_pingpong", text.replace("/run/sandbox-efa-dead", f"ROOT/{name}/dead")
        )
        self.state(name)

    def diag(self, name: str, fixture: str, code: int) -> None:
        text = (FIXTURES / f"{fixture}.json").read_text()
        (self.root / name / "diag").write_text(text)
        (self.root / name / "code").write_text(str(code))

    def state(self, name: str, *findings: dict[str, str], stamped: float = 0, **more: Any) -> None:
        found = {"schema": 1, "node": name, "time": time.time(), "findings": findings, "skipped": {}, **more}
        (self.states / f"{name}.json").write_text(json.dumps(found))
        stamped = stamped or time.time()
        os.utime(self.states / f"{name}.json", (stamped, stamped))

    def mark(self, name: str, what: str) -> None:
        (self.root / name / what).touch()

    def dead(self, name: str, *devices: str) -> None:
        (self.root / name / "dead").mkdir(exist_ok=True)
        for device in devices:
            (self.root / name / "dead" / device).touch()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> Cluster:
    own, efa = f"{tmp_path}/$SLURMD_NODENAME", health_jobs._EFA
    for path in ("/sys/class", "/opt/amazon"):
        assert path in efa
        efa = efa.replace(path, own + path)
    # The nodes are one machine, on which other tests run, too.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    assert "port=47592 " in efa
    efa = efa.replace("port=47592 ", f"port=$(({port} - 20000 + 20 * ${{SLURMD_NODENAME#n}})) ")
    monkeypatch.setattr(health_jobs, "_EFA", efa)
    monkeypatch.setattr(health_jobs, "PING_SECONDS", 5)
    return Cluster(tmp_path, monkeypatch, run_module)


def findings(result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    return [(one["node"], one["finding"], one["class"], one["subject"]) for one in result["report"]["findings"]]


def only(*names: str, **more: Any) -> dict[str, Any]:
    return {"health": {"checks": list(names), **more}}


def test_healthy_nodes(cluster: Cluster, run: Run) -> None:
    result = run()
    assert checks(result) == [
        ("gpu", "node_health", "ok", "n[1-2]: its own checks found nothing"),
        ("gpu", "efa_loopback", "ok", "n[1-2]: 2 EFA devices reach themselves"),
        ("gpu", "gpu_diag", "ok", "n[1-2]: dcgmi diag -r 2 of DCGM 4.6.0 passed: software, memory, pcie"),
    ]
    assert (result["complaints"], findings(result), result["report"]["ok"]) == ([], [], True)
    (details,) = [one["details"] for one in result["report"]["checks"] if one["name"] == "gpu_diag"]
    assert details["n1"] == {
        "version": "4.6.0",
        "level": 2,
        "tests": {"software": "Pass", "memory": "Pass", "pcie": "Pass"},
        "exit_code": 0,
    }
    assert "What is wrong with nodes" not in render(result["report"])
    # Each node has a job for itself, with all GPUs, for as long as the diagnostic may take and somewhat more.
    assert len(cluster.calls) == 2
    for call in cluster.calls:
        assert "--exclusive" in call
        assert "--gres=gpu:8" in call
        assert f"--time={15 + health_jobs.EFA_MINUTES + health_jobs.SPARE_MINUTES} " in call
    asked = (cluster.root / "n1/asked").read_text().splitlines()
    assert asked[0] == "discovery -l --host localhost"
    assert asked[-1] == "diag --host localhost -r 2 -t 900 -j --enable-heartbeat"
    # What dcgmi writes into its folder goes with the job.
    assert not any(os.path.exists(path) for path in (cluster.root / "n1/folder").read_text().splitlines())


def test_a_broken_gpu_is_named_with_class_and_what_to_do(cluster: Cluster, run: Run) -> None:
    cluster.diag("n2", "r2-failed", 205)
    result = run(**only("gpu_diag"))
    assert findings(result) == [("n2", "gpu_diag", "replace", "GPU 3"), ("n2", "gpu_diag", "replace", "GPU 5")]
    evidence = [one["evidence"] for one in result["report"]["findings"]]
    assert evidence[0].startswith("software: Page Retirement/Row Remap: GPU 3 had uncorrectable memory errors")
    assert evidence[0].endswith("(error 80, reset)")
    (complaint,) = result["complaints"]
    assert complaint.startswith("gpu: gpu_diag (health): n2: gpu_diag (replace): GPU 3: software: Page Retirement/")
    assert complaint.endswith(", and 1 more; drain the node, and ParallelCluster replaces it")
    assert [status for _subject, _name, status, _message in checks(result, "gpu_diag")] == ["ok", "failed"]
    page = render(result["report"])
    assert "What is wrong with nodes" in page
    assert "GPU 5" in page


def test_a_higher_level_and_an_older_dcgm(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1")
    cluster.mark("n1", "old")
    cluster.diag("n1", "dcgm3-failed", 226)
    result = run(**only("gpu_diag", level=3, minutes=60))
    assert (cluster.root / "n1/asked").read_text().splitlines()[-1] == "diag --host localhost -r 3 -t 3600 -j"
    assert f"--time={60 + health_jobs.SPARE_MINUTES} " in cluster.calls[0]
    assert findings(result) == [("n1", "gpu_diag", "replace", "GPU 0"), ("n1", "gpu_diag", "reset", "GPU 1")]


def test_a_gpu_that_dcgm_does_not_see(cluster: Cluster, run: Run) -> None:
    told = json.loads((FIXTURES / "r2-passed.json").read_text())
    del told["entity_groups"][0]["entities"][6]
    (cluster.root / "n1/diag").write_text(json.dumps(told))
    result = run(**only("gpu_diag"))
    assert findings(result) == [("n1", "gpu_missing", "replace", "")]
    assert "DCGM sees 7 of 8 GPUs" in result["complaints"][0]


@pytest.mark.parametrize(
    ("fixture", "code", "status", "message"),
    [
        ("already-running", 217, "skipped", "n1: another diagnostic of DCGM's runs there"),
        (
            "already-running",
            245,
            "failed",
            "n1: gpu_diag (reboot): dcgmi diag -r 2 did not end within 15 minutes; drain",
        ),
        ("already-running", 1, "failed", "n1: dcgmi diag -r 2 ended with 1: Error: Unable to complete diagnostic for"),
        ("r2-passed", 226, "failed", "n1: dcgmi diag -r 2 ended with 226, and told of no error"),
    ],
)
def test_a_diagnostic_without_a_result(
    cluster: Cluster, run: Run, fixture: str, code: int, status: str, message: str
) -> None:
    cluster.nodes("n1")
    cluster.diag("n1", fixture, code)
    ((_subject, _name, found, told),) = checks(run(**only("gpu_diag")), "gpu_diag")
    assert (found, told[: len(message)]) == (status, message)


def test_without_dcgm_or_its_host_engine(cluster: Cluster, run: Run) -> None:
    cluster.mark("n1", "no-engine")
    result = run(**only("gpu_diag"))
    why = "n1: DCGM's host engine does not answer: Error: Unable to connect to host engine.; run site with --tags dcgm"
    assert ("gpu", "gpu_diag", "skipped", why) in checks(result)
    assert f"not measured: health on gpu: {why}" in result["verdict"]
    (cluster.root / "slurm/bin/dcgmi").unlink()
    why = "n[1-2]: there is no dcgmi; run site with --tags dcgm"
    assert checks(run(**only("gpu_diag"))) == [("gpu", "gpu_diag", "skipped", why)]


def test_a_test_that_dcgm_skips_is_named_and_all_skipped_is_no_pass(cluster: Cluster, run: Run) -> None:
    told = json.loads((FIXTURES / "r2-passed.json").read_text())
    tests = [category["tests"][0] for category in told["DCGM Diagnostic"]["test_categories"]]
    tests[2]["test_summary"]["status"] = "Skip"
    (cluster.root / "n1/diag").write_text(json.dumps(told))
    tests[1]["test_summary"]["status"] = "Skip"
    (cluster.root / "n2/diag").write_text(json.dumps(told))
    assert checks(run(**only("gpu_diag")), "gpu_diag") == [
        ("gpu", "gpu_diag", "ok", "n1: dcgmi diag -r 2 of DCGM 4.6.0 passed: software, memory; skipped: pcie"),
        ("gpu", "gpu_diag", "unknown", "n2: dcgmi diag -r 2 of DCGM 4.6.0 passed: software; skipped: memory, pcie"),
    ]


def test_a_dead_efa_device(cluster: Cluster, run: Run) -> None:
    cluster.dead("n1", "rdmap1s0")
    result = run(**only("efa_loopback"))
    assert findings(result) == [("n1", "efa_loopback", "reboot", "rdmap1s0")]
    assert result["complaints"] == [
        "gpu: efa_loopback (health): n1: efa_loopback (reboot): rdmap1s0: nothing came back within 5 s; "
        "drain the node: a rebooted or a new instance is needed"
    ]
    details = next(one["details"] for one in result["report"]["checks"] if one["status"] == "failed")
    assert details["n1"]["devices"]["rdmap0s0"].startswith("ok 1m")
    # Without the diagnostic the job is short.
    assert f"--time={health_jobs.SHORT_MINUTES} " in cluster.calls[0]


def test_a_device_that_libfabric_does_not_know_says_why(cluster: Cluster, run: Run) -> None:
    program = cluster.root / "n2/opt/amazon/efa/bin/fi_pingpong"
    program.write_text(
        program.read_text().replace(
            "def is_known(domain: str) -> bool:", "def is_known(domain):\n    return 'p0' in domain\ndef old(domain):"
        )
    )
    result = run(**only("efa_loopback"))
    assert [one["evidence"] for one in result["report"]["findings"]] == [
        "fi_getinfo(): util/pingpong.c:1434, ret=-61 (No data available)"
    ]


def test_devices_that_are_not_there(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2", feature="p5.48xlarge,efa")
    for device in (cluster.root / "n2/sys/class/infiniband").iterdir():
        (device / "device/driver").unlink()
    result = run(**only("efa_loopback"))
    assert findings(result) == [("n1", "efa_missing", "replace", ""), ("n2", "efa_missing", "replace", "")]
    assert [one["evidence"] for one in result["report"]["findings"]] == [
        "2 of 32 EFA devices are there",
        "0 of 32 EFA devices are there",
    ]


def test_where_no_device_answers_the_security_group_comes_first(
    cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_jobs, "MOST_DEAD", 1)
    monkeypatch.setattr(health_jobs, "PING_SECONDS", 4)
    cluster.dead("n2", "rdmap0s0", "rdmap1s0")
    result = run(**only("efa_loopback"))
    assert findings(result) == [("n2", "efa_loopback", "watch", "")]
    assert "none of 2 devices reaches itself (nothing came back within 4 s, and 1 untried)" in result["complaints"][0]
    assert "security group" in result["complaints"][0]


def test_without_fi_pingpong_or_without_efa(cluster: Cluster, run: Run) -> None:
    (cluster.root / "n1/opt/amazon/efa/bin/fi_pingpong").unlink()
    found = checks(run(**only("efa_loopback")))
    assert found[0][2:] == (
        "skipped",
        f"n1: there is no {cluster.root}/n1/opt/amazon/efa/bin/fi_pingpong; run site with --tags efa",
    )
    cluster.nodes("n3", feature="g5.xlarge")
    for device in (cluster.root / "n3/sys/class/infiniband").iterdir():
        (device / "device/driver").unlink()
    result = run(**only("efa_loopback", "gpu_diag"))
    assert [name for _subject, name, _status, _message in checks(result)] == ["gpu_diag"]


def test_busy_and_drained_nodes_are_named_and_left_alone(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", "n2 MIXED", "n3 IDLE+DRAIN gpu", "n4 IDLE+CLOUD+POWERED_DOWN", "n5 DOWN*")
    result = run(**only("gpu_diag"))
    assert checks(result)[0] == (
        "gpu",
        "idle nodes",
        "skipped",
        "not looked at: n2 (busy); n3 (IDLE+DRAIN); n5 (DOWN*)",
    )
    assert [call.partition("--nodelist=")[2].split()[0] for call in cluster.calls] == ["n1"]
    assert result["verdict"].startswith("not measured: health on gpu: not looked at: n2 (busy)")
    # A job that came first is not waited for.
    cluster.mark("n1", "busy")
    assert ("gpu", "gpu_diag", "skipped", "n1: no room within 120 s") in checks(run(**only("gpu_diag")))


def test_a_node_that_fails_during_its_job(cluster: Cluster, run: Run) -> None:
    cluster.mark("n2", "lost")
    assert run(**only("gpu_diag"))["complaints"] == [
        "gpu: gpu_diag (health): n2: srun ended with 1: Node failure on n2"
    ]


def test_a_job_that_slurm_ends_by_its_time(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1")
    cluster.mark("n1", "cancelled")
    result = run(**only("gpu_diag", "efa_loopback"))
    assert findings(result) == [("n1", "gpu_diag", "reboot", "")]
    assert "n1: its devices were not all looked at: " in checks(result, "efa_loopback")[0][3]


def test_a_job_that_hangs_is_ended(cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """This run does so where Slurm does not."""
    monkeypatch.setattr(health_jobs, "limit", lambda *_more: 0)
    monkeypatch.setattr(verify_cluster, "_SPARE", 4)
    monkeypatch.setattr(verify_cluster, "_PATIENCE", 3)
    cluster.mark("n2", "hangs")
    result = run(wait=0, time_limit=0, **only("gpu_diag"))
    assert findings(result) == [("n2", "gpu_diag", "reboot", "")]
    assert "dcgmi diag -r 2 did not end within 15 minutes" in result["complaints"][0]


def test_cpu_nodes_have_nothing_to_look_at_but_their_own_checks(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1 IDLE cpu (null)", feature="c5.xlarge")
    assert checks(run()) == [("cpu", "node_health", "ok", "n1: its own checks found nothing")]
    assert not (cluster.root / "calls").exists()


# What the nodes' own checks have found

GONE = {"finding": "gpu_missing", "class": "replace", "subject": "", "evidence": "7 of 8 GPUs", "since": "1"}
SLOW = {"finding": "gpu_clocks_slowed", "class": "watch", "subject": "GPU 2", "evidence": "HW thermal", "since": "1"}


def test_findings_of_the_nodes_own_checks_are_shown(cluster: Cluster, run: Run) -> None:
    """Of busy and drained nodes too."""
    cluster.nodes("n1 ALLOCATED", "n2 IDLE+DRAIN", "n3", "n4 IDLE+CLOUD+POWERED_DOWN")
    cluster.state("n1", SLOW, GONE)
    cluster.state("n2", SLOW)
    cluster.state("n3", skipped={"efa_missing": "no EFA"})
    result = run(**only("node_health"))
    gone = "gpu_missing, gpu_clocks_slowed (replace): 7 of 8 GPUs, and 1 more; "
    gone += "drain the node, and ParallelCluster replaces it"
    assert checks(result) == [
        ("gpu", "node_health", "failed", f"n1: {gone}"),
        (
            "gpu",
            "node_health",
            "unknown",
            "n2: gpu_clocks_slowed (watch): GPU 2: HW thermal; jobs may run there; look again",
        ),
        ("gpu", "node_health", "ok", "n3: its own checks found nothing; not looked at: efa_missing"),
    ]
    assert [(one["node"], one["class"], one["deep"]) for one in result["report"]["findings"]] == [
        ("n1", "replace", False),
        ("n1", "watch", False),
        ("n2", "watch", False),
    ]
    assert "by the node's own checks" in render(result["report"]).replace("&#39;", "'")


def test_where_no_state_is_written(cluster: Cluster, run: Run) -> None:
    (cluster.states / "n1.json").unlink()
    why = f"no state in {cluster.states}: role node_health has not run there, or has been told not to"
    assert checks(run(**only("node_health"))) == [
        ("gpu", "node_health", "unknown", f"n1: {why}"),
        ("gpu", "node_health", "ok", "n2: its own checks found nothing"),
    ]
    # Where the role is not used, the deep checks count alone.
    (cluster.states / "n2.json").unlink()
    result = run(**only("node_health", "gpu_diag"))
    assert checks(result)[0] == ("gpu", "node_health", "skipped", f"n[1-2]: {why}")
    assert result["verdict"] == "1 checks passed"


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', '{"schema": 1, "time": "x", "findings": 3}'])
def test_a_state_that_cannot_be_used(cluster: Cluster, run: Run, text: str) -> None:
    (cluster.states / "n1.json").write_text(text)
    (_subject, _name, status, message) = checks(run(**only("node_health")))[0]
    assert (status, message[:4]) == ("unknown", "n1: ")


@pytest.mark.parametrize(("stamped", "shown"), [(1.0, "1970-01-01T00:00:01Z"), (4e9, "2096-10-02T07:06:40Z")])
def test_an_old_state_is_not_taken_for_todays(cluster: Cluster, run: Run, stamped: float, shown: str) -> None:
    """Nor is one from the future."""
    cluster.state("n1", GONE, stamped=stamped)
    ((_subject, _name, status, message), _n2) = checks(run(**only("node_health")))
    assert (status, message) == (
        "unknown",
        f"n1: its last state is of {shown}; see 'systemctl status pcluster-node-health.timer' there",
    )


@pytest.mark.parametrize("clock", [1.0, 4e9])
def test_a_node_whose_own_clock_is_off_is_read_all_the_same(cluster: Cluster, run: Run, clock: float) -> None:
    cluster.state("n1", GONE, time=clock)
    assert checks(run(**only("node_health")))[0][2] == "failed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checks": []}, "verify_health_checks: found none; needed: one or more"),
        ({"level": 5}, "verify_health_level: found 5; needed: a level of dcgmi diag, from 1 to 4"),
        ({"minutes": 0}, "verify_health_minutes: found 0; needed: one minute or more"),
    ],
)
def test_bad_options(cluster: Cluster, run: Run, options: dict[str, Any], message: str) -> None:
    assert run(health=options)["msg"] == message
    assert not (cluster.root / "calls").exists()


def test_the_jobs_words_are_the_shells() -> None:
    """No mark for a value is left."""
    text = health_jobs.script(efa=True, diag=True, level=4, minutes=180)
    assert "@" not in text
    assert "-t 10800 -j" in text
