# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stage nodes of verify: its script runs here, for a node whose files and services are a test's."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host import run as host_run
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nodes as verify_nodes
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components
from ansible_collections.pcluster.postboot.plugins.plugin_utils._verify.page import render
from ansible_collections.pcluster.postboot.tests.unit.plugins import slurm
from ansible_collections.pcluster.postboot.tests.unit.plugins.slurm import Run, checks

P4D = "p4d.24xlarge"
SYSTEMCTL = """#!/bin/sh
for unit; do :; done
unit=ROOT/${SLURMD_NODENAME:-head}/enabled/$unit
case $1 in
  is-enabled) [ -e "$unit" ] ;;
  show) printf 'ExecStart={ path=/x ; argv[]=/x %s ; ignore_errors=no }\\n' "$(cat "$unit")" ;;
esac
"""
CURL = """#!/bin/sh
case "$http_proxy $*" in http*--noproxy*) ;; http*) exit 7 ;; esac
for url; do :; done
grep -qxF -- "$url" ROOT/${SLURMD_NODENAME:-head}/answers
"""


class Cluster(slurm.Cluster):
    def __init__(self, root: Path, *more: Any) -> None:
        super().__init__(root, *more, stages=["nodes"], exporters=components.exporters(components.read()))
        self.program("slurm/bin/srun", slurm.SRUN)
        for folder in ("bin", "slurm/bin"):  # the head node's own script, and those of jobs
            self.program(f"{folder}/systemctl", SYSTEMCTL)
            self.program(f"{folder}/curl", CURL)
        self.node("head")
        self.nodes("n1", "n2")

    def node(self, name: str) -> None:
        if not (self.root / name).exists():
            (self.root / name / "enabled").mkdir(parents=True)
            (self.root / name / "answers").write_text("")
            self.report(name, [{"name": "efa", "status": "unchanged"}, {"name": "docker", "status": "changed"}])

    def report(self, name: str, components: list[dict[str, Any]], **more: Any) -> None:
        found = {"components": components, "stopped": None, "finished": "2026-11-20T09:21:00Z", **more}
        (self.root / name / "var").mkdir(exist_ok=True)
        (self.root / name / "var/report.json").write_text(json.dumps(found, indent=1))

    def exporter(self, name: str, unit: str, options: str = "", answers: str = "") -> None:
        (self.root / name / "enabled" / unit).write_text(options)
        with (self.root / name / "answers").open("a") as stream:
            stream.write(f"{answers}\n")

    def efa(self, name: str, devices: int, domains: int) -> None:
        """The kernel's devices, and those that fi_info shows: for two fabrics, and indented."""
        self.efa_devices(name, devices)
        lines = [f"    domain: rdmap{index}s0-rdm" for index in range(domains)] * 2
        text = "\n".join(["provider: efa", "    fabric: efa-direct", *lines, ""])
        self.program(f"{name}/opt/amazon/efa/bin/fi_info", f"#!/bin/sh\nprintf %s {shlex.quote(text)}\n")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> Cluster:
    monkeypatch.setenv("http_proxy", "http://proxy.invalid")
    own, probe = f"{tmp_path}/${{SLURMD_NODENAME:-head}}", verify_nodes.PROBE
    for path, there in ((lock.STATE_DIR, "/var"), ("/sys/class", "/sys/class"), ("/opt/amazon", "/opt/amazon")):
        assert path in probe
        probe = probe.replace(path, own + there)
    monkeypatch.setattr(verify_nodes, "PROBE", probe)
    return Cluster(tmp_path, monkeypatch, run_module)


def test_all_is_well(cluster: Cluster, run: Run) -> None:
    cluster.report("n2", [{"name": "efa", "status": "skipped"}], finished="2026-11-19T08:00:00Z")
    for name in ("head", "n1"):
        cluster.exporter(name, "node_exporter", "--web.listen-address=:9100 --x", "http://localhost:9100/metrics")
    cluster.exporter("head", "prometheus", "", "http://localhost:9090/metrics")
    cluster.efa("n1", 4, 4)
    cluster.efa("n2", 4, 4)
    result = run()
    assert checks(result) == [
        ("cluster", "last run", "ok", "nothing failed on head, as of 2026-11-20T09:21:00Z"),
        ("cluster", "exporters", "ok", "node_exporter, prometheus answer"),
        ("q", "last run", "ok", "nothing failed on n[1-2], as of 2026-11-19T08:00:00Z"),
        ("q", "exporters", "ok", "node_exporter answers"),
        ("q", "efa", "ok", "libfabric sees 4 devices on each node"),
    ]
    assert result["complaints"] == []
    assert json.loads((cluster.root / "var/verify.json").read_text()) == result["report"]
    assert "node_exporter" in render(result["report"])
    # A node whose GPUs are all in use can answer.
    assert len(cluster.calls) == 1
    assert "--nodelist=n[1-2] " in cluster.calls[0]
    assert "--gres" not in cluster.calls[0]


