# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way to be a module: show that this run is alive, do the work, and tell what came of it or what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.plugins.module_utils import _run
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


def serve(arguments: Mapping[str, Any], apply: Callable[[AnsibleModule], Mapping[str, Any]], **options: Any) -> None:
    """Run a module to its end.

    `apply` returns the result, in which `changed` is false where it is not said; what stands under `warnings` is told
    as warnings. What it raises becomes a failed result: a Problem with what is told beside it, and an OSError.
    """
    module = AnsibleModule(argument_spec=dict(arguments), supports_check_mode=True, **options)
    _run.heartbeat()
    try:
        result = dict(apply(module))
    except Problem as problem:
        module.fail_json(msg=str(problem), **problem.told)
    except OSError as error:
        module.fail_json(msg=str(error))
    for warning in result.pop("warnings", ()):
        module.warn(warning)
    module.exit_json(**{"changed": False, **result})


def frozen(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of which none can change: lists become tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in parameters.items()}
