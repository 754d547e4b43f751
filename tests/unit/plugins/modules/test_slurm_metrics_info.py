# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""slurm_metrics_info with a scontrol that says what a test wants, and a slurmctld that answers HTTP."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import metrics
from ansible_collections.pcluster.postboot.plugins.modules import slurm_metrics_info
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

NATIVE = {"MetricsType": "metrics/openmetrics", "SLURM_VERSION": "25.11.8"}
# What `scontrol -a -o show nodes` of 24.11.5 prints, shortened; 25.11 prints these keys alike.
CPU_NODE = (
    "NodeName=cpu-st-c5-1 Arch=x86_64 CPUTot=4 ActiveFeatures=static,c5.xlarge,c5 Gres=(null) NodeAddr=10.115.0.130 "
    "State=IDLE+CLOUD Partitions=cpu,static CfgTRES=cpu=4,mem=7782M,billing=4 AllocTRES= CurrentWatts=0"
)
GPU_NODE = (
    "NodeName=gpu-dy-p5-1 CPUTot=96 ActiveFeatures=dynamic,p5.48xlarge,p5,gpu Gres=gpu:h100:8 NodeAddr=gpu-dy-p5-1 "
    "State=IDLE+CLOUD+POWERED_DOWN Partitions=gpu CfgTRES=cpu=96,mem=1992294M,billing=96 AllocTRES= CurrentWatts=0"
)


class Controller:
    def __init__(self, top: Path, run: lab.Run) -> None:
        self.top, self._run = top, run
        (top / "bin").mkdir()
        self.page = "# TYPE slurm_jobs gauge\nslurm_jobs 3\n"
        self.status = 200
        self.asked: list[str] = []
        self.nodes = [CPU_NODE]
        self.port = 0
        controller = self

        class Pages(lab.Pages):
            def do_GET(self) -> None:
                controller.asked.append(self.path)
                self.say(controller.status, controller.page)

        self.pages = Pages

    def says(self, code: int = 0, errors: str = "", **settings: str) -> None:
        # As the real one prints it; a later section may have a name again.
        given = {"SlurmctldPort": f"{self.port}-{self.port + 9}", "PrivateData": "cloud", **settings}
        lines = ["Configuration data as of 2026-11-21T19:31:00", *(f"{k:<23} = {v}" for k, v in given.items())]
        lines += [
            "",
            "Cgroup Support Configuration:",
            "MetricsType             = something/else",
            "Slurmctld(primary) at x is UP",
        ]
        script = self.top / "bin/scontrol"
        (self.top / "nodes").write_text("".join(f"{line}\n" for line in self.nodes))
        text = "" if code else "\n".join([*lines, ""])
        lab.program(
            script,
            f"#!/bin/sh\n[ \"$*\" != '-a -o show nodes' ] || exec cat {self.top}/nodes\n"
            f"[ \"$*\" = 'show config' ] || exit 9\nprintf %s {shlex.quote(text)}\n"
            f"printf %s {shlex.quote(errors)} >&2\nexit {code}\n",
        )

    def __call__(self, **args: Any) -> dict[str, Any]:
        # More than the module's own 10 s, for a machine that does other work meanwhile.
        return self._run(slurm_metrics_info, {"prefix": str(self.top), "timeout": 60, **args})


@pytest.fixture
def slurm(tmp_path: Path, run_module: lab.Run) -> Iterator[Controller]:
    controller = Controller(tmp_path, run_module)
    with lab.serving(controller.pages) as url:
        controller.port = int(url.rpartition(":")[2])
        yield controller


def test_native(slurm: Controller) -> None:
    slurm.says(**NATIVE)
    result = slurm(interval="30s")
    assert result["source"] == "native"
    assert result["summary"] == "slurmctld's own metrics (Slurm 25.11.8)"
    assert result["reason"] == ""
    parts = ("jobs", "nodes", "partitions", "scheduler")
    often = {"job": "slurm", "__scrape_interval__": "30s", "__scrape_timeout__": "30s"}
    assert result["targets"] == [
        {
            "targets": [f"127.0.0.1:{slurm.port}"],
            "labels": {**often, "__metrics_path__": f"/metrics/{part}", "slurm_part": part},
        }
        for part in parts
    ]
    assert slurm.asked == ["/metrics/jobs"]
    everybody = [target["labels"]["slurm_part"] for target in slurm(users=True)["targets"]]
    assert everybody == [*parts, "jobs-users-accts"]


