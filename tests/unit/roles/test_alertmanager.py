# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What role alertmanager works out from its variables, with Ansible's own templating."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Variables = Callable[..., Callable[[str], Any]]
PEOPLE = {"name": "people", "slack_configs": [{"channel": "#gpu", "api_url_file": "/etc/alertmanager/secrets/slack"}]}
ONCALL = {"name": "oncall", "webhook_configs": [{"url": "https://example.org/hook"}]}
NOBODY = "pcluster-nobody"


@pytest.fixture
def variables(work_out: Variables, repo: Any) -> Variables:
    """variables(node_type=…, **more) returns a function that works out a variable, or a template of alertmanager."""

    def make(node_type: str = "head", **more: Any) -> Callable[[str], Any]:
        folder = str(repo / "roles/alertmanager")
        return work_out("alertmanager", {"node_type": node_type}, **{"role_path": folder, **more})

    return make


def configuration(variables: Variables, **more: Any) -> dict[str, Any]:
    text = variables(**{"alertmanager_receivers": [PEOPLE, ONCALL], **more})("alertmanager.yml.j2")
    assert text.startswith("# Managed.\n")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.mark.parametrize(
    ("node_type", "receivers", "enabled"),
    [
        ("head", [], False),
        ("head", [PEOPLE], True),
        ("monitoring", [PEOPLE], True),
        ("login", [PEOPLE], False),
        ("compute", [PEOPLE], False),
    ],
)
def test_nodes_with_prometheus_have_it_once_there_is_a_receiver(
    variables: Variables, node_type: str, receivers: list[Any], enabled: bool
) -> None:
    assert variables(node_type, alertmanager_receivers=receivers)("alertmanager_enabled") is enabled


@pytest.mark.parametrize(
    ("mode", "state"),
    [("self-hosting", "started"), ("amp-only", "stopped"), ("amp+amg", "stopped"), ("none", "stopped")],
)
def test_it_runs_where_rules_are_evaluated(variables: Variables, mode: str, state: str) -> None:
    """Elsewhere the workspace's own Alertmanager tells, and two would tell twice."""
    value = variables(prometheus_mode=mode, alertmanager_receivers=[PEOPLE])
    assert value("alertmanager_state") == state
    assert value("__alertmanager_downloads") is (state == "started")
    # So that one that ran before is stopped.
    assert value("alertmanager_enabled") is True


def test_a_receiver_is_all_that_is_needed(variables: Variables) -> None:
    found = configuration(variables)
    assert [one["name"] for one in found["receivers"]] == ["people", "oncall", NOBODY]
    route = found["route"]
    (watchdog,) = route.pop("routes")
    assert route == {
        "receiver": "people",
        "group_by": ["pc_cluster", "pc_queue", "alertname"],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "4h",
    }
    assert (watchdog["receiver"], watchdog["matchers"]) == (NOBODY, ['alertname="Watchdog"'])
    assert configuration(variables, alertmanager_receivers=[])["route"]["receiver"] == NOBODY


def test_a_route_of_ones_own_keeps_what_it_does_not_say_and_the_dead_mans_switch(variables: Variables) -> None:
    own = {"receiver": "oncall", "repeat_interval": "12h", "routes": [{"receiver": "people", "matchers": ["a=b"]}]}
    more = {"alertmanager_watchdog_receiver": "oncall", "alertmanager_watchdog_interval": "90s"}
    route = configuration(variables, alertmanager_route=own, **more)["route"]
    assert (route["receiver"], route["repeat_interval"], route["group_wait"]) == ("oncall", "12h", "30s")
    watchdog, mine = route["routes"]
    assert mine == own["routes"][0]
    assert watchdog["receiver"] == "oncall"
    # With a longer repeat_interval, every second message would be left out.
    assert (watchdog["group_interval"], watchdog["repeat_interval"]) == ("90s", "1s")


