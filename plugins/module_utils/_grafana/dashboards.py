# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Dashboards, their folder and their data source in a Grafana: what is there, and what differs."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._grafana.api import Answer, Client
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

Json = dict[str, Any]
PROMETHEUS = "prometheus"
AMAZON = "grafana-amazonprometheus-datasource"
# From 12 on Grafana signs requests in a plugin of its own, and shows it wherever Prometheus is asked for; from 13 on it
# signs only there.
AMAZON_SINCE, AMAZON_ALWAYS = 12, 13
# In Amazon Managed Grafana a workspace's own role is this provider; elsewhere Grafana allows the SDK's default chain.
WORKSPACE_ROLE, DEFAULT_CHAIN = "ec2_iam_role", "default"
_MANAGED = re.compile(r"https://[\w-]+\.grafana-workspace\.[\w-]+\.amazonaws\.com(\.cn)?(/|$)")
# What Grafana says of a dashboard, and nobody gave it.
_ITS_OWN = ("id", "version", "schemaVersion", "iteration")
# What is read of Grafana's answers, beside what is only compared.
_OBJECT = {document.ANY: object}
_SOURCE = {**_OBJECT, "jsonData": {**_OBJECT, "sigV4AuthType": str}}
_DASHBOARD = {
    "dashboard": _OBJECT,
    "meta": {"folderUid": str, "provisioned": bool, "provisionedExternalId": str},
}


class Source(NamedTuple):
    """The data source that dashboards ask."""

    name: str
    uid: str
    url: str
    kind: str = "auto"
    region: str = ""
    role: str = ""
    interval: str = "60s"
    auth: str = "auto"


class Request(NamedTuple):
    """The module's options."""

    dashboards: Sequence[Json]
    folder: str
    folder_uid: str
    source: Source | None = None
    check: bool = False


class Change(NamedTuple):
    """One thing that was changed, or in check mode would be."""

    what: str
    action: str
    before: str = ""
    after: str = ""


