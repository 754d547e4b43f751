# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who is told of what: subscriptions and policies of topics, alarms, and topics as the targets of EventBridge's rules.

moto's CloudFormation leaves out the first three, and moto's EventBridge refuses the last. An event reaches a topic only
if the topic's policy lets EventBridge publish without a condition: "You can't use Condition blocks in Amazon SNS topic
policies for EventBridge" (EventBridge User Guide, "Amazon SNS permissions").
"""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from added import Added
from moto.cloudwatch import cloudwatch_backends
from moto.events.models import Rule
from moto.events.utils import EventTemplateParser
from moto.sns import sns_backends
from moto.sns.exceptions import TopicNotFound


class Subscription(Added):
    """Ref is the ARN (aws-resource-sns-subscription). A person has to confirm one by e-mail, and nobody does here."""

    kind, attributes = "AWS::SNS::Subscription", dict.fromkeys(("Ref", "Arn"), "")

    def make(self) -> dict[str, str]:
        wanted, backend = self.properties, sns_backends[self.account][self.region]
        made = backend.subscribe(wanted["TopicArn"], wanted["Endpoint"], wanted["Protocol"])
        return {"Ref": made.arn, "Arn": made.arn}

    def delete(self, account_id: str, region_name: str) -> None:
        sns_backends[account_id][region_name].unsubscribe(self.told["Ref"])


class TopicPolicy(Added):
    """Ref is a name (aws-resource-sns-topicpolicy). The policy takes the place of the topic's own."""

    kind, attributes = "AWS::SNS::TopicPolicy", dict.fromkeys(("Ref", "Id"), "")

    def make(self) -> dict[str, str]:
        self.change()
        name = f"{self.name}-{uuid4().hex[:12]}"
        return {"Ref": name, "Id": name}

    def change(self) -> None:
        backend = sns_backends[self.account][self.region]
        document = self.properties["PolicyDocument"]
        # moto leaves AWS::NoValue in a list.
        policy = {**document, "Statement": [one for one in document["Statement"] if one]}
        for topic in self.properties["Topics"]:
            backend.set_topic_attribute(topic, "policy", json.dumps(policy))


class Alarm(Added):
    """Ref is the name (aws-resource-cloudwatch-alarm)."""

    kind, attributes = "AWS::CloudWatch::Alarm", dict.fromkeys(("Ref", "Arn"), "")

    def make(self) -> dict[str, str]:
        name = self.properties.get("AlarmName") or f"{self.name}-{uuid4().hex[:12]}"
        return {"Ref": name, "Arn": self.put(name)}

    def put(self, name: str) -> str:
        wanted = self.properties
        made = cloudwatch_backends[self.account][self.region].put_metric_alarm(
            name=name,
            namespace=wanted["Namespace"],
            metric_name=wanted["MetricName"],
            comparison_operator=wanted["ComparisonOperator"],
            evaluation_periods=int(wanted["EvaluationPeriods"]),
            period=int(wanted["Period"]),
            threshold=float(wanted["Threshold"]),
            statistic=wanted["Statistic"],
            description=wanted["AlarmDescription"],
            dimensions=wanted["Dimensions"],
            alarm_actions=wanted["AlarmActions"],
            ok_actions=wanted["OKActions"],
            treat_missing_data=wanted["TreatMissingData"],
        )
        return str(made.alarm_arn)

    def change(self) -> None:
        self.put(self.told["Ref"])

    def delete(self, account_id: str, region_name: str) -> None:
        cloudwatch_backends[account_id][region_name].delete_alarms([self.told["Ref"]])


ADDED = (Subscription, TopicPolicy, Alarm)

_send = Rule.send_to_targets


def send_to_targets(self: Rule, event: Any, transform_input: bool = True) -> None:
    """Publish an event that matches on the rule's topics, as EventBridge's input transformer writes it."""
    others = [target for target in self.targets if ":sns:" not in target["Arn"]]
    if self.event_pattern.matches_event(event):
        for target in self.targets:
            if target not in others:
                how = target.get("InputTransformer", {})
                text = EventTemplateParser.parse(how.get("InputTemplate"), how.get("InputPathsMap", {}), event)
                _publish(target["Arn"], json.dumps(text))
    every, self.targets = self.targets, others
    try:
        _send(self, event, transform_input)
    finally:
        self.targets = every


def _publish(topic: str, message: str) -> None:
    """Publish a rule's message. AWS, too, tells nobody of one that the topic's policy keeps out, but counts it."""
    _arn, _aws, _sns, region, account, _name = topic.split(":")
    backend = sns_backends[account][region]
    if topic not in backend.topics:
        raise TopicNotFound
    if any(_lets_events_in(statement) for statement in json.loads(backend.topics[topic].policy)["Statement"]):
        backend.topics[topic].publish(message)


def _lets_events_in(statement: dict[str, Any]) -> bool:
    action, principal = statement["Action"], statement["Principal"]
    return (
        statement["Effect"] == "Allow"
        and "sns:Publish" in (action if isinstance(action, list) else [action])
        and principal == {"Service": "events.amazonaws.com"}
        and "Condition" not in statement
    )


def patches() -> list[tuple[Any, str, Any]]:
    """Return what is to be set where in moto: by the server for good, by a test for its time."""
    return [(Rule, "send_to_targets", send_to_targets)]