def test_further_rules_come_after_those_that_our_alerts_need(variables: Variables) -> None:
    own = {"source_matchers": ["a=b"], "target_matchers": ["c=d"]}
    rules = configuration(variables, alertmanager_inhibit_rules=[own])["inhibit_rules"]
    lost, faulty, gpu, worse, mine = rules
    assert mine == own
    assert (faulty["source_matchers"], faulty["equal"]) == (['alertname="NodeHealthFault"'], ["pc_cluster", "pc_node"])
    assert gpu["equal"] == ["pc_cluster", "pc_node", "gpu"]
    assert lost["equal"] == ["pc_cluster", "pc_node"]
    assert worse["target_matchers"] == ['severity="warning"']
    without = configuration(variables, alertmanager_default_inhibit_rules=[], alertmanager_inhibit_rules=[own])
    assert without["inhibit_rules"] == [own]


def test_words_of_users_make_no_link_and_call_nobody_in_slack(repo: Path) -> None:
    """Slack: "Formatting text for app surfaces", escaping text. amtool 0.33.1 renders it so in the sandbox."""
    text = (repo / "roles/alertmanager/files/pcluster-postboot.tmpl").read_text()
    (plain,) = re.findall(r'define "pcluster.plain" -}}\n(.*)', text)
    assert re.findall(r'reReplaceAll "(.)" "(&\w+;)"', plain) == [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")]
    actions = re.findall(r"{{-? *([^/{}]+?) *-?}}", text)
    of_others = [one for one in actions if re.search(r"Annotations|Values|Labels\.", one)]
    assert of_others
    assert all(one.startswith(('template "pcluster.plain" ', "with ")) for one in of_others), of_others
    assert "." not in actions  # what `with` has chosen goes the same way


def test_gos_templates_reach_alertmanager_as_they_are(variables: Variables) -> None:
    """Prometheus' family writes them as Ansible writes its own."""
    raw = "{% raw %}{{ .CommonAnnotations.summary }}{% endraw %}"
    value = variables(
        alertmanager_receivers=[{"name": "a", "slack_configs": [{"text": raw}]}],
        alertmanager_templates={"own.tmpl": raw},
    )
    files = {one["path"]: one for one in value("__alertmanager_files")}
    assert "text: '{{ .CommonAnnotations.summary }}'" in files["alertmanager/alertmanager.yml"]["content"]
    assert files["alertmanager/templates/own.tmpl"]["content"] == "{{ .CommonAnnotations.summary }}"
    assert '{{ define "slack.default.text" -}}' in files["alertmanager/templates/pcluster-postboot.tmpl"]["content"]
    # A secret may stand in it.
    assert (files["alertmanager/alertmanager.yml"]["mode"], files["alertmanager/alertmanager.yml"]["group"]) == (
        "0640",
        "alertmanager",
    )


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"alertmanager_watchdog_receiver": "snitch"},
            "alertmanager_watchdog_receiver: found snitch; needed: the name",
        ),
        ({"alertmanager_watchdog_interval": "5"}, "alertmanager_watchdog_interval: found 5; needed: a time such as 5m"),
        ({"alertmanager_external_url": "alerts"}, "alertmanager_external_url: found alerts; needed: a URL such as"),
    ],
)
def test_what_amtool_could_not_name_is_told_by_its_variable(
    variables: Variables, given: dict[str, Any], line: str
) -> None:
    assert variables(alertmanager_receivers=[PEOPLE])("__alertmanager_problems") == []
    (problem,) = variables(alertmanager_receivers=[PEOPLE], **given)("__alertmanager_problems")
    assert problem.startswith(line)


