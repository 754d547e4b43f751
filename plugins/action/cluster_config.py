# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a cluster's configuration for ParallelCluster, or say everything that is wrong with the variables."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.session import Credentials, client_maker
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import base as users
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import instances, render
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config.cluster import PREFIX
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.on_controller import OnController
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.roles import typed

_ROLE = "cluster_config"
_MODE = 0o644


class ActionModule(OnController):
    SPEC = {"variables": {"type": "dict", "required": True}, "directory": {"type": "path", "default": "."}}

    def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        given = {name[len(PREFIX) :]: _set(value) for name, value in typed(_ROLE, args["variables"]).items()}
        path, base_path = (_path(args["directory"], given.get(key)) for key in ("file", "base"))
        base = users.read(base_path) if base_path else None
        region = given.get("region") or (base or {}).get("Region") or os.environ.get("AWS_REGION") or ""
        given["region"] = given.get("region") or ("" if (base or {}).get("Region") else region)
        catalog: instances.Catalog | None = None
        unknown: list[str] = []
        if given.get("ask_ec2") and region:
            client = client_maker(Credentials(profile=given.get("profile") or ""), region)("ec2", region)
            catalog, unknown = instances.ask(client, render.instance_types(given, base), region)
        there = _file_problems(path, base_path, bool(given.get("update")))
        former = users.former(path) if given.get("update") and not there else None
        outcome = render.render(given, base, components.read(), catalog, unknown, former)
        problems = [*outcome.problems, *there]
        if problems:
            return {"failed": True, "msg": "\n".join(problems)}
        before, after = files.read(path), render.text(outcome, str(given["version"]))
        changed = before != after or stat.S_IMODE(os.stat(path).st_mode) != _MODE
        if changed and not self._task.check_mode:
            files.write(path, after, _MODE)
        return {
            "changed": changed,
            "path": path,
            "region": region,
            "notes": list(outcome.notes),
            "diff": files.diff(path, before or "", after) if before != after else {},
        }


def _set(value: Any) -> Any:
    """Return a value without the keys that nobody has set, which are None, and in Python's own types."""
    if isinstance(value, Mapping):
        return {str(key): _set(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_set(inner) for inner in value]
    # Ansible's own strings and numbers are of other classes, which YAML cannot write.
    if isinstance(value, bool):
        return value
    return next((kind(value) for kind in (str, int, float) if isinstance(value, kind)), value)


def _path(directory: str, path: Any) -> str:
    return os.path.join(directory, os.path.expanduser(str(path))) if path else ""


def _file_problems(path: str, base: str, update: bool) -> list[str]:
    where = f"{PREFIX}file is {path or 'empty'}"
    if not path or os.path.isdir(path) or not os.path.isdir(os.path.dirname(path)):
        return [f"{where}; needed: a file in a directory that is there"]
    if base and os.path.realpath(base) == os.path.realpath(path):
        return [f"{where}, which is {PREFIX}base too and would lose its comments; needed: another file"]
    there = files.read(path)
    if there is not None and not there.startswith(render.MARK):
        return [f"{where}, which somebody else has written; needed: another file, or that one as {PREFIX}base"]
    if there is None and update:
        return [f"{PREFIX}update is true, and {path} is not there; needed: the file of the cluster that exists"]
    return []
