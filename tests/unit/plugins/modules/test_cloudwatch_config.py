# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""cloudwatch_config with the sandbox's stand-in of the agent's program, and a systemd that remembers."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._cloudwatch import keys
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import files
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import unit as systemd_unit
from ansible_collections.pcluster.postboot.plugins.modules import cloudwatch_config
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

STANDIN = Path(__file__).resolve().parents[4] / "molecule/cluster/standins/cloudwatch-agent/agent.py"
GROUP = "/aws/parallelcluster/alpha-202611210900"
LOGS = {
    "logs": {
        "logs_collected": {"files": {"collect_list": [{"file_path": "/var/log/slurmd.log", "log_group_name": GROUP}]}},
        "log_stream_name": "h.{instance_id}.default-log-stream",
    }
}
# What ParallelCluster has its head nodes measure; its alarms look in CWAgent.
HEAD = {
    **LOGS,
    "metrics": {
        "metrics_collected": {
            "mem": {"metrics_collection_interval": 60, "measurement": ["mem_used_percent"]},
            "disk": {"metrics_collection_interval": 60, "measurement": ["disk_used_percent"], "resources": ["/"]},
        },
        "append_dimensions": {"InstanceId": "${aws:InstanceId}"},
        "aggregation_dimensions": [["InstanceId", "path"]],
    },
}
GIVEN: dict[str, Any] = {
    "metrics": ["host", "gpu", "efa"],
    "measurements": {
        "cpu": ["usage_active"],
        "mem": ["used_percent"],
        "disk": ["used_percent"],
        "nvidia_gpu": ["utilization_gpu"],
        "efa": ["tx_bytes"],
    },
    "namespace": "ParallelCluster/alpha",
    "dimensions": {"ClusterName": "alpha", "NodeType": "compute"},
    "logs": ["/var/log/pcluster-postboot/*.log", "/var/lib/pcluster-postboot/report.json"],
}


class Node:
    """A node below a folder, with the agent of an official AMI."""

    def __init__(self, top: Path, run: lab.Run) -> None:
        self.home, self.run = top / "agent", run
        self.etc, self.folder = self.home / "etc", self.home / "etc/amazon-cloudwatch-agent.d"
        self.own = self.folder / "file_pcluster-postboot.json"
        self.theirs = self.folder / "file_amazon-cloudwatch-agent.json"
        self.program = self.home / "bin/amazon-cloudwatch-agent-ctl"
        for path in (self.home / "bin", self.home / "logs", self.folder):
            path.mkdir(parents=True)
        lab.program(self.program, STANDIN.read_text())
        self.version("1.300071.0b1720")
        self.active, self.starts = True, 0
        self.requests: list[systemd_unit.Request] = []
        self.parallelcluster(LOGS)

    def version(self, text: str) -> None:
        (self.home / "bin/CWAGENT_VERSION").write_text(text + "\n")

    def parallelcluster(self, config: dict[str, Any], applied: bool = True) -> None:
        (self.etc / "amazon-cloudwatch-agent.json").write_text(json.dumps(config))
        if applied:
            self.theirs.write_text(json.dumps(config))
            (self.etc / "amazon-cloudwatch-agent.toml").write_text("{}")
        time.sleep(0.01)
        self.started = time.time()

    def apply(self, request: systemd_unit.Request) -> systemd_unit.Outcome:
        """What systemd_unit does, of which the unit's process is one that fails on a configuration with `dies`."""
        self.requests.append(request)
        outdated = max(files.changed_at(path) for path in request.restart_on) > self.started
        due = "stop" if request.state == "stopped" and self.active else None
        if request.state == "started" and not self.active:
            due = "start"
        elif self.active and outdated and request.state != "stopped":
            due = "restart"
        words = {"stop": "stopped", "start": "started", "restart": "restarted", None: ""}
        if due and not request.check:
            self.active, self.started = due != "stop", time.time()
            self.starts += due != "stop"
            if self.active and any("dies" in path.read_text() for path in self.folder.iterdir()):
                self.active = False
                raise systemd_unit.UnitError(f"{request.name} did not come up", ["E! it died"])
        return systemd_unit.Outcome([words[due]] if due else [], [], {}, [])

    def __call__(self, check: bool = False, **given: Any) -> dict[str, Any]:
        time.sleep(0.01)  # a file of one run is older than the process of the next
        return self.run(cloudwatch_config, {"home": str(self.home), **GIVEN, **given}, check=check)

    def tree(self) -> dict[str, str]:
        return {str(p.relative_to(self.home)): p.read_text() for p in sorted(self.etc.rglob("*")) if p.is_file()}

    def merged(self) -> dict[str, Any]:
        """What the agent would run with."""
        found: dict[str, Any] = json.loads((self.etc / "amazon-cloudwatch-agent.toml").read_text())
        return found


