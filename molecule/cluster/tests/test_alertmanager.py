# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Alertmanager beside Prometheus: what arrives at the sandbox's door for messages, what does not, and what is refused.

Alertmanager and amtool are the distribution's own.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from testinfra.host import Host

from .conftest import TOPOLOGY
from .helpers import On, Play, exposure, failure, ok, process, until, variables
from .test_prometheus import ask

ONLY = ("--limit", "head", "--tags", "alertmanager")
CONFIGURATION = "/etc/alertmanager/alertmanager.yml"
SECRETS = "/etc/alertmanager/secrets"
PAGE = Path(__file__).resolve().parents[3] / "docs/alerts.md"
DOOR = "http://registry:5002"
# Alerts for which nothing has to break: the series of two nodes that are up, evaluated every second. A warning about a
# GPU that is dead, and one about a node that is down, are silenced.
RULES = """
groups:
  - name: sandbox
    interval: 1s
    rules:
      - {alert: SandboxHot, labels: {severity: warning, gpu: "0"}, expr: 'up{job="node", pc_queue="gpu"} == 1'}
      - {alert: SandboxHot, labels: {severity: warning, gpu: "1"}, expr: 'up{job="node", pc_queue="gpu"} == 1'}
      - {alert: SandboxHot, labels: {severity: warning, gpu: "2"}, expr: 'up{job="node", pc_queue="gpu"} == 1'}
      - {alert: SandboxDead, labels: {severity: critical, gpu: "1"}, expr: 'up{job="node", pc_queue="gpu"} == 1'}
      - {alert: SandboxHot, labels: {severity: warning, gpu: "0"}, expr: 'up{job="node", pc_queue="cpu"} == 1'}
      - {alert: NodeDown, labels: {severity: critical}, expr: 'up{job="node", pc_queue="cpu"} == 1'}
"""
OURS = {("SandboxHot", "gpu"), ("SandboxDead", "gpu"), ("SandboxHot", "cpu"), ("NodeDown", "cpu")}


def told(host: Host, name: str) -> list[dict[str, Any]]:
    """The messages of this cluster's Alertmanager at the door."""
    found: list[dict[str, Any]] = json.loads(host.check_output(f"curl -sf -m 10 {DOOR}/{name}"))
    return [one for one in found if one["commonLabels"].get("cluster") == "main"]


def sandbox_alerts(host: Host, since: int) -> dict[tuple[str, str], dict[str, Any]]:
    """The last message about each of RULES' alerts and queues, without those that were there before."""
    found = {
        (one["groupLabels"].get("alertname"), one["groupLabels"].get("pc_queue")): one
        for one in told(host, "people")[since:]
    }
    return {key: one for key, one in found.items() if key in OURS}


@contextmanager
def rules(host: Host, text: str) -> Iterator[None]:
    """Rules that Prometheus has read; afterwards none of them holds any more, and then they are gone."""
    path = "/etc/prometheus/rules/sandbox.yml"
    put = f"cat > {path} && systemctl reload prometheus"
    host.check_output(f"printf %s {shlex.quote(text)} | ({put})")
    try:
        yield
    finally:
        # Prometheus says that an alert is over where its rule is still there.
        host.check_output(f"sed -i 's/== 1/== 2/' {path} && systemctl reload prometheus && sleep 3")
        host.check_output(f"rm {path} && systemctl reload prometheus")


def test_prometheus_finds_it_without_a_variable(on: On, head: str) -> None:
    host = on(head)
    (found,) = ask(host, "alertmanagers")["activeAlertmanagers"]
    assert found["url"] == "http://127.0.0.1:9093/api/v2/alerts"
    until(lambda: ask(host, "query", 'up{job="alertmanager"} == 1')["result"], 60)


