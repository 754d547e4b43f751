#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for Grafana: its program's two commands, its settings, its provisioning, and the HTTP API that we use.

It draws nothing. What it has of Grafana is what a role or a playbook meets: where settings come from and which win, a
database that keeps the first password it was given, files of provisioning that win over the API, and the API's statuses
and words, those of Grafana 13 included, where data sources have no numbers any more and dashboards are migrated.
"""

from __future__ import annotations

import argparse
import base64
import configparser
import hashlib
import json
import os
import re
import secrets
import signal
import sqlite3
import sys
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "@VERSION@" if not "@VERSION@".startswith("@") else "13.2.3"
# What Grafana itself stores of a dashboard that comes in an older schema.
SCHEMA = 42
TRIES, MINUTES = 5, 5
DEFAULTS = {
    "paths": {
        "data": "data",
        "logs": "data/log",
        "plugins": "data/plugins",
        "bundled_plugins": "data/plugins-bundled",
        "provisioning": "conf/provisioning",
    },
    "server": {
        "protocol": "http",
        "http_addr": "",
        "http_port": "3000",
        "domain": "localhost",
        "serve_from_sub_path": "false",
    },
    "security": {"admin_user": "admin", "admin_password": "admin"},
    "auth.basic": {"enabled": "true"},
}
TABLES = """
create table if not exists user (id integer primary key, login text unique, salt text, password text);
create table if not exists attempt (login text, time real);
create table if not exists token (hash text primary key, role text);
create table if not exists folder (uid text primary key, title text);
create table if not exists source (uid text primary key, name text unique, body text, kept integer);
create table if not exists dashboard (uid text primary key, folder text, body text, version integer, kept text);
"""


def settings(path: str, arguments: list[str]) -> configparser.ConfigParser:
    """What is set: the command line's cfg:default.*, then grafana.ini, then GF_<SECTION>_<KEY> of the environment."""
    found = configparser.ConfigParser(interpolation=None, comment_prefixes=(";", "#"), strict=False)
    found.read_dict(DEFAULTS)
    for word in arguments:
        match = re.fullmatch(r"cfg:(?:default\.)?(\w[\w.]*)\.(\w+)=(.*)", word)
        if match:
            found.read_dict({match[1]: {match[2]: match[3]}})
    if path:
        with open(path, encoding="utf-8") as stream:
            found.read_file(stream)
    for section in found.sections():
        for key in {*found[section], "admin_password"}:
            name = f"GF_{section}_{key}".upper().replace(".", "_").replace("-", "_")
            if name in os.environ:
                found[section][key] = os.environ[name]
            # GF_…__FILE is known to the script that starts Grafana's container, and not to Grafana.
            file = re.fullmatch(r"\$__file\{(.*)\}", found[section].get(key, ""))
            if file:
                found[section][key] = Path(file[1]).read_text(encoding="utf-8").strip()
    return found


def hashed(password: str, salt: str) -> str:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt.encode(), 10000).hex()


