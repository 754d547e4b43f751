#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check that the roles keep the contracts of docs/development.md. Prints one line for each that is broken."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import render_role_docs

from plugins.plugin_utils._site import components
from plugins.plugin_utils._site.components import load

LONGEST = 100
_WORDS = {"type": "list", "elements": "str"}
_COMPONENT: dict[str, Any] = {
    "title": {"type": "str", "required": True},
    "nodes": {
        "type": "dict",
        "required": True,
        "options": {kind: {"type": "raw"} for kind in ("head", "login", "compute", "monitoring")},
    },
    "packages": _WORDS,
    "programs": _WORDS,
    "units": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "where": {"type": "str", "choices": ["all", "gpu", "neuron", "head"]},
            "relabel": {"type": "list", "elements": "dict"},
            "exposure": {"type": "float"},
            **{key: {"type": "str"} for key in ("metrics", "job", "address", "option", "port", "alert", "template")},
        },
    },
    "platforms": {
        "type": "dict",
        "options": {
            platform: {
                "type": "dict",
                "options": {
                    "why": {"type": "str", "required": True},
                    "runs": {"type": "bool"},
                    "refuses": {"type": "dict"},
                },
            }
            for platform in ("hyperpod",)
        },
    },
    "needs": {
        "type": "list",
        "elements": "dict",
        "options": {
            "nodes": {"type": "list", "elements": "str", "choices": ["head", "login", "compute"], "required": True},
            "times": {
                "type": "dict",
                "options": {each: {"type": "float"} for each in ("container_image_gb", "prometheus_gb", "nodes")},
            },
            "scratch": {"type": "bool"},
            "seconds": {"type": "int"},
            "source": {"type": "str", "required": True},
        },
    },
}
# What runs on the controller, or nowhere: it costs the node nothing and has no result worth reporting.
_LOCAL = {
    *("assert", "debug", "fail", "group_by", "import_role", "import_tasks", "include_role", "include_tasks"),
    *("include_vars", "meta", "pause", "set_fact", "validate_argument_spec", "pcluster.postboot.check_variables"),
    *("pcluster.postboot.report", "pcluster.postboot.wait_for_publisher"),
}
# What no task's name begins with: people read names one by one in the middle of a long run.
_RIDDLES = {
    *("everybody", "everything", "he", "her", "his", "i", "it", "its", "nobody", "nothing", "one", "she", "somebody"),
    *("something", "that", "their", "them", "there", "these", "they", "this", "those", "we", "what", "whatever"),
    *("whether", "which", "who", "whoever", "you", "your"),
}
_KEYWORDS = {
    *("always", "args", "async", "become", "become_user", "block", "changed_when", "check_mode", "delay"),
    *("delegate_facts", "delegate_to", "diff", "environment", "failed_when", "ignore_errors", "ignore_unreachable"),
    *("listen", "loop", "loop_control", "module_defaults", "name", "no_log", "notify", "poll", "register", "rescue"),
    *("retries", "run_once", "tags", "throttle", "timeout", "until", "vars", "when"),
}