@pytest.fixture
def node(tmp_path: Path, run_module: lab.Run, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path, run_module)
    monkeypatch.setenv("CLOUDWATCH_AGENT_HOME", str(node.home))
    monkeypatch.setattr(systemd_unit, "apply", node.apply)
    return node


def plugins(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = config["metrics"]["metrics_collected"]
    return found


def test_ours_is_appended_and_theirs_stays(node: Node) -> None:
    before = node.tree()
    result = node()
    assert (result["failed"], result["changed"]) == (False, True), result
    assert result["actions"] == ["appended", "restarted"]
    after = node.tree()
    assert {path: after[path] for path in before if not path.endswith(".toml")} == {
        path: text for path, text in before.items() if not path.endswith(".toml")
    }
    logs = node.merged()["logs"]["logs_collected"]["files"]["collect_list"]
    assert [one["file_path"] for one in logs] == [
        "/var/log/slurmd.log",
        "/var/log/pcluster-postboot/*.log",
        "/var/lib/pcluster-postboot/report.json",
    ]
    assert {one["log_group_name"] for one in logs} == {GROUP}
    assert logs[1]["publish_multi_logs"] is True
    assert logs[2]["multi_line_start_pattern"] == r"^\{"
    assert result["summary"] == "cpu, mem, disk (3 names of metrics) to ParallelCluster/alpha and 2 logs"


def test_the_second_run_changes_nothing(node: Node) -> None:
    node()
    starts = node.starts
    again = node()
    assert (again["changed"], again["actions"], again["diff"]) == (False, [], [])
    assert node.starts == starts == 1


def test_check_mode_changes_nothing_and_tells_all(node: Node) -> None:
    before = node.tree()
    result = node(check=True)
    assert result["changed"]
    assert result["actions"] == ["appended", "restarted"]
    assert node.tree() == before
    assert json.loads(result["diff"][0]["after"]) == result["config"]
    assert not node.requests
    node()
    assert not node(check=True)["changed"]
    assert node(check=True, interval=30)["changed"]


def test_check_mode_works_where_there_is_no_agent_yet(node: Node) -> None:
    node.program.unlink()
    result = node(check=True, efa=32)
    assert result["changed"]
    assert "efa" in plugins(result["config"])
    failed = node()
    assert failed["failed"]
    assert f"{node.program} is not there" in failed["msg"]
    assert not node(state="absent")["changed"]


def test_devices_count_together_unless_told_otherwise(node: Node) -> None:
    together = node(gpus=8, efa=32)["config"]["metrics"]
    assert together["namespace"] == "ParallelCluster/alpha"
    assert together["append_dimensions"] == {"InstanceId": "${aws:InstanceId}"}
    # EFA's own have no dimension but the instance; without any, a metric is of all nodes.
    assert together["aggregation_dimensions"] == [["ClusterName", "InstanceId", "NodeType"], ["InstanceId"], []]
    parts = together["metrics_collected"]
    # The agent puts nvidia_smi_ before it, and would do so twice.
    assert parts["nvidia_gpu"]["drop_original_metrics"] == ["utilization_gpu"]
    assert parts["efa"]["drop_original_metrics"] == ["efa_tx_bytes"]
    assert "append_dimensions" not in parts["efa"]
    assert "drop_original_metrics" not in parts["disk"]
    each = node(gpus=8, efa=32, per_device=True)["config"]["metrics"]
    assert each["aggregation_dimensions"] == [[]]
    assert not any("drop_original_metrics" in part for part in plugins({"metrics": each}).values())


def test_a_node_without_devices_has_no_metrics_of_them(node: Node) -> None:
    metrics = node()["config"]["metrics"]
    assert sorted(metrics["metrics_collected"]) == ["cpu", "disk", "mem"]
    assert metrics["aggregation_dimensions"] == [["ClusterName", "InstanceId", "NodeType"], []]


def test_a_head_nodes_own_metrics_stay_where_its_alarms_look(node: Node) -> None:
    node.parallelcluster(HEAD)
    result = node()
    assert result["namespace"] == "CWAgent"
    assert result["left_out"] == ["mem: ParallelCluster's own", "disk: ParallelCluster's own"]
    assert result["config"]["metrics"] == {
        "metrics_collected": {
            "cpu": {
                "measurement": ["usage_active"],
                "metrics_collection_interval": 60,
                "append_dimensions": GIVEN["dimensions"],
                "totalcpu": True,
            }
        }
    }
    merged = node.merged()["metrics"]
    assert {key: merged[key] for key in HEAD["metrics"] if key != "metrics_collected"} == {
        key: value for key, value in HEAD["metrics"].items() if key != "metrics_collected"
    }
    assert "namespace" not in merged
    assert not node()["changed"]


def test_keys_that_hold_for_all_files_are_left_out_beside_others(node: Node) -> None:
    node.parallelcluster(HEAD)
    result = node(config={"metrics": {"force_flush_interval": 10, "append_dimensions": {"ImageId": "${aws:ImageId}"}}})
    assert "metrics.force_flush_interval: it would change ParallelCluster's own too" in result["left_out"]
    assert "metrics.append_dimensions: ParallelCluster's own" in result["left_out"]
    assert list(result["config"]["metrics"]) == ["metrics_collected"]


def test_somebody_elses_file_comes_first_too(node: Node) -> None:
    theirs = {"metrics": {"namespace": "Mine", "metrics_collected": {"cpu": {"measurement": ["usage_idle"]}}}}
    (node.folder / "ssm_AmazonCloudWatch-mine").write_text(json.dumps(theirs))
    result = node()
    assert result["namespace"] == "Mine"
    assert result["left_out"] == ["cpu: amazon-cloudwatch-agent.json, ssm_AmazonCloudWatch-mine"]
    assert sorted(plugins(node.merged())) == ["cpu", "disk", "mem"]


def test_the_agent_takes_the_journal_from_one_file_only(node: Node) -> None:
    def journal(unit: str) -> dict[str, Any]:
        return {"logs": {"logs_collected": {"journald": {"collect_list": [{"units": [unit], "log_group_name": "/g"}]}}}}

    node.parallelcluster(
        {"logs": {"logs_collected": {**LOGS["logs"]["logs_collected"], **journal("sshd")["logs"]["logs_collected"]}}}
    )
    result = node(config=journal("slurmd"))
    assert not result["failed"], result["msg"]
    assert result["left_out"] == ["logs.logs_collected.journald: ParallelCluster's own"]
    assert node.merged()["logs"]["logs_collected"]["journald"]["collect_list"][0]["units"] == ["sshd"]


def test_an_old_agent_knows_no_efa(node: Node) -> None:
    node.version("1.300067.0b1500")
    result = node(efa=32)
    assert result["left_out"] == ["efa: it needs agent 1.300068.0, this is 1.300067.0b1500"]
    assert "efa" not in plugins(result["config"])
    assert result["config"]["metrics"]["aggregation_dimensions"] == [["ClusterName", "InstanceId", "NodeType"], []]


@pytest.mark.parametrize("how", [{"state": "absent"}, {"metrics": [], "logs": []}])
def test_removal_removes_exactly_ours(node: Node, how: dict[str, Any]) -> None:
    node()
    node(metrics=["host"], interval=30)
    before = {path: text for path, text in node.tree().items() if "postboot" not in path and "toml" not in path}
    result = node(**how)
    assert result["actions"] == ["removed", "restarted"]
    assert {path: text for path, text in node.tree().items() if "toml" not in path} == before
    assert node.merged() == LOGS
    assert not node(**how)["changed"]
    assert node.active


def test_removal_where_parallelclusters_file_was_not_appended(node: Node) -> None:
    """The agent's program would throw everything away, and start with its default configuration."""
    node()
    node.theirs.unlink()
    node(state="absent")
    assert json.loads((node.etc / "amazon-cloudwatch-agent.json").read_text()) == LOGS
    assert node.merged() == LOGS
    assert node.active


def test_removal_of_the_only_configuration_stops_the_agent(node: Node) -> None:
    for path in (node.theirs, node.etc / "amazon-cloudwatch-agent.json"):
        path.unlink()
    assert node(log_group="/mine")["changed"]
    result = node(state="absent")
    assert result["actions"] == ["removed", "stopped"]
    assert not (node.etc / "amazon-cloudwatch-agent.toml").exists()
    assert not node.active


def test_nothing_is_applied_where_cloudwatch_logs_are_off(node: Node) -> None:
    node.theirs.unlink()
    (node.etc / "amazon-cloudwatch-agent.toml").unlink()
    node.active = False
    before = node.tree()
    result = node()
    assert not result["changed"]
    assert result["summary"].startswith("no configuration of this collection (all: CloudWatch logs are off in this")
    assert node.tree() == before
    assert not node.active


def test_logs_without_a_group_are_left_out(node: Node) -> None:
    node.parallelcluster({"logs": {"logs_collected": {"journald": {"collect_list": []}}}})
    result = node()
    assert result["left_out"] == ["logs: no log group is known (cloudwatch_agent_log_group)"]
    assert "logs" not in result["config"]
    assert node(log_group="/mine")["config"]["logs"]


def procstat(**entry: Any) -> dict[str, Any]:
    return {"config": {"metrics": {"metrics_collected": {"procstat": [entry]}}}}


def ethtool(*names: str) -> dict[str, Any]:
    return {"config": {"metrics": {"metrics_collected": {"ethtool": {"metrics_include": [*names]}}}}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"config": {"metrics": {"metrics_collected": {"nvidia_gpuu": {"measurement": ["x"]}}}}},
            "cloudwatch_agent_config.metrics.metrics_collected.nvidia_gpuu is not known to the agent, which would pass "
            "over it; did you mean nvidia_gpu?",
        ),
        # The agent's schema has this name, and its translator does not.
        (
            {"config": {"metrics": {"metrics_collected": {"nvidia_smi": {"measurement": ["utilization_gpu"]}}}}},
            "cloudwatch_agent_config.metrics.metrics_collected.nvidia_smi is not known",
        ),
        ({"config": {"metrisc": {}}}, "cloudwatch_agent_config.metrisc is not known"),
        (
            {"config": {"metrics": {"metrics_collected": {"cpu": {"measurment": ["usage_idle"]}}}}},
            "cloudwatch_agent_config.metrics.metrics_collected.cpu.measurment is not known to the agent, which would "
            "pass over it; did you mean measurement? (and 1 more)",
        ),
        (
            {"config": {"logs": {"logs_collected": {"files": {"collect_list": [{"file_pth": "/x"}]}}}}},
            "cloudwatch_agent_config.logs.logs_collected.files.collect_list[0].file_pth is not known",
        ),
        ({"config": {"metrics": {"metrics_collected": {"statsd": []}}}}, "needed: an object with keys"),
        (
            {"config": {"agent": {"debug": "yes"}}},
            "cloudwatch_agent_config.agent.debug is 'yes'; needed: true or false",
        ),
        (
            {"measurements": {"cpuu": ["usage_active"]}},
            "cloudwatch_agent_measurements.cpuu is not known to the agent, which would pass over it; did you mean cpu?",
        ),
        (
            {"measurements": {"efa": ["tx_byte"]}},
            "cloudwatch_agent_measurements.efa: tx_byte is not known to the agent, which would pass over it; "
            "did you mean tx_bytes?",
        ),
        (
            {"measurements": {"cpu": "usage_active"}},
            "cloudwatch_agent_measurements.cpu is 'usage_active'; needed: a list",
        ),
        (
            procstat(exe="slurmd", measurement=["cpu_usage", "procstat_memory_rsss"]),
            "metrics.metrics_collected.procstat[0].measurement: procstat_memory_rsss is not known "
            "to the agent, which would pass over it; did you mean memory_rss?",
        ),
        (
            procstat(exe="slurmd"),
            "cloudwatch_agent_config.metrics.metrics_collected.procstat[0].measurement is missing",
        ),
        (
            procstat(measurement=["cpu_usage"]),
            "metrics_collected.procstat[0] names no process; needed: pid_file, exe or pattern",
        ),
        (
            procstat(exe="slurmd", measurement=[{"name": "cpu_usage", "rename": "cpu"}]),
            "procstat[0].measurement has {'name': 'cpu_usage', 'rename': 'cpu'}; needed: a name",
        ),
        (
            ethtool("bw_in_allowance_exceeded", "bw_in_allowance_exceeeded"),
            "metrics.metrics_collected.ethtool.metrics_include: bw_in_allowance_exceeeded is no "
            "counter of the ENA driver; did you mean bw_in_allowance_exceeded?",
        ),
        ({"interval": 0}, "cloudwatch_agent_interval is 0; needed: 1 to 172800 seconds"),
        (
            {"scrapes": [{"job": "j", "target": "localhost:1", "metrics": ["("]}]},
            "cloudwatch_agent_scrapes: '(' of j is no pattern",
        ),
    ],
)
def test_what_is_misspelt_is_refused_before_anything_is_touched(
    node: Node, given: dict[str, Any], message: str
) -> None:
    before = node.tree()
    result = node(**given)
    assert result["failed"]
    assert message in result["msg"]
    assert result["msg"].endswith("nothing was changed")
    assert "\n" not in result["msg"]
    assert node.tree() == before
    assert not node.requests
    assert node(check=True, **given)["failed"]


