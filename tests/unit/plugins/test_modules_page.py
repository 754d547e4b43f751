# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/modules.md names the modules for everybody; all others say that they are internal; its examples are right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.yaml import SafeLoader  # libyaml's, where it is there

REPO = Path(__file__).resolve().parents[3]
PAGE = (REPO / "docs/modules.md").read_text()
DOCUMENTED = {
    path.stem: yaml.load(re.split(r'^DOCUMENTATION = r"""$|^"""$', path.read_text(), flags=re.MULTILINE)[1], SafeLoader)
    for path in (REPO / "plugins/modules").glob("*.py")
}
EXAMPLES = [task for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) for task in yaml.safe_load(block)]
PREFIX = "pcluster.postboot."


def module_of(task: dict[str, Any]) -> str:
    return next(key for key in task if key.startswith(PREFIX))


def spec_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return documented options as an argument spec; ansible-test compares the two."""
    kept = ("type", "elements", "required", "choices", "default", "aliases")
    return {
        name: {
            **{key: option[key] for key in kept if key in option},
            **({"options": spec_of(option["suboptions"])} if "suboptions" in option else {}),
        }
        for name, option in options.items()
    }


def test_a_module_is_for_everybody_or_says_that_it_is_internal() -> None:
    for_everybody = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    internal = {
        name
        for name, documented in DOCUMENTED.items()
        if f"{PREFIX}attributes.internal" in documented.get("extends_documentation_fragment", [])
    }
    assert for_everybody | internal == set(DOCUMENTED)
    assert not for_everybody & internal
    assert for_everybody == {module_of(task).removeprefix(PREFIX) for task in EXAMPLES}


@pytest.mark.parametrize("task", EXAMPLES, ids=module_of)
def test_an_example_has_options_that_its_module_takes(task: dict[str, Any]) -> None:
    name = module_of(task)
    spec = spec_of(DOCUMENTED[name.removeprefix(PREFIX)].get("options", {}))
    assert ArgumentSpecValidator(spec).validate(task[name] or {}).error_messages == []
