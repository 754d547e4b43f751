# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Grafana on the head nodes: its password, what it shows, and who reaches it. Grafana itself is a stand-in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from .helpers import Nodes, On, Play, exposure, failure, ok, process, variables

ONLY = ("--limit", "head", "--tags", "grafana")
PASSWORD = "/var/lib/pcluster-postboot/grafana/admin-password"
FOLDER = Path(__file__).resolve().parents[3] / "roles/grafana/files/dashboards"


def ask(host: Host, path: str, password: str = "", base: str = "http://127.0.0.1:3000") -> Any:
    """What Grafana answers its admin; None when it refuses, which it may do five times in five minutes.

    A password of '' is the one that the node keeps.
    """
    secret = shlex.quote(password) if password else f'"$(cat {PASSWORD})"'
    done = host.run(f"printf 'user = \"admin:%s\"' {secret} | curl -s -m 5 -f -K - {base}/api/{path}")
    return json.loads(done.stdout) if done.rc == 0 else None


def test_it_shows_every_dashboard_and_asks_prometheus(on: On, head: str) -> None:
    host = on(head)
    wanted = {json.loads(path.read_text())["uid"] for path in FOLDER.glob("*.json")}
    found = ask(host, "search")
    assert {one["uid"] for one in found} == wanted
    assert {one["folderUid"] for one in found} == {"pcluster"}
    (source,) = ask(host, "datasources")
    assert (source["uid"], source["readOnly"], source["isDefault"]) == ("pcluster-prometheus", True, True)
    up = json.loads(host.check_output(f"curl -sfG {source['url']}/api/v1/query --data-urlencode query=up"))
    assert up["data"]["result"]
    interval = host.check_output("grep -m1 scrape_interval /etc/prometheus/prometheus.yml").split()[-1].strip('"')
    assert source["jsonData"]["timeInterval"] == interval


def test_nobody_else_reaches_it_or_its_password(on: On, head: str) -> None:
    host = on(head)
    assert {line.split()[3] for line in host.check_output("ss -Hltn sport = :3000").splitlines()} == {"127.0.0.1:3000"}
    assert (host.file(PASSWORD).mode, host.file(PASSWORD).user, host.file(PASSWORD).group) == (0o640, "root", "grafana")
    assert host.file(str(Path(PASSWORD).parent)).mode == 0o750
    assert host.file("/etc/grafana/grafana.ini").mode == 0o640
    # A password may begin with a hyphen.
    secret = "-e " + shlex.quote(host.check_output(f"cat {PASSWORD}"))
    assert host.run(f"journalctl --no-pager | grep -qF {secret}").rc == 1
    assert host.run(f"grep -qF {secret} /proc/$(systemctl show -P MainPID grafana-server)/environ").rc == 1


def test_it_may_do_little(on: On, head: str) -> None:
    pid = process(on(head), "grafana-server")
    assert on(head).check_output(f"ps -o user= -p {pid}").strip() == "grafana"
    assert on(head).check_output(f"grep CapEff /proc/{pid}/status").split()[-1] == "0000000000000000"
    assert exposure(on(head), "grafana-server") < 2


def test_other_nodes_have_none(on: On, nodes: Nodes) -> None:
    for name, node in nodes.items():
        if node["type"] != "HeadNode":
            assert not on(name).file("/usr/share/grafana").exists, name


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_a_known_password_is_replaced_and_the_secret_managers_is_taken(on: On, play: Play) -> None:
    head = on("head")
    reset = "runuser -u grafana -- grafana cli --config=/etc/grafana/grafana.ini admin reset-admin-password"
    head.check_output(f"cd / && {reset} admin")
    assert ask(head, "user", "admin")
    ok(play(*ONLY))
    assert ask(head, "user")
    assert ask(head, "user", "admin") is None
    head.check_output("aws secretsmanager create-secret --name grafana-test --secret-string 'of the manager'")
    try:
        result = ok(play(*ONLY, *variables(grafana_admin_password_secret="grafana-test")))
        assert "of the manager" not in result.stdout
        assert ask(head, "user", "of the manager")
    finally:
        head.check_output("aws secretsmanager delete-secret --secret-id grafana-test --force-delete-without-recovery")


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_behind_a_load_balancer(on: On, play: Play) -> None:
    head = on("head")
    change = variables(
        grafana_listen_address=":3000",
        grafana_root_url="https://monitoring.example.org/grafana/",
        grafana_settings={"auth.anonymous": {"enabled": True}, "users": {"allow_sign_up": True}},
    )
    ok(play(*ONLY, *change))
    assert ask(head, "user", base="http://10.115.0.10:3000/grafana")
    ini = head.check_output("cat /etc/grafana/grafana.ini")
    assert "serve_from_sub_path = true" in ini
    assert "[auth.anonymous]\nenabled = true" in ini
    assert "allow_sign_up = true" in ini


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("why", ["400", "404 (Plugin not found)"])
def test_a_grafana_that_can_show_nothing_is_reported(on: On, play: Play, why: str) -> None:
    head, folder = on("head"), "/var/lib/grafana/plugins-bundled"
    change = variables(grafana_prometheus_url="http://127.0.0.1:1") if why == "400" else ()
    head.check_output(f"mv {folder} {folder}.away" if why != "400" else "true")
    try:
        result = play(*ONLY, *change)
    finally:
        head.check_output(f"mv {folder}.away {folder}" if why != "400" else "true")
    assert f"its data source pcluster-prometheus does not work: {why}" in failure(result, "head", "grafana")


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_it_stops_where_another_grafana_takes_over(on: On, play: Play) -> None:
    head = on("head")
    keep = "stat --format='%n %i' /var/lib/grafana/grafana.db"
    before = head.check_output(keep)
    stopped = variables(grafana_state="stopped")
    assert "grafana: stopped (grafana_state is stopped), its data kept" in play(*ONLY, *stopped).stdout
    assert not head.service("grafana-server").is_running
    assert not head.service("grafana-server").is_enabled
    assert not head.file("/etc/prometheus/targets.d/grafana.json").exists
    assert head.check_output(keep) == before
    assert "0 changed" in play(*ONLY, *stopped).stdout