def differs(wanted: Any, found: Any) -> bool:
    """Say whether something that is wanted is not so. What Grafana has beyond that does not matter.

    From 12 on it brings a dashboard to its own schema, and leaves out what is empty, null or false.
    """
    if found is None:
        return bool(wanted)
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return True
        return any(differs(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(found, list) or len(wanted) != len(found):
            return True
        return any(differs(one, other) for one, other in zip(wanted, found))
    return bool(wanted != found)


def shown(thing: Any) -> str:
    return json.dumps(thing, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def expect(answer: Answer, what: str, *statuses: int) -> Answer:
    """Take an answer that has one of these statuses, and say for each other what to do about it."""
    if answer.status in statuses:
        return answer
    advice = {
        401: "the token or the password is not valid (any more): make a new one",
        403: "dashboards need a service account with the role Editor, data sources one with the role Admin",
        409: "rename or remove what has that name or uid",
        412: "rename or remove what has that name or uid",
    }.get(answer.status, "see Grafana's log")
    raise Problem(f"{what}: Grafana answers {answer.why()}; {advice}")


def quoted(word: str) -> str:
    return urllib.parse.quote(word, safe="")


class Importer:
    """Brings one Grafana into a state, step by step."""

    def __init__(self, client: Client, request: Request) -> None:
        self.client, self.request = client, request
        self.changes: list[Change] = []

    def run(self) -> list[Change]:
        """Make all changes that are due."""
        if self.request.source:
            self.source(self.request.source)
        if self.request.folder:
            self.folder()
        for dashboard in self.request.dashboards:
            self.dashboard(dashboard)
        return self.changes

    def _send(self, change: Change, method: str, path: str, body: Json) -> None:
        self.changes.append(change)
        if not self.request.check:
            expect(self.client.ask(method, path, body), change.what, 200, 201)

    def kind(self, source: Source) -> str:
        """Return the type of the data source."""
        if source.kind != "auto" or not source.region:
            return PROMETHEUS if source.kind == "auto" else source.kind
        health = document.fitted(self.client.ask("GET", "health").said, {"version": str})
        major = health.get("version", "").partition(".")[0]
        if re.fullmatch("[0-9]{1,4}", major) and not AMAZON_SINCE <= int(major) < AMAZON_ALWAYS:
            return PROMETHEUS if int(major) < AMAZON_SINCE else AMAZON
        return PROMETHEUS if self.client.ask("GET", f"plugins/{AMAZON}/settings").status == 404 else AMAZON

    def auth(self, source: Source, found: Json) -> str:
        """Return where Grafana takes its credentials from. What somebody has chosen in Grafana stays."""
        if source.auth != "auto":
            return source.auth
        chosen = (found.get("jsonData") or {}).get("sigV4AuthType")
        return chosen or (WORKSPACE_ROLE if _MANAGED.match(self.client.url) else DEFAULT_CHAIN)

    def source(self, source: Source) -> None:
        """Make the data source, or correct it."""
        what = f"data source {source.name!r}"
        path = f"datasources/uid/{quoted(source.uid)}"
        answer = expect(self.client.ask("GET", path), what, 200, 404)
        found: Json = document.fitted(answer.said, _SOURCE) if answer.status == 200 else {}
        settings: Json = {"httpMethod": "POST", "timeInterval": source.interval}
        if source.region:
            settings.update(sigV4Auth=True, sigV4AuthType=self.auth(source, found), sigV4Region=source.region)
            if source.role:
                settings["sigV4AssumeRoleArn"] = source.role
        wanted: Json = {
            "name": source.name,
            "uid": source.uid,
            "type": self.kind(source),
            "access": "proxy",
            "url": source.url,
            "jsonData": settings,
        }
        if not found:
            self._send(Change(what, "created", "", shown(wanted)), "POST", "datasources", wanted)
            return
        if not differs(wanted, found):
            return
        if found.get("readOnly"):
            raise Problem(
                f"{what}: a file of that Grafana's provisioning keeps it otherwise; change that file, or leave out "
                "dashboards_amp_url and dashboards_prometheus_url, to take Grafana's default data source"
            )
        # Settings that somebody else has made stay.
        settled = {**wanted, "jsonData": {**(found.get("jsonData") or {}), **settings}}
        settled["isDefault"] = bool(found.get("isDefault"))
        before = {key: found.get(key) for key in settled}
        self._send(Change(what, "updated", shown(before), shown(settled)), "PUT", path, settled)

    def folder(self) -> None:
        """Make the folder, or give it its name."""
        uid, title = self.request.folder_uid, self.request.folder
        what = f"folder {title!r}"
        # Of a folder that is not there Grafana says 404 to admins alone, and 403 to an editor, who may make it.
        answer = expect(self.client.ask("GET", f"folders/{quoted(uid)}"), what, 200, 403, 404)
        if answer.status != 200:
            self._send(Change(what, "created", "", title + "\n"), "POST", "folders", {"uid": uid, "title": title})
        elif (there := document.fitted(answer.said, {"title": str}).get("title", "")) != title:
            before = f"{there}\n"
            body = {"title": title, "overwrite": True}
            self._send(Change(what, "updated", before, title + "\n"), "PUT", f"folders/{quoted(uid)}", body)

    def fitted(self, dashboard: Json) -> Json:
        """Return a dashboard that opens with our data source."""
        source = self.request.source
        if source is None:
            return dashboard
        result: Json = json.loads(json.dumps(dashboard))
        for variable in (result.get("templating") or {}).get("list") or []:
            if variable.get("type") == "datasource":
                variable["current"] = {"text": source.name, "value": source.uid}
        return result

    def dashboard(self, dashboard: Json) -> None:
        """Make a dashboard, or correct it."""
        what = f"dashboard {dashboard['title']!r}"
        wanted = {key: value for key, value in self.fitted(dashboard).items() if key not in _ITS_OWN}
        answer = expect(self.client.ask("GET", f"dashboards/uid/{quoted(dashboard['uid'])}"), what, 200, 404)
        there = answer.status == 200
        said = document.fitted(answer.said, _DASHBOARD) if there else {}
        found, meta = said.get("dashboard", {}), said.get("meta", {})
        elsewhere = there and bool(self.request.folder) and meta.get("folderUid") != self.request.folder_uid
        if there and not elsewhere and not differs(wanted, found):
            return
        if meta.get("provisioned"):
            if not differs({**wanted, "templating": None}, {**found, "templating": None}):
                return
            where = meta.get("provisionedExternalId") or "a file"
            raise Problem(f"{what}: {where} keeps it there, as role grafana does; run site on that node instead")
        body: Json = {
            "dashboard": {**wanted, "id": None, "schemaVersion": dashboard.get("schemaVersion", 0)},
            "overwrite": True,
            "message": "pcluster.postboot.dashboards",
        }
        if self.request.folder:
            body["folderUid"] = self.request.folder_uid
        before = shown({key: value for key, value in found.items() if key not in _ITS_OWN}) if there else ""
        change = Change(what, "updated" if there else "created", before, shown(wanted))
        self._send(change, "POST", "dashboards/db", body)
