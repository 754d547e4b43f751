# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What prometheus and slurm_exporter work out from their variables, with Ansible's own templating."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._node import hyperpod, neuron
from ansible_collections.pcluster.postboot.tests.relabelling import relabel

Variables = Callable[..., Callable[[str], Any]]
ID = "ws-01234567-89ab-cdef-0123-456789abcdef"
URL = f"https://aps-workspaces.us-west-2.amazonaws.com/workspaces/{ID}"
WRITE = f"{URL}/api/v1/remote_write"


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(region=…, **more) returns a function that works out a variable, or a template of prometheus."""

    def make(region: str = "us-west-2", node_type: str = "head", **more: Any) -> Callable[[str], Any]:
        node = {"node_type": node_type, "region": region, "architecture": "aarch64", "go_architecture": "arm64"}
        return work_out("slurm_exporter prometheus", node, **more)

    return make


@pytest.mark.parametrize(
    "workspace",
    [
        ID,
        URL,
        f"{URL}/",
        f"{URL}//",
        f"{URL}/api/v1",
        f"{URL}/api/v1/",
        WRITE,
        f"{WRITE}/",
        f"{URL}/api/v1/query",
        f" {WRITE}\n",
        f"arn:aws:aps:us-west-2:123456789012:workspace/{ID}",
    ],
)
def test_a_workspace_in_any_form_is_the_same(variables: Variables, workspace: str) -> None:
    value = variables(prometheus_amp_workspace=workspace)
    assert (value("__prometheus_amp_id"), value("__prometheus_amp_region")) == (ID, "us-west-2")
    assert value("__prometheus_amp_url") == WRITE


@pytest.mark.parametrize(
    ("workspace", "given", "region", "host"),
    [
        (ID, "", "eu-central-1", "aps-workspaces.eu-central-1.amazonaws.com"),
        (ID, "us-east-1", "us-east-1", "aps-workspaces.us-east-1.amazonaws.com"),
        (ID, "cn-north-1", "cn-north-1", "aps-workspaces.cn-north-1.amazonaws.com.cn"),
        (URL, "", "us-west-2", "aps-workspaces.us-west-2.amazonaws.com"),
        (
            f"arn:aws-us-gov:aps:us-gov-west-1:1:workspace/{ID}",
            "",
            "us-gov-west-1",
            "aps-workspaces.us-gov-west-1.amazonaws.com",
        ),
        (
            f"https://vpce-1-2.aps-workspaces.us-east-2.vpce.amazonaws.com/workspaces/{ID}",
            "",
            "us-east-2",
            "vpce-1-2.aps-workspaces.us-east-2.vpce.amazonaws.com",
        ),
        (f"https://metrics.example.org/workspaces/{ID}", "", "eu-central-1", "metrics.example.org"),
        (
            f"https://aps-workspaces-fips.us-east-2.amazonaws.com/workspaces/{ID}",
            "",
            "us-east-2",
            "aps-workspaces-fips.us-east-2.amazonaws.com",
        ),
        (f" arn:aws:aps:us-east-2:1:workspace/{ID}", "", "us-east-2", "aps-workspaces.us-east-2.amazonaws.com"),
    ],
)
def test_the_region_is_the_workspaces_or_else_the_clusters(
    variables: Variables, workspace: str, given: str, region: str, host: str
) -> None:
    value = variables("eu-central-1", prometheus_amp_workspace=workspace, prometheus_amp_region=given)
    assert value("__prometheus_amp_region") == region
    assert value("__prometheus_amp_url") == f"https://{host}/workspaces/{ID}/api/v1/remote_write"


@pytest.mark.parametrize("workspace", ["", "prod", "https://example.org/metrics"])
def test_what_is_no_workspace_has_no_id(variables: Variables, workspace: str) -> None:
    value = variables(prometheus_mode="amp-only", prometheus_amp_workspace=workspace)
    assert (value("__prometheus_amp_id"), value("__prometheus_amp_usable")) == ("", False)


@pytest.mark.parametrize(
    ("node_type", "mode", "workspace", "usable"),
    [
        ("head", "amp-only", ID, True),
        ("head", "amp+amg", URL, True),
        ("head", "self-hosting", "", True),
        ("head", "self-hosting", ID, False),
        ("monitoring", "self-hosting", ID, True),
    ],
)
def test_a_workspace_to_which_nothing_would_write_is_refused(
    variables: Variables, node_type: str, mode: str, workspace: str, usable: bool
) -> None:
    value = variables(node_type=node_type, prometheus_mode=mode, prometheus_amp_workspace=workspace)
    assert value("__prometheus_amp_usable") is usable


@pytest.mark.parametrize(
    ("mode", "agent"), [("none", False), ("self-hosting", False), ("amp-only", True), ("amp+amg", True)]
)
def test_an_agent_writes_to_the_workspace_and_keeps_nothing(variables: Variables, mode: str, agent: bool) -> None:
    own = {"url": "https://example.org/write"}
    value = variables(prometheus_mode=mode, prometheus_amp_workspace=ID, prometheus_remote_write=[own])
    flags = value("__prometheus_arguments")
    assert ("--agent" in flags) is agent
    assert any(flag.startswith("--storage.tsdb.retention") for flag in flags) is not agent
    writes = value("__prometheus_remote_write")
    assert writes[-1] == own
    assert len(writes) == 1 + agent
    assert value("__prometheus_credentials_for") == (["prometheus_amp_workspace"] if agent else [])
    if agent:
        assert writes[0]["url"] == WRITE
        assert writes[0]["sigv4"] == {"region": "us-west-2"}
        assert writes[0]["queue_config"]["retry_on_http_429"] is True


def test_queries_at_once_are_few_unless_a_flag_says_otherwise(variables: Variables) -> None:
    own = "--query.max-concurrency=9"
    assert "--query.max-concurrency=4" in variables()("__prometheus_arguments")
    flags = variables(prometheus_flags=["--web.page-title=x", own])("__prometheus_arguments")
    # Prometheus refuses a flag that is there twice, and an agent this one.
    assert [flag for flag in flags if flag.startswith("--query")] == [own]
    agent = variables(prometheus_mode="amp-only", prometheus_amp_workspace=ID)("__prometheus_arguments")
    assert [flag for flag in agent if flag.startswith("--query")] == []


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (None, "MemoryMax=50%"),
        ("8G", "MemoryMax=8G"),
        ("2.5G", "MemoryMax=2.5G"),
        ("100%", "MemoryMax=100%"),
        ("", None),
    ],
)
def test_the_memory_is_limited(
    variables: Variables, repo: Path, tmp_path: Path, given: str | None, line: str | None
) -> None:
    value = variables(**({} if given is None else {"prometheus_memory_max": given}))
    text = value("prometheus.service.j2")
    assert re.findall("^MemoryMax=.*$", text, re.MULTILINE) == ([line] if line else [])
    tasks = yaml.safe_load((repo / "roles/prometheus/tasks/check.yml").read_text())
    (check,) = (task["ansible.builtin.assert"]["that"] for task in tasks if "limit of memory" in task["name"])
    assert value(check) is True
    for wrong in ("50 %", "101%", "half", "8GB", "-1", "50%%", "infinity\nUser=root"):
        assert variables(prometheus_memory_max=wrong)(check) is False, wrong
    unit = tmp_path / "demo.service"
    unit.write_text(f"[Service]\nExecStart=/bin/true\n{line or ''}\n")
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "--man=no", "verify", unit], capture_output=True, text=True, check=False
        )
        assert str(unit) not in done.stdout + done.stderr


def test_a_role_is_assumed(variables: Variables) -> None:
    arn = "arn:aws:iam::123456789012:role/writer"
    value = variables(prometheus_mode="amp-only", prometheus_amp_workspace=ID, prometheus_amp_role_arn=arn)
    assert value("__prometheus_amp_write")["sigv4"] == {"region": "us-west-2", "role_arn": arn}


def test_who_else_needs_credentials(variables: Variables) -> None:
    value = variables(prometheus_discovery="ec2", prometheus_remote_write=[{"url": "https://x", "sigv4": {}}])
    assert value("__prometheus_credentials_for") == ["prometheus_remote_write", "prometheus_discovery"]
    scrapes: list[dict[str, Any]] = [
        {"job_name": "a", "static_configs": []},
        {"job_name": "b", "ec2_sd_configs": [{"region": "x"}]},
    ]
    assert variables(prometheus_scrape_configs=scrapes)("__prometheus_credentials_for") == ["prometheus_scrape_configs"]
    scrapes[1]["ec2_sd_configs"] = [{"region": "x", "access_key": "a", "secret_key": "s"}]
    assert variables(prometheus_scrape_configs=scrapes)("__prometheus_credentials_for") == []


@pytest.mark.parametrize(
    ("sigv4", "needed", "profile"),
    [
        (None, True, ""),
        ({}, True, ""),
        ({"region": "x"}, True, ""),
        ({"profile": "p"}, True, "p"),
        ({"access_key": "a", "secret_key": "s"}, False, ""),
    ],
)
def test_whose_credentials_a_write_needs(variables: Variables, sigv4: Any, needed: bool, profile: str) -> None:
    """Those of the instance are not asked for where a write brings its own."""
    writes = [{"url": "https://y"}, {"url": "https://x", "sigv4": sigv4}]
    value = variables(prometheus_remote_write=writes)
    assert value("__prometheus_credentials_for") == (["prometheus_remote_write"] if needed else [])
    assert value("__prometheus_profile") == profile
    agent = variables(prometheus_remote_write=writes, prometheus_mode="amp-only", prometheus_amp_workspace=ID)
    assert agent("__prometheus_profile") == ""


@pytest.mark.parametrize(
    ("instance_type", "nvidia"),
    [
        *[
            (name, True)
            for name in ("p2.xlarge", "p4de.24xlarge", "p5en.48xlarge", "p6-b200.48xlarge", "p6e-gb200.36xlarge")
        ],
        *[
            (name, True)
            for name in ("g4dn.xlarge", "g5.12xlarge", "g5g.metal", "g6e.48xlarge", "gr6.4xlarge", "gr6f.4xlarge")
        ],
        *[
            (name, False)
            for name in ("g4ad.xlarge", "c5.large", "r6g.large", "m6g.large", "trn1.32xlarge", "inf2.xlarge")
        ],
    ],
)
def test_which_instances_have_nvidias_gpus(variables: Variables, instance_type: str, nvidia: bool) -> None:
    assert bool(re.fullmatch(variables()("__prometheus_gpu_instance_types"), instance_type)) is nvidia


def test_which_instances_have_neuron_devices(variables: Variables) -> None:
    pattern = variables()("__prometheus_neuron_instance_types")
    assert all(re.fullmatch(pattern, name) for name in neuron.TYPES)
    assert not any(re.fullmatch(pattern, name) for name in ("p5.48xlarge", "t3.large", "i4i.32xlarge", "infra1.large"))


@pytest.mark.parametrize(("mode", "needed"), [("none", False), ("self-hosting", True), ("amp-only", True)])
def test_nothing_is_downloaded_that_does_not_run(variables: Variables, mode: str, needed: bool) -> None:
    assert variables(prometheus_mode=mode)("__prometheus_downloads") is needed


@pytest.mark.parametrize(
    ("node_type", "more", "does"),
    [
        ("head", {}, "serves"),
        ("head", {"prometheus_mode": "none"}, ""),
        ("login", {}, "registers"),
        ("login", {"prometheus_mode": "none"}, ""),
        ("login", {"prometheus_discovery": "ec2"}, ""),
        ("login", {"prometheus_registration_dir": ""}, ""),
        ("compute", {"prometheus_enabled": True}, ""),
    ],
)
def test_what_a_node_does(variables: Variables, node_type: str, more: dict[str, Any], does: str) -> None:
    """Whoever does neither, any more, has stopped what did."""
    value = variables(node_type=node_type, **{"prometheus_registration_dir": "/fsx/login.d", **more})
    assert [word for word in ("serves", "registers") if value(f"__prometheus_{word}") is True] == does.split()
    assert variables(node_type=node_type)("prometheus_enabled") is (node_type != "compute")


def expression(repo: Path, file: str, alert: str) -> str:
    """What an alert of our rules asks."""
    groups = yaml.safe_load((repo / f"roles/prometheus/files/rules/{file}.yml").read_text())["groups"]
    (found,) = (one["expr"] for group in groups for one in group["rules"] if one.get("alert") == alert)
    return str(found)


def test_a_dead_node_is_an_alert_before_it_is_no_target_and_one_that_leaves_is_none(
    variables: Variables, repo: Path
) -> None:
    """In seconds. The alert takes the last scrape that went well from quarters of a minute."""

    def seconds(text: str) -> int:
        return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]

    def limit(alert: str) -> int:
        return int(re.findall(r"> (\d+)", expression(repo, "node", alert))[0])

    value = variables()
    targets = value("prometheus_targets_interval") + 6  # the timer's accuracy, and Prometheus' own delay
    refresh = seconds(value("prometheus_ec2_refresh_interval")) + 15
    assert max(targets, refresh) + 15 < limit("NodeDown")
    slurmd_timeout = 180  # ParallelCluster's slurm.conf
    assert limit("NodeDown") < slurmd_timeout - seconds(value("prometheus_scrape_interval")) - 10
    assert value("prometheus_registration_max_age") + targets + 15 < limit("LoginNodeDown")
    assert value("prometheus_registration_max_age") > 2 * value("prometheus_registration_interval")


@pytest.mark.parametrize("discovery", ["slurm", "ec2"])
def test_every_job_has_a_limit_and_drops_what_it_should(variables: Variables, discovery: str) -> None:
    drop = [{"source_labels": ["__name__"], "regex": "a_.*|b$", "action": "drop"}]
    jobs = [
        {"name": "plain", "port": 1},
        {"name": "own", "port": 2, "sample_limit": 7, "metric_relabel_configs": drop},
        {"name": "free", "port": 3, "sample_limit": 0},
    ]
    value = variables(prometheus_discovery=discovery, prometheus_jobs=jobs, prometheus_local_job={"sample_limit": 9})
    made = {one["job_name"]: one for one in yaml.safe_load(value("prometheus.yml.j2"))["scrape_configs"]}
    limits = {name: one.get("sample_limit") for name, one in made.items()}
    assert limits == {"prometheus": None, "local": 9, "plain": 20000, "own": 7, "free": 0}
    assert {name: one["metric_relabel_configs"] for name, one in made.items() if "metric_relabel_configs" in one} == {
        "own": drop
    }
    default = yaml.safe_load(variables(prometheus_discovery=discovery)("prometheus.yml.j2"))["scrape_configs"]
    limits = {one["job_name"]: one.get("sample_limit") for one in default}
    assert limits.items() >= {"prometheus": None, "local": 100000, "node": 20000, "dcgm": 20000}.items()
    given = {"metric_relabel_configs": drop}
    local = yaml.safe_load(variables(prometheus_local_job=given)("prometheus.yml.j2"))["scrape_configs"][1]
    assert (local["job_name"], local["sample_limit"], local["metric_relabel_configs"]) == ("local", 100000, drop)


# What slurm_exporter 1.8.4 publishes of users beside the collectors that have a flag (scheduler.go, reservations.go).
OF_USERS = [
    *({"__name__": f"slurm_user_rpc_stats{end}", "user": "alice"} for end in ("", "_avg_time", "_total_time")),
    {"__name__": "slurm_reservation_info", "reservation_name": "night", "users": "alice,bob", "state": "ACTIVE"},
    {"__name__": "slurm_rpc_stats", "operation": "REQUEST_PING"},
    {"__name__": "slurm_user_jobs_running", "username": "alice"},  # slurmctld's own, by slurm_exporter_native_users
    {"__name__": "grafana_stat_total_users", "user": "x"},
]


@pytest.mark.parametrize("node_type", ["head", "monitoring"])
def test_without_users_no_series_of_slurms_exporter_names_one(variables: Variables, node_type: str) -> None:
    job = "local" if node_type == "head" else "slurm"
    own = [{"source_labels": ["__name__"], "regex": "slurm_rpc_.*", "action": "drop"}]

    def kept(**given: Any) -> list[dict[str, str]]:
        value = variables(node_type=node_type, **given)
        made = {one["job_name"]: one for one in yaml.safe_load(value("prometheus.yml.j2"))["scrape_configs"]}
        rules = made[job].get("metric_relabel_configs", [])
        return [left for left in (relabel(series, rules) for series in OF_USERS) if left]

    assert kept() == OF_USERS
    for no in (False, "false"):
        reserved, *others = kept(slurm_exporter_users=no)
        assert reserved == {"__name__": "slurm_reservation_info", "reservation_name": "night", "state": "ACTIVE"}
        assert others == OF_USERS[4:]
    if node_type == "head":
        left = kept(slurm_exporter_users=False, prometheus_local_job={"metric_relabel_configs": own})
        names = ["slurm_reservation_info", "slurm_user_jobs_running", "grafana_stat_total_users"]
        assert [one["__name__"] for one in left] == names


@pytest.mark.parametrize("unit", ["prometheus", "alertmanager"])
def test_aws_ca_bundle_reaches_no_program_whose_requests_it_stops(work_out: Variables, unit: str) -> None:
    """With it, AWS' SDK for Go v2 refuses an HTTP client that is not its own: Prometheus' discovery/aws/ec2.go, and
    Alertmanager's notify/sns/sns.go. A drop-in or systemd's DefaultEnvironment may bring it.
    """
    text = work_out(unit, {"node_type": "head"})(f"{unit}.service.j2")
    assert re.findall("^UnsetEnvironment=(.*)$", text, re.MULTILINE) == ["AWS_CA_BUNDLE"]


def test_no_panel_and_no_rule_asks_for_what_is_dropped(variables: Variables, repo: Path) -> None:
    (drop,) = next(job for job in variables()("prometheus_jobs") if job["name"] == "node")["metric_relabel_configs"]
    assert (drop["source_labels"], drop["action"]) == (["__name__"], "drop")
    files = [*repo.glob("roles/grafana/files/dashboards/*.json"), *repo.glob("roles/prometheus/files/rules/*.yml")]
    asked = {name for path in files for name in re.findall(r"\bnode_network_\w+", path.read_text())}
    assert len(asked) >= 4
    assert [name for name in asked if re.fullmatch(drop["regex"], name)] == []
    assert re.fullmatch(drop["regex"], "node_network_transmit_colls_total")


def test_slurms_exporter(variables: Variables) -> None:
    metrics = {"accounting": False}
    flags = variables(__slurm_exporter_metrics=metrics, slurm_exporter_collectors_disabled=["info"])(
        "__slurm_exporter_arguments"
    )
    assert flags[0] == "--web.listen-address=127.0.0.1:9341"
    assert flags[1] == "--slurm.bin-path=/opt/slurm/bin"
    assert flags[-2:] == ["--no-collector.info", "--no-collector.fairshare"]
    value = variables(__slurm_exporter_metrics={"accounting": True}, slurm_exporter_flags=["--log.level=warn"])
    assert "--no-collector.fairshare" not in value("__slurm_exporter_arguments")
    assert value("__slurm_exporter_arguments")[-1] == "--log.level=warn"
    assert value("__slurm_exporter_url").endswith("/v1.8.4/slurm_exporter-1.8.4-linux-arm64.tar.gz")
    assert value("__slurm_exporter_local_address") == "127.0.0.1:9341"
    assert variables(slurm_exporter_listen_address=":1")("__slurm_exporter_local_address") == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("hashes", "needs"),
    [
        ({"x86_64": "a" * 64, "aarch64": ""}, "slurm_exporter_sha256['aarch64']"),
        ({"x86_64": "a" * 64}, "slurm_exporter_sha256['aarch64']"),
        ({"x86_64": "", "aarch64": "b" * 64}, ""),
    ],
)
def test_the_variable_without_which_there_is_no_exporter(
    variables: Variables, hashes: dict[str, str], needs: str
) -> None:
    assert variables(slurm_exporter_sha256=hashes)("__slurm_exporter_needs") == needs


def test_every_alert_is_seen_firing_and_every_record_is_asked_for(repo: Path) -> None:
    """What they say is for promtool, which the sandbox has."""
    for path in sorted((repo / "roles/prometheus/files/rules").glob("*.yml")):
        text = (repo / "tests/rules" / path.name).read_text()
        cases = yaml.safe_load(text)["tests"]
        seen = {one["alertname"] for case in cases for one in case.get("alert_rule_test", []) if one["exp_alerts"]}
        asked = [ask for case in cases for ask in case.get("promql_expr_test", []) if ask["exp_samples"]]
        told = [ask["expr"] for ask in asked] + [one["labels"] for ask in asked for one in ask["exp_samples"]]
        rules = [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]
        alerts = {rule["alert"]: rule["expr"] for rule in rules if "alert" in rule}
        assert alerts
        seen |= {name for name in alerts if any(f'alertname="{name}"' in one for one in told)}
        assert seen == set(alerts), path.name
        for name in (rule["record"] for rule in rules if "record" in rule):
            assert any(name in one for one in (text, *alerts.values())), f"{name} of {path.name} is not tested"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "server on 127.0.0.1:9090, samples kept 15d, 10GB of them at most"),
        ({"prometheus_mode": "amp+amg", "prometheus_amp_workspace": WRITE}, f"agent, writes to {ID}"),
        ({"prometheus_mode": "none", "state": "loaded"}, "stopped (prometheus_mode is none), samples kept in /var/lib"),
        ({"prometheus_mode": "none", "state": "not-found"}, ""),
    ],
)
def test_the_report_says_what_runs(variables: Variables, given: dict[str, str], told: str) -> None:
    stopped = {"units": {"prometheus.service": {"status": {"LoadState": given.pop("state", "")}}}}
    said = variables(**given, __prometheus_stopped_service=stopped)("__prometheus_summary")
    assert said.startswith(told) if told else said == ""


def test_xids_are_those_of_the_table(repo: Path) -> None:
    """No XID is in two classes of it, and the alerts ask for those of their class."""
    files = repo / "roles/prometheus/files"
    table = yaml.safe_load((files / "xids.yml").read_text())
    classes = {name: [xid for group in groups for xid in group["xids"]] for name, groups in table.items()}
    assert list(classes) == ["critical", "none"]
    everyone = [xid for xids in classes.values() for xid in xids]
    assert len(everyone) == len(set(everyone))

    def asked(alert: str) -> list[tuple[str, str]]:
        return re.findall(r'xid([!=]~)"([0-9|]+)"', expression(repo, "gpu", alert))

    critical, none = ("|".join(str(xid) for xid in sorted(classes[name])) for name in ("critical", "none"))
    assert asked("GpuXidCritical") == [("=~", critical)]
    assert asked("GpuXid") == [("!~", critical), ("!~", none)]


def counted(statuses: list[str]) -> dict[str, int]:
    """What slurmctld counts of nodes that sinfo prints so: each by its base state, and by each of its flags.

    That is _statistics_part_aggregate_node of src/slurmctld/statistics.c, Slurm 25.11.7. A drained node may also be
    down, which its state does not say.
    """
    count: Counter[str] = Counter()
    for status in statuses:
        match = re.fullmatch(r"(\w+)([~#%*]?)", status)
        assert match, status
        word, mark = match.groups()
        bases = {"allocated": "alloc", "planned": "idle", "drained": "idle", "draining": "mixed"}
        count[bases.get(word, word)] += 1
        count["drain"] += word == "drained"
        count["draining"] += word == "draining"
        count[{"~": "powered_down", "%": "powering_down", "#": "powering_up"}.get(mark, "")] += 1
    return count


def test_slurmctld_counts_the_nodes_of_which_the_exporter_tells(repo: Path) -> None:
    """The rules are tested on both, and on the same nodes."""
    cases = {one["name"]: one for one in yaml.safe_load((repo / "tests/rules/slurm.yml").read_text())["tests"]}
    statuses: dict[str, list[str]] = {}
    for one in cases["the exporter's"]["input_series"]:
        if one["series"].startswith("slurm_node_status{"):
            labels = dict(re.findall(r'(\w+)="([^"]*)"', one["series"]))
            statuses.setdefault(labels["partition"], []).append(labels["status"])
    told: dict[str, dict[str, int]] = {}
    for one in cases["slurmctld's own"]["input_series"]:
        match = re.match(r'slurm_partition_nodes_(\w+)\{.*partition="(\w+)"', one["series"])
        if match and match[1] != "cpus_alloc":
            told.setdefault(match[2], {})[match[1]] = int(one["values"].split("x")[0])
    assert set(told) == set(statuses) == {"gpu", "nocap", "rest"}
    for partition, values in told.items():
        count = counted(statuses[partition])
        assert values == {name: count[name] for name in values}, partition
        assert len(values) == 9


@pytest.mark.parametrize(("platform", "listed"), [("hyperpod", True), ("parallelcluster", False)])
def test_targets_are_told_of_hyperpods_list_of_instances(work_out: Variables, platform: str, listed: bool) -> None:
    facts = {"platform": platform, "cluster": "main", "slurm": {"prefix": "/opt/slurm"}}
    found = work_out("common slurm_exporter prometheus", facts)("__prometheus_render")
    assert (f"--instances={hyperpod.RESOURCES}" in found) is listed


def test_hyperpods_own_exporters_are_scraped(work_out: Variables) -> None:
    def jobs(ports: list[int]) -> list[tuple[Any, ...]]:
        facts = {"platform": "hyperpod", "exporter_ports": ports}
        found = work_out("slurm_exporter prometheus", facts)("prometheus_jobs")
        return [(job["name"], job["port"], job.get("node_types")) for job in found]

    ours = [("node", 9100, None), ("dcgm", 9400, None), ("neuron", 8000, None)]
    assert jobs([]) == ours
    assert jobs([9100, 9341]) == [*ours, ("slurm", 9341, ["head"]), ("efa", 9109, ["compute"])]