def test_nobody_else_reaches_it_and_it_may_do_little(on: On, head: str) -> None:
    host = on(head)
    pid = process(host, "alertmanager")
    listening = host.check_output(f"ss -Hltnp | grep pid={pid},")
    assert [line.split()[3] for line in listening.splitlines()] == ["127.0.0.1:9093"]
    assert host.check_output(f"ps -o user= -p {pid}").strip() == "alertmanager"
    assert host.check_output(f"grep CapEff /proc/{pid}/status").split()[-1] == "0000000000000000"
    assert exposure(host, "alertmanager") < 2
    assert (host.file(CONFIGURATION).mode, host.file(CONFIGURATION).group) == (0o640, "alertmanager")


def test_the_alert_that_always_fires_arrives(on: On) -> None:
    head = on("head")
    before = len(told(head, "watch"))
    until(lambda: len(told(head, "watch")) > before, 40, "a message to the dead man's switch")
    assert {one["commonLabels"]["alertname"] for one in told(head, "watch")} == {"Watchdog"}
    assert "Watchdog" not in {one["groupLabels"].get("alertname") for one in told(head, "people")}


def test_alerts_arrive_by_queue_are_over_and_what_follows_from_others_is_not_told(on: On) -> None:
    head = on("head")
    since = len(told(head, "people"))
    with rules(head, RULES):
        until(lambda: len(sandbox_alerts(head, since)) >= 3, 30, "a message for each group")
        time.sleep(3)  # whatever else would be told by now
        found = sandbox_alerts(head, since)
    assert set(found) == OURS - {("SandboxHot", "cpu")}
    message = found["SandboxHot", "gpu"]
    assert sorted(one["labels"]["gpu"] for one in message["alerts"]) == ["0", "2"]
    assert (message["groupLabels"]["pc_cluster"], message["externalURL"]) == ("main", "http://localhost:9093")
    until(
        lambda: {one["status"] for one in sandbox_alerts(head, since).values()} == {"resolved"}, 30, "that all are over"
    )


def test_a_route_that_is_wrong_changes_nothing(on: On, play: Play) -> None:
    head = on("head")
    state = f"stat --format='%n %i %Z' /etc/alertmanager {CONFIGURATION} /etc/systemd/system/alertmanager.service"
    before = process(head, "alertmanager"), head.check_output(state)
    route = {"routes": [{"receiver": "nowhere", "matchers": ["severity=critical"]}]}
    change = variables(alertmanager_route=route, alertmanager_secrets={"slack": "file:///etc/machine-id"})
    line = failure(play(*ONLY, *change), "head", "alertmanager")
    assert 'undefined receiver "nowhere" used in route; correct alertmanager_route, alertmanager_receivers' in line
    assert (process(head, "alertmanager"), head.check_output(state)) == before
    assert not head.file(SECRETS).exists


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_a_secret_reaches_alertmanager_and_nobody_else(on: On, play: Play) -> None:
    head = on("head")
    url, other = f"{DOOR}/secret-one", f"{DOOR}/secret-two"
    head.check_output(f'aws secretsmanager create-secret --name alerts-test --secret-string \'{{"hook": "{url}"}}\'')
    head.check_output(f"umask 077 && echo {other} > /root/alerts-test")
    receivers = [
        {"name": "people", "webhook_configs": [{"url_file": f"{SECRETS}/{name}"} for name in ("hook", "mine")]}
    ]
    secrets = {"hook": "alerts-test", "mine": "file:///root/alerts-test"}
    change = variables(
        alertmanager_receivers=receivers, alertmanager_secrets=secrets, alertmanager_watchdog_receiver="people"
    )
    try:
        assert "0 failed" in play(*ONLY, "--check", *change).stdout
        assert not head.file(SECRETS).exists
        result = ok(play(*ONLY, *change))
        assert not failure(result, "head", "alertmanager")
        until(lambda: told(head, "secret-one") and told(head, "secret-two"), 40, "messages at both secret addresses")
        assert "0 changed" in play(*ONLY, *change).stdout
        for path, mode in ((SECRETS, 0o750), (f"{SECRETS}/hook", 0o640), (f"{SECRETS}/mine", 0o640)):
            assert (head.file(path).mode, head.file(path).user, head.file(path).group) == (mode, "root", "alertmanager")
        pid = process(head, "alertmanager")
        assert head.run(f"cat /proc/{pid}/cmdline /proc/{pid}/environ | grep -a secret-").rc == 1
        assert head.run("journalctl --quiet --no-pager -u alertmanager | grep secret-one").rc == 1
        assert "secret-one" not in result.stdout + result.stderr
        # Another secret needs no restart, because Alertmanager reads the file when it sends.
        head.check_output(f"aws secretsmanager put-secret-value --secret-id alerts-test --secret-string {DOOR}/rotated")
        ok(play(*ONLY, *change))
        until(lambda: told(head, "rotated"), 40, "a message at the new address")
        assert process(head, "alertmanager") == pid
        # What is missing, or open to everybody, is told before anything is changed.
        head.check_output("chmod 644 /root/alerts-test")
        line = failure(play(*ONLY, *change), "head", "alertmanager")
        assert "alertmanager_secrets['mine']: /root/alerts-test has mode 0644; needed: 0640 or less" in line
        line = failure(play(*ONLY, *change, *variables(alertmanager_secrets={})), "head", "alertmanager")
        assert f"found the file {SECRETS}/hook; needed: a name of alertmanager_secrets (none yet)" in line
        assert head.file(f"{SECRETS}/hook").exists
    finally:
        head.check_output("rm -f /root/alerts-test")
        head.check_output("aws secretsmanager delete-secret --secret-id alerts-test --force-delete-without-recovery")
    ok(play(*ONLY))
    assert not head.file(SECRETS).exists


