# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The password of Grafana's admin: where it comes from, the file that keeps it, and whether Grafana takes it and works.

Grafana reads the file only when it makes its database. With a database that is older, or with another password, it is
told by its own command line program.
"""

from __future__ import annotations

import contextlib
import grp
import os
import secrets
import stat
import time
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._aws import secret as aws_secret
from ansible_collections.pcluster.postboot.plugins.module_utils._grafana import api
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run

LONG_ENOUGH = 8
# Grafana's own, and those that others have made everybody know.
KNOWN = {"admin", "grafana", "Grafana4PC!", "password", "prom-operator", "changeme", "strongpassword"}
HOME = "/usr/share/grafana"
USER = "grafana"
# Since 13.2 Prometheus is a plugin that packages bring there, and that Grafana does not run without.
BUNDLED = "/var/lib/grafana/plugins-bundled"
PROGRAM: Sequence[str] = (f"{HOME}/bin/grafana", "cli", f"--homepath={HOME}", "--config=/etc/grafana/grafana.ini")
SECONDS = 60.0
PAUSE = 5.0
TRIES = 5  # a data source's plugin is a process of its own, which starts after Grafana


class Request(NamedTuple):
    """The module's options."""

    path: str = "/var/lib/pcluster-postboot/grafana/admin-password"
    password: str = ""
    password_file: str = ""
    secret: str = ""
    region: str = ""
    url: str = ""
    user: str = "admin"
    datasource: str = ""
    group: str = "grafana"
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    actions: list[str]
    origin: str


def acceptable(password: str, origin: str) -> str:
    """Return a password that somebody has chosen, unless everybody would guess it."""
    if password in KNOWN or password.lower() in KNOWN:
        raise Problem(f"the password of {origin} is one that everybody knows; choose another one")
    if len(password) < LONG_ENOUGH:
        raise Problem(f"the password of {origin} has {len(password)} characters; needed: {LONG_ENOUGH} at least")
    return password


def kept(path: str) -> str:
    """Return what the file holds; nothing when it is not there. Only root may have written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    with open(descriptor, encoding="utf-8") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise Problem(f"{path} belongs to user {found.st_uid}; needed: a file of user {os.geteuid()}; remove it")
        return stream.read().strip("\r\n")


def closed(path: str, group: int) -> bool:
    """Say whether nobody but root and the group can read the file, or look into its folder."""
    modes = {path: 0o640, os.path.dirname(path): 0o750}
    found = {each: os.stat(each) for each in modes}
    return all((stat.S_IMODE(found[each].st_mode), found[each].st_gid) == (mode, group) for each, mode in modes.items())


def wanted(request: Request, before: str) -> tuple[str, str]:
    """Return the password, and where it comes from: given, secret, kept or generated."""
    if request.password_file and not request.password:
        raise Problem(
            f"grafana_admin_password_file is {request.password_file}, which is empty, or not there where Ansible runs"
        )
    if request.password and request.secret:
        raise Problem(
            "grafana_admin_password_file and grafana_admin_password_secret are both given; needed: one of them"
        )
    if request.password:
        given = aws_secret.one_line(request.password, "grafana_admin_password_file")
        return acceptable(given, "grafana_admin_password_file"), "given"
    if request.secret:
        source = "grafana_admin_password_secret"
        return acceptable(aws_secret.from_aws(request.secret, "password", request.region, source), source), "secret"
    return (acceptable(before, request.path), "kept") if before else (secrets.token_urlsafe(24), "generated")


def put(path: str, password: str, group: int) -> None:
    """Keep it where nobody but root and the group can read it."""
    folder = os.path.dirname(path)
    os.makedirs(os.path.dirname(folder), mode=0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    os.chown(folder, -1, group)
    os.chmod(folder, 0o750)
    files.write(path, password + "\n", 0o600)
    os.chown(path, -1, group)
    os.chmod(path, 0o640)


def client(request: Request, password: str) -> api.Client:
    return api.Client(request.url, api.basic(request.user, password), source="grafana_listen_address")


def accepted(request: Request, password: str) -> bool:
    """Ask Grafana whether this is its admin's password. After five refusals it lets nobody in for a while."""
    answer = client(request, password).ask("GET", "user")
    if answer.status not in (200, 401):
        raise Problem(
            f"{request.url}/api/user answers {answer.why()}; needed: 200 or 401; see journalctl -u grafana-server"
        )
    return answer.status == 200


def reaches(request: Request, password: str) -> None:
    """Have Grafana ask its data source. Without that it runs, and each of its dashboards is empty."""
    grafana = client(request, password)
    for tries in range(TRIES):
        answer = grafana.ask("GET", f"datasources/uid/{request.datasource}/health")
        if answer.status == 200:
            return
        time.sleep(PAUSE if tries < TRIES - 1 else 0)
    raise Problem(
        f"Grafana runs, and its data source {request.datasource} does not work: {answer.why()}; does Prometheus answer "
        f"at grafana_prometheus_url, and is its plugin in {BUNDLED}? See journalctl -u grafana-server"
    )


def reset(password: str) -> None:
    """Let Grafana's own program set the password, which it reads from its standard input."""
    argv = [*PROGRAM, "admin", "reset-admin-password", "--password-from-stdin"]
    if os.geteuid() == 0:
        # As Grafana's user, or files of its database would become root's.
        argv = ["runuser", "-u", USER, "--", *argv]
    said = run(argv, SECONDS, text=password + "\n", cwd="/")
    if said.code:
        why = " ".join(said.lines).replace(password, "***")[-300:]
        raise Problem(f"'{said.command}' ended with {said.code}: {why or 'it said nothing'}")


def log_in(request: Request, password: str, actions: list[str]) -> None:
    """Make Grafana take the password, if it does not."""
    if accepted(request, password):
        return
    actions.append("reset")
    if request.check:
        return
    reset(password)
    if not accepted(request, password):
        time.sleep(PAUSE)  # its users are cached for a moment
        if not accepted(request, password):
            raise Problem(
                f"{request.url} refuses its admin's password though it was just set; is [auth.basic] switched off in "
                "grafana_settings, or were there five wrong passwords in the last five minutes?"
            )


def apply(request: Request) -> Outcome:
    """Keep the password, and with `url` make Grafana take it."""
    try:
        group = grp.getgrnam(request.group).gr_gid
    except KeyError:
        if not request.check:
            raise Problem(f"there is no group {request.group}; is the package grafana installed?") from None
        group = -1
    before = kept(request.path)
    password, origin = wanted(request, before)
    actions: list[str] = []
    if password != before or not closed(request.path, group):
        actions.append("wrote")
        if not request.check:
            put(request.path, password, group)
    # In check mode nothing runs yet where the password itself is only foretold.
    if request.url and not (request.check and actions):
        log_in(request, password, actions)
        if request.datasource and not (request.check and actions):
            reaches(request, password)
    return Outcome(actions, origin)