def test_the_agents_refusal_leaves_all_as_it_was(node: Node) -> None:
    node()
    starts = node.starts
    (node.etc / "second-phase-fails").write_text("")
    before = {path: text for path, text in node.tree().items() if "toml" not in path}
    result = node(interval=30)
    assert result["failed"]
    assert "'amazon-cloudwatch-agent-ctl -a append-config' failed: E! the sandbox lets it fail" in result["msg"]
    assert "configuration-validation.log" in result["msg"]
    assert {path: text for path, text in node.tree().items() if "toml" not in path} == before
    assert (node.starts, node.active) == (starts, True)


def test_a_contradiction_that_is_not_ours_is_told_in_the_agents_words(node: Node) -> None:
    other = {"logs": {**LOGS["logs"], "log_stream_name": "another"}}
    (node.folder / "file_other.json").write_text(json.dumps(other))
    result = node()
    assert result["failed"]
    assert "Different values are specified for log_stream_name" in result["msg"]


def test_an_agent_that_dies_of_ours_gets_its_configuration_back(node: Node) -> None:
    node()
    before = node.own.read_text()
    result = node(dimensions={"ClusterName": "dies"})
    assert result["failed"]
    assert "did not come up" in result["msg"]
    assert "put back as it was, and with that it runs" in result["msg"]
    assert "amazon-cloudwatch-agent.log may say more" in result["msg"]
    assert result["journal"] == ["E! it died"]
    assert node.own.read_text() == before
    assert node.active