@pytest.mark.long
def test_it_goes_on_where_prometheus_could_not_take_another_mode(on: On, play: Play) -> None:
    head = on("head")
    before = head.check_output("systemctl show -P MainPID grafana-server prometheus")
    result = play("--limit", "head", "--tags", "prometheus,grafana", *variables(prometheus_mode="amp-only"))
    failed = "prometheus: Check the workspace of Amazon Managed Prometheus: prometheus_mode is amp-only, and"
    assert f"failed on head: {failed}" in result.stdout
    assert "grafana: left as it is: prometheus_mode is amp-only, and Prometheus still keeps" in result.stdout
    assert head.check_output("systemctl show -P MainPID grafana-server prometheus") == before
    assert head.file("/etc/prometheus/targets.d/grafana.json").exists


@pytest.mark.long
def test_it_stops_with_prometheus(on: On, play: Play) -> None:
    head, both = on("head"), ("--limit", "head", "--tags", "prometheus,grafana")
    none = variables(prometheus_mode="none")
    try:
        assert "0 failed" in play(*both, "--check", *none).stdout
        result = play(*both, *none).stdout
        assert "prometheus: stopped (prometheus_mode is none), samples kept in /var/lib/prometheus" in result
        assert "grafana: stopped (prometheus_mode is none), its data kept" in result
        assert not head.service("grafana-server").is_running
    finally:
        ok(play(*both))
    assert head.service("grafana-server").is_running


def test_a_changed_dashboard_is_seen_without_a_restart(on: On, play: Play) -> None:
    head = on("head")
    before = process(head, "grafana-server")
    head.check_output(
        "echo '{}' > /etc/grafana/dashboards/pcluster/efa.json; touch /etc/grafana/dashboards/pcluster/mine.json"
    )
    assert "1 node, 1 changed" in play(*ONLY).stdout
    assert json.loads(head.check_output("cat /etc/grafana/dashboards/pcluster/efa.json"))["uid"] == "pcluster-efa"
    assert not head.file("/etc/grafana/dashboards/pcluster/mine.json").exists
    assert process(head, "grafana-server") == before


@pytest.mark.long
def test_a_version_that_is_asked_for_comes(on: On, play: Play) -> None:
    for name, query in (
        ("head", "dpkg-query -W -f '${Version}' grafana"),
        ("el-head", "rpm -q --qf '%{VERSION}' grafana"),
    ):
        only = ("--limit", name, "--tags", "grafana")
        pinned = on(name).check_output(query)
        assert pinned.startswith("13.2.")
        ok(play(*only, "-e", "grafana_version=13.3.0"))
        assert on(name).check_output(query) == "13.3.0"
        assert play(*only).returncode == 0  # what is there stays
        assert on(name).check_output(query) == "13.3.0"
        ok(play(*only, "-e", f"grafana_version={pinned}"))
        assert on(name).check_output(query) == pinned
        assert ask(on(name), "user")


@pytest.mark.long
@pytest.mark.usefixtures("as_before")
def test_a_patch_with_known_flaws_is_told_where_it_is_asked_for_and_replaced_otherwise(on: On, play: Play) -> None:
    version = "dpkg-query -W -f '${Version}' grafana"
    told = " ".join(play(*ONLY, "-e", "grafana_version=13.2.1").stdout.split())
    assert "grafana 13.2.1 has CVE-2026-15815, CVE-2026-76154 and CVE-2026-79656, which 13.2.2 mends" in told
    assert on("head").check_output(version) == "13.2.1"
    assert "grafana 13.2.1 has CVE" not in " ".join(play(*ONLY).stdout.split())
    assert on("head").check_output(version) == "13.2.3"