@pytest.mark.parametrize("version", ["22.05.8", "24.11.6", "25.05.9", "25.11.0-0rc1", "25.11.4"])
def test_native_metrics_of_an_older_slurm_are_not_even_asked_for(slurm: Controller, version: str) -> None:
    slurm.says(**{**NATIVE, "SLURM_VERSION": version})
    result = slurm()
    assert result["source"] == "exporter"
    assert version in result["summary"]
    assert "25.11.5" in result["summary"]
    labels = {"job": "slurm", "__scrape_interval__": "60s", "__scrape_timeout__": "60s"}
    assert result["targets"] == [{"targets": ["127.0.0.1:9341"], "labels": labels}]
    assert not slurm.asked


NEEDS = "slurm_exporter_sha256['x86_64']"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"SLURM_VERSION": "24.11.6", "MetricsType": "(null)"},
            "no metrics of Slurm: Slurm 24.11.6 is older than 25.11.5 of ParallelCluster 3.16, from which on its own "
            "metrics are safe; or set slurm_exporter_sha256['x86_64'] for the exporter",
        ),
        (
            {"SLURM_VERSION": "25.11.8", "MetricsType": "(null)"},
            "no metrics of Slurm: MetricsType is not set; Slurm 25.11.8 has metrics of its own once the cluster's "
            "configuration has CustomSlurmSettings: [{MetricsType: metrics/openmetrics}]; "
            "or set slurm_exporter_sha256['x86_64'] for the exporter",
        ),
    ],
)
def test_an_exporter_that_cannot_be_had_is_said_so_and_nothing_is_scraped(
    slurm: Controller, settings: dict[str, str], said: str
) -> None:
    slurm.says(**settings)
    script = slurm.top / "bin/scontrol"
    script.write_text(script.read_text().replace("something/else", "(null)"))
    result = slurm(exporter_needs=NEEDS)
    assert not result.get("failed")
    assert (result["source"], result["targets"]) == ("none", [])
    assert result["summary"] == said


@pytest.mark.parametrize(
    ("version", "asked", "source"),
    [
        ("25.11.5", {}, "native"),
        ("25.11.10", {}, "native"),
        ("26.05.0", {}, "native"),
        ("25.11.8", {"exporter_needs": NEEDS}, "native"),
        ("25.11.8", {"source": "exporter"}, "exporter"),
        ("25.11.8", {"source": "exporter", "exporter_needs": NEEDS}, "exporter"),
    ],
)
def test_slurms_own_metrics_are_taken_unless_the_exporter_is_asked_for(
    slurm: Controller, version: str, asked: dict[str, str], source: str
) -> None:
    slurm.says(**{**NATIVE, "SLURM_VERSION": version})
    assert slurm(**asked)["source"] == source
    assert bool(slurm.asked) == (source == "native")


@pytest.mark.parametrize(
    ("version", "asked", "source"),
    [
        ("25.11.8", {}, "exporter"),
        ("25.11.8", {"source": "native"}, "native"),
        ("26.05.0", {}, "native"),
        ("26.05.0-0rc1", {}, "native"),
    ],
)
def test_gpus_that_slurms_own_metrics_do_not_count_are_the_exporters(
    slurm: Controller, version: str, asked: dict[str, str], source: str
) -> None:
    slurm.nodes.append(GPU_NODE)
    slurm.says(**{**NATIVE, "SLURM_VERSION": version})
    result = slurm(**asked)
    assert result["source"] == source
    assert ("do not count GPUs" in result["summary"]) == (source == "exporter")


def test_without_an_exporter_slurms_own_metrics_are_better_than_none(slurm: Controller) -> None:
    slurm.nodes.append(GPU_NODE)
    slurm.says(**NATIVE)
    result = slurm(exporter_needs=NEEDS)
    assert result["source"] == "native"
    assert len(result["targets"]) == 4
    assert result["summary"] == (
        "slurmctld's own metrics (Slurm 25.11.8); the metrics of Slurm 25.11.8 itself do not count GPUs, which those "
        "of 26.05 do: set slurm_exporter_sha256['x86_64'] for the exporter"
    )


