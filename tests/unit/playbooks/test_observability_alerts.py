# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The part of the telemetry's stack that tells people: who may publish, and which events of AWS arrive as which line.

EventBridge is moto's: which events a rule's pattern matches, and what its input transformer makes of them. The events
are those of AWS's pages, which each names. What a policy allows only AWS can show, and so is what its alert manager
takes; the text for the latter is Alertmanager's.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.unit.playbooks import stacks
from ansible_collections.pcluster.postboot.tests.unit.playbooks.stacks import Play, changed

NAME, REGION, ACCOUNT = "pcluster-observability", "us-east-2", "123456789012"
WHOLE = {"observability_alerts_email": "ml@example.org", "observability_alerts_stacks": "ml-*"}
ALONE = {"observability_name": "alone", "observability_prometheus": False, "observability_alerts": True}


@pytest.fixture(scope="module")
def play(deploy: Callable[..., list[str]]) -> Play:
    common = {"observability_region": REGION, "observability_poll": 0.1}
    return lambda *runs, **how: deploy("observability", common, runs, **how)


@pytest.fixture(scope="module")
def said(play: Play) -> list[str]:
    """What a first run says, one without its options, one with a topic alone, and one that would lose the topics."""
    return play(WHOLE, {}, ALONE, {"observability_alerts": False}, code=2)


@pytest.fixture(scope="module")
def client(client: Callable[..., Any], said: list[str]) -> Callable[..., Any]:
    assert said
    return client


def resources(client: Callable[..., Any], stack: str = NAME) -> dict[str, str]:
    """The physical ids of a stack's resources."""
    found = client("cloudformation").list_stack_resources(StackName=stack)["StackResourceSummaries"]
    return {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in found if one["LogicalResourceId"]}


def policy(client: Callable[..., Any], topic: str) -> dict[str, Any]:
    attributes = client("sns").get_topic_attributes(TopicArn=topic)["Attributes"]
    return {one["Sid"]: one for one in json.loads(attributes["Policy"])["Statement"]}


# The stack


def test_the_stack_has_every_resource_of_the_template(client: Callable[..., Any]) -> None:
    # What moto does not know is left out with a warning: such a type belongs into molecule/cluster/aws/messages.py.
    template = stacks.template("observability")["Resources"]
    assert set(resources(client)) == set(template) - {"AlertsPolicy"}


def test_the_second_run_changes_nothing(said: list[str]) -> None:
    assert changed(said[0])
    assert not changed(said[1])


