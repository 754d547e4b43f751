# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Secrets of AWS Secrets Manager, read with the AWS CLI: ParallelCluster's images have it, and nodes have no boto3."""

from __future__ import annotations

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.fetch import find_aws
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run

SECONDS = 60.0


def one_line(text: str, source: str) -> str:
    """Return a secret that stands on a line of its own, and refuse everything else. It is never part of the error."""
    lines = text.strip("\r\n").splitlines()
    if len(lines) != 1 or not lines[0].strip():
        raise Problem(f"{source} has {len(lines)} lines; needed: the secret on one line, and nothing else")
    return lines[0]


def from_file(path: str, source: str) -> str:
    """Read a secret from a file; `source` names the variable that names it."""
    try:
        with open(path, encoding="utf-8") as stream:
            return one_line(stream.read(), f"{source} {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{source} {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def from_aws(name: str, key: str, region: str, source: str) -> str:
    """Read a secret by its name or ARN: its text, or of an object, as AWS' console makes them, the value of `key`."""
    program = find_aws()
    if program is None:
        raise Problem(f"{source} needs the AWS CLI, and `aws` is not in PATH: install it, or give a file instead")
    argv = [program, "secretsmanager", "get-secret-value", "--secret-id", name, "--output", "json"]
    argv += ["--region", region] if region else []
    try:
        said = run(argv, SECONDS)
    except NotRun as error:
        raise Problem(f"{source} {name}: {error}") from error
    if said.code:
        why = " ".join(said.lines)[:300] or said.first
        raise Problem(f"{source} {name} cannot be read: {why}; needed: secretsmanager:GetSecretValue on it")
    try:
        text = str(document.parse(said.out)["SecretString"])
    except (ValueError, KeyError, TypeError) as error:
        raise Problem(f"{source} {name} holds no text; needed: the secret as text, not binary") from error
    if text.lstrip().startswith("{"):
        try:
            found = document.parse(text)
        except ValueError:
            found = None
        if isinstance(found, dict):
            if not isinstance(found.get(key), str):
                raise Problem(f"{source} {name} is an object with {sorted(found)}; needed: text, or the key {key!r}")
            text = found[key]
    return one_line(text, f"{source} {name}")
