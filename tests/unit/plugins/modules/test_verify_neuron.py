# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stage neuron of verify: its jobs run here, with the sandbox's neuron-ls and nccom-test."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._verify import neuron
from ansible_collections.pcluster.postboot.plugins.plugin_utils._verify.page import render
from ansible_collections.pcluster.postboot.tests.unit.plugins import slurm
from ansible_collections.pcluster.postboot.tests.unit.plugins.slurm import Run, checks

STANDINS = Path(__file__).parents[4] / "molecule/cluster/standins/neuron"
ALL_REDUCE, ALIKE = "all_reduce on one node", "alike on one node"
UNKNOWN = "nobody has published what to expect, so it is not judged"
SEVERAL = "nccom-test is not started on several nodes at once: docs/trainium.md has a job that does"


class Cluster(slurm.Cluster):
    USUAL = ["IDLE", "trn", "(null)"]

    def __init__(self, root: Path, *more: Any) -> None:
        super().__init__(root, *more, stages=["neuron"])
        self.program("slurm/bin/srun", slurm.SRUN)
        self.nodes("n1", "n2")

    def nodes(self, *lines: str, feature: str = "dynamic,trn1.32xlarge,trn1,efa", cpus: int = 128) -> None:
        super().nodes(*lines, feature=feature, cpus=cpus)

    def node(self, name: str) -> None:
        if (self.root / name).exists():
            return
        (self.root / name / "dev").mkdir(parents=True)
        (self.root / name / "said").mkdir()
        self.devices(name, 16)
        for program in ("neuron-ls", "nccom-test"):
            text = (STANDINS / f"{program.replace('-', '_')}.py").read_text()
            text = text.replace("/run/sandbox-hardware/ioctl", f"ROOT/{name}/sysfs")
            text = text.replace('"/dev"', f'"ROOT/{name}/dev"').replace("/run/sandbox-neuron", f"ROOT/{name}/said")
            self.program(f"{name}/tools/{program}", text.replace("#!/usr/bin/python3", "#!PYTHON"))

    def devices(self, name: str, count: int, cores: int = 2, kind: str = "Trainium1") -> None:
        shutil.rmtree(self.root / name / "sysfs", ignore_errors=True)
        for number in range(count):
            path = self.root / name / f"sysfs/neuron{number}"
            (path / "info/architecture").mkdir(parents=True)
            (path / "core_count").write_text(str(cores))
            (path / "connected_devices").write_text("\n")
            (path / "info/architecture/device_name").write_text(f"{kind}\n")
            (self.root / name / "dev" / path.name).touch()

    def without(self, name: str, program: str) -> None:
        (self.root / name / "tools" / program).unlink()

    def says(self, name: str, what: str, value: str = "") -> None:
        (self.root / name / "said" / what).write_text(value)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> Cluster:
    for script in ("LIST", "MEASURE"):
        text = getattr(neuron, script)
        assert neuron.TOOLS in text
        monkeypatch.setattr(neuron, script, text.replace(neuron.TOOLS, f"{tmp_path}/$SLURMD_NODENAME/tools"))
    return Cluster(tmp_path, monkeypatch, run_module)


def test_healthy_nodes(cluster: Cluster, run: Run) -> None:
    result = run()
    assert checks(result) == [
        ("trn", "neuron-ls", "ok", "16 devices with 32 cores on n[1-2]"),
        ("trn", ALL_REDUCE, "unknown", f"n[1-2], 32 cores: 102.4 GB/s at 1 GiB; {UNKNOWN}"),
        ("trn", "nccom-test on 2 nodes", "skipped", SEVERAL),
    ]
    # What was not measured comes first, and nothing has failed.
    assert result["verdict"].startswith(f"not measured: neuron on trn: {SEVERAL}. 1 checks passed, and 1 could not be")
    assert result["complaints"] == []
    # All nodes are asked at once, and each measures by itself, with all of its CPUs.
    ask, *each = cluster.calls
    assert "--nodelist=n[1-2]" in ask
    assert "--gres" not in ask
    assert sorted(word for call in each for word in call.split() if "nodelist" in word) == [
        "--nodelist=n1",
        "--nodelist=n2",
    ]
    assert all("--exclusive" in call and "--cpus-per-task=128" in call for call in each)


