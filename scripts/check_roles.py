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

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

sys.path.insert(0, str(Path(__file__).resolve().parent))
import render_role_docs

LONGEST = 100
# What runs on the controller, or nowhere: it costs the node nothing and has no result worth reporting.
_LOCAL = {
    "assert",
    "debug",
    "fail",
    "group_by",
    "import_role",
    "import_tasks",
    "include_role",
    "include_tasks",
    "include_vars",
    "meta",
    "pause",
    "set_fact",
    "validate_argument_spec",
    "pcluster.postboot.check_variables",
    "pcluster.postboot.report",
}
_KEYWORDS = {
    *("always", "args", "async", "become", "become_user", "block", "changed_when", "check_mode", "delay"),
    *("delegate_facts", "delegate_to", "diff", "environment", "failed_when", "ignore_errors", "ignore_unreachable"),
    *("listen", "loop", "loop_control", "module_defaults", "name", "no_log", "notify", "poll", "register", "rescue"),
    *("retries", "run_once", "tags", "throttle", "timeout", "until", "vars", "when"),
}


class Plain(yaml.SafeLoader):
    """YAML in which Ansible's own tags are allowed."""


def _any_tag(loader: yaml.SafeLoader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node)
    return loader.construct_mapping(node) if isinstance(node, yaml.MappingNode) else None


Plain.add_multi_constructor("!", _any_tag)


def load(path: Path) -> Any:
    """Read a YAML file; an absent one is nothing."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=Plain) if path.is_file() else None


def tasks_of(data: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every task of a task list, those of its blocks included."""
    for task in data if isinstance(data, list) else []:
        if not isinstance(task, Mapping):
            continue
        yield task
        for part in ("block", "rescue", "always"):
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
    """Checks one role."""

    def __init__(self, path: Path, public: set[str]) -> None:
        self.path = path
        self.name = path.name
        self.public = public  # the variables of all roles
        self.problems: list[str] = []

    def say(self, where: str, what: str) -> None:
        """Note a problem."""
        self.problems.append(f"roles/{self.name}/{where}: {what}")

    def run(self) -> list[str]:
        """Return what is wrong."""
        for needed in ("README.md", "defaults/main.yml", "meta/argument_specs.yml", "meta/main.yml", "tasks/main.yml"):
            if not (self.path / needed).is_file():
                self.say(needed, "is not there")
        self._variables()
        self._meta()
        self._tasks()
        return self.problems

    def _variables(self) -> None:
        defaults = load(self.path / "defaults/main.yml") or {}
        specs = (load(self.path / "meta/argument_specs.yml") or {}).get("argument_specs") or {}
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
        if self.name != "common":
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
        meta = load(self.path / "meta/main.yml") or {}
        info = meta.get("galaxy_info") or {}
        for key, wanted in (("license", "GPL-3.0-or-later"), ("min_ansible_version", "2.19")):
            if info.get(key) != wanted:
                self.say("meta/main.yml", f"{key} is {info.get(key)!r}; needed: {wanted!r}")
        depends = [
            entry.get("role") if isinstance(entry, Mapping) else entry for entry in meta.get("dependencies") or []
        ]
        if self.name != "common" and "pcluster.postboot.common" not in depends:
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
        if not action or action in _LOCAL or str(task.get("delegate_to", "")) == "localhost":
            return
        register = str(task.get("register", ""))
        if not register.startswith(f"__{self.name}_"):
            self.say(where, f"{name!r} registers {register or 'nothing'}; needed: __{self.name}_<what>, for the report")
        elif register in registered:
            self.say(
                where, f"{name!r} registers {register}, as {registered[register]!r} does: one would hide the other"
            )
        registered.setdefault(register, str(name))


def site_problems(root: Path, roles: set[str]) -> list[str]:
    """Return where the table of components in site.yml contradicts itself."""
    problems = []
    for play in load(root / "playbooks/site.yml") or []:
        listed: list[str] = []
        imported = []
        for task in tasks_of(play.get("tasks")):
            if "pcluster.postboot.check_variables" in task:
                listed = (task["pcluster.postboot.check_variables"] or {}).get("components") or []
            if str(task.get("ansible.builtin.import_tasks", "")).endswith("component.yml"):
                name = (task.get("vars") or {}).get("postboot_component")
                imported.append(name)
                if task.get("tags") != [name]:
                    problems.append(f"playbooks/site.yml: the tags of {name} are {task.get('tags')}; needed: [{name}]")
        if listed != imported:
            problems.append(f"playbooks/site.yml: check_variables has {listed}, and what runs is {imported}")
        problems += [f"playbooks/site.yml: there is no role {name}" for name in imported if name not in roles]
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Check all roles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    parser.add_argument("roles", nargs="*", help="the roles to look at; all by default")
    options = parser.parse_args(arguments)
    paths = [path for path in sorted((options.root / "roles").iterdir()) if path.is_dir()]
    public = {name for path in paths for name in load(path / "defaults/main.yml") or {}}
    problems = [] if options.roles else site_problems(options.root, {path.name for path in paths})
    for path in paths:
        if not options.roles or path.name in options.roles:
            problems += RoleCheck(path, public).run()
    for problem in problems:
        print(problem)
    stale = render_role_docs.main(["--check", "--root", str(options.root), *options.roles])
    return int(bool(problems) or bool(stale))


if __name__ == "__main__":
    sys.exit(main())