def test_an_agent_that_dies_of_the_first_file_of_ours_loses_it_again(node: Node) -> None:
    result = node(dimensions={"ClusterName": "dies"})
    assert result["failed"]
    assert not node.own.exists()
    assert node.merged() == LOGS
    assert node.active


def test_an_agent_that_runs_with_neither_is_told(node: Node) -> None:
    node()
    (node.folder / "file_other.json").write_text(json.dumps({"agent": {"region": "dies"}}))
    result = node(interval=30)
    assert result["failed"]
    assert (
        "and with its configuration as it was before: amazon-cloudwatch-agent.service did not come up" in result["msg"]
    )


def test_a_run_that_died_before_the_restart_is_finished(node: Node) -> None:
    node()
    node.started = os.stat(node.own).st_ctime - 1
    assert node()["actions"] == ["restarted"]
    node.active = False
    assert node()["actions"] == ["started"]


def test_what_an_exporter_shows_goes_there_too(node: Node) -> None:
    drop = {"source_labels": ["__name__", "xid"], "regex": "DCGM_EXP_XID_ERRORS_COUNT;13", "action": "drop"}
    dcgm = {"job": "dcgm", "target": "localhost:9400", "metrics": ["DCGM_EXP_XID_ERRORS_COUNT"], "dimensions": ["gpu"]}
    scrapes = [{**dcgm, "metric_relabel_configs": [drop]}]
    result = node(metrics=["prometheus"], scrapes=scrapes, logs=[])
    path = node.etc / "pcluster-postboot-prometheus.yaml"
    assert result["actions"] == ["appended", "wrote", "restarted"]
    assert json.loads(path.read_text())["scrape_configs"] == [
        {
            "job_name": "dcgm",
            "metrics_path": "/metrics",
            "static_configs": [{"targets": ["localhost:9400"], "labels": GIVEN["dimensions"]}],
            "metric_relabel_configs": [drop],
        }
    ]
    part = result["config"]["logs"]["metrics_collected"]["prometheus"]
    assert part["prometheus_config_path"] == str(path)
    assert part["emf_processor"]["metric_namespace"] == "ParallelCluster/alpha"
    [rule] = part["emf_processor"]["metric_declaration"]
    assert rule["dimensions"] == [["ClusterName", "NodeType", "gpu"]]
    assert rule["metric_selectors"] == ["^(?:DCGM_EXP_XID_ERRORS_COUNT)$"]
    assert not node(metrics=["prometheus"], scrapes=scrapes, logs=[])["changed"]
    assert node(metrics=["host"])["actions"] == ["appended", "wrote", "restarted"]
    assert not path.exists()