def test_the_report_has_what_was_measured(run: Run) -> None:
    result = run()
    one, _other = result["report"]["runs"]
    assert [row["size"] for row in one["rows"]] == [2**20 * 4**power for power in range(6)]
    assert one["rows"][-1]["out_of_place"]["busbw"] == 102.39
    assert (one["ranks"], one["instance_type"], one["collective"]) == (32, "trn1.32xlarge", "all_reduce")
    page = render(result["report"])
    assert "trn1.32xlarge" in page
    assert "16 devices with 32 cores" in page


def test_the_users_own_figures_are_judged_by(cluster: Cluster, run: Run) -> None:
    row = {"instance_type": "trn1.32xlarge", "nodes": 1, "collective": "all_reduce", "size": "1G"}
    said = {120: ("failed", "85% of the 120"), 100: ("ok", "102% of the 100")}
    for busbw, (status, share) in said.items():
        check = checks(run(nccl={"expected": [{**row, "busbw": busbw}]}))[1]
        assert check[2:] == (status, f"n[1-2], 32 cores: 102.4 GB/s at 1 GiB, {share} GB/s expected")


def test_a_node_that_has_lost_a_device_is_named_and_not_measured(cluster: Cluster, run: Run) -> None:
    cluster.devices("n2", 15)
    assert checks(run())[:3] == [
        (
            "trn",
            "neuron-ls",
            "failed",
            "n2 has 15 of the 16 Neuron devices of a trn1.32xlarge; see 'dmesg | grep -i neuron' there",
        ),
        ("trn", "neuron-ls", "ok", "16 devices with 32 cores on n1"),
        ("trn", ALL_REDUCE, "unknown", f"n1, 32 cores: 102.4 GB/s at 1 GiB; {UNKNOWN}"),
    ]


def test_a_device_with_a_core_less(cluster: Cluster, run: Run) -> None:
    cluster.devices("n1", 16, cores=1)
    assert checks(run())[0][3].startswith("n1 has 16 of the 32 cores of a trn1.32xlarge; see")


def test_logical_cores_are_several_physical_ones(cluster: Cluster, run: Run) -> None:
    """As AWS' guide shows it of a trn2.48xlarge: four logical cores a device, of two physical ones each."""
    cluster.nodes("n1", feature="static,trn2.48xlarge,trn2,efa")
    cluster.devices("n1", 16, cores=4, kind="Trainium2")
    text = (cluster.root / "n1/tools/neuron-ls").read_text()
    cluster.program(
        "n1/tools/neuron-ls", text.replace('"logical_neuroncore_config": 1', '"logical_neuroncore_config": 2')
    )
    first, second = checks(run())
    assert first == ("trn", "neuron-ls", "ok", "16 devices with 128 cores on n1")
    assert second[3].startswith("n1, 64 cores: ")


@pytest.mark.parametrize(
    ("program", "name", "says"),
    [
        ("neuron-ls", "neuron-ls", "there is no neuron-ls on n[1-2]; run site with --tags neuron"),
        ("nccom-test", ALL_REDUCE, "there is no nccom-test on n[1-2]: aws-neuronx-tools has it"),
    ],
)
def test_without_the_tools_nothing_is_measured(cluster: Cluster, run: Run, program: str, name: str, says: str) -> None:
    for node in ("n1", "n2"):
        cluster.without(node, program)
    result = run()
    assert ("trn", name, "skipped", says) in checks(result)
    assert result["verdict"].startswith(f"not measured: neuron on trn: {says}")
    assert not any(check[2] in ("ok", "unknown") for check in checks(result) if check[1] == name)
    assert bool(result["complaints"]) == (program == "neuron-ls")


def test_without_a_driver(cluster: Cluster, run: Run) -> None:
    for node in ("n1", "n2"):
        cluster.devices(node, 0)
    (check,) = [check for check in checks(run()) if check[1] == "neuron-ls"]
    assert check[2:] == (
        "failed",
        "neuron-ls ended with 1 and said 'neuron-ls: no device found (the words are the stand-in's)' on n[1-2]; "
        "see 'dmesg | grep -i neuron' there",
    )