def test_who_is_named_is_told(client: Callable[..., Any], said: list[str], folder: Path) -> None:
    topic = resources(client)["AlertsTopic"]
    (found,) = client("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert (found["Protocol"], found["Endpoint"]) == ("email", "ml@example.org")
    variables = yaml.safe_load((folder / f"observability-{NAME}.yml").read_text())
    assert variables["observability_alerts_topic"] == topic
    assert f"--topic-arn {topic} --notification-endpoint ADDRESS" in said[0]


def test_each_service_but_eventbridge_may_publish_for_the_stacks_own_parts_alone(client: Callable[..., Any]) -> None:
    there = resources(client)
    allowed = policy(client, there["AlertsTopic"])
    assert {name: one["Principal"]["Service"].split(".")[0] for name, one in allowed.items()} == {
        "EventBridge": "events",
        "AlertManager": "aps",
        "Silence": "cloudwatch",
    }
    # "You can't use Condition blocks in Amazon SNS topic policies for EventBridge" (EventBridge User Guide).
    assert "Condition" not in allowed["EventBridge"]
    # As "Giving Amazon Managed Service for Prometheus permission to send alert messages" (AMP User Guide) has it.
    assert allowed["AlertManager"]["Action"] == ["sns:Publish", "sns:GetTopicAttributes"]
    assert allowed["AlertManager"]["Condition"] == {
        "ArnEquals": {"aws:SourceArn": there["Prometheus"]},
        "StringEquals": {"aws:SourceAccount": ACCOUNT},
    }
    assert set(policy(client, there["HeartbeatsTopic"])) == {"AlertManager"}
    (alarm,) = client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert allowed["Silence"]["Condition"]["ArnEquals"] == {"aws:SourceArn": alarm["AlarmArn"]}


def test_silence_is_an_alarm(client: Callable[..., Any]) -> None:
    there = resources(client)
    (alarm,) = client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert alarm["AlarmActions"] == alarm["OKActions"] == [there["AlertsTopic"]]
    assert alarm["Dimensions"] == [{"Name": "TopicName", "Value": there["HeartbeatsTopic"].split(":")[-1]}]
    assert (alarm["MetricName"], alarm["TreatMissingData"]) == ("NumberOfMessagesPublished", "breaching")
    assert client("sns").list_subscriptions_by_topic(TopicArn=there["HeartbeatsTopic"])["Subscriptions"] == []


def test_a_topic_alone_is_for_the_head_nodes_alertmanager(client: Callable[..., Any], folder: Path) -> None:
    there = resources(client, "alone")
    assert set(there) == {
        *("AlertsPolicy", "AlertsTopic", "AlertsTopicPolicy"),
        *("CapacityBlocks", "CapacityReservations", "FailedStacks", "InstanceEvents"),
    }
    assert set(policy(client, there["AlertsTopic"])) == {"EventBridge"}
    variables = yaml.safe_load((folder / "observability-alone.yml").read_text())
    assert variables == {
        "observability_alerts_topic": there["AlertsTopic"],
        "observability_head_node_policy": there["AlertsPolicy"],
    }


def test_topics_are_deleted_only_by_name(said: list[str], client: Callable[..., Any]) -> None:
    assert "would remove AlertsTopic (AWS::SNS::Topic), and what it holds would be lost" in said[3]
    assert "AlertsTopic" in resources(client)


# The alert manager of the workspace


@pytest.fixture(scope="module")
def definition() -> dict[str, Any]:
    """What the workspace gets, with its references as text."""
    workspace = stacks.template("observability")["Resources"]["Prometheus"]["Properties"]
    condition, text, _none = workspace["AlertManagerDefinition"]["Fn::If"]
    assert condition == "WithAlertManager"
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{([\w:]+)\}", r"\1", text["Fn::Sub"]))
    return found


def test_the_workspace_takes_what_it_gets(definition: dict[str, Any]) -> None:
    """By AMP's User Guide: "alert manager configuration", "send messages to your Amazon SNS topic" and the quotas."""
    assert set(definition) == {"template_files", "alertmanager_config"}
    config = yaml.safe_load(definition["alertmanager_config"])
    assert set(config["templates"]) == set(definition["template_files"])
    for receiver in config["receivers"]:
        assert set(receiver) == {"name", "sns_configs"}
        for one in receiver["sns_configs"]:
            assert not {"api_url", "http_config"} & set(one)
            assert one["sigv4"]["region"]
    defined = "".join(definition["template_files"].values())
    for name in ("pcluster.subject", "pcluster.message"):
        assert f'{{{{ define "{name}" }}}}' in defined
        assert name in config["receivers"][0]["sns_configs"][0]["subject"] + str(config["receivers"][0])


def test_people_are_told_by_cluster_and_queue_and_the_watchdog_tells_nobody(definition: dict[str, Any]) -> None:
    route = yaml.safe_load(definition["alertmanager_config"])["route"]
    assert (route["receiver"], route["group_by"]) == ("people", ["pc_cluster", "pc_queue", "alertname"])
    (watchdog,) = route["routes"]
    assert (watchdog["receiver"], watchdog["matchers"]) == ("heartbeats", ['alertname="Watchdog"'])


# What AWS tells

# "Monitor Capacity Blocks using EventBridge" (EC2 User Guide), with an envelope. The page in English writes both names
# without `Reservation`, that of the China regions with.
CAPACITY = {
    "version": "0",
    "id": "12345678-1234-1234-1234-123456789012",
    "detail-type": "Capacity Block Expiration Warning",
    "source": "aws.ec2",
    "account": "123456789012",
    "time": "2026-11-27T10:50:00Z",
    "region": "us-east-2",
    "resources": ["arn:aws:ec2:us-east-2:123456789012:capacity-reservation/cr-0123456789abcdef0"],
    "detail": {"capacity-reservation-id": "cr-0123456789abcdef0", "end-date": "2026-11-27T11:30:00Z"},
}
# "Monitor state changes for future-dated Capacity Reservations" (EC2 User Guide).
RESERVATION = {
    **CAPACITY,
    "detail-type": "EC2 Capacity Reservation Scheduled",
    "detail": {"capacity-reservation-id": "cr-0123456789abcdef0", "state": "scheduled"},
}
# "Reference: AWS Health events Amazon EventBridge schema" (AWS Health User Guide).
HEALTH = {
    "version": "0",
    "id": "7bf73129-1428-4cd3-a780-95db273d1602",
    "detail-type": "AWS Health Event",
    "source": "aws.health",
    "account": "123456789012",
    "time": "2026-11-23T06:27:57Z",
    "region": "us-east-2",
    "resources": ["i-0123456789abcdef0"],
    "detail": {
        "eventArn": "arn:aws:health:us-east-2::event/EC2/AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED/A1",
        "service": "EC2",
        "eventTypeCode": "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED",
        "eventTypeCategory": "scheduledChange",
        "eventScopeCode": "ACCOUNT_SPECIFIC",
        "startTime": "Tue, 1 Dec 2026 04:00:00 GMT",
        "endTime": "Tue, 1 Dec 2026 06:00:00 GMT",
        "affectedEntities": [{"entityValue": "i-0123456789abcdef0"}],
    },
}
# "Stack Status Change event detail" (CloudFormation User Guide).
STACK = {
    "version": "0",
    "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
    "detail-type": "CloudFormation Stack Status Change",
    "source": "aws.cloudformation",
    "account": "123456789012",
    "time": "2026-11-23T18:43:48Z",
    "region": "us-east-2",
    "resources": ["arn:aws:cloudformation:us-east-2:123456789012:stack/ml-1/5d3a7b10-e748-11e7"],
    "detail": {
        "stack-id": "arn:aws:cloudformation:us-east-2:123456789012:stack/ml-1/5d3a7b10-e748-11e7",
        "status-details": {"status": "ROLLBACK_IN_PROGRESS", "status-reason": "The following resource(s) failed"},
        "client-request-token": "",
    },
}


def told(event: dict[str, Any], **detail: Any) -> list[str]:
    """What people read of an event, after every rule of the account has seen it."""
    from moto.events import events_backends
    from moto.sns import sns_backends

    topic = next(one for arn, one in sns_backends[ACCOUNT][REGION].topics.items() if f":{NAME}-Alerts" in arn)
    topic.sent_notifications.clear()
    bus = events_backends[ACCOUNT][REGION].event_buses["default"]
    for rule in bus.rules.values():
        rule.send_to_targets({**event, "detail": {**event["detail"], **detail}, "ingestion-time": time.time()})
    return [json.loads(message) for _id, message, *_more in topic.sent_notifications]


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    "kind",
    [
        *("Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning"),
        *("Capacity Block Delivered", "Capacity Block Reservation Delivered"),
    ],
)
def test_a_capacity_block_is_told_of_under_both_spellings(kind: str) -> None:
    assert told({**CAPACITY, "detail-type": kind}) == [
        f"{kind}: cr-0123456789abcdef0 in us-east-2 ends 2026-11-27T11:30:00Z. EC2 terminates its instances from 30 "
        "minutes before on."
    ]


