# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find what is wrong with the variables of a run, before the run touches anything. One line each."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import conversions, deprecations, supported
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.components import Elsewhere
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.parsers import parser_of, problems, shown

# Read when this file is imported, which happens before Ansible forks: once a run, and not once for each host.
DEPRECATED = deprecations.read()
SYSTEMS = supported.read().titles()

_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "list": "a list",
    "dict": "a dictionary",
    "path": "a path",
}
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{128}")  # a sha512, where its publisher tells no other
_DOUBLED = re.compile(r"(.)\1+")
_DEFERRED = "common_deferred"
NON_ESSENTIAL = "non_essential"  # in common_deferred: every component whose failure stops no node
SERVICE = "pull"  # the component whose service does what is deferred
DEFERRED = "it comes after the boot (common_deferred)"
MONITORING = "monitoring"  # the type of the machine outside of the clusters
PLATFORMS = {"hyperpod": "HyperPod"}  # what people call them, where a component may be another one
NOARCH = "noarch"  # the key of a checksum that is the same for every architecture, as a source's is


@dataclass(frozen=True)
class Role:
    """A role's public variables: what they may be, and what they are by default."""

    name: str
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    internals: Mapping[str, Any] = field(default_factory=dict)
    job: bool = False  # its variables become options of modules and actions, which convert text
    outside: bool = False  # the monitoring instance may have it, which is in no cluster
    platforms: Mapping[str, Elsewhere] = field(default_factory=dict)  # those on which it is not as usual
    addresses: Sequence[str] = ()  # the variables with the addresses of its exporters

    def pins(self) -> list[str]:
        return [name for name in self.options if name.endswith("_sha256")]

    def value_errors(self, name: str, value: Any) -> list[str]:
        """Return what is wrong with the value of a variable: its type, or what another program makes of its text."""
        option, default = self.options[name], self.defaults.get(name)
        if value is None and default not in (None, "") and not self.job:
            return [f"{name} is null; needed: {needed(option)}, or no line with {name} for its default"]
        lines = value_errors(name, value, option, text=self.job)
        if lines or value is None or value == default:
            return lines
        if conversions.is_text_for_more(value, option):
            value = ArgumentSpecValidator({name: dict(option)}).validate({name: value}).validated_parameters[name]
        declared = self.internals.get(f"__{self.name}_parsers") or {}
        return problems(parser_of(name, declared), name, value)


@dataclass
class Plan:
    run: bool = False
    reason: str = ""
    essential: bool = False
    version: str = ""  # what its variable asks for; empty where any will do
    deferred: bool = False  # it does not run now, and will later
    errors: list[str] = field(default_factory=list)  # of this component alone; they do not stop the others

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def selected(name: str, run_tags: Sequence[str], skip_tags: Sequence[str]) -> bool:
    """Say whether a component, whose only tag is its name, is selected by --tags and --skip-tags."""
    wanted = not run_tags or bool({"all", "tagged", name} & set(run_tags))
    return wanted and not {"all", "tagged", name} & set(skip_tags)


def dynamic(value: Any) -> bool:
    """Say whether a value has to be worked out by the templating engine."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value or "{#" in value
    if isinstance(value, Mapping):
        return any(dynamic(k) or dynamic(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return any(dynamic(v) for v in value)
    return False


def needed(option: Mapping[str, Any]) -> str:
    """Say in words what an option may be."""
    kind = str(option.get("type", "str"))
    if option.get("choices"):
        words = "one of " + ", ".join(str(choice) for choice in option["choices"])
        return f"a list of {words}" if kind == "list" else words
    text = _KINDS.get(kind, kind)
    if kind == "list" and option.get("elements"):
        text += f" of {option['elements']} values"
    return text


def value_errors(name: str, value: Any, option: Mapping[str, Any], text: bool = True) -> list[str]:
    """Return what is wrong with a value. With `text`, what reads it converts text for a list or a dictionary."""
    if value is None and not option.get("required"):
        return []
    secret = bool(option.get("no_log"))
    inner = [] if secret else _inner_errors(name, value, option, text)
    if inner:
        return inner
    line = f"{name} is {'a value that is not shown' if secret else shown(value)}; needed: {needed(option)}"
    if not conversions.certain(value, option, booleans=text) or (
        not text and conversions.is_text_for_more(value, option)
    ):
        if not secret and conversions.is_text_for_more(value, option):
            line += f", such as {conversions.written(name, value, str(option['type']))}"
        return [line + (" in quotes" if isinstance(value, float) and option.get("type") == "str" else "")]
    result = ArgumentSpecValidator({name: dict(option)}).validate({name: value})
    if not result.error_messages:
        return []
    if not secret and (option.get("options") or option.get("elements")):
        line += f" ({' '.join(result.error_messages[0].split())})"
    return [line]


def _inner_errors(name: str, value: Any, option: Mapping[str, Any], text: bool) -> list[str]:
    """Return a line for each key that is wrong in a dictionary, or in those of a list, where the keys are known."""
    options: Mapping[str, Mapping[str, Any]] = option.get("options") or {}
    lines: list[str] = []
    for where, given in _dictionaries(name, value) if options else ():
        meant = set()
        for key in given:
            if key not in options:
                near = difflib.get_close_matches(str(key), options, n=1)
                meant.update(near)
                lines.append(f"{where}.{key} is no key: " + (f"did you mean {near[0]}?" if near else _known(options)))
        for key, inner in options.items():
            if key in given:
                lines += value_errors(f"{where}.{key}", given[key], inner, text)
            elif inner.get("required") and key not in meant:
                lines.append(f"{where}.{key} is not set; needed: {needed(inner)}")
    return lines


def _known(options: Iterable[str]) -> str:
    return f"needed: one of {', '.join(options)}"


def _dictionaries(name: str, value: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what messages call each dictionary: an entry of a list by its name, or else by its number."""
    if isinstance(value, Mapping):
        return [(name, value)]
    entries = value if isinstance(value, list) else []
    return [
        (f"{name}[{entry.get('name') or number}]", entry)
        for number, entry in enumerate(entries)
        if isinstance(entry, Mapping)
    ]


