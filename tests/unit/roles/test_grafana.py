# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What role grafana works out from its variables, with Ansible's own templating."""

from __future__ import annotations

import configparser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Render = Callable[..., Any]


@pytest.fixture
def render(repo: Path, work_out: Callable[..., Callable[[str], Any]]) -> Render:
    """render(template, **variables) fills a template of this role on a head node."""

    def fill(text: str, node_type: str = "head", grafana: str | None = None, **more: Any) -> Any:
        facts = {"node_type": node_type, "components": {"grafana": grafana}}
        return work_out("grafana", facts, role_path=str(repo / "roles/grafana"), **more)(text)

    return fill


def settings(repo: Path, render: Render, **more: Any) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None, comment_prefixes=(";", "#"), inline_comment_prefixes=None)
    found.read_string(render((repo / "roles/grafana/templates/grafana.ini.j2").read_text(), **more))
    return found


@pytest.mark.parametrize(
    ("mode", "state"),
    [("self-hosting", "started"), ("amp-only", "stopped"), ("amp+amg", "stopped"), ("none", "stopped")],
)
def test_it_runs_where_prometheus_keeps_its_samples(render: Render, mode: str, state: str) -> None:
    assert render("{{ grafana_state }}", prometheus_mode=mode) == state
    # So that one that ran before is stopped.
    assert render("{{ grafana_enabled | bool }}", prometheus_mode=mode) is True


def test_the_head_node_and_the_monitoring_instance_have_it(render: Render) -> None:
    assert render("{{ grafana_enabled | bool }}", node_type="monitoring") is True
    assert render("{{ grafana_enabled | bool }}", node_type="compute") is False
    assert render("{{ grafana_enabled | bool }}", prometheus_enabled=False) is False
    assert render("{{ grafana_state }}") == "started"


@pytest.mark.parametrize(
    ("there", "minimum"),
    [(None, ""), ("12.4.2", ""), ("13.1.9", ""), ("13.2.1", "13.2.2"), ("13.2.3", "13.2.2"), ("13.20.0", "")],
)
def test_another_minor_is_no_affair_of_the_floor(render: Render, there: str | None, minimum: str) -> None:
    assert render("{{ __grafana_minimum }}", grafana=there) == minimum


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("p#ss;word", '"""p#ss;word"""'),
        ("`p#ss`", "`p#ss`"),
        ('"""p#ss"""', '"""p#ss"""'),
        ("plain", "plain"),
        (True, "true"),
        (25, "25"),
        (None, ""),
        ("$__file{/etc/grafana/secret}", "$__file{/etc/grafana/secret}"),
    ],
)
def test_a_value_reaches_grafana_whole(repo: Path, render: Render, given: Any, written: str) -> None:
    assert settings(repo, render, grafana_settings={"smtp": {"password": given}})["smtp"]["password"] == written


def test_its_database_begins_with_the_password(repo: Path, render: Render) -> None:
    """By grafana.ini: GF_SECURITY_ADMIN_PASSWORD__FILE is known to its container only."""
    kept = "/var/lib/pcluster-postboot/grafana/admin-password"
    assert settings(repo, render)["security"]["admin_password"] == f"$__file{{{kept}}}"
    assert "__FILE" not in (repo / "roles/grafana/templates/10-pcluster.conf.j2").read_text()


@pytest.mark.parametrize(
    ("address", "port", "url"),
    [
        ("127.0.0.1:3000", "3000", "http://127.0.0.1:3000/grafana"),
        (":8080", "8080", "http://127.0.0.1:8080/grafana"),
        ("[::]:3000", "3000", "http://127.0.0.1:3000/grafana"),
        ("[::1]:3000", "3000", "http://[::1]:3000/grafana"),
    ],
)
def test_where_it_listens_and_is_asked(repo: Path, render: Render, address: str, port: str, url: str) -> None:
    more = {"grafana_listen_address": address, "grafana_root_url": "https://example.org/grafana/"}
    server = settings(repo, render, **more)["server"]
    assert server["http_port"] == port
    assert f"{server['http_addr']}:{port}" == address.replace("[", "").replace("]", "")
    assert server["serve_from_sub_path"] == "true"
    assert render("{{ __grafana_url }}", **more) == url


@pytest.mark.parametrize(
    ("mode", "active", "directory", "stops", "told"),
    [
        ("self-hosting", "active", "prometheus", True, "stopped (grafana_state is stopped), its data kept"),
        ("none", "inactive", "prometheus", True, "stopped (prometheus_mode is none), its data kept"),
        ("amp-only", "active", "prometheus-agent", True, "stopped (prometheus_mode is amp-only), its data kept"),
        ("amp-only", "active", "prometheus", False, "left as it is: prometheus_mode is amp-only, and Prometheus "),
        ("amp-only", "activating", "prometheus", False, "left as it is: prometheus_mode is amp-only, and Prometheus "),
    ],
)
def test_it_stops_only_once_prometheus_is_no_server(
    render: Render, mode: str, active: str, directory: str, stops: bool, told: str
) -> None:
    # What a skipped task registers has no status.
    status = {"status": {"ActiveState": active, "StateDirectory": directory}} if mode != "self-hosting" else {}
    given = {
        "prometheus_mode": mode,
        "ansible_check_mode": False,
        "__common_prometheus_changed": False,
        "__grafana_own": {"stat": {"exists": True}},
        "__grafana_prometheus": {"changed": False, **status},
    }
    assert render("{{ __grafana_stops }}", **given) is stops
    assert render("{{ __grafana_stop_summary }}", **given).startswith(told)
    # A check foretells what Prometheus becomes; another's Grafana is left alone.
    changed = {"__common_prometheus_changed": True}
    assert render("{{ __grafana_stops }}", **{**given, "ansible_check_mode": True, **changed}) is True
    assert render("{{ __grafana_stops }}", **{**given, "ansible_check_mode": True}) is stops
    assert render("{{ __grafana_stops }}", **{**given, "__grafana_own": {"stat": {"exists": False}}}) is False
