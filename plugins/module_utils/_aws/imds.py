# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""EC2's instance metadata service, version 2, and ParallelCluster's lock before it (Imds/Secured).

The lock is a chain of iptables that refuses every user who is not named. ParallelCluster's own tool adds a user. What
it leaves is lost at the next boot, which restores the rules that were saved when the node was configured.
"""

from __future__ import annotations

import os
import re
import urllib.request

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files, http
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run

ADDRESS = "http://169.254.169.254"
TOOL = "/opt/parallelcluster/scripts/imds/imds-access.sh"
SAVED = ("/etc/parallelcluster/sysconfig/iptables.rules", "/etc/parallelcluster/sysconfig/ip6tables.rules")
ROLE = "/latest/meta-data/iam/security-credentials/"
CHAIN = "PARALLELCLUSTER_IMDS"
TIMEOUT = 3
_CLOSED = re.compile(rf"-A {CHAIN} (?P<to>-d \S+ )?-j REJECT\b.*")


class ImdsError(Problem):
    """Why the service gives nothing, on one line."""

    def __init__(self, message: str, silent: bool = False) -> None:
        super().__init__(message)
        self.silent = silent  # nobody answered: it may be the lock


def get(path: str, address: str = ADDRESS) -> str:
    """Return what the service says to whoever this process is; without a path, nothing, if it answers at all."""
    life = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _said(urllib.request.Request(f"{address}/latest/api/token", b"", life, method="PUT"), path, address)
    if not path:
        return ""
    return _said(urllib.request.Request(address + path, headers={"X-aws-ec2-metadata-token": token}), path, address)


def _said(request: urllib.request.Request, path: str, address: str) -> str:
    try:
        answer = http.ask(request, TIMEOUT, proxies=False)
    except http.Unanswered as error:
        raise ImdsError(f"{address} says {error}", silent=True) from error
    if not answer.good:
        raise ImdsError(f"{address}{path} says {answer.status} {answer.reason}")
    return answer.text


def allow(user: str) -> None:
    """Let a user ask the service. Those who may already are not touched."""
    said = run(["/bin/bash", TOOL, "--allow", user], 60, merged=True)
    if said.code:
        raise Problem(f"'{TOOL} --allow {user}' ended with {said.code}: {said.reason}")


def with_user(text: str, uid: int) -> str:
    """Return saved rules in which a user may ask, too: before the rule that refuses everybody else."""
    lines = text.splitlines(keepends=True)
    if re.search(rf"^-A {CHAIN} .*--uid-owner {uid} -j ACCEPT\s*$", text, re.MULTILINE):
        return text
    for number, line in enumerate(lines):
        closed = _CLOSED.match(line)
        if closed:
            lines.insert(number, f"-A {CHAIN} {closed['to'] or ''}-m owner --uid-owner {uid} -j ACCEPT\n")
            break
    return "".join(lines)


def save(uid: int, check: bool) -> list[str]:
    """Have a user in the rules that the next boot restores; return the files that changed."""
    changed = []
    for path in SAVED:
        before = files.read(path)
        after = before and with_user(before, uid)
        if not after or after == before:
            continue
        changed.append(path)
        if not check:
            files.write(path, after, os.stat(path).st_mode & 0o7777)
    return changed
