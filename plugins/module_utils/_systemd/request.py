# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is asked for of a unit, and what of that cannot be meant."""

from __future__ import annotations

import re
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._systemd.systemctl import UnitError

SUFFIXES = (".service", ".socket", ".timer", ".path", ".mount", ".automount", ".target", ".slice")


class Request(NamedTuple):
    """What is asked for; the module's documentation tells what each part means."""

    name: str
    unit: str | None = None
    dropins: dict[str, str | None] | None = None
    companions: dict[str, str | None] | None = None
    sysusers: str | None = None
    tmpfiles: str | None = None
    tmpfiles_late: str | None = None
    state: str = "started"
    enabled: bool | None = None
    restart_on: tuple[str, ...] = ()
    reload_on: tuple[str, ...] = ()
    yield_to: str | None = None
    busy: tuple[str, ...] = ()
    verify: bool = True
    wait_url: str | None = None
    wait_seconds: float = 15
    wait_log: str | None = None
    wait_alive_url: str | None = None
    directory: str = "/etc/systemd/system"
    check: bool = False


def validate(request: Request) -> None:
    """Refuse what cannot be meant."""
    name = request.name
    if not re.fullmatch(r"[\w:.@\\-]+", name, re.ASCII) or not name.endswith(SUFFIXES):
        raise UnitError(f"name: {name!r} is no unit's name; expected one that ends in {', '.join(SUFFIXES)}")
    if "@." in name and request.state != "present":
        raise UnitError(f"state: {name} is a template, it cannot be {request.state}; name an instance, or use present")
    if request.unit is not None and not request.unit.strip():
        raise UnitError(f"unit: the content for {name} is empty; leave it out where a package brings the unit")
    for companion in request.companions or {}:
        unit, beside, dropin = companion.partition(".d/")
        if not re.fullmatch(r"[\w:.@\\-]+", unit, re.ASCII) or not unit.endswith(SUFFIXES):
            raise UnitError(
                f"companions: {companion!r} is no unit's name; expected one that ends in {', '.join(SUFFIXES)}, or a "
                "drop-in such as demo.service.d/10-demo.conf"
            )
        if beside:
            _refuse_unread("companions", dropin)
    for dropin in request.dropins or {}:
        _refuse_unread("dropins", dropin)


def _refuse_unread(option: str, dropin: str) -> None:
    if not re.fullmatch(r"[\w:@-][\w:.@-]*\.conf", dropin, re.ASCII):
        raise UnitError(f"{option}: {dropin!r} would not be read by systemd; expected a name such as 10-path.conf")