def test_further_configuration_is_put_over_the_rest(node: Node) -> None:
    more = {
        "agent": {"debug": True},
        "metrics": {
            "metrics_collected": {
                "procstat": [{"exe": "slurmd", "measurement": ["memory_rss"], "append_dimensions": {"Any": "x"}}],
                "cpu": {"measurement": ["time_idle"]},
            }
        },
    }
    config = node(config=more)["config"]
    assert config["agent"] == {"debug": True}
    assert plugins(config)["procstat"] == more["metrics"]["metrics_collected"]["procstat"]  # type: ignore[index]
    assert plugins(config)["cpu"]["measurement"] == ["usage_active", "time_idle"]


@pytest.mark.parametrize(
    "given",
    [
        procstat(pattern="clustermgtd", measurement=["cpu_usage", "pid_count", "procstat_memory_rss"]),
        # The driver decides which counters there are; a newer one may have others.
        ethtool(
            "conntrack_allowance_available", "queue_0_tx_missed_tx", "queue_*_rx_bad_desc_num", "of_a_newer_driver"
        ),
    ],
)
def test_processes_and_counters_of_the_ena_driver(node: Node, given: dict[str, Any]) -> None:
    assert node(**given)["changed"]
    assert not node(**given)["changed"]


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        (
            {"exe": "slurmd", "measurement": ["memory_rsss"]},
            "/metrics/metrics_collected/procstat/ | Error : measurement name memory_rsss is invalid",
        ),
        ({"measurement": ["cpu_usage"]}, "Must validate at least one schema (anyOf)"),
    ],
)
def test_the_agent_itself_refuses_all_of_a_configuration_for_one_process(
    node: Node, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any], error: str
) -> None:
    monkeypatch.setattr(keys, "problems", lambda config, source: [])
    before = node.tree()
    assert error in node(**procstat(**entry))["msg"]
    assert node.tree() == before