class Database:
    """grafana.db."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        self.lock = threading.RLock()
        self.connection = sqlite3.connect(os.path.join(folder, "grafana.db"), check_same_thread=False, timeout=10)
        self.connection.executescript(TABLES)

    def all(self, query: str, *values: Any) -> list[Any]:
        with self.lock:
            rows = self.connection.execute(query, values).fetchall()
            self.connection.commit()
            return rows

    def one(self, query: str, *values: Any) -> Any:
        return next(iter(self.all(query, *values)), None)

    def password(self, password: str) -> None:
        salt = secrets.token_hex(8)
        self.all("update user set salt = ?, password = ? where id = 1", salt, hashed(password, salt))

    def right(self, login: str, password: str) -> bool:
        """Whether a user may come in; nobody may after five wrong passwords in five minutes."""
        since = time.time() - 60 * MINUTES
        if self.one("select count(*) from attempt where login = ? and time > ?", login, since)[0] >= TRIES:
            return False
        user = self.one("select salt, password from user where login = ?", login)
        if user and hashed(password, user[0]) == user[1]:
            return True
        self.all("insert into attempt values (?, ?)", login, time.time())
        return False


def migrated(thing: Any) -> Any:
    """Return a dashboard as Grafana keeps it: without what is null, and without what its panels have empty."""
    if isinstance(thing, list):
        return [migrated(one) for one in thing]
    if isinstance(thing, dict):
        kept = {key: migrated(value) for key, value in thing.items() if value is not None}
        return {key: value for key, value in kept.items() if "gridPos" not in kept or value not in ([], {}, False, "")}
    return thing


def documents(folder: Path) -> list[Any]:
    """The files of provisioning: YAML in Grafana, here only as far as it is JSON below comments."""
    found = []
    for path in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]):
        text = "".join(line for line in path.read_text(encoding="utf-8").splitlines(True) if not line.startswith("#"))
        if text.strip():
            found.append(json.loads(text))
    return found


class Server:
    """One Grafana."""

    def __init__(self, config: configparser.ConfigParser, home: str) -> None:
        self.config, self.home = config, home
        self.data = Database(config["paths"]["data"])
        if not self.data.one("select 1 from user"):
            admin = config["security"]["admin_user"]
            self.data.all("insert into user values (1, ?, '', '')", admin)
            self.data.password(config["security"]["admin_password"])
        self.provisioning = Path(config["paths"]["provisioning"])
        self.sources()
        self.providers = [
            one for found in documents(self.provisioning / "dashboards") for one in found.get("providers", [])
        ]
        self.dashboards()

    @property
    def below(self) -> str:
        """The path below which it is served."""
        if not self.config["server"].getboolean("serve_from_sub_path"):
            return ""
        return urllib.parse.urlsplit(self.config["server"].get("root_url", "")).path.rstrip("/")

    def has_plugin(self, name: str) -> bool:
        """Whether a plugin is there: since 13.2 a package brings those of data sources in a folder of their own."""
        folder = self.config["paths"]["bundled_plugins"]
        return os.path.isdir(os.path.join(self.home, folder, name))

    def sources(self) -> None:
        """Take the data sources of provisioning."""
        self.data.all("delete from source where kept = 1")
        for found in documents(self.provisioning / "datasources"):
            for source in found.get("datasources", []):
                body = {
                    "access": "proxy",
                    "isDefault": False,
                    "jsonData": {},
                    **source,
                    "readOnly": not source.get("editable"),
                }
                self.data.all(
                    "insert or replace into source values (?, ?, ?, 1)", source["uid"], source["name"], json.dumps(body)
                )

    def dashboards(self) -> None:
        """Take the dashboards of provisioning, and forget those whose files are gone."""
        there = set()
        for provider in self.providers:
            self.folder(provider.get("folderUid", ""), provider.get("folder", ""))
            for path in sorted(Path(provider["options"]["path"]).glob("**/*.json")):
                try:
                    body = json.loads(path.read_text(encoding="utf-8"))
                except (OSError, ValueError) as error:
                    print(f'level=error msg="failed to load dashboard" file={path} error="{error}"', flush=True)
                    continue
                there.add(body["uid"])
                self.save(body, provider.get("folderUid", ""), str(path))
        for (uid,) in self.data.all("select uid from dashboard where kept != ''"):
            if uid not in there:
                self.data.all("delete from dashboard where uid = ?", uid)

    def again(self) -> None:
        """Look at the dashboards' files every now and then."""
        seconds = min((provider.get("updateIntervalSeconds", 10) for provider in self.providers), default=10)
        while True:
            time.sleep(seconds)
            self.dashboards()

    def folder(self, uid: str, title: str) -> None:
        if title:
            self.data.all("insert or replace into folder values (?, ?)", uid, title)

    def save(self, body: dict[str, Any], folder: str, kept: str = "") -> int:
        before = self.data.one("select body, version from dashboard where uid = ?", body["uid"])
        stored = migrated({key: value for key, value in body.items() if key not in ("id", "version")})
        stored["schemaVersion"] = max(SCHEMA, stored.get("schemaVersion", 0))
        stored.setdefault("preload", False)
        text = json.dumps(stored, sort_keys=True)
        if before and kept and before[0] == text:
            return int(before[1])
        version = int(before[1]) + 1 if before else 1
        self.data.all(
            "insert or replace into dashboard values (?, ?, ?, ?, ?)", body["uid"], folder, text, version, kept
        )
        return version