def pin_errors(name: str, value: Any, architecture: str, version: Any = None, vouched: bool = False) -> list[str]:
    """Return what is wrong with a hash. None need be set where its publisher vouches for the file by a signature."""
    if isinstance(value, Mapping):
        key = NOARCH if NOARCH in value else architecture
        found, where = value.get(key), f"{name}['{key}']"
    else:
        found, where = value, name
    if (vouched and not found) or (isinstance(found, str) and _DIGEST.fullmatch(found)):
        return []
    what = f"version {version} for {architecture}" if version else architecture
    state = "is not set" if not found else f"is {shown(found)}"
    return [f"{where} {state}; needed: the 64 hexadecimal digits of the sha256 of {what} (`make pins` asks for it)"]


def role_of(name: str, roles: Iterable[str]) -> str | None:
    """Return the role whose variable this name must be: the longest role name that it begins with."""
    found = [role for role in roles if name.startswith(role + "_")]
    return max(found, key=len) if found else None


def _slipped(name: str, role: str) -> bool:
    """Say whether a name is a role's with one slip: a letter too many, missing, wrong, doubled or elsewhere."""
    if sorted(name) == sorted(role) or _DOUBLED.sub(r"\1", name) == _DOUBLED.sub(r"\1", role):
        return True
    same = sum(block.size for block in difflib.SequenceMatcher(None, name, role).get_matching_blocks())
    # Because efs, rccl and fs are words of their own, another letter counts in a longer name alone.
    return same == max(len(name), len(role)) - 1 and same > (3 if len(name) == len(role) else 2)


def _meant(name: str, roles: Iterable[str], known: Collection[str]) -> str | None:
    """Return the variable that was meant by one in which the role's own name has a slip, such as promethues_mode."""
    for role in roles:
        for length in (len(role) - 1, len(role), len(role) + 1):
            option = role + name[length:]
            if option in known and _slipped(name[:length], role):
                return option
    return None


def _alike(name: str, option: str, role: str) -> bool:
    """Say whether a name is near an option without the role's name too, of which a long one makes all alike."""
    own, meant = name[len(role) + 1 :], option[len(role) + 1 :] if option.startswith(f"{role}_") else option
    return difflib.SequenceMatcher(None, own, meant).ratio() >= 0.6


def misspelt(names: Iterable[str], roles: Mapping[str, Role], foreign: Sequence[str] = ()) -> list[str]:
    """Return a line for each variable that begins like one of ours and is none, or is one no longer."""
    known = {option for role in roles.values() for option in role.options}
    strange = {name for name in set(names) - known if not any(fnmatch.fnmatchcase(name, one) for one in foreign)}
    lines = DEPRECATED.gone(name for name in strange if role_of(name, roles))
    for name in sorted(strange - {one.name for one in DEPRECATED.variables}):
        role = role_of(name, roles)
        if role is None:
            meant = _meant(name, roles, known)
            lines += [f"{name} is no variable of this collection: did you mean {meant}?"] if meant else []
            continue
        near = [
            one for one in difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8) if _alike(name, one, role)
        ]
        if near:
            lines.append(f"{name} is no variable of role {role}: did you mean {near[0]}?")
        elif role != "common":
            # "common_" is a word that a site's own variables may well begin with.
            lines.append(
                f"{name} is no variable of role {role}: see the role's README, "
                "or add the name to common_foreign_variables if it belongs to something else"
            )
    return lines