@pytest.mark.parametrize(
    ("address", "local", "link"),
    [
        ("127.0.0.1:9093", "127.0.0.1:9093", "http://localhost:9093/"),
        (":9193", "127.0.0.1:9193", "http://localhost:9193/"),
        ("10.0.0.4:9093", "10.0.0.4:9093", "http://localhost:9093/"),
    ],
)
def test_prometheus_finds_it_without_a_variable(variables: Variables, address: str, local: str, link: str) -> None:
    value = variables(alertmanager_listen_address=address, alertmanager_receivers=[PEOPLE])
    files = {one["path"]: one["content"] for one in value("__alertmanager_files")}
    assert json.loads(files["prometheus/alertmanagers.d/alertmanager.json"]) == [{"targets": [local]}]
    (scraped,) = json.loads(files["prometheus/targets.d/alertmanager.json"])
    assert scraped == {"targets": [local], "labels": {"job": "alertmanager"}}
    assert files["amtool/config.yml"] == f"alertmanager.url: http://{local}\n"
    arguments = value("__alertmanager_arguments")
    assert f"--web.listen-address={address}" in arguments
    assert f"--web.external-url={link}" in arguments


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        ({}, ["file_sd_configs"]),
        ({"prometheus_alertmanagers": ["10.0.0.4:9093"]}, ["file_sd_configs", "static_configs"]),
        ({"prometheus_mode": "amp-only", "prometheus_amp_workspace": "ws-0123"}, None),
    ],
)
def test_a_server_tells_the_one_on_its_node_and_an_agent_nobody(
    work_out: Variables, given: dict[str, Any], kinds: list[str] | None
) -> None:
    value = work_out("slurm_exporter prometheus", {"region": "us-west-2", "node_type": "head"}, **given)
    alerting = yaml.safe_load(value("prometheus.yml.j2")).get("alerting")
    assert (alerting and [key for one in alerting["alertmanagers"] for key in one]) == kinds


def test_it_looks_for_no_others_unless_a_flag_says_so(variables: Variables) -> None:
    own = "--cluster.listen-address=10.0.0.4:9094"
    assert "--cluster.listen-address=" in variables()("__alertmanager_arguments")
    arguments = variables(alertmanager_flags=[own, "--log.level=debug"])("__alertmanager_arguments")
    # Alertmanager refuses a flag that is there twice.
    assert [word for word in arguments if word.startswith("--cluster")] == [own]
    assert arguments[-1] == "--log.level=debug"


@pytest.mark.parametrize(
    ("configs", "needed", "profile"),
    [
        (None, False, ""),
        ([{"topic_arn": "a", "sigv4": {"region": "x"}}], True, ""),
        ([{"topic_arn": "a"}], True, ""),
        ([{"topic_arn": "a", "sigv4": {"profile": "p"}}], True, "p"),
        ([{"topic_arn": "a", "sigv4": {"access_key": "k", "secret_key": "s"}}], False, ""),
    ],
)
def test_sns_needs_credentials_unless_it_brings_them(
    variables: Variables, configs: Any, needed: bool, profile: str
) -> None:
    value = variables(alertmanager_receivers=[PEOPLE, {"name": "sns", **({"sns_configs": configs} if configs else {})}])
    assert bool(value("__alertmanager_sigv4")) is needed
    assert value("__alertmanager_profile") == profile


def test_the_files_that_alertmanager_reads_when_it_sends_are_looked_for(variables: Variables) -> None:
    value = variables(
        alertmanager_receivers=[PEOPLE, ONCALL], alertmanager_global={"smtp_auth_password_file": "/root/smtp"}
    )
    assert value("__alertmanager_named_files") == ["/etc/alertmanager/secrets/slack", "/root/smtp"]


@pytest.mark.parametrize(
    ("given", "loaded", "summary"),
    [
        ({}, "", "at 127.0.0.1:9093, tells people, oncall"),
        ({"alertmanager_receivers": []}, "", "at 127.0.0.1:9093, tells nobody: alertmanager_receivers has none"),
        ({"alertmanager_state": "stopped"}, "loaded", "stopped (alertmanager_state is stopped)"),
        ({"prometheus_mode": "amp-only"}, "loaded", "stopped (prometheus_mode is amp-only)"),
        ({"prometheus_mode": "amp-only"}, "not-found", ""),
    ],
)
def test_the_report_says_whom_it_tells(variables: Variables, given: dict[str, Any], loaded: str, summary: str) -> None:
    stopped = {"__alertmanager_stopped": {"status": {"LoadState": loaded}}}
    value = variables(**{"alertmanager_receivers": [PEOPLE, ONCALL], **stopped, **given})
    assert value("__alertmanager_summary") == summary