@pytest.mark.parametrize("printed", ["instance-type: trn1.32xlarge", '{"error": 1}'])
def test_a_list_that_is_none(cluster: Cluster, run: Run, printed: str) -> None:
    cluster.program("n1/tools/neuron-ls", f"#!/bin/sh\necho '{printed}'\n")
    assert checks(run())[0][3].startswith(f"neuron-ls printed no list of devices ('{printed}') on n1;")


def test_a_benchmark_that_fails_is_no_measurement(cluster: Cluster, run: Run) -> None:
    cluster.says("n2", "nccom-fails")
    assert ("trn", ALL_REDUCE, "failed", "nccom-test ended with 1 and said '1 errors found - test failed' on n2") in (
        checks(run())
    )
    # Whatever it ends with.
    path = cluster.root / "n2/tools/nccom-test"
    path.write_text(path.read_text().replace("sys.exit(1)", "sys.exit(0)"))
    assert ("trn", ALL_REDUCE, "failed", "nccom-test ended with 0 and said '1 errors found - test failed' on n2") in (
        checks(run())
    )


def test_a_benchmark_that_prints_no_table_is_no_measurement(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1")
    cluster.program("n1/tools/nccom-test", "#!/bin/sh\necho well\n")
    assert checks(run())[1][2:] == ("failed", "nccom-test ended with 0 and said 'well' on n1")


def test_the_slow_one_of_nodes_that_nobody_can_judge(cluster: Cluster, run: Run) -> None:
    cluster.says("n2", "nccom-slow", "1.3")
    (check,) = [check for check in checks(run()) if check[1] == ALIKE]
    assert check[2:] == ("failed", "n2: less than 85% of the 102.4 GB/s of the best node")


def test_a_busy_node_is_not_measured(cluster: Cluster, run: Run) -> None:
    (cluster.root / "n2/busy").write_text("nccom-test")
    assert ("trn", ALL_REDUCE, "skipped", "no room within 120 s on n2") in checks(run())


def test_a_type_of_which_nothing_is_known_is_not_judged(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", feature="static,trn9.48xlarge,trn9")
    assert checks(run())[0] == (
        "trn",
        "neuron-ls",
        "unknown",
        "16 devices with 32 cores on n1; what a trn9.48xlarge has is not known here, so it is not judged",
    )


def test_a_cluster_without_neuron_devices_misses_nothing(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", feature="static,p5.48xlarge,p5,efa")
    result = run(stages=["neuron"])
    assert checks(result) == [("cluster", "neuron", "skipped", "no partition has Neuron devices")]
    assert cluster.calls == []


def test_nodes_that_are_powered_down_stay_so(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1 IDLE+CLOUD+POWERED_DOWN")
    result = run()
    assert [check[2] for check in checks(result)] == ["skipped"]
    assert "no node of it is up" in result["complaints"][0]
    assert cluster.calls == []


def test_a_single_device(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", feature="static,trn1.2xlarge")
    cluster.devices("n1", 1)
    found = checks(run())
    assert found[0][3] == "1 device with 2 cores on n1"
    assert len(found) == 2


def test_the_instance_type_of_the_inventory_counts(cluster: Cluster, run: Run) -> None:
    cluster.nodes("n1", feature="static,several")
    assert checks(run(instance_types={"n1": "trn1.32xlarge"}))[0][2] == "ok"


@pytest.mark.parametrize("time", ["time(us)", "time:avg(us)", "time:p50(us)"])
def test_tables_of_all_versions(time: str) -> None:
    """Of the examples of AWS' guide; a column more is one of newer versions."""
    lines = [f"size(B) count(elems) type {time} algbw(GB/s) busbw(GB/s) algorithm"]
    lines += ["2097152 524288 fp32 686.32 3.06 5.73 rdh", "33554432 8388608 fp32 2754.15 12.18 22.84 kangaring"]
    lines += ["33554432    Failure running neuron-bench - log file /tmp/x.log", "Avg bus bandwidth:	16.6181GB/s"]
    assert neuron.table(lines) == [(2097152, 686.32, 3.06, 5.73), (33554432, 2754.15, 12.18, 22.84)]