def unwanted_because(raw_enabled: Any, name: str, node: Mapping[str, Any]) -> str:
    """Say why a component is not for a node: somebody said so, or the node is of another kind."""
    if not dynamic(raw_enabled):
        return f"{name}_enabled is {str(raw_enabled).lower()}"
    return f"not for this node ({kind_of_node(node)})"


def kind_of_node(node: Mapping[str, Any]) -> str:
    words = [str(node.get("node_type") or "unknown type")]
    for key, what in (("gpus", "GPU"), ("efa", "EFA")):
        count = (node.get(key) or {}).get("count") or 0
        words.append(f"{count} {what}" if count else f"no {what}")
    if node.get("image_build"):
        words.append("image build")
    return ", ".join(words)


def _platform(node: Mapping[str, Any]) -> str:
    platform = str(node.get("platform"))
    return PLATFORMS.get(platform, platform)


def why_stopped(node: Mapping[str, Any], require_cluster: bool) -> str:
    """Return why this collection cannot work on a node at all; empty when it can."""
    if not node:
        return "the node is unknown: pcluster.postboot.node_facts must run first"
    monitoring = node.get("node_type") == MONITORING
    inside = node.get("platform") or node.get("is_parallelcluster")
    if monitoring and inside:
        return f"common_node_overrides makes a node of cluster {node.get('cluster')} the monitoring instance"
    if require_cluster and not monitoring and not inside:
        return f"not a ParallelCluster node, nothing was done: {node.get('reason') or 'no reason given'}"
    system = node.get("os") or {}
    if system.get("family") not in ("debian", "redhat"):
        return f"the operating system is {system.get('name') or 'unknown'}; this collection is for {SYSTEMS}"
    major = str(system.get("version") or "").split(".", maxsplit=1)[0]
    if system.get("id") in ("rhel", "rocky", "centos", "almalinux", "ol") and major.isdigit() and int(major) < 9:
        return (
            f"{system.get('name')} is not supported: no ansible-core that this collection needs can use its dnf; "
            f"this collection is for {SYSTEMS}"
        )
    return ""


def deferred_errors(names: Any, roles: Iterable[str]) -> list[str]:
    components = sorted(set(roles) - {"common"})
    words = [NON_ESSENTIAL, *DEPRECATED.words(_DEFERRED), *components]
    wrong = [name for name in names if name not in words] if isinstance(names, list) else []
    needed_are = f"{NON_ESSENTIAL}, or one of {', '.join(components)}"
    return [f"common_deferred: {name} is no component; needed: {needed_are}" for name in wrong]