def test_metrics_of_ones_own_alone_are_named_as_ours(node: Node) -> None:
    """Otherwise nobody would know whose they are, and they would be where ParallelCluster's alarms look."""
    own = {"metrics": {"metrics_collected": {"swap": {"measurement": ["used_percent"]}}}}
    metrics = node(metrics=[], config=own)["config"]["metrics"]
    assert metrics["namespace"] == "ParallelCluster/alpha"
    assert metrics["append_dimensions"] == {"InstanceId": "${aws:InstanceId}"}
    own["metrics"]["namespace"] = "Mine"
    assert node(metrics=[], config=own)["config"]["metrics"]["namespace"] == "Mine"


def test_no_file_is_writable_by_others(node: Node) -> None:
    node()
    assert not stat.S_IMODE(node.own.stat().st_mode) & 0o022


def test_another_file_that_is_broken_is_named(node: Node) -> None:
    node.theirs.write_text("{")
    result = node()
    assert result["failed"]
    assert str(node.theirs) in result["msg"]


def test_every_default_measurement_is_known() -> None:
    assert set(keys.MEASUREMENTS) <= set(keys.KEYS["metrics"]["metrics_collected"])
    assert keys.bare("nvidia_gpu", "nvidia_smi_power_draw") == "power_draw"
    assert keys.metric_name("cpu", "cpu_usage_idle") == "cpu_usage_idle"