def test_a_component_failed(cluster: Cluster, run: Run) -> None:
    failed = {"name": "efa", "status": "failed", "why": "no device"}
    cluster.report("n2", [{"name": "docker", "status": "unchanged"}, failed])
    stopped = {"component": "", "message": "another run has the node"}
    cluster.report("head", [{"name": "docker", "status": "skipped"}], stopped=stopped)
    assert run()["complaints"] == [
        "cluster: last run (nodes): head: another run has the node",
        "q: last run (nodes): n2: efa (no device)",
    ]


def test_nodes_that_fail_alike_are_one_line(cluster: Cluster, run: Run) -> None:
    cluster.nodes(*(f"n{index}" for index in range(1, 15)))
    for index in (1, 2, 3, 5):
        cluster.report(f"n{index}", [{"name": "efa", "status": "failed", "why": "no device"}])
        cluster.exporter(f"n{index}", "node_exporter")
    cluster.report("n4", [{"name": "efa", "status": "failed", "why": "a reboot is due"}])
    assert run()["complaints"] == [
        "q: last run (nodes): n[1-3,5]: efa (no device)",
        "q: last run (nodes): n4: efa (a reboot is due)",
        "q: exporters (nodes): no answer from node_exporter (localhost:9100) on n[1-3,5]; see 'journalctl -u' there",
    ]
    for index in range(1, 15):
        cluster.report(f"n{index}", [{"name": "efa", "status": "failed", "why": f"reason {index}"}])
    lines = [line for line in run()["complaints"] if "last run" in line]
    assert (len(lines), lines[-1]) == (11, "q: last run (nodes): n[11-14]: 4 other reasons")


def test_a_component_that_still_waits(cluster: Cluster, run: Run) -> None:
    cluster.report("n2", [{"name": "nccl", "status": "deferred", "why": "the head node's NCCL"}])
    assert run()["complaints"] == ["q: last run (nodes): n2: nccl (deferred: the head node's NCCL)"]


def test_a_long_report_comes_whole(cluster: Cluster, run: Run) -> None:
    cluster.report("n2", [{"name": "efa", "status": "ok", "summary": "many words " * 300}])
    (check,) = [one for one in run()["report"]["checks"] if one["name"] == "last run" and one["subject"] == "q"]
    assert check["status"] == "ok"
    assert check["details"]["reports"]["n2"]["components"][0]["summary"] == "many words " * 300


@pytest.mark.parametrize("text", [None, '{"components": [', "[]"])
def test_no_report(cluster: Cluster, run: Run, text: str | None) -> None:
    path = cluster.root / "n1/var/report.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert run()["complaints"] == ["q: last run (nodes): site has not run on n1: there is no report"]


def test_an_exporter_is_down(cluster: Cluster, run: Run) -> None:
    cluster.exporter("n1", "node_exporter", "", "http://localhost:9100/metrics")
    cluster.exporter("n2", "node_exporter", "", "")
    cluster.exporter("n2", "nvidia-dcgm-exporter", "", "")
    assert run()["complaints"] == [
        "q: exporters (nodes): no answer from nvidia-dcgm-exporter (localhost:9400) on n2, node_exporter "
        "(localhost:9100) on n2; see 'journalctl -u' there"
    ]