def mode_errors(mode: Any, node: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a node that common_mode wants to have GPUs."""
    wanted = mode == "gpu" and node.get("node_type") == "compute" and not node.get("image_build")
    if not wanted or (node.get("gpus") or {}).get("count"):
        return []
    return ["common_mode is gpu, and this node has no NVIDIA GPU; needed: a node with one, or common_mode: auto"]


class Checker:
    def __init__(
        self,
        roles: Mapping[str, Role],
        names: Iterable[str],
        value_of: Callable[[str], Any],
        raw_of: Callable[[str], Any],
    ) -> None:
        self._roles, self._names = roles, set(names)
        self._value_of, self._raw_of = value_of, raw_of
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.phase = "all"

    def run(self, components: Sequence[str], node: Mapping[str, Any], truth: Callable[[Any], bool]) -> dict[str, Plan]:
        """Fill in `errors` and `warnings`, and return the plan of each component."""
        self._find_misspelt()
        self._check_values("common")
        deferred = self._try(_DEFERRED, [])
        self.errors += deferred_errors(deferred, self._roles)
        self.warnings += DEPRECATED.old_words(_DEFERRED, deferred)
        self.errors += mode_errors(self._try("common_mode", ""), node)
        self.phase = str(self._try("common_phase", "all"))
        plans = {}
        for name in components:
            role = self._roles.get(name)
            if role is None:
                self.errors.append(f"components: there is no role {name}")
                continue
            plans[name] = self._plan(role, node, truth)
        return plans

    def check_values(self) -> None:
        """Fill in `errors` with what is wrong with the variables of all roles."""
        self._find_misspelt()
        for name in self._roles:
            self._check_values(name)

    def _find_misspelt(self) -> None:
        foreign = self._try("common_foreign_variables", [])
        self.errors += misspelt(self._names, self._roles, foreign if isinstance(foreign, list) else [])
        self.warnings += DEPRECATED.renamed(name for name in self._names if role_of(name, self._roles))

    def _plan(self, role: Role, node: Mapping[str, Any], truth: Callable[[Any], bool]) -> Plan:
        plan = Plan()
        switch = f"{role.name}_enabled"
        before = len(self.errors)
        enabled = self._checked(role, switch, True)
        if len(self.errors) > before:
            return plan
        plan.run = truth(enabled)
        if node.get("node_type") == MONITORING and not role.outside:
            self._refuse_outside(role, switch, plan)
            return plan
        if not plan.run:
            plan.reason = unwanted_because(self._raw_of(switch), role.name, node)
            return plan
        elsewhere = role.platforms.get(str(node.get("platform")), Elsewhere())
        plan.reason = self._left_to_platform(role, elsewhere, node)
        if plan.reason:
            plan.run = False
            return plan
        for name, values in elsewhere.refuses.items():
            if self._try(name, None) in values:
                told = f"{name} is {self._try(name, None)}, and this is a node of {_platform(node)}"
                self.errors.append(f"{told}: {elsewhere.why}; needed: another value there")
        self._check_values(role.name, leave_out=(switch,))
        if len(self.errors) > before:
            return plan
        plan.essential = truth(self._try(f"{role.name}_essential", False)) or truth(
            self._try("common_all_essential", False)
        )
        plan.version = str(self._try(f"{role.name}_version", None) or "")
        downloads = self._try(f"__{role.name}_downloads", True)
        for pin in role.pins():
            what = pin[: -len("_sha256")]
            if what in downloads if isinstance(downloads, list) else truth(downloads):
                version = self._try(f"{what}_version", self._try(f"{role.name}_version", None))
                vouched = bool((self._try(f"__{what}_signature", None) or {}).get("fingerprints"))
                lines = pin_errors(pin, self._try(pin, None), str(node.get("architecture")), version, vouched)
                (self.errors if plan.essential else plan.errors).extend(lines)
        if self._waits(role.name, plan):
            plan.run, plan.deferred, plan.reason = False, True, DEFERRED
        return plan

    def _left_to_platform(self, role: Role, elsewhere: Elsewhere, node: Mapping[str, Any]) -> str:
        """Say why a component is not for a platform, or whose exporter is there already; empty where it is for it."""
        if not elsewhere.runs:
            return f"not on {_platform(node)}: {elsewhere.why}"
        ports = [str(self._try(name, "")).rpartition(":")[2] for name in role.addresses]
        taken = [port for port in ports if port in map(str, node.get("exporter_ports") or ())]
        return f"an exporter of {_platform(node)} itself serves port {', '.join(taken)}" if taken else ""

    def _refuse_outside(self, role: Role, switch: str, plan: Plan) -> None:
        """Leave a component out of the monitoring instance, and refuse it where a variable asks for it there."""
        if plan.run and not self._is_default(role, switch):
            names = ", ".join(name for name, one in self._roles.items() if one.outside)
            self.errors.append(
                f"{switch} is true, and this is the monitoring instance, which can have {names} alone; "
                f"needed: {switch}: false in group_vars/pcluster_monitoring.yml"
            )
        plan.run, plan.reason = False, "not for the monitoring instance"

    def _waits(self, name: str, plan: Plan) -> bool:
        deferred = self._try(_DEFERRED, []) or []
        if self.phase != "boot" or name == SERVICE:
            return False
        new = DEPRECATED.words(_DEFERRED)
        return name in deferred or (not plan.essential and NON_ESSENTIAL in [new.get(word, word) for word in deferred])

    def _check_values(self, name: str, leave_out: Sequence[str] = ()) -> None:
        role = self._roles.get(name)
        for option in role.options if role else ():
            if option not in leave_out and not self._is_default(self._roles[name], option):
                self._checked(self._roles[name], option, None)

    def _is_default(self, role: Role, name: str) -> bool:
        # Nobody has set it, and the repository checks its own defaults. Working out a template costs 10 ms.
        try:
            return name in role.defaults and bool(self._raw_of(name) == role.defaults[name])
        except KeyError:
            return False

    def _checked(self, role: Role, name: str, default: Any) -> Any:
        option = role.options.get(name, {})
        try:
            value = self._value_of(name)
        except KeyError:
            if option.get("required"):
                self.errors.append(f"{name} is not set; needed: {needed(option)}")
            return default
        except ValueError as error:
            self.errors.append(f"{name} cannot be worked out: {error}")
            return default
        self.errors += role.value_errors(name, value) if option else []
        return value

    def _try(self, name: str, default: Any) -> Any:
        try:
            return self._value_of(name)
        except (KeyError, ValueError):
            return default