def tasks_of(data: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every task of a list of tasks or plays, with the blocks and plays that hold others."""
    for task in data if isinstance(data, list) else []:
        if not isinstance(task, Mapping):
            continue
        yield task
        for part in ("block", "rescue", "always", "pre_tasks", "tasks", "post_tasks", "handlers"):
            yield from tasks_of(task.get(part))


def action_of(task: Mapping[str, Any]) -> str:
    """Return the module that a task calls; empty for a block."""
    if "block" in task:
        return ""
    for key in task:
        if key not in _KEYWORDS and not key.startswith("with_"):
            return str(key).removeprefix("ansible.builtin.").removeprefix("ansible.legacy.")
    return ""


def dynamic(value: Any) -> bool:
    """Say whether a value is worked out at run time."""
    return "{{" in str(value) or "{%" in str(value)


class RoleCheck:
    def __init__(self, path: Path, public: set[str]) -> None:
        self.path = path
        self.name = path.name
        self.public = public  # the variables of all roles
        self.job = (path.parents[1] / "playbooks" / f"{self.name}.yml").is_file()  # and no component
        self.problems: list[str] = []

    def say(self, where: str, what: str) -> None:
        self.problems.append(f"roles/{self.name}/{where}: {what}")

    def run(self) -> list[str]:
        for needed in ("README.md", "defaults/main.yml", "meta/argument_specs.yml", "meta/main.yml", "tasks/main.yml"):
            if not (self.path / needed).is_file():
                self.say(needed, "is not there")
        self._variables()
        self._meta()
        self._tasks()
        self._internals()
        return self.problems

    def _variables(self) -> None:
        defaults = load(self.path / "defaults/main.yml")
        specs = load(self.path / "meta/argument_specs.yml").get("argument_specs") or {}
        options = (specs.get("main") or {}).get("options") or {}
        if "main" not in specs:
            self.say("meta/argument_specs.yml", "has no entry point main")
        for name in sorted(set(defaults) - set(options)):
            self.say("meta/argument_specs.yml", f"{name} is missing; defaults/main.yml has it")
        for name in sorted(set(options) - set(defaults)):
            self.say("defaults/main.yml", f"{name} is missing; meta/argument_specs.yml has it")
        for name in sorted({*defaults, *options}):
            if not name.startswith(self.name + "_"):
                self.say("defaults/main.yml", f"{name} does not begin with {self.name}_")
        if self.name != "common" and not self.job:
            for name in (f"{self.name}_enabled", f"{self.name}_essential"):
                if name not in defaults:
                    self.say("defaults/main.yml", f"{name} is missing: every component has it")
        for name, option in options.items():
            self._option(name, option, defaults)
        self._comments(defaults)

    def _option(self, name: str, option: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        if not option.get("description") or not option.get("type"):
            self.say("meta/argument_specs.yml", f"{name} needs a type and a description")
        if name not in defaults or dynamic(defaults[name]):
            if "default" in option:
                self.say("meta/argument_specs.yml", f"{name} is computed: its description tells how, and no default")
            return
        value = defaults[name]
        if "default" in option and option["default"] != value:
            self.say("meta/argument_specs.yml", f"{name} has the default {option['default']!r}, in defaults {value!r}")
        if value is not None:
            errors = ArgumentSpecValidator({name: dict(option)}).validate({name: value}).error_messages
            for error in errors:
                self.say("defaults/main.yml", f"{name}: {' '.join(error.split())}")

    def _comments(self, defaults: Mapping[str, Any]) -> None:
        path = self.path / "defaults/main.yml"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for number, line in enumerate(lines):
            match = re.match(r"([A-Za-z_]\w*):", line)
            if match and match[1] in defaults and (not number or not lines[number - 1].startswith("#")):
                self.say(f"defaults/main.yml:{number + 1}", f"{match[1]} has no comment above it")

    def _meta(self) -> None:
        depends = load(self.path / "meta/main.yml").get("dependencies")
        if self.name != "common" and not self.job and depends != ["pcluster.postboot.common"]:
            self.say("meta/main.yml", "depends not on pcluster.postboot.common, whose variables it needs")

    def _tasks(self) -> None:
        registered: dict[str, str] = {}
        for path in sorted([*self.path.glob("tasks/**/*.yml"), *self.path.glob("handlers/**/*.yml")]):
            where = str(path.relative_to(self.path))
            lines = path.read_text(encoding="utf-8").splitlines()
            if len(lines) > LONGEST:
                self.say(where, f"has {len(lines)} lines; {LONGEST} at most")
            for task in tasks_of(load(path)):
                self._task(task, where, registered)

    def _task(self, task: Mapping[str, Any], where: str, registered: dict[str, str]) -> None:
        name, action = task.get("name", "a task without a name"), action_of(task)
        if task.get("ignore_errors"):
            self.say(where, f"{name!r} ignores errors: nothing is reported done that is not")
        if action == "set_fact":
            for key in task.get("ansible.builtin.set_fact") or task.get("set_fact") or {}:
                if key in self.public or not str(key).startswith("__"):
                    self.say(where, f"{name!r} sets {key}, which is not an internal of this role")
        for module in ("ansible.builtin.import_role", "ansible.builtin.include_role"):
            called = task.get(module)
            chosen = str(called.get("tasks_from", "")) if isinstance(called, Mapping) else ""
            if chosen.endswith((".yml", ".yaml")):
                self.say(where, f"{name!r}: tasks_from is {chosen}; without the suffix, or its spec does not run")
        if self.job or not action or action in _LOCAL or str(task.get("delegate_to", "")) == "localhost":
            return  # the report has components alone
        register = str(task.get("register", ""))
        if not register.startswith(f"__{self.name}_"):
            self.say(where, f"{name!r} registers {register or 'nothing'}; needed: __{self.name}_<what>, for the report")
        elif register in registered:
            self.say(
                where, f"{name!r} registers {register}, as {registered[register]!r} does: one would hide the other"
            )
        registered.setdefault(register, str(name))

    def _internals(self) -> None:
        roles = [path.name for path in self.path.parent.iterdir()]
        for path in sorted(path for path in self.path.rglob("*") if path.suffix in (".yml", ".j2")):
            text = path.read_text(encoding="utf-8")
            if re.search(r"(lookup|query|q)\('(ansible\.builtin\.)?template'", text):
                where = str(path.relative_to(self.path))
                self.say(where, "reads a template by Ansible's own lookup; needed: pcluster.postboot.template")
            for name in sorted(set(re.findall(r"\b__([a-z]\w*)", text))):
                owner = max((role for role in roles if name.startswith(f"{role}_")), key=len, default=self.name)
                if owner not in (self.name, "common"):
                    self.say(str(path.relative_to(self.path)), f"__{name} is an internal of role {owner}")


def name_problems(root: Path) -> list[str]:
    """Return the names of plays and tasks that begin with a word which tells nobody what is meant."""
    problems = []
    for pattern in ("roles/*/tasks/*.yml", "roles/*/handlers/*.yml", "playbooks/**/*.yml", "molecule/**/*.yml"):
        for path in sorted(root.glob(pattern)):
            for task in tasks_of(load(path)):
                name = str(task.get("name", ""))
                first = re.match(r"(?:\w+ \| )*(\w*)", name)
                if first and first[1].lower() in _RIDDLES:
                    problems.append(f"{path.relative_to(root)}: {name!r} begins with {first[1]!r}: name the thing")
    return problems


def site_problems(root: Path, roles: set[str]) -> list[str]:
    """Return where the table of components in site.yml contradicts itself."""
    where, imported, problems = "playbooks/site.yml", [], []
    for play in load(root / where):
        for task in tasks_of(play.get("tasks")):
            if str(task.get("ansible.builtin.import_tasks", "")).endswith("component.yml"):
                name = (task.get("vars") or {}).get("postboot_component")
                imported.append(name)
                if task.get("tags") != [name]:
                    problems.append(f"{where}: the tags of {name} are {task.get('tags')}; needed: [{name}]")
    if imported != components.names(root):
        needed = "each row's vars as {postboot_component: NAME}, on one line"
        problems.append(f"{where}: runs {imported}, and its lines read as {components.names(root)}; needed: {needed}")
    problems += [f"{where}: there is no role {name}" for name in imported if name not in roles]
    described = {path.parts[-3] for path in root.glob("roles/*/meta/component.yml")}
    problems += [f"{where}: has no row of {name}, which has meta/component.yml" for name in described - {*imported}]
    problems += [f"roles/{name}/meta/component.yml: is not there" for name in imported if name not in described]
    return sorted(problems)


def component_problems(role: Path) -> list[str]:
    """Return where a role's meta/component.yml is incomplete, or untrue to what the role does."""
    found = load(role / "meta/component.yml")
    if not found:
        return []
    problems = list(ArgumentSpecValidator(_COMPONENT).validate(found).error_messages)
    if not problems:
        component = components.component(role)
        folders = ("defaults", "handlers", "tasks", "templates", "vars")
        files = sorted(path for folder in folders for path in (role / folder).rglob("*") if path.is_file())
        text = "\n".join([*(path.name for path in files), *(path.read_text(encoding="utf-8") for path in files)])
        problems = [
            f"platforms: {name} is no variable of the role"
            for elsewhere in component.platforms.values()
            for name in elsewhere.refuses
            if name not in component.defaults
        ]
        problems += [problem for unit in component.units for problem in _unit_problems(role, component, unit, text)]
    return [f"roles/{role.name}/meta/component.yml: {' '.join(problem.split())}" for problem in problems]


def _unit_problems(role: Path, component: components.Component, unit: components.Unit, text: str) -> Iterator[str]:
    if not re.search(rf"(?<![\w-]){re.escape(unit.name)}(?![\w-])", text):
        yield f"unit {unit.name} is named nowhere in the role"
    if unit.where in ("all", "gpu", "neuron") and not (unit.metrics and unit.job and unit.option):
        yield f"unit {unit.name} is on all nodes of a kind ({unit.where}); needed: metrics, job and option"
    if unit.job and unit.where == "head" and f"job: {unit.job}" not in text:
        yield f"unit {unit.name} has job {unit.job}, and the role leaves no target with that label"
    if (unit.job or unit.option) and not unit.address:
        yield f"unit {unit.name} has job or option; needed: address, the variable with the address that they mean"
    if unit.address:
        value = component.defaults.get(unit.address)
        if not re.search(r":\d+$", str(value)):
            yield f"unit {unit.name}: {unit.address} is {value!r} in defaults/main.yml; needed: ADDRESS:PORT or :PORT"
    if unit.option and f"'{unit.option}=' ~ {unit.address}" not in text:
        yield f"unit {unit.name}: no command line of the role has {unit.option} with {unit.address}"
    if unit.exposure and not (role / "templates" / unit.source).is_file():
        yield f"unit {unit.name}: templates/{unit.source} is not there"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    parser.add_argument("roles", nargs="*", help="the roles to look at; all by default")
    options = parser.parse_args(arguments)
    paths = [path for path in sorted((options.root / "roles").iterdir()) if path.is_dir()]
    public = {name for path in paths for name in load(path / "defaults/main.yml")}
    problems = [] if options.roles else site_problems(options.root, {path.name for path in paths})
    problems += [] if options.roles else name_problems(options.root)
    for path in paths:
        if not options.roles or path.name in options.roles:
            problems += RoleCheck(path, public).run() + component_problems(path)
    for problem in problems:
        print(problem)
    stale = render_role_docs.main(["--check", "--root", str(options.root), *options.roles])
    return int(bool(problems) or bool(stale))


if __name__ == "__main__":
    sys.exit(main())