@pytest.mark.usefixtures("client")
def test_other_events_of_reservations_are_told_of() -> None:
    arn = "arn:aws:ec2:us-east-2:123456789012:capacity-reservation/cr-0123456789abcdef0"
    assert told(RESERVATION) == [f"EC2 Capacity Reservation Scheduled: {arn} in us-east-2"]
    assert told({**RESERVATION, "detail-type": "EC2 Instance State-change Notification"}) == []


@pytest.mark.usefixtures("client")
def test_what_aws_has_scheduled_for_instances_is_told_of() -> None:
    assert told(HEALTH) == [
        "AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED in us-east-2 from Tue, 1 Dec 2026 04:00:00 GMT on: "
        "i-0123456789abcdef0. The AWS Health Dashboard has all that are affected."
    ]
    assert told(HEALTH, eventTypeCategory="accountNotification") == []
    assert told(HEALTH, service="RDS") == []


@pytest.mark.usefixtures("client")
def test_a_stack_that_fails_is_told_of_once_with_its_reason() -> None:
    stack = STACK["detail"]["stack-id"]  # type: ignore[index]
    assert told(STACK) == [f"ROLLBACK_IN_PROGRESS: {stack}: The following resource(s) failed"]
    for status in ("CREATE_IN_PROGRESS", "CREATE_COMPLETE", "ROLLBACK_COMPLETE", "DELETE_COMPLETE"):
        assert told(STACK, **{"status-details": {"status": status, "status-reason": ""}}) == [], status
    assert told(STACK, **{"stack-id": stack.replace("ml-1", "shop")}) == [], "another's stack"
