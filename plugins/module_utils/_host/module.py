# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way to be a module: show that this run is alive, do the work, and tell what came of it or what is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import all_visible, visible, visible_lines


class Module(AnsibleModule):
    """A module whose warnings and failed results, which Ansible prints, have nothing that a terminal obeys."""

    def warn(self, warning: str, **more: Any) -> None:
        super().warn(visible(" ".join(warning.split())), **more)

    def fail_json(self, msg: str, **more: Any) -> Any:
        return super().fail_json(visible_lines(msg), **all_visible(more))


def serve(
    arguments: Mapping[str, Any],
    apply: Callable[[AnsibleModule], Mapping[str, Any]],
    alive: bool = True,
    **options: Any,
) -> None:
    """Run a module to its end.

    `alive` says whether the run that holds the node is this one. Where it may be another, the module must not show a
    sign of life for that, as the lock of a dead one would never expire.

    `apply` returns the result. Where that does not say `changed`, it is whether there are `actions`; what stands under
    `warnings` is told as warnings. What `apply` raises becomes a failed result: a Problem with what is told beside it,
    and an OSError.
    """
    module = Module(argument_spec=dict(arguments), supports_check_mode=True, **options)
    if alive:
        lock.heartbeat()
    try:
        result = dict(apply(module))
    except Problem as problem:
        module.fail_json(msg=str(problem), **problem.told)
    except OSError as error:
        module.fail_json(msg=str(error))
    for warning in result.pop("warnings", ()):
        module.warn(warning)
    module.exit_json(**{"changed": bool(result.get("actions")), **result})


def frozen(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of which none can change: lists become tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()}


KINDS = {str: "str", bool: "bool", int: "int", float: "float", dict: "dict", tuple: "list"}


def arguments(
    request: Any, paths: tuple[str, ...] = (), without: tuple[str, ...] = (), **details: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return a module's options by the NamedTuple that they make: a default stands there alone.

    `paths` names the fields that are paths, `without` those that are no options, and `details` has by the field's name
    what its default does not tell.
    """
    spec: dict[str, dict[str, Any]] = {}
    for name in request._fields:
        if name == "check" or name in without:
            continue
        default = request._field_defaults.get(name)
        kind = KINDS.get(type(default), "str")
        option: dict[str, Any] = {"list": {"type": kind, "elements": "str"}}.get(kind, {"type": kind})
        if name in paths:
            option["elements" if kind == "list" else "type"] = "path"
        if name not in request._field_defaults:
            option["required"] = True
        elif default is not None:
            option["default"] = list(default) if kind == "list" else copy.copy(default)
        spec[name] = {**option, **details.get(name, {})}
    return spec


def by(request: Any, apply: Callable[[Any], Any]) -> Callable[[AnsibleModule], dict[str, Any]]:
    """Return the work of a module whose options make a request, a NamedTuple as what comes of it is."""

    def work(module: AnsibleModule) -> dict[str, Any]:
        given = {"check": module.check_mode} if "check" in request._fields else {}
        return dict(apply(request(**frozen(module.params), **given))._asdict())

    return work