@pytest.mark.parametrize("address", [":9200", "10.0.0.5:9100", "[::]:9100"])
@pytest.mark.parametrize(
    ("unit", "options"),
    [
        ("node_exporter", "--log.level=info --web.listen-address={} --collector.systemd"),
        ("nvidia-dcgm-exporter", "--collectors=/etc/x.csv --address={} --remote-hostengine-info=localhost:5555"),
    ],
)
def test_an_exporter_that_listens_elsewhere(cluster: Cluster, run: Run, unit: str, options: str, address: str) -> None:
    host = f"localhost{address}" if address[0] == ":" else address
    cluster.exporter("n1", unit, options.format(address), f"http://{host}/metrics")
    assert checks(run(), "exporters") == [("q", "exporters", "ok", f"{unit} answers")]


def test_an_exporter_that_should_be_there_is_named(cluster: Cluster, run: Run) -> None:
    """One that no node has would else be passed over. Where site did not run it, nobody wants it."""
    ran = [{"name": name, "status": "unchanged"} for name in ("node_exporter", "dcgm_exporter", "slurm_exporter")]
    for name in ("head", "n1", "n2"):
        cluster.report(name, ran)
        cluster.exporter(name, "node_exporter", "", "http://localhost:9100/metrics")
    cluster.exporter("n1", "nvidia-dcgm-exporter", "", "http://localhost:9400/metrics")
    # Of the GPUs' exporter the head node has the scripts alone.
    why = "nvidia-dcgm-exporter is not enabled on n2, where site has run dcgm_exporter: run it there again"
    assert run()["complaints"] == [f"q: exporters (nodes): {why}"]
    cluster.report("n2", [*ran[:1], {"name": "dcgm_exporter", "status": "skipped"}])
    assert checks(run(), "exporters")[1] == ("q", "exporters", "ok", "node_exporter, nvidia-dcgm-exporter answer")
    (cluster.root / "head/enabled/node_exporter").unlink()
    assert "node_exporter is not enabled on head, where" in run()["complaints"][0]


@pytest.mark.parametrize(
    ("devices", "domains", "line"),
    [
        (4, 3, "libfabric sees 3 of 4 EFA devices on n2"),
        (4, 0, "libfabric sees 0 of 4 EFA devices on n2"),
        (3, 3, f"n2 has 3 of the 4 EFA devices of a {P4D}"),
        (0, 0, f"n2 has 0 of the 4 EFA devices of a {P4D}"),
    ],
)
@pytest.mark.parametrize("told", ["Slurm", "inventory"])
def test_efa_devices(cluster: Cluster, run: Run, devices: int, domains: int, line: str, told: str) -> None:
    if told == "Slurm":
        cluster.nodes("n1", "n2", feature=P4D)
    cluster.efa("n1", 4, 4)
    cluster.efa("n2", devices, domains)
    result = run(instance_types={"n1": P4D, "n2": P4D} if told == "inventory" else {})
    assert result["complaints"] == [f"q: efa (nodes): {line}; run site with --tags efa"]


def test_no_device_anywhere(cluster: Cluster, run: Run) -> None:
    """On types that have some all are missing; on others that is as it should be."""
    assert checks(run(), "efa") == []
    cluster.nodes("n1", "n2", feature=P4D)
    assert checks(run(), "efa") == []  # ParallelCluster was not asked for EFA
    cluster.nodes("n1", "n2", feature=f"{P4D},p4d,efa,gpu")
    assert "n[1-2] has 0 of the 4 EFA devices" in run()["complaints"][0]


def test_a_type_without_efa_beside_one_with_it(cluster: Cluster, run: Run) -> None:
    """EFA is a setting of each compute resource, of which a queue may have several."""
    cluster.efa("n1", 4, 4)
    result = run(instance_types={"n1": P4D, "n2": "g6e.24xlarge"})
    assert checks(result, "efa") == [("q", "efa", "ok", "libfabric sees 0 or 4 devices on each node")]


def test_devices_without_efas_software(cluster: Cluster, run: Run) -> None:
    cluster.efa("n2", 4, 4)
    (cluster.root / "n2/opt/amazon/efa/bin/fi_info").unlink()
    assert "libfabric sees 0 of 4 EFA devices on n2" in run()["complaints"][0]


def test_a_node_that_does_not_answer(cluster: Cluster, run: Run) -> None:
    (cluster.root / "n2/lost").touch()
    assert run()["complaints"] == ["q: job (nodes): srun ended with 1: Node failure on n2"]