class Refusal(Exception):
    """An answer that is no success."""

    def __init__(self, code: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.code, self.said = code, {"message": message, **more}


class Api:
    """What is behind /api."""

    def __init__(self, server: Server, role: str) -> None:
        self.server, self.data, self.role = server, server.data, role

    def need(self, *roles: str) -> None:
        if self.role not in roles:
            raise Refusal(403, "You'll need additional permissions to perform this action.")

    def answer(self, method: str, path: str, body: Any) -> Any:
        for pattern, name in (
            (r"GET user", "user"),
            (r"(GET|PUT) folders/([^/]+)", "folder"),
            (r"POST folders", "make_folder"),
            (r"GET dashboards/uid/([^/]+)", "dashboard"),
            (r"POST dashboards/db", "save_dashboard"),
            (r"GET search", "search"),
            (r"GET datasources", "sources"),
            (r"GET datasources/uid/([^/]+)/health", "health"),
            (r"GET plugins/([^/]+)/settings", "plugin"),
            (r"(GET|PUT) datasources/uid/([^/]+)", "source"),
            (r"POST datasources", "make_source"),
        ):
            match = re.fullmatch(pattern, f"{method} {path}")
            if match:
                return getattr(self, name)(*match.groups(), body)
        raise Refusal(404, "Not found")

    def user(self, _body: Any) -> Any:
        return {"id": 1, "login": "admin", "isGrafanaAdmin": True}

    def folder(self, method: str, uid: str, body: Any) -> Any:
        row = self.data.one("select title from folder where uid = ?", uid)
        if not row:
            # The rights of others than admins are those on folders that are there.
            self.need("Admin")
            raise Refusal(404, "folder not found", status="not-found")
        if method == "PUT":
            self.need("Admin", "Editor")
            self.server.folder(uid, body["title"])
        return {"uid": uid, "title": body["title"] if method == "PUT" else row[0]}

    def make_folder(self, body: Any) -> Any:
        self.need("Admin", "Editor")
        if self.data.one("select 1 from folder where uid = ?", body["uid"]):
            raise Refusal(412, "a folder with the same UID already exists")
        self.server.folder(body["uid"], body["title"])
        return {"uid": body["uid"], "title": body["title"]}

    def dashboard(self, uid: str, _body: Any) -> Any:
        row = self.data.one("select folder, body, version, kept from dashboard where uid = ?", uid)
        if not row:
            raise Refusal(404, "Dashboard not found")
        folder, text, version, kept = row
        meta = {"folderUid": folder, "provisioned": bool(kept), "provisionedExternalId": os.path.basename(kept)}
        return {"meta": {"type": "db", **meta}, "dashboard": {**json.loads(text), "id": 1, "version": version}}

    def save_dashboard(self, body: Any) -> Any:
        self.need("Admin", "Editor")
        wanted = body["dashboard"]
        folder = body.get("folderUid", "")
        if folder and not self.data.one("select 1 from folder where uid = ?", folder):
            raise Refusal(400, "folder not found")
        row = self.data.one("select version, kept from dashboard where uid = ?", wanted["uid"])
        if row and row[1]:
            raise Refusal(400, "Cannot save provisioned dashboard")
        if row and not body.get("overwrite") and wanted.get("version", 0) != row[0]:
            raise Refusal(412, "The dashboard has been changed by someone else", status="version-mismatch")
        version = self.server.save(wanted, folder)
        return {"status": "success", "uid": wanted["uid"], "version": version, "url": f"/d/{wanted['uid']}"}

    def search(self, _body: Any) -> Any:
        rows = self.data.all("select uid, folder, body from dashboard")
        return [
            {"uid": uid, "folderUid": folder, "title": json.loads(text)["title"], "type": "dash-db"}
            for uid, folder, text in rows
        ]

    def sources(self, _body: Any) -> Any:
        return [json.loads(text) for (text,) in self.data.all("select body from source")]

    def source(self, method: str, uid: str, body: Any) -> Any:
        row = self.data.one("select body from source where uid = ?", uid)
        if not row:
            raise Refusal(404, "Data source not found")
        if method == "GET":
            return json.loads(row[0])
        self.need("Admin")
        if json.loads(row[0])["readOnly"]:
            raise Refusal(403, "Cannot update read-only data source")
        return self._keep(uid, body)

    def health(self, uid: str, _body: Any) -> Any:
        """Ask what is behind a data source, by the plugin of its type."""
        row = self.data.one("select body from source where uid = ?", uid)
        if not row:
            raise Refusal(404, "Data source not found")
        source = json.loads(row[0])
        if not self.server.has_plugin(source["type"]):
            raise Refusal(404, "Plugin not found", messageId="plugin.notRegistered")
        try:
            with urllib.request.urlopen(f"{source['url']}/api/v1/query?query=1%2B1", timeout=5):
                pass
        except (OSError, ValueError) as error:
            message = f"{error} - There was an error returned querying the Prometheus API."
            raise Refusal(400, message, status="ERROR") from error
        return {"status": "OK", "message": "Successfully queried the Prometheus API."}

    def plugin(self, name: str, _body: Any) -> Any:
        if not self.server.has_plugin(name):
            raise Refusal(404, "Plugin not found, no installed plugin with that id")
        return {"id": name, "type": "datasource"}

    def make_source(self, body: Any) -> Any:
        self.need("Admin")
        if self.data.one("select 1 from source where uid = ? or name = ?", body["uid"], body["name"]):
            raise Refusal(409, "data source with the same name already exists")
        return self._keep(body["uid"], body)

    def _keep(self, uid: str, body: Any) -> Any:
        stored = {"isDefault": False, "basicAuth": False, **body, "uid": uid, "readOnly": False}
        self.data.all("insert or replace into source values (?, ?, ?, 0)", uid, body["name"], json.dumps(stored))
        return {"datasource": stored, "message": "Datasource added"}


class Handler(BaseHTTPRequestHandler):
    """Answers HTTP."""

    server_version = "Grafana"
    grafana: Server

    def log_message(self, *_arguments: Any) -> None:
        pass

    def role(self) -> str:
        """Who asks: a user by password, or a service account by token."""
        kind, _, word = self.headers.get("Authorization", "").partition(" ")
        data = self.grafana.data
        if kind == "Bearer":
            row = data.one("select role from token where hash = ?", hashlib.sha256(word.encode()).hexdigest())
            if not row:
                raise Refusal(401, "Invalid API key", messageId="api-key.invalid")
            return str(row[0])
        if kind == "Basic" and self.grafana.config["auth.basic"].getboolean("enabled"):
            login, _, password = base64.b64decode(word).decode().partition(":")
            if data.right(login, password):
                return "Admin"
            raise Refusal(401, "Invalid username or password", messageId="password-auth.failed")
        raise Refusal(401, "Unauthorized", messageId="auth.unauthorized")

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        path = parts.path
        if self.grafana.below and path.startswith(self.grafana.below + "/"):
            path = path[len(self.grafana.below) :]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "/api/health":
            return self.say(200, {"database": "ok", "version": VERSION, "commit": "stand-in"})
        if path == "/metrics":
            return self.say(200, f'grafana_build_info{{version="{VERSION}",edition="oss"}} 1\n', "text/plain")
        if not path.startswith("/api/"):
            return self.say(200, "<!DOCTYPE html><title>Grafana (a stand-in)</title>", "text/html")
        try:
            said = Api(self.grafana, self.role()).answer(
                self.command, path[len("/api/") :].rstrip("/"), json.loads(body) if body else None
            )
            return self.say(200, said)
        except Refusal as error:
            return self.say(error.code, error.said)

    do_POST = do_PUT = do_GET

    def say(self, status: int, said: Any, kind: str = "application/json") -> None:
        raw = (said if isinstance(said, str) else json.dumps(said)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


def serve(options: argparse.Namespace) -> int:
    config = settings(options.config, options.rest)
    grafana = Server(config, options.homepath)
    server = config["server"]
    httpd = ThreadingHTTPServer(
        (server["http_addr"] or "0.0.0.0", server.getint("http_port")), type("Own", (Handler,), {"grafana": grafana})
    )
    if options.pidfile:
        Path(options.pidfile).write_text(f"{os.getpid()}\n", encoding="utf-8")
    threading.Thread(target=grafana.again, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=httpd.shutdown).start())
    print(
        f'level=info msg="HTTP Server Listen" address={httpd.server_address[0]}:{httpd.server_address[1]}', flush=True
    )
    httpd.serve_forever(poll_interval=0.05)
    return 0


def cli(options: argparse.Namespace) -> int:
    """grafana cli admin reset-admin-password, and for tests one thing that only Grafana's pages can do: a token."""
    config = settings(options.config, re.findall(r"cfg:\S+", options.configOverrides))
    data = Database(config["paths"]["data"])
    if options.rest[:2] == ["admin", "reset-admin-password"]:
        words = options.rest[2:]
        password = sys.stdin.readline().rstrip("\n") if "--password-from-stdin" in words else (words or [""])[0]
        if len(password) < 4:
            print("Error: ✗ new password is too short", file=sys.stderr)
            return 1
        if not data.one("select 1 from user"):
            print("Error: ✗ could not read user from database. Error: user not found", file=sys.stderr)
            return 1
        data.password(password)
        print("\nAdmin password changed successfully ✔")
        return 0
    if options.rest[:1] == ["stand-in-token"]:
        token = "glsa_" + secrets.token_hex(16)
        data.all("insert into token values (?, ?)", hashlib.sha256(token.encode()).hexdigest(), options.rest[1])
        print(token)
        return 0
    print(f"Error: ✗ no such command: {' '.join(options.rest)}", file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="grafana", description="A stand-in for Grafana.")
    parser.add_argument("--version", "-v", action="version", version=f"grafana version {VERSION}")
    commands = parser.add_subparsers(required=True)
    for name, run in (("server", serve), ("cli", cli)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--homepath", default="/usr/share/grafana")
        command.add_argument("--config", default="")
        command.add_argument("--pidfile", default="")
        command.add_argument("--packaging", default="unknown")
        command.add_argument("--configOverrides", default="")
        command.add_argument("rest", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    return int(options.run(options))


if __name__ == "__main__":
    sys.exit(main())
