# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What test_alerts.py plays alerts with: rules whose waits are short, and who is told of alerts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from testinfra.host import Host

FOLDER = Path(__file__).resolve().parents[3] / "roles/prometheus/files/rules"
# An hour's wait is a minute, no expression looks back for longer than two minutes, and all look every 5 s.
FASTER, LONGEST, INTERVAL = 60, 120, "5s"
# What these look back for is compared with a number of seconds.
KEPT = ("NodeDown", "LoginNodeDown")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
Labels = dict[str, str]
DOOR = "http://registry:5002/people"  # keeps what Alertmanager tells people, the oldest first


def rules() -> dict[str, Any]:
    """The rules of role prometheus by their files."""
    return {path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}


def alerts() -> dict[str, Any]:
    """The alerting rules by their names."""
    groups = [group for file in rules().values() for group in file["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    assert match, text
    return int(match[1]) * UNITS[match[2]]


def shortened(file: Any) -> Any:
    """The same rules with shorter durations, and nothing else changed: see FASTER, LONGEST and INTERVAL.

    Numbers of seconds within an expression stay, such as the 100 of NodeDown.
    """

    def range_of(match: re.Match[str]) -> str:
        return match[0] if seconds(match[2]) <= LONGEST else f"{match[1]}{LONGEST}s{match[3]}"

    def rule_of(rule: Any) -> Any:
        waits = {
            name: f"{max(1, seconds(rule[name]) // FASTER)}s" for name in ("for", "keep_firing_for") if name in rule
        }
        expr = rule["expr"]
        if rule.get("alert") not in KEPT:
            expr = re.sub(r"(\[| offset )(\d+[smhd])([\]:]|\b)", range_of, expr)
            expr = re.sub(r":\d+[smhd]\]", f":{INTERVAL}]", expr)  # a counter's step lies between two looks
        return {**rule, **waits, "expr": expr}

    groups = [
        {**group, "interval": INTERVAL, "rules": [rule_of(rule) for rule in group["rules"]]} for group in file["groups"]
    ]
    return {**file, "groups": groups}


@contextmanager
def often(host: Host) -> Iterator[None]:
    """Prometheus, which scrapes and evaluates every 5 s; in the end with its own configuration and rules again."""
    host.check_output("rm -rf /root/prometheus && cp -a /etc/prometheus /root/prometheus")
    try:
        # Prometheus refuses a timeout that is longer than the interval.
        every = rf"s/^( +)(scrape_interval|evaluation_interval|scrape_timeout): .*/\1\2: {INTERVAL}/"
        own = rf's/("__scrape_(interval|timeout)__"): .*,/\1: "{INTERVAL}",/'  # a target that has left word of its own
        host.check_output(f"cd /etc/prometheus && sed -Ei '{every}' prometheus.yml && sed -Ei '{own}' targets.d/*.json")
        take(host)
        yield
    finally:
        host.check_output("cd /etc/prometheus && rm -r prometheus.yml rules && cp -a /root/prometheus/* .")
        host.check_output("systemctl reload prometheus && rm -r /root/prometheus")


@contextmanager
def fast(host: Host) -> Iterator[None]:
    """Prometheus with the shortened rules, which looks every 5 s; in the end with its own again."""
    from .helpers import until  # a unit test reads this file alone

    with often(host):
        for name, file in rules().items():
            put(host, f"/etc/prometheus/rules/pcluster-{name}.yml", json.dumps(shortened(file)))
        begun = take(host)
        # A series that ends while targets are read anew is not marked as ended, and lasts for five minutes.
        until(lambda: min(scrapes(host)) > begun, 60, "every target was scraped")
        yield


def take(host: Host) -> str:
    """Have Prometheus take its configuration; return when that began."""
    from .helpers import until

    metric = "prometheus_config_last_reload_success_timestamp_seconds"
    begun, second = host.check_output("date --utc '+%FT%T %s' && systemctl reload prometheus").split()
    read = f"curl -sf http://localhost:9090/metrics | awk '$1 == \"{metric}\" {{ print $2 }}'"
    until(lambda: float(host.check_output(read)) >= float(second), 20, "Prometheus has taken its configuration")
    return str(begun)


def scrapes(host: Host) -> list[str]:
    """When each target was scraped the last time."""
    told = json.loads(host.check_output("curl -sf http://localhost:9090/api/v1/targets?state=active"))
    return [one["lastScrape"] for one in told["data"]["activeTargets"]]


def put(host: Host, path: str, text: str) -> None:
    host.check_output(f"printf %s {shlex.quote(text)} > {path}")


class Receiver:
    """Who is told of alerts. What was pending Prometheus itself says; what fires, and is over, the messages."""

    def __init__(self, host: Host, cluster: str) -> None:
        self.host, self.cluster = host, cluster

    def states(self, alert: str, labels: Labels) -> set[str]:
        """Whether the alerts of a name and with these labels are pending or firing; nothing where there is none."""
        told = json.loads(self.host.check_output("curl -sf http://localhost:9090/api/v1/alerts"))["data"]["alerts"]
        wanted = {"alertname": alert, **labels}.items()
        found = {one["state"] for one in told if wanted <= one["labels"].items()} - {"firing"}
        return found | ({"firing"} if "firing" in self.messages({**dict(wanted), "cluster": self.cluster}) else set())

    def waited(self, alert: str, labels: Labels, seconds: float) -> bool:
        """Whether an alert with these labels was pending within the last seconds."""
        wanted = {"alertname": alert, "alertstate": "pending", **labels}
        series = ", ".join(f'{name}="{value}"' for name, value in wanted.items())
        query = f"query=max_over_time(ALERTS{{{series}}}[{seconds:.0f}s])"
        told = self.host.check_output("curl -sf http://localhost:9090/api/v1/query --data-urlencode %s", query)
        return bool(json.loads(told)["data"]["result"])

    def messages(self, labels: Labels) -> set[str]:
        """What the last message of each alert with these labels says: firing, or resolved."""
        last: dict[str, str] = {}
        for message in json.loads(self.host.check_output(f"curl -sf -m 10 {DOOR}")):
            for one in message["alerts"]:
                if labels.items() <= one["labels"].items():
                    last[one["fingerprint"]] = one["status"]
        return set(last.values())


@dataclass(frozen=True)
class Act:
    """What brings alerts about, as long as the cause lasts, and the labels by which each alert is known."""

    cause: Callable[[], AbstractContextManager[Any]]
    alerts: dict[str, Labels]
    # Seconds within which all of them fire, and within which all are over again.
    fires: int = 120
    ends: int = 120
    # Whose Prometheus is asked, and which alerts of the same fault may not fire once the act's own do.
    host: str = "head"
    never: tuple[str, ...] = ()
    quick: bool = False
