# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""grafana_admin and grafana_dashboards, with the sandbox's stand-in of Grafana at the other end."""

from __future__ import annotations

import grp
import json
import os
import socket
import subprocess
import sys
import time
import types
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import fetch
from ansible_collections.pcluster.postboot.plugins.module_utils._grafana import admin as _grafana_admin
from ansible_collections.pcluster.postboot.plugins.module_utils._grafana import dashboards as _grafana_dashboards
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.modules import grafana_admin, grafana_dashboards
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

PROGRAM = Path(__file__).resolve().parents[4] / "molecule/cluster/standins/grafana/grafana.py"
OURS = sorted((Path(__file__).resolve().parents[4] / "roles/grafana/files/dashboards").glob("*.json"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Grafana:
    """A Grafana on this machine, and a node's folders beside it."""

    def __init__(self, top: Path, run: lab.Run) -> None:
        self.top, self.run, self.port = top, run, free_port()
        self.ini = top / "grafana.ini"
        self.password_file = top / "state/grafana/admin-password"
        self.provisioning, self.plugins = top / "provisioning", top / "plugins"
        self.process: subprocess.Popen[bytes] | None = None
        self.settings()

    def settings(self, server: str = "", more: str = "") -> None:
        self.ini.write_text(
            f"[paths]\ndata = {self.top}/data\nprovisioning = {self.provisioning}\nbundled_plugins = {self.plugins}\n"
            f"[server]\nhttp_addr = 127.0.0.1\nhttp_port = {self.port}\n{server}\n{more}\n"
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def cli(self) -> list[str]:
        return [sys.executable, str(PROGRAM), "cli", f"--config={self.ini}"]

    def start(self, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), "server", f"--config={self.ini}"],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{self.url}/api/health", timeout=PATIENCE).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("it did not start")

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=PATIENCE)
            self.process = None

    def token(self, role: str) -> str:
        return subprocess.run(
            [*self.cli, "stand-in-token", role], text=True, capture_output=True, check=True
        ).stdout.strip()

    def token_file(self, role: str = "Admin", text: str = "") -> str:
        """Return the file with the token of a service account."""
        path = self.top / "token"
        path.write_text(f"{text or self.token(role)}\n")
        return str(path)

    def ask(self, path: str, body: Any = None, method: str = "GET") -> Any:
        """Ask with the token of that file."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {(self.top / 'token').read_text().strip()}"}
        request = urllib.request.Request(f"{self.url}/api/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def admin(self, check: bool = False, **args: Any) -> dict[str, Any]:
        return self.run(
            grafana_admin,
            {"path": str(self.password_file), "group": grp.getgrgid(os.getgid()).gr_name, **args},
            check=check,
        )

    def dashboards(self, check: bool = False, **args: Any) -> dict[str, Any]:
        return self.run(grafana_dashboards, {"url": self.url, **args}, check=check)


@pytest.fixture
def grafana(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: lab.Run) -> Iterator[Grafana]:
    made = Grafana(tmp_path, run_module)
    monkeypatch.setattr(lock, "RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(_grafana_admin, "PAUSE", 0.01)
    monkeypatch.setattr(_grafana_admin, "PROGRAM", made.cli)
    monkeypatch.setattr(_grafana_admin, "USER", "root")
    monkeypatch.delenv("GRAFANA_TOKEN", raising=False)
    yield made
    made.stop()


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """aws(secret) puts an AWS CLI in PATH that knows one secret."""

    def put(secret: str) -> None:
        (tmp_path / "answer").write_text(json.dumps({"Name": "ours", "SecretString": secret}))
        lab.program(
            tmp_path / "bin/aws",
            f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n'
            f'case "$*" in *"--secret-id ours "*) cat {tmp_path}/answer;;\n'
            '*) echo "An error occurred (ResourceNotFoundException): cannot find it" >&2; exit 254;; esac\n',
        )
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    return put


# The password of the admin


def test_a_password_is_made_up_once(grafana: Grafana) -> None:
    checked = grafana.admin(check=True)
    assert (checked["changed"], checked["origin"], checked["actions"]) == (True, "generated", ["wrote"])
    assert not grafana.password_file.exists()
    assert grafana.admin()["origin"] == "generated"
    password = grafana.password_file.read_text()
    assert len(password.strip()) >= 24
    assert (grafana.password_file.stat().st_mode & 0o777, grafana.password_file.parent.stat().st_mode & 0o777) == (
        0o640,
        0o750,
    )
    again = grafana.admin()
    assert (again["changed"], again["origin"]) == (False, "kept")
    assert grafana.password_file.read_text() == password


def test_a_file_that_others_can_read_is_closed(grafana: Grafana) -> None:
    grafana.admin()
    grafana.password_file.chmod(0o644)
    assert grafana.admin()["actions"] == ["wrote"]
    assert grafana.password_file.stat().st_mode & 0o777 == 0o640


def keeps(grafana: Grafana) -> None:
    """Let Grafana's database begin with the password of the file, as the role does."""
    grafana.settings(more=f"[security]\nadmin_password = $__file{{{grafana.password_file}}}")


def test_grafana_begins_with_the_password_of_the_file(grafana: Grafana) -> None:
    """A database that began with Grafana's own would let everybody in until it is reset."""
    keeps(grafana)
    grafana.admin()
    grafana.start()
    assert grafana.admin(url=grafana.url)["changed"] is False


def test_a_grafana_with_the_default_password_is_given_another(grafana: Grafana) -> None:
    grafana.start()  # admin/admin
    grafana.admin()
    checked = grafana.admin(check=True, url=grafana.url)
    assert checked["actions"] == ["reset"]
    result = grafana.admin(url=grafana.url)
    assert result["actions"] == ["reset"]
    assert grafana.admin(url=grafana.url)["changed"] is False
    secret = grafana.password_file.read_text().strip()
    assert secret not in json.dumps(result)
    # And the default one is none any more.
    with pytest.raises(Problem, match="everybody knows"):
        _grafana_admin.acceptable("admin", "here")
    assert _grafana_admin.accepted(_grafana_admin.Request("", url=grafana.url), secret)
    assert not _grafana_admin.accepted(_grafana_admin.Request("", url=grafana.url), "admin")


def test_another_password_is_given_to_a_grafana_that_runs(grafana: Grafana) -> None:
    keeps(grafana)
    grafana.admin(password="the first one")
    grafana.start()
    assert grafana.admin(password="the second one", url=grafana.url)["actions"] == ["wrote", "reset"]
    assert grafana.password_file.read_text() == "the second one\n"
    assert grafana.admin(password="the second one", url=grafana.url)["changed"] is False


@pytest.mark.parametrize(
    ("password", "line"),
    [
        ("admin", "grafana_admin_password_file is one that everybody knows"),
        ("Grafana4PC!", "grafana_admin_password_file is one that everybody knows"),
        ("short", "has 5 characters; needed: 8 at least"),
        ("two\nlines of it", "grafana_admin_password_file has 2 lines"),
    ],
)
def test_a_password_that_is_none_is_refused(grafana: Grafana, password: str, line: str) -> None:
    result = grafana.admin(password=password)
    assert result["failed"]
    assert line in result["msg"]
    assert "\n" not in result["msg"]
    assert not grafana.password_file.exists()


@pytest.mark.parametrize("secret", ["of the manager", '{"user": "admin", "password": "of the manager"}'])
def test_the_password_of_secrets_manager(grafana: Grafana, aws: Callable[[str], None], secret: str) -> None:
    aws(secret)
    assert grafana.admin(secret="ours", region="eu-west-1")["origin"] == "secret"
    assert grafana.password_file.read_text() == "of the manager\n"
    assert "--region eu-west-1" in (grafana.top / "asked").read_text()
    assert grafana.admin(secret="ours")["changed"] is False


@pytest.mark.parametrize(
    ("name", "secret", "line"),
    [
        (
            "theirs",
            "x",
            "grafana_admin_password_secret theirs cannot be read: An error occurred (ResourceNotFoundException)",
        ),
        ("ours", '{"pass": "of the manager"}', "is an object with ['pass']; needed: text, or the key 'password'"),
        ("ours", "admin", "grafana_admin_password_secret is one that everybody knows"),
    ],
)
def test_a_secret_that_is_none(grafana: Grafana, aws: Callable[[str], None], name: str, secret: str, line: str) -> None:
    aws(secret)
    result = grafana.admin(secret=name)
    assert line in result["msg"]
    assert not grafana.password_file.exists()


def test_a_file_without_a_password(grafana: Grafana) -> None:
    line = "grafana_admin_password_file is /none, which is empty, or not there where Ansible runs"
    assert line in grafana.admin(password_file="/none")["msg"]
    assert not grafana.password_file.exists()


def test_two_passwords_are_one_too_many(grafana: Grafana) -> None:
    assert "both" in grafana.admin(password="long enough", secret="ours")["msg"]


def test_without_an_aws_cli(grafana: Grafana, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(grafana.top))
    monkeypatch.setattr(fetch, "AWS_PLACES", ())
    assert "needs the AWS CLI" in grafana.admin(secret="ours")["msg"]


def test_a_grafana_that_is_silent(grafana: Grafana) -> None:
    grafana.admin()
    result = grafana.admin(url=grafana.url)
    assert f"{grafana.url} cannot be reached" in result["msg"]
    assert "grafana_listen_address" in result["msg"]


def test_a_grafana_without_passwords(grafana: Grafana) -> None:
    grafana.settings(more="[auth.basic]\nenabled = false")
    grafana.admin()
    grafana.start()
    assert "is [auth.basic] switched off in grafana_settings" in grafana.admin(url=grafana.url)["msg"]


def test_a_program_that_fails(grafana: Grafana, monkeypatch: pytest.MonkeyPatch) -> None:
    grafana.start()
    grafana.admin(password="kept to itself")
    monkeypatch.setattr(_grafana_admin, "PROGRAM", ["sh", "-c", "read word; echo no $word >&2; exit 1", "grafana"])
    result = grafana.admin(password="kept to itself", url=grafana.url)
    assert result["msg"].endswith("reset-admin-password --password-from-stdin' ended with 1: no ***")


def test_an_admin_of_another_name(grafana: Grafana) -> None:
    grafana.settings(more="[security]\nadmin_user = ops")
    grafana.start()
    grafana.admin()
    assert grafana.admin(url=grafana.url, user="ops")["actions"] == ["reset"]
    assert grafana.admin(url=grafana.url, user="ops")["changed"] is False
    assert "just set" in grafana.admin(url=grafana.url)["msg"]


@pytest.fixture
def prometheus() -> Iterator[str]:
    """Something that answers as Prometheus does."""

    class Prometheus(lab.Pages):
        def do_GET(self) -> None:
            self.say(200)

    with lab.serving(Prometheus) as url:
        yield url


def with_source(grafana: Grafana, url: str, name: str = "Prometheus", uid: str = "ours") -> None:
    (grafana.provisioning / "datasources").mkdir(parents=True)
    source = {"name": name, "uid": uid, "type": "prometheus", "url": url}
    (grafana.provisioning / "datasources/p.yml").write_text(json.dumps({"datasources": [source]}))
    grafana.start()
    grafana.admin()


def test_a_data_source_that_works(grafana: Grafana, prometheus: str) -> None:
    (grafana.plugins / "prometheus").mkdir(parents=True)
    with_source(grafana, prometheus)
    checked = grafana.admin(url=grafana.url, datasource="ours", check=True)
    assert checked["actions"] == ["reset"]
    assert grafana.admin(url=grafana.url, datasource="ours")["actions"] == ["reset"]


def test_a_data_source_whose_plugin_starts_after_grafana(
    grafana: Grafana, prometheus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_source(grafana, prometheus)

    def sleep(_seconds: float) -> None:
        (grafana.plugins / "prometheus").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(_grafana_admin, "time", types.SimpleNamespace(sleep=sleep))
    assert grafana.admin(url=grafana.url, datasource="ours")["actions"] == ["reset"]


@pytest.mark.parametrize(("plugin", "why"), [(True, "400 (<urlopen error"), (False, "404 (Plugin not found)")])
def test_a_data_source_that_does_not_work(grafana: Grafana, plugin: bool, why: str) -> None:
    if plugin:
        (grafana.plugins / "prometheus").mkdir(parents=True)
    with_source(grafana, "http://127.0.0.1:1")
    said = grafana.admin(url=grafana.url, datasource="ours")["msg"]
    assert f"Grafana runs, and its data source ours does not work: {why}" in said
    for word in ("grafana_prometheus_url", "/var/lib/grafana/plugins-bundled", "journalctl -u grafana-server"):
        assert word in said
    assert "\n" not in said


# Dashboards


@pytest.fixture
def editor(grafana: Grafana) -> str:
    """The file with the token of a service account that may do everything."""
    grafana.start()
    return grafana.token_file()


SOURCE = {"name": "AMP", "uid": "amp", "url": "https://aps.example.org/workspaces/ws-1", "sigv4_region": "us-east-1"}
FILES = [str(path) for path in OURS[:3]]


def test_check_apply_check_apply(grafana: Grafana, editor: str) -> None:
    given: dict[str, Any] = {"token_file": editor, "dashboards": FILES, "datasource": SOURCE}
    checked = grafana.dashboards(check=True, **given)
    assert len(checked["changes"]) == 5
    assert grafana.ask("search") == []
    applied = grafana.dashboards(**given)
    assert applied["changes"] == checked["changes"]
    assert applied["diff"] == checked["diff"]
    assert applied["changes"][:2] == ["data source 'AMP' created", "folder 'ParallelCluster' created"]
    assert {one["folderUid"] for one in grafana.ask("search")} == {"pcluster"}
    assert grafana.dashboards(check=True, **given)["changed"] is False
    assert grafana.dashboards(**given)["changes"] == []
    assert Path(editor).read_text().strip() not in json.dumps(applied)


def test_the_data_source_of_amp(grafana: Grafana, editor: str) -> None:
    grafana.dashboards(token_file=editor, datasource={**SOURCE, "role_arn": "arn:aws:iam::1:role/r"})
    found = grafana.ask("datasources/uid/amp")
    assert found["type"] == "grafana-amazonprometheus-datasource"
    assert found["jsonData"] == {
        "httpMethod": "POST",
        "timeInterval": "60s",
        "sigV4Auth": True,
        "sigV4AuthType": "default",
        "sigV4Region": "us-east-1",
        "sigV4AssumeRoleArn": "arn:aws:iam::1:role/r",
    }
    # What somebody else has set stays.
    more = {**found, "jsonData": {**found["jsonData"], "manageAlerts": False}, "isDefault": True}
    grafana.ask("datasources/uid/amp", more, "PUT")
    assert grafana.dashboards(token_file=editor, datasource=SOURCE)["changed"] is False
    result = grafana.dashboards(token_file=editor, datasource={**SOURCE, "scrape_interval": "15s"})
    assert result["changes"] == ["data source 'AMP' updated"]
    found = grafana.ask("datasources/uid/amp")
    assert (found["jsonData"]["timeInterval"], found["jsonData"]["manageAlerts"], found["isDefault"]) == (
        "15s",
        False,
        True,
    )


@pytest.mark.parametrize(
    ("version", "plugin", "kind"),
    [
        ("11.6.2", True, "prometheus"),
        ("12.0.0", False, "prometheus"),
        ("", False, "prometheus"),
        ("", True, "grafana-amazonprometheus-datasource"),
        ("12.0.0", True, "grafana-amazonprometheus-datasource"),
        ("13.0.0", False, "grafana-amazonprometheus-datasource"),
    ],
)
def test_older_grafanas_sign_in_prometheus_own_plugin(
    grafana: Grafana, editor: str, monkeypatch: pytest.MonkeyPatch, version: str, plugin: bool, kind: str
) -> None:
    if plugin:
        (grafana.plugins / "grafana-amazonprometheus-datasource").mkdir(parents=True)
    ask = grafana_dashboards.api.Client.ask

    def answers(self: Any, method: str, path: str, body: Any = None) -> Any:
        answer = ask(self, method, path, body)
        return answer._replace(said={**answer.said, "version": version}) if path == "health" else answer

    monkeypatch.setattr(grafana_dashboards.api.Client, "ask", answers)
    grafana.dashboards(token_file=editor, datasource=SOURCE)
    assert grafana.ask("datasources/uid/amp")["type"] == kind


@pytest.mark.parametrize(
    ("url", "auth"),
    [
        ("https://g-0123456789.grafana-workspace.us-east-2.amazonaws.com", "ec2_iam_role"),
        ("https://g-0123456789.grafana-workspace.us-east-2.amazonaws.com/", "ec2_iam_role"),
        ("https://grafana.example.org", "default"),
        ("https://example.org/g-1.grafana-workspace.us-east-2.amazonaws.com", "default"),
    ],
)
def test_a_managed_grafana_takes_its_workspaces_role(url: str, auth: str) -> None:
    client = grafana_dashboards.api.Client(url, "")
    source = _grafana_dashboards.Source("AMP", "amp", "https://aps.example.org", region="us-east-1")
    importer = _grafana_dashboards.Importer(client, _grafana_dashboards.Request([], "", ""))
    assert importer.auth(source, {}) == auth
    assert importer.auth(source, {"jsonData": {"sigV4AuthType": "keys"}}) == "keys"
    assert importer.auth(source._replace(auth="credentials"), {"jsonData": {"sigV4AuthType": "keys"}}) == "credentials"


def test_dashboards_open_with_our_data_source(grafana: Grafana, editor: str) -> None:
    grafana.dashboards(token_file=editor, dashboards=FILES[:1], datasource=SOURCE)
    uid = json.loads(Path(FILES[0]).read_text())["uid"]
    variable = grafana.ask(f"dashboards/uid/{uid}")["dashboard"]["templating"]["list"][0]
    assert variable["current"] == {"text": "AMP", "value": "amp"}


@pytest.mark.parametrize("templating", [None, {"list": None}])
def test_a_dashboard_whose_variables_are_null_has_none(templating: Any) -> None:
    client = grafana_dashboards.api.Client("https://grafana.example.org", "")
    source = _grafana_dashboards.Source("AMP", "amp", "https://aps.example.org", region="us-east-1")
    importer = _grafana_dashboards.Importer(client, _grafana_dashboards.Request([], "", "", source))
    dashboard = {"uid": "mine", "title": "Mine", "templating": templating}
    assert importer.fitted(dashboard) == dashboard


@pytest.mark.parametrize("what", ["first removed", "last removed", "another query"])
def test_what_a_person_has_changed_is_put_back(grafana: Grafana, editor: str, what: str) -> None:
    grafana.dashboards(token_file=editor, dashboards=FILES)
    wanted = json.loads(Path(FILES[1]).read_text())
    changed = json.loads(Path(FILES[1]).read_text())
    if what == "another query":
        changed["panels"][0]["targets"][0]["expr"] = "up"
    else:
        changed["panels"].pop(0 if what.startswith("first") else -1)
    grafana.ask("dashboards/db", {"dashboard": changed, "folderUid": "pcluster", "overwrite": True}, "POST")
    result = grafana.dashboards(token_file=editor, dashboards=FILES)
    assert result["changes"] == [f"dashboard {wanted['title']!r} updated"]
    assert result["diff"][0]["before"] != result["diff"][0]["after"]
    assert grafana.dashboards(token_file=editor, dashboards=FILES)["changed"] is False


def test_a_dashboard_that_was_moved_comes_back(grafana: Grafana, editor: str) -> None:
    grafana.dashboards(token_file=editor, dashboards=FILES)
    grafana.ask("dashboards/db", {"dashboard": json.loads(Path(FILES[0]).read_text()), "overwrite": True}, "POST")
    assert len(grafana.dashboards(token_file=editor, dashboards=FILES)["changes"]) == 1
    assert {one["folderUid"] for one in grafana.ask("search")} == {"pcluster"}


def test_a_folder_is_renamed(grafana: Grafana, editor: str) -> None:
    grafana.dashboards(token_file=editor)
    assert grafana.dashboards(token_file=editor, folder="Training")["changes"] == ["folder 'Training' updated"]


def test_a_killed_import_is_finished(grafana: Grafana, editor: str) -> None:
    grafana.dashboards(token_file=editor, dashboards=FILES[:1])
    result = grafana.dashboards(token_file=editor, dashboards=FILES, datasource=SOURCE)
    assert len(result["changes"]) == 4  # the data source, the first dashboard's choice of it, and the two others
    assert grafana.dashboards(token_file=editor, dashboards=FILES, datasource=SOURCE)["changed"] is False


def provisioned(grafana: Grafana, folder: Path) -> None:
    (grafana.provisioning / "dashboards").mkdir(parents=True)
    provider = {"name": "p", "folder": "ParallelCluster", "folderUid": "pcluster", "options": {"path": str(folder)}}
    (grafana.provisioning / "dashboards/p.yml").write_text("# comment\n" + json.dumps({"providers": [provider]}))


def test_dashboards_that_role_grafana_keeps(grafana: Grafana) -> None:
    provisioned(grafana, OURS[0].parent)
    grafana.start()
    token, files = grafana.token_file(), [str(path) for path in OURS]
    assert grafana.dashboards(token_file=token, dashboards=files, datasource=SOURCE)["changes"] == [
        "data source 'AMP' created"
    ]
    other = grafana.top / "mine.json"
    other.write_text(json.dumps({**json.loads(OURS[0].read_text()), "title": "Mine"}))
    result = grafana.dashboards(token_file=token, dashboards=[str(other)])
    assert f"{OURS[0].name} keeps it there, as role grafana does; run site on that node instead" in result["msg"]


def test_a_data_source_that_a_file_keeps(grafana: Grafana) -> None:
    with_source(grafana, "http://elsewhere", "AMP", "amp")
    result = grafana.dashboards(token_file=grafana.token_file(), datasource=SOURCE)
    assert "data source 'AMP': a file of that Grafana's provisioning keeps it otherwise" in result["msg"]


def test_a_redirection_is_not_followed(grafana: Grafana, editor: str) -> None:
    asked: list[str] = []

    class Elsewhere(lab.Pages):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.say(302, Location=f"{url}/login")

    with lab.serving(Elsewhere) as url:
        result = grafana.dashboards(url=url, token_file=editor)
    assert f"{url} redirects to {url}/login; url needs the address of Grafana itself" in result["msg"]
    assert asked == ["/api/folders/pcluster"]


def test_below_a_path(grafana: Grafana) -> None:
    grafana.settings("root_url = https://example.org/grafana/\nserve_from_sub_path = true")
    grafana.start()
    token = grafana.token_file("Editor")
    assert grafana.dashboards(url=f"{grafana.url}/grafana/", token_file=token, dashboards=FILES)["changed"]


def test_an_editor_makes_the_folder_and_the_dashboards(grafana: Grafana) -> None:
    grafana.start()
    given: dict[str, Any] = {"token_file": grafana.token_file("Editor"), "dashboards": FILES}
    checked = grafana.dashboards(check=True, **given)
    assert checked["changes"][0] == "folder 'ParallelCluster' created"
    assert grafana.dashboards(**given)["changes"] == checked["changes"]
    assert grafana.dashboards(**given)["changed"] is False


def test_by_password_and_by_environment(grafana: Grafana, monkeypatch: pytest.MonkeyPatch) -> None:
    grafana.start(GF_SECURITY_ADMIN_PASSWORD="chosen by somebody")
    (grafana.top / "password").write_text("chosen by somebody\n")
    assert grafana.dashboards(password_file=str(grafana.top / "password"))["changed"]
    monkeypatch.setenv("GRAFANA_TOKEN", grafana.token("Editor"))
    assert grafana.dashboards()["changed"] is False


def test_by_a_secret(grafana: Grafana, aws: Callable[[str], None]) -> None:
    grafana.start()
    aws(json.dumps({"token": grafana.token("Editor")}))
    assert grafana.dashboards(token_secret="ours")["changed"]


@pytest.mark.parametrize(
    ("role", "token", "line"),
    [
        ("Admin", "wrong", "answers 401 (Invalid API key); the token or the password is not valid (any more)"),
        ("Viewer", "", "folder 'ParallelCluster': Grafana answers 403 (You'll need additional permissions"),
        ("Editor", "", "data source 'AMP': Grafana answers 403"),
    ],
)
def test_who_may_not(grafana: Grafana, role: str, token: str, line: str) -> None:
    grafana.start()
    more = {"datasource": SOURCE} if role == "Editor" else {}
    result = grafana.dashboards(token_file=grafana.token_file(role, token), **more)
    assert line in result["msg"]
    assert "\n" not in result["msg"]


def test_what_is_wrong_is_said_in_one_line(grafana: Grafana, editor: str) -> None:
    assert "GRAFANA_TOKEN, dashboards_token_file or dashboards_token_secret" in grafana.dashboards()["msg"]
    assert "cannot be reached" in grafana.dashboards(url="http://127.0.0.1:1", token_file=editor)["msg"]
    assert "needed: the address of Grafana" in grafana.dashboards(url="grafana.example.org", token_file=editor)["msg"]
    assert "cannot be read" in grafana.dashboards(token_file=str(grafana.top / "none"))["msg"]
    empty = grafana.top / "empty.json"
    empty.write_text("{}")
    assert (
        "needed: an object with a uid and a title"
        in grafana.dashboards(token_file=editor, dashboards=[str(empty)])["msg"]
    )


def test_a_name_that_is_taken(grafana: Grafana, editor: str) -> None:
    grafana.dashboards(token_file=editor, datasource=SOURCE)
    result = grafana.dashboards(token_file=editor, datasource={**SOURCE, "uid": "other"})
    assert (
        "(data source with the same name already exists); rename or remove what has that name or uid" in result["msg"]
    )