def test_busy_nodes_are_left_out(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1 ALLOCATED", "n2", "n3 IDLE+CLOUD+POWERED_DOWN")
    (cluster.root / "n1/busy").touch()
    assert checks(run(wait=3))[1:] == [
        ("q", "last run", "skipped", "no room within 3 s on n1"),
        ("q", "last run", "ok", "nothing failed on n2, as of 2026-11-20T09:21:00Z"),
    ]
    assert all("n3" not in call for call in cluster.calls)
    (cluster.root / "n2/busy").touch()
    assert checks(run(wait=3))[1:] == [("q", "last run", "skipped", "no room within 3 s on n[1-2]")]


def test_partitions_with_the_same_nodes(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1 IDLE a,b", "n2 IDLE a,b", "n3 DOWN b,c")
    assert [check[:3] for check in checks(run())[1:]] == [
        ("a", "last run", "ok"),
        ("b", "last run", "skipped"),
        ("c", "last run", "skipped"),
    ]
    assert len(cluster.calls) == 1


def test_a_head_node_that_hangs(cluster: Cluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = host_run.run
    monkeypatch.setattr(host_run, "run", lambda _argv, _seconds: real(["sh", "-c", "sleep 60 & wait"], 0.2))
    result = run()
    assert result["complaints"] == ["cluster: last run (nodes): the head node did not say within 120 s how it is"]
    assert checks(result)[1][:3] == ("q", "last run", "ok")


# Versions


def versions(**of: str) -> dict[str, Any]:
    return {"versions": {name: {"version": version, "summary": f"its {name}"} for name, version in of.items()}}


def found(result: dict[str, Any]) -> dict[str, tuple[str, str]]:
    named = [one for one in result["report"]["checks"] if one["name"] == "versions"]
    return {one["subject"]: (one["status"], one["message"]) for one in named}


def test_the_versions_of_the_last_runs_are_compared(cluster: Cluster, run: Run) -> None:
    wanted = {"": {"nccl_version": "2.32.3", "efa_version": "1.50.0", "docker_version": "", "grafana_version": "12"}}
    cluster.report("head", [], **versions(nccl="2.32.3"))
    for name in ("n1", "n2"):
        cluster.report(name, [], **versions(nccl="2.32.3", efa="1.50.0", docker="28.1"))
    well = run(versions=wanted)
    assert found(well) == {
        "cluster": ("ok", "the last runs of site had 1 component at the versions that are wanted now"),
        "q": ("ok", "the last runs of site had 3 components at the versions that are wanted now"),
    }
    (check,) = [one for one in well["report"]["checks"] if one["name"] == "versions" and one["subject"] == "q"]
    assert check["details"]["n1"] == {"nccl": "its nccl", "efa": "its efa", "docker": "its docker"}
    cluster.report("n2", [], **versions(nccl="2.30.7", efa=""))
    assert run(versions=wanted)["complaints"] == [
        "q: versions (nodes): efa was last run for any version on n2, wanted is 1.50.0; nccl was last run for 2.30.7 "
        "on n2, wanted is 2.32.3; run site there"
    ]
    # A node may have versions of its own.
    own = {"n2": {"nccl_version": "2.30.7", "efa_version": ""}}
    assert run(versions={**wanted, **own})["complaints"] == []


def test_a_report_that_tells_no_versions_is_named(cluster: Cluster, run: Run) -> None:
    for name in ("head", "n1"):
        cluster.report(name, [], **versions(nccl="2.32.3"))
    result = run(versions={"": {"nccl_version": "2.32.3"}})
    assert found(result)["q"] == ("unknown", "the report of n2 names no versions: run site there")
    assert result["complaints"] == []
    told = run(versions={"": {"nccl_version": "2.33.0"}})["report"]["checks"]
    named = [(one["subject"], one["status"]) for one in told if one["name"] == "versions"]
    assert named == [("cluster", "failed"), ("q", "failed"), ("q", "unknown")]


def test_versions_are_not_guessed(cluster: Cluster, run: Run) -> None:
    cluster.report("head", [], **versions(nccl="2.30.7"))
    assert found(run()) == {}, "nobody says what is wanted"
    (cluster.root / "head/var/report.json").unlink()
    result = run(versions={"": {"nccl_version": "2.32.3"}})
    assert "cluster" not in found(result)
    assert result["complaints"] == ["cluster: last run (nodes): site has not run on head: there is no report"]
