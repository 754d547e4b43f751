# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is due of a unit: whether it is enabled, and whether it is started, restarted or reloaded."""

from __future__ import annotations

import os
import re

from ansible_collections.pcluster.postboot.plugins.module_utils._systemd import files, systemctl
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd.request import Request
from ansible_collections.pcluster.postboot.plugins.module_utils._systemd.systemctl import UnitError


def refuse_masked(request: Request, status: dict[str, str]) -> None:
    link = os.path.join(request.directory, request.name)
    masked = status.get("LoadState") == "masked" or status.get("UnitFileState", "").startswith("masked")
    if not masked and os.path.islink(link):
        masked = os.readlink(link) == os.devnull
    if masked and (request.state != "stopped" or request.unit is not None or request.enabled):
        raise UnitError(
            f"{request.name} is masked on this node, so it can neither be enabled nor started: "
            f"'systemctl unmask {request.name}' undoes that, or disable the role's component"
        )


def enable_due(request: Request, status: dict[str, str], known: bool) -> str | None:
    """Return enable, disable or None."""
    wanted = request.enabled
    state = status.get("UnitFileState", "")
    if wanted is None and request.state != "started":
        return None
    if wanted is False:
        return "disable" if state in ("enabled", "enabled-runtime", "linked", "linked-runtime") else None
    if state in ("enabled", "alias", "indirect", "generated", "transient"):
        return None
    content = request.unit if request.unit is not None else files.read(status.get("FragmentPath") or "")
    installable = content is None or re.search(r"^\s*\[Install\]\s*$", content, re.MULTILINE)
    if not installable or (state == "static" and request.unit is None):
        if wanted is None:
            return None
        raise UnitError(f"enabled: {request.name} has no [Install] section, it cannot be enabled; set enabled: false")
    return "enable" if known or request.check else None


def _newest(request: Request, status: dict[str, str]) -> float:
    """Return when the newest of the files that a process was started from changed."""
    # The folder of drop-ins changes when one is removed.
    folder = os.path.join(request.directory, f"{request.name}.d")
    paths = [
        status.get("FragmentPath", ""),
        *status.get("DropInPaths", "").split(),
        *files.wanted_files(request),
        folder,
    ]
    # What generators write below /run is written anew with every daemon-reload.
    times = [files.changed_at(path) for path in paths if path and not path.startswith("/run/")]
    return max([0.0, *times, *(files.changed_at(path) for path in request.restart_on)])


def change_due(request: Request, status: dict[str, str], redefined: bool) -> str | None:
    """Return what must happen to the systemctl.running unit: start, restart, reload, stop or None."""
    if request.state == "present":
        return None
    if request.state == "stopped":
        return "stop" if systemctl.is_up(status) else None
    if request.state == "current" and not systemctl.is_up(status):
        return None
    started = systemctl.started_at(status)
    outdated = redefined or _newest(request, status) > started
    if systemctl.is_oneshot(status):
        failed = status.get("Result") not in (None, "", "success") or not started
        return "start" if (outdated or failed) and status.get("ActiveState") != "activating" else None
    if not systemctl.is_up(status):
        return "start"
    if outdated:
        return "restart"
    read = systemctl.wall(status, "StateChangeTimestampMonotonic", "ExecMainStartTimestampMonotonic")
    if any(files.changed_at(path) > read for path in request.reload_on):
        return "reload" if status.get("CanReload") == "yes" else "restart"
    return None