def test_nodes_that_are_not_shown_are_an_error(slurm: Controller) -> None:
    slurm.says(**NATIVE)
    (slurm.top / "nodes").unlink()
    result = slurm()
    assert result["failed"]
    assert "scontrol -a -o show nodes' ended with 1: cat: " in result["msg"]


@pytest.mark.parametrize("kind", ["(null)", None])
def test_it_says_what_to_set(slurm: Controller, kind: str | None) -> None:
    slurm.says(SLURM_VERSION="25.11.8", **({"MetricsType": kind} if kind else {"Metrics": "x"}))
    if kind is None:  # the sandbox's old Slurm prints no such line at all
        script = slurm.top / "bin/scontrol"
        script.write_text(script.read_text().replace("MetricsType             = something/else", ""))
    result = slurm(exporter_address="127.0.0.1:1234")
    assert result["source"] == "exporter"
    assert result["targets"][0]["targets"] == ["127.0.0.1:1234"]
    assert "MetricsType is not set" in result["reason"]
    assert "CustomSlurmSettings: [{MetricsType: metrics/openmetrics}]" in result["summary"]


def test_another_plugin_is_not_ours(slurm: Controller) -> None:
    slurm.says(**{**NATIVE, "MetricsType": "metrics/other"})
    assert "MetricsType is metrics/other" in slurm()["reason"]


def test_a_controller_that_refuses_leaves_the_exporter(slurm: Controller) -> None:
    slurm.says(**NATIVE)
    slurm.status = 401
    result = slurm()
    assert result["source"] == "exporter"
    assert (
        f"http://127.0.0.1:{slurm.port}/metrics/jobs should give Slurm's own metrics, but it says HTTP Error 401"
        in result["reason"]
    )


def test_an_answer_without_metrics_is_none(slurm: Controller) -> None:
    slurm.says(**NATIVE)
    slurm.page = "slurmctld index of endpoints:\n  '/metrics': print available metric endpoints\n"
    assert slurm()["reason"].endswith("its answer has no slurm_jobs")


def test_native_that_cannot_be_is_an_error(slurm: Controller) -> None:
    slurm.says(SLURM_VERSION="25.11.8")
    script = slurm.top / "bin/scontrol"
    script.write_text(script.read_text().replace("something/else", "(null)"))
    result = slurm(source="native")
    assert result["failed"]
    assert result["msg"].startswith(
        "slurm_exporter_source is native, and that cannot be: MetricsType is not set; Slurm 25.11.8"
    )


@pytest.mark.parametrize(
    ("storage", "accounting"),
    [("accounting_storage/none", False), ("(null)", False), ("accounting_storage/slurmdbd", True)],
)
def test_accounting(slurm: Controller, storage: str, accounting: bool) -> None:
    slurm.says(SLURM_VERSION="25.11.4", AccountingStorageType=storage)
    assert slurm()["accounting"] is accounting


def test_a_controller_that_is_down_is_said_so(slurm: Controller) -> None:
    slurm.says(code=1, errors="slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)\nmore")
    result = slurm()
    assert result["failed"]
    assert result["msg"].endswith(
        "told no SLURM_VERSION, it ended with 1: slurm_load_ctl_conf error: Unable to contact slurm controller "
        "(connect failure); see 'systemctl status slurmctld munge' and /var/log/slurmctld.log"
    )


def test_one_that_hangs_is_not_waited_for(slurm: Controller) -> None:
    slurm.says(SLURM_VERSION="25.11.8")
    (slurm.top / "bin/scontrol").write_text("#!/bin/sh\nexec sleep 30\n")
    message = slurm(timeout=0.2)["msg"]
    assert message.endswith(
        "did not end within 0.2 s; see 'systemctl status slurmctld munge' and /var/log/slurmctld.log"
    )


def test_no_slurm(slurm: Controller) -> None:
    assert slurm(prefix="/nowhere")["msg"] == "the program /nowhere/bin/scontrol is not there"


def test_a_port_is_always_known() -> None:
    assert metrics._port_of({}) == "6817"
    assert metrics._port_of({"slurmctldport": "6820-6829"}) == "6820"
