# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Crashes that the examples have found, each once by its name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import record
from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import agent
from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import config as cloudwatch
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import judge
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import Evidence
from ansible_collections.pcluster.postboot.plugins.module_utils._docker import config as docker
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, http
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm import names
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.nodes import gpus_of
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nodes
from ansible_collections.pcluster.postboot.plugins.plugin_utils._status import stages
from ansible_collections.pcluster.postboot.roles.container_images.files.container_images import state
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import exporter
from ansible_collections.pcluster.postboot.roles.prometheus.files import prometheus_targets

NOW = 1_795_400_000.0


@pytest.mark.parametrize(
    "text",
    ["[" * 65 + "]" * 65, "[" * 100_000, '{"a":' * 5000, "1e999", "NaN", "[-Infinity]", "1" * 400, "1" * 5000, "²"],
)
def test_json_that_cannot_be_used_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        document.parse(text)


def test_json_that_can_be_used_is_what_it_was(tmp_path: Path) -> None:
    value = {
        "a": [1, 1.5, -0.25e300, True, None, "ü\ud83d\ude00"],
        "b": {"": {}},
        "deep": json.loads("[" * 62 + "]" * 62),
    }
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert document.read(str(tmp_path / "a.json")) == json.loads(json.dumps(value))


def test_what_does_not_fit_a_shape_is_left_out() -> None:
    shape = {
        "name": str,
        "n": int,
        "share": float,
        "on": bool,
        "all": [{"x": str}],
        "rest": {document.ANY: str},
        "any": object,
    }
    good = {"name": "a", "n": 1, "share": 2, "on": False, "all": [{"x": "y"}], "rest": {"k": "v"}, "any": [None]}
    assert document.fitted(good, shape) == good
    bad = {
        "name": 1,
        "n": True,
        "share": "2",
        "on": 0,
        "all": ["x", None, {"x": 1}],
        "rest": [1],
        "more": 1,
        "any": None,
    }
    assert document.fitted(bad, shape) == {"all": [{}], "any": None}
    assert document.fitted(["a", 1], [str]) == ["a"]
    assert document.fitted(None, shape) == {}
    assert document.fitted(True, float) is None


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("007", 7), ("²", None), ("٣", None), ("9" * 5000, None), ("", None)]
)
def test_a_number_in_a_text(text: str, number: int | None) -> None:
    assert document.whole(text) == number


@pytest.mark.parametrize("listed", [None, ["x"], "x", {"a": 1}, [None, {"log_group_name": ["g"]}]])
def test_another_agents_file_with_logs_that_are_none(tmp_path: Path, listed: Any) -> None:
    path = tmp_path / "etc/amazon-cloudwatch-agent.d/file_other.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"logs": {"logs_collected": {"files": {"collect_list": listed}}}}))
    others = cloudwatch.merged(agent.Agent(agent.Request(home=str(tmp_path))).others())
    fitted = cloudwatch.fit(cloudwatch.Wanted(logs=("/a",)), others, "1.300068.0", "head", "other")
    assert fitted.left_out == ["logs: no log group is known (cloudwatch_agent_log_group)"]


def test_a_boot_record_of_one_node_leaves_the_status_of_the_others() -> None:
    bad = record.parse("node q-st-a-1\ninstance i-1\nstage site\nsince ²\ndeadline 1e999\n")
    assert bad == {"node": "q-st-a-1", "instance": "i-1", "stage": "site"}
    both = [
        {"name": name, "state": ["DOWN", "CLOUD", "POWERING_UP"], "instance": ""} for name in ("q-st-a-1", "q-st-a-2")
    ]
    seen = stages.judge("main", [], {"nodes": both, "records": [bad]}, "", NOW, {})
    assert [node.name for node in seen.nodes] == ["q-st-a-1", "q-st-a-2"]


