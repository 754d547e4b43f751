# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CloudFormation's intrinsic functions, resolved as far as ParallelCluster's templates use them.

What AWS would decide when it makes a stack (the id of a security group, the address of an interface) comes from
`Decisions`. A function, a parameter or a value that is unknown is an error, never a guess.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

NOTHING = object()  # what AWS::NoValue stands for: the property is not there
PLACE = re.compile(r"\$\{(!?)([^}]*)\}")  # of Fn::Sub


class Unresolved(Exception):
    """What can not be resolved, and where it stands."""

    def __init__(self, where: tuple[str, ...], problem: str) -> None:
        super().__init__(f"{'/'.join(where)}: {problem}")


class Decisions(Protocol):
    """What AWS decides of a resource. None: it is not known."""

    def reference(self, stack: str, name: str, kind: str, properties: Mapping[str, Any]) -> str | None:
        """Return what Ref gives for the resource `name` of this kind."""

    def attribute(self, stack: str, name: str, kind: str, attribute: str) -> str | None:
        """Return what Fn::GetAtt gives for it."""


class Stack:
    """A template with its parameters and the stacks that are nested in it."""

    def __init__(
        self,
        name: str,
        template: Mapping[str, Any],
        parameters: Mapping[str, str],
        pseudo: Mapping[str, str],
        decisions: Decisions,
    ) -> None:
        self.name, self.template, self.parameters = name, template, parameters
        self.pseudo, self.decisions = pseudo, decisions
        self.nested: dict[str, Stack] = {}
        self.functions: dict[str, Callable[[Any, tuple[str, ...]], Any]] = {
            "Ref": self.reference,
            "Condition": self.condition,
            "Fn::And": lambda value, at: all(self.resolve(part, at) for part in value),
            "Fn::Base64": lambda value, at: base64.b64encode(self.text(value, at).encode()).decode(),
            "Fn::Equals": lambda value, at: self.text(value[0], at) == self.text(value[1], at),
            "Fn::FindInMap": self.find_in_map,
            "Fn::GetAtt": self.attribute,
            "Fn::If": lambda value, at: self.resolve(value[1 if self.condition(value[0], at) else 2], at),
            "Fn::Join": lambda value, at: value[0].join(self.text(part, at) for part in self.resolve(value[1], at)),
            "Fn::Not": lambda value, at: not self.resolve(value[0], at),
            "Fn::Or": lambda value, at: any(self.resolve(part, at) for part in value),
            "Fn::Select": self.select,
            "Fn::Split": lambda value, at: self.text(value[1], at).split(value[0]),
            "Fn::Sub": self.substitute,
        }

    def resources(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """The resources of this kind, as they stand in the template."""
        return {name: found for name, found in self.template["Resources"].items() if found["Type"] == kind}

    def properties(self, name: str) -> dict[str, Any]:
        """The resource's properties, resolved."""
        where = (self.name, "Resources", name, "Properties")
        found: dict[str, Any] = self.resolve(self.template["Resources"][name].get("Properties", {}), where)
        return found

    def resolve(self, value: Any, where: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            if len(value) == 1:
                (name, argument), at = next(iter(value.items())), where
                if name in self.functions and (name != "Condition" or isinstance(argument, str)):
                    return self.functions[name](argument, (*at, name))
                if name.startswith("Fn::"):
                    known = ", ".join(self.functions)
                    raise Unresolved(where, f"{name} is a function that resolver.py does not know; it knows {known}")
            pairs = ((key, self.resolve(part, (*where, str(key)))) for key, part in value.items())
            return {key: part for key, part in pairs if part is not NOTHING}
        if isinstance(value, list):
            parts = (self.resolve(part, (*where, str(number))) for number, part in enumerate(value))
            return [part for part in parts if part is not NOTHING]
        return value

    def text(self, value: Any, where: tuple[str, ...]) -> str:
        """The value as CloudFormation writes it into a text."""
        found = self.resolve(value, where)
        if isinstance(found, bool):
            return "true" if found else "false"
        if isinstance(found, (str, int, float)):
            return str(found)
        raise Unresolved(where, f"a text was needed, found {type(found).__name__}")

    def reference(self, name: str, where: tuple[str, ...]) -> Any:
        if name == "AWS::NoValue":
            return NOTHING
        if name in self.pseudo:
            return self.pseudo[name]
        if name in self.template.get("Parameters", {}):
            found = self.parameters.get(name, self.template["Parameters"][name].get("Default"))
            if found is None:
                raise Unresolved(where, f"the parameter {name} has no value and no default")
            return found
        resource = self.template["Resources"].get(name)
        if resource is None:
            raise Unresolved(where, f"{name} is no parameter, no resource, and no pseudo parameter that is known")
        given = self.decisions.reference(self.name, name, resource["Type"], self.properties_named(name))
        if given is None:
            raise Unresolved(where, f"account.py does not say what Ref gives for {name}, an {resource['Type']}")
        return given

    def properties_named(self, name: str) -> dict[str, Any]:
        """The properties by which a resource is named, resolved: the others may refer back to it."""
        found = self.template["Resources"][name].get("Properties", {})
        where = (self.name, "Resources", name, "Properties")
        return {key: self.resolve(value, (*where, key)) for key, value in found.items() if key.endswith("Name")}

    def attribute(self, value: Any, where: tuple[str, ...]) -> Any:
        name, attribute = value.split(".", 1) if isinstance(value, str) else value
        resource = self.template["Resources"].get(name)
        if resource is None:
            raise Unresolved(where, f"there is no resource {name}")
        if name in self.nested and attribute.startswith("Outputs."):
            return self.nested[name].output(attribute[len("Outputs.") :], where)
        given = self.decisions.attribute(self.name, name, resource["Type"], attribute)
        if given is None:
            kind = resource["Type"]
            raise Unresolved(where, f"account.py does not say what {attribute} of {name}, an {kind}, is")
        return given

    def output(self, name: str, where: tuple[str, ...]) -> Any:
        found = self.template.get("Outputs", {}).get(name)
        if found is None:
            raise Unresolved(where, f"the stack {self.name} has no output {name}")
        return self.resolve(found["Value"], (self.name, "Outputs", name))

    def condition(self, name: str, where: tuple[str, ...]) -> bool:
        found = self.template.get("Conditions", {}).get(name)
        if found is None:
            raise Unresolved(where, f"there is no condition {name}")
        return bool(self.resolve(found, (self.name, "Conditions", name)))

    def find_in_map(self, value: list[Any], where: tuple[str, ...]) -> Any:
        table, first, second = (self.text(part, where) for part in value)
        try:
            return self.template["Mappings"][table][first][second]
        except KeyError as error:
            raise Unresolved(where, f"there is no {table}/{first}/{second} in the mappings") from error

    def select(self, value: list[Any], where: tuple[str, ...]) -> Any:
        number, parts = int(self.text(value[0], where)), self.resolve(value[1], where)
        if not 0 <= number < len(parts):
            raise Unresolved(where, f"part {number} was asked for, of {len(parts)}")
        return parts[number]

    def substitute(self, value: Any, where: tuple[str, ...]) -> str:
        text, variables = (value, {}) if isinstance(value, str) else value

        def put(found: re.Match[str]) -> str:
            literal, name = found.groups()
            if literal:
                return "${" + name + "}"
            if name in variables:
                return self.text(variables[name], (*where, name))
            if "." in name:
                return self.text({"Fn::GetAtt": name}, where)
            return self.text({"Ref": name}, where)

        return PLACE.sub(put, text)