class Unsafe(str):
    """A value that Ansible leaves as it is."""


@pytest.mark.long
def test_amtool_accepts_every_example_of_the_page(on: On, play: Play, tmp_path: Path) -> None:
    """All of them at once, because their receivers have names of their own, and the same where they are the same."""
    yaml.SafeLoader.add_constructor("!unsafe", lambda _loader, node: Unsafe(node.value))
    yaml.SafeDumper.add_representer(Unsafe, lambda dumper, data: dumper.represent_scalar("!unsafe", str(data)))
    blocks = [yaml.safe_load(one) for one in re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.M | re.S)]
    every: dict[str, Any] = {}
    for block in blocks:
        receivers = {one["name"]: one for one in block["alertmanager_receivers"]}
        every.setdefault("alertmanager_receivers", {}).update(
            {name: one for name, one in receivers.items() if name not in every["alertmanager_receivers"]}
        )
        every.setdefault("alertmanager_secrets", {}).update(block.get("alertmanager_secrets", {}))
        every.update({key: value for key, value in block.items() if key not in every})
    every["alertmanager_receivers"] = list(every["alertmanager_receivers"].values())
    (tmp_path / "page.yml").write_text(yaml.safe_dump(every))
    head, manager = on("head"), boto3.client("secretsmanager", region_name=TOPOLOGY["region"])
    names = set(every["alertmanager_secrets"].values())
    head.check_output("bash /sandbox/node/sandbox/imds.sh role HeadRole")
    try:
        for name in names:
            manager.create_secret(Name=name, SecretString="https://example.org/")
        result = ok(play(*ONLY, "--check", "-e", f"@{tmp_path}/page.yml"))
        assert not failure(result, "head", "alertmanager")
        assert "tells topic, channel, mail, oncall, program, snitch" in result.stdout
        # And one that amtool refuses, to be sure that it is asked.
        every["alertmanager_receivers"][0]["sns_configs"][0]["topic_arm"] = "x"
        (tmp_path / "page.yml").write_text(yaml.safe_dump(every))
        line = failure(play(*ONLY, "--check", "-e", f"@{tmp_path}/page.yml"), "head", "alertmanager")
        assert "field topic_arm not found" in line
    finally:
        head.check_output("bash /sandbox/node/sandbox/imds.sh reset")
        for name in names:
            manager.delete_secret(SecretId=name, ForceDeleteWithoutRecovery=True)


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_a_changed_configuration_is_reloaded_and_silences_stay(on: On, play: Play) -> None:
    head = on("head")
    before = process(head, "alertmanager")
    made = head.check_output("amtool --alertmanager.url=http://127.0.0.1:9093 silence add -c test alertname=Silent")
    change = variables(
        alertmanager_route={"group_by": ["alertname"], "group_wait": "3s"},
        alertmanager_templates={"own.tmpl": '{% raw %}{{ define "own" }}{{ .Status }}{{ end }}{% endraw %}'},
    )
    try:
        ok(play(*ONLY, *change))
        assert "0 changed" in play(*ONLY, *change).stdout
        answer = json.loads(head.check_output("curl -sf http://127.0.0.1:9093/api/v2/status"))
        assert "group_wait: 3s" in answer["config"]["original"]
        assert process(head, "alertmanager") == before
        ok(play(*ONLY, *change, *variables(alertmanager_flags=["--data.retention=121h"])))
        assert process(head, "alertmanager") != before
        silences = head.check_output("amtool --alertmanager.url=http://127.0.0.1:9093 silence query -q")
        assert made.strip() in silences
        # amtool reads templates too.
        wrong = variables(alertmanager_templates={"own.tmpl": '{% raw %}{{ define "own" }}{% endraw %}'})
        line = failure(play(*ONLY, *wrong), "head", "alertmanager")
        assert (
            "amtool: template: own.tmpl:2: unexpected EOF; correct alertmanager_templates['own.tmpl']; nothing" in line
        )
    finally:
        head.check_output(f"amtool --alertmanager.url=http://127.0.0.1:9093 silence expire {made.strip()}")


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_it_stops_where_the_workspace_tells(on: On, play: Play) -> None:
    head = on("head")
    stopped = variables(alertmanager_state="stopped")
    assert "alertmanager: stopped (alertmanager_state is stopped)" in play(*ONLY, *stopped).stdout
    assert not head.service("alertmanager").is_running
    assert not head.service("alertmanager").is_enabled
    until(lambda: not ask(head, "alertmanagers")["activeAlertmanagers"], 30)
    assert not head.file("/etc/prometheus/targets.d/alertmanager.json").exists
    assert head.file("/var/lib/alertmanager").exists
    assert "0 changed" in play(*ONLY, *stopped).stdout


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_a_topic_of_sns_is_told_with_the_role_of_the_instance(on: On, play: Play) -> None:
    head = on("head")
    aws = "AWS_DEFAULT_REGION=us-east-1 aws --output text"
    topic = head.check_output(f"{aws} sns create-topic --name alerts-test --query TopicArn").strip()
    queue = head.check_output(f"{aws} sqs create-queue --queue-name alerts-test --query QueueUrl").strip()
    head.check_output(
        f"{aws} sns subscribe --topic-arn {topic} --protocol sqs "
        f"--notification-endpoint arn:aws:sqs:us-east-1:123456789012:alerts-test"
    )
    config = {"topic_arn": topic, "api_url": "http://10.115.0.3:5000", "sigv4": {"region": "us-east-1"}}
    change = variables(
        alertmanager_receivers=[{"name": "sns", "sns_configs": [config]}], alertmanager_watchdog_receiver="sns"
    )
    head.check_output("bash /sandbox/node/sandbox/imds.sh role HeadRole")
    try:
        assert not failure(ok(play(*ONLY, *change)), "head", "alertmanager")
        take = f"{aws} sqs receive-message --queue-url {queue} --query 'Messages[0].Body'"
        until(lambda: "Watchdog" in head.check_output(take), 60, "a message of the topic")
    finally:
        head.check_output("bash /sandbox/node/sandbox/imds.sh reset")
        head.check_output(f"{aws} sns delete-topic --topic-arn {topic}; {aws} sqs delete-queue --queue-url {queue}")
