# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Change sets as CloudFormation makes them: by the values that properties have, and by conditions.

moto compares templates as they are written: of a condition or a value in a parameter it sees nothing, and outputs stay
those of the stack's beginning. Which property replaces a resource is in the resource types' own schemas
(createOnlyProperties, and conditionalCreateOnlyProperties, such as an instance's type), which cfn-lint has.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from moto.cloudformation import models, parsing

_NOTHING = object()


def change(action: str, name: str, kind: str, replacement: str = "") -> models.Change:
    made = models.Change(action, name, kind)
    made.replacement = replacement  # moto's answer has it where it is there
    return made


class Plan:
    """A template with its parameters: which resources there are, and what their properties are."""

    def __init__(self, stack: Any, template: dict[str, Any], parameters: dict[str, Any]) -> None:
        self.template = template
        # The same map that moto makes resources from, for its parameters and conditions.
        self.map = parsing.ResourceMap(
            stack.stack_id, stack.name, parameters, {}, stack.region_name, stack.account_id, template, {}
        )
        if template:
            self.map.load_mapping()
            self.map.load_parameters()
            self.map.load_conditions()

    def resources(self) -> dict[str, dict[str, Any]]:
        found = self.template.get("Resources", {})
        return {name: one for name, one in found.items() if self._holds(one.get("Condition"))}

    def properties(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._value(self.template["Resources"][name].get("Properties", {}))
        return found

    def _holds(self, condition: str | None) -> bool:
        return condition is None or bool(self.map.lazy_condition_map[condition])

    def _value(self, value: Any) -> Any:
        """Work out parameters and conditions; a reference to another resource stays one."""
        if isinstance(value, list):
            return [one for one in map(self._value, value) if one is not _NOTHING]
        if not isinstance(value, dict):
            return value
        if "Fn::If" in value:
            condition, yes, no = value["Fn::If"]
            return self._value(yes if self._holds(condition) else no)
        if "Ref" in value:
            if value["Ref"] == "AWS::NoValue":
                return _NOTHING
            return self.map.resolved_parameters.get(value["Ref"], value)
        if isinstance(value.get("Fn::Sub"), str):
            return {"Fn::Sub": re.sub(r"\$\{(\w+)\}", self._parameter, value["Fn::Sub"])}
        inner = {key: self._value(one) for key, one in value.items()}
        return {key: one for key, one in inner.items() if one is not _NOTHING}

    def _parameter(self, found: re.Match[str]) -> str:
        return str(self.map.resolved_parameters.get(found[1], found[0]))


def parameters(stack: Any) -> dict[str, str]:
    """Return a stack's parameters as they were told. moto tells lists and numbers of Python."""
    resolved = stack.resource_map.resolved_parameters
    return {key: ",".join(value) if isinstance(value, list) else str(value) for key, value in resolved.items()}


def parameter_list(stack: Any) -> list[dict[str, str]]:
    return [{"ParameterKey": key, "ParameterValue": value} for key, value in parameters(stack).items()]


@functools.cache
def replacing(kind: str, region: str) -> dict[str, frozenset[str]]:
    """Return the properties of a type of which a change makes another resource: always (True), or under conditions."""
    package = importlib.util.find_spec("cfnlint")  # not imported, which takes seconds
    schemas = Path(str(package and package.origin)).parent / "data/schemas"
    index = json.loads((schemas / f"providers/{region}.json").read_text())
    schema = json.loads((schemas / f"resources/{index[kind]}.json").read_text())
    named = {"True": "createOnlyProperties", "Conditional": "conditionalCreateOnlyProperties"}
    return {how: frozenset(path.split("/")[2] for path in schema.get(key, [])) for how, key in named.items()}


def diff(change_set: models.ChangeSet) -> list[models.Change]:
    stack = change_set.stack
    before = Plan(stack, stack.template_dict if stack.resource_map.resources else {}, stack.parameters)
    after = Plan(stack, change_set.template_dict, change_set.parameters)
    there, wanted = before.resources(), after.resources()
    changes = [change("Add", name, wanted[name]["Type"]) for name in wanted if name not in there]
    changes += [change("Remove", name, there[name]["Type"]) for name in there if name not in wanted]
    for name in (name for name in wanted if name in there):
        old, new, kind = before.properties(name), after.properties(name), wanted[name]["Type"]
        differing = {key for key in {*old, *new} if old.get(key) != new.get(key)}
        if differing:
            hows = (how for how, properties in replacing(kind, stack.region_name).items() if differing & properties)
            changes.append(change("Modify", name, kind, next(hows, "False")))
    return changes


def apply(change_set: models.ChangeSet) -> None:
    """Make, change and remove what the change set says; what is to be retained stays in the account."""
    stack, template = change_set.stack, change_set.template_dict
    resources, old = stack.resource_map, dict(stack.resource_map._resource_json_map)
    for one in change_set.changes:
        if one.action == "Remove":
            name = one.logical_resource_id
            resource = resources._parsed_resources.pop(name, None)
            if resource is not None and old[name].get("DeletionPolicy") != "Retain":
                resources._delete_resource(resource, old[name])
    resources._template, resources._resource_json_map = template, template["Resources"]
    resources.input_parameters = change_set.parameters
    resources.load()
    resources.create(template)
    for one in change_set.changes:
        if one.action == "Modify":
            name = one.logical_resource_id
            resources._parsed_resources[name] = parsing.parse_and_update_resource(
                name, template["Resources"][name], resources, stack.account_id, stack.region_name
            )
    stack.template_dict, stack.parameters, stack.tags = template, change_set.parameters, change_set.tags
    stack.output_map = stack._create_output_map()


def patches() -> list[tuple[Any, str, Any]]:
    return [
        (models.ChangeSet, "diff", diff),
        (models.ChangeSet, "apply", apply),
        (models.Stack, "stack_parameters", property(parameters)),
        (models.Stack, "parameter_list", property(parameter_list)),
    ]