@pytest.mark.parametrize(
    "part", ['{"components": "x"}', '{"components": [1]}', '{"stopped": [1]}', '{"versions": {"a": 1}}']
)
def test_a_damaged_report_of_one_node_leaves_those_of_the_others(part: str) -> None:
    failed = json.dumps({"components": [{"name": "nccl", "status": "failed", "why": "no room"}]})
    values = {"n1": {"report": [part]}, "n2": {"report": [failed]}}
    options: Any = SimpleNamespace(versions={"": {"nccl_version": "1"}}, exporters=[])
    checks = list(nodes._judge("q", values, {"n1": "", "n2": ""}, options))
    assert [check.message for check in checks if check.name == "last run"] == ["n2: nccl (no room)"]


def test_a_hostile_line_does_not_hide_the_findings_of_its_log() -> None:
    """Users write into the syslog: a date that no calendar has, and an XID of thousands of digits."""
    good = "Nov 22 10:00:00 n kernel: NVRM: Xid (PCI:0000:53:00): 79, pid=1, GPU has fallen off the bus."
    lines = ["2026-99-99 99:99:99 x", f"Nov 22 10:00:00 n kernel: NVRM: Xid (PCI:0000:53:00): {'9' * 5000}, x", good]
    found = judge.judge(Evidence("n", "compute", {"syslog": "\n".join(lines)}, now=NOW))
    assert [one.kind for one in found] == ["xid-79"]


@pytest.mark.parametrize("root", [["/a"], 5, "/a\0b", "/a\ud800"])
def test_a_data_root_that_is_no_path(tmp_path: Path, root: Any) -> None:
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps({"data-root": root}))
    with pytest.raises(Problem, match=f"^{path} .*correct it"):
        docker.read(str(path))


@pytest.mark.parametrize(
    ("gres", "count"), [("gpu:²", 1), (f"gpu:h100:{'9' * 5000}", 1), ("gpu:8,gpu:a:2", 10), ("gpu", 1)]
)
def test_gpus_of_odd_resources(gres: str, count: int) -> None:
    assert gpus_of(gres) == prometheus_targets.gpus_of(gres) == count


def test_names_with_numbers_that_int_refuses() -> None:
    long, longer = f"a-{'8' * 5000}", f"a-1{'0' * 5000}"
    assert names.ranges([longer, long]) == f"a-[{'8' * 5000},1{'0' * 5000}]"
    assert names.ranges(["a-10", "a-9", "a-010", "a", "a-8"]) == "a,a-[8-10,010]"


@pytest.mark.parametrize("length", ["²", "9" * 5000])
def test_an_answer_with_an_odd_length(length: str) -> None:
    parts = iter([b"body", b""])
    response = SimpleNamespace(read1=lambda _most: next(parts), headers={"Content-Length": length})
    assert http._read(response, math.inf, 1.0, 1000) == b"body"


def test_a_held_name_is_released_from_a_line_before_the_last(tmp_path: Path) -> None:
    path = tmp_path / "dnf.conf"
    path.write_text("[main]\nexcludepkgs=ours\nexcludepkgs=kernel*\n")
    holds.DnfHolds(str(path)).release(["ours"])
    assert path.read_text() == "[main]\nexcludepkgs=kernel*\n"


@pytest.mark.parametrize("value", ["-Inf", "NaN", "+Inf", "1e999"])
def test_a_metric_that_is_no_number(value: str) -> None:
    page = f'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{{gpu="0",UUID="GPU-1",pci_bus_id="0"}} {value}\n'
    assert exporter.parse(page)["GPU-1"].values == {}


@pytest.mark.parametrize(
    "text",
    ["[1]", "{}", '[{"labels": {"pc_node": "n"}}]', '[{"labels": {"pc_node": [], "pc_node_type": "a"}}]', "[" * 9999],
)
def test_targets_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "targets.json").write_text(text)
    assert prometheus_targets.read_groups(str(tmp_path / "targets.json")) == []


@pytest.mark.parametrize(
    "text",
    ['{"images": {"a": 1}}', '{"images": {"a": {"state": "failed"}}}', '{"images": {}, "problems": 5}', "[" * 9999],
)
def test_a_state_of_images_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / state.STATE).write_text(text)
    found = state.read_state(str(tmp_path))
    assert (state.is_settled(found), state.failures_of(found)) == (True, [])
