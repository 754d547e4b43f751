# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings of slurm.conf that are written in YAML, which reads some of Slurm's words and times as something else.

To YAML 1.1, OFF and NO without quotes are false, and 24:00:00 is 86400. ParallelCluster copies what YAML has read into
slurm.conf. PreemptMode=False stops every program of Slurm, and MaxTime=86400 is 60 days.

The tables follow slurm.conf(5) and src/common/read_config.c of SchedMD/slurm, 24.11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union

import yaml

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.parsers import Misread, shown

KEY = "CustomSlurmSettings"
Word = Union[str, int, None]
# What Slurm reads for false and for true, by the setting's name in lower case. None: it has no such word.
_WORDS: dict[str, tuple[Word, Word]] = {
    **dict.fromkeys(("accountingstorejobcomment", "allowspecresourcesusage", "disablerootjobs"), ("NO", "YES")),
    **dict.fromkeys(("enforcepartlimits", "priorityfavorsmall", "trackwckey"), ("NO", "YES")),
    # Of a partition.
    **dict.fromkeys(("default", "exclusivetopo", "exclusiveuser", "hidden", "lln"), ("NO", "YES")),
    **dict.fromkeys(("oversubscribe", "powerdownonidle", "reqresv", "rootonly", "shared"), ("NO", "YES")),
    **dict.fromkeys(("groupupdateforce", "jobfileappend", "jobrequeue", "killonbadexit", "usepam"), (0, 1)),
    "preemptmode": ("OFF", None),
}
# What Slurm reads by time_str2mins(): minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on.
_TIMES = frozenset(
    {
        *("defaulttime", "maxtime", "preemptexempttime", "prioritycalcperiod", "prioritydecayhalflife"),
        "prioritymaxage",
    }
)
_LEAST_SEXAGESIMAL = 60  # 1:00
_PLAIN = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_TAG = "pcluster.postboot:number"


class Number(NamedTuple):
    """A number that a file has as a text of another form, such as 24:00:00, 010 or 1_000."""

    text: str
    value: int | float


def mark(node: yaml.Node, seen: set[yaml.Node]) -> None:
    """Have such numbers below a node of YAML constructed as Number. An alias has the node of its anchor."""
    if node in seen:
        return
    seen.add(node)
    if isinstance(node, yaml.ScalarNode):
        kind = node.tag.rpartition(":")[2]
        if (kind == "int" and not _PLAIN.fullmatch(node.value)) or (kind == "float" and ":" in node.value):
            node.tag = f"{_TAG}:{kind}"
    elif isinstance(node, yaml.MappingNode):
        for _key, value in node.value:
            mark(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            mark(value, seen)


def construct(loader: type[yaml.SafeLoader]) -> None:
    """Teach a loader to construct what mark() has marked."""

    def integer(self: Any, node: Any) -> Number:
        return Number(node.value, self.construct_yaml_int(node))

    def decimal(self: Any, node: Any) -> Number:
        return Number(node.value, self.construct_yaml_float(node))

    loader.add_constructor(f"{_TAG}:int", integer)
    loader.add_constructor(f"{_TAG}:float", decimal)


def written(name: str, value: Any) -> Any:
    """Return the value of a setting in a file as Slurm reads it."""
    key = name.lower()
    if isinstance(value, bool):
        word = _WORDS.get(key, (None, None))[value]
        if word is None:
            raise Misread(
                f"Slurm's own word in quotes, because YAML reads {'YES and ON' if value else 'NO and OFF'} without "
                f"quotes as {shown(value)}"
            )
        return word
    if isinstance(value, Number):
        if key not in _TIMES:
            raise Misread(f"'{value.text}' in quotes, or {value.value}, which YAML reads without them")
        return value.text
    return value


def given(name: str, value: Any) -> Any:
    """Return the value of a setting in a variable. Ansible has read it, so nothing tells 24:00 from 1440."""
    sexagesimal = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) >= _LEAST_SEXAGESIMAL
    if sexagesimal and name.lower() in _TIMES:
        raise Misread(
            f"quotes, as '{value}' for minutes or '24:00:00' for hours, because YAML reads hours without quotes as a "
            "number, too"
        )
    return written(name, value)


def settings(
    before: str, found: Mapping[Any, Any], read: Callable[[str, Any], Any]
) -> tuple[dict[Any, Any], list[str]]:
    """Return settings as Slurm reads them, and a line for each that cannot be. `before` is the place of the names."""
    good, lines = {}, []
    for name, value in found.items():
        try:
            good[name] = read(str(name), value)
        except Misread as error:
            text = value.text if isinstance(value, Number) else shown(value)
            lines.append(f"{before}{name} is {text}; needed: {error}")
    return good, lines


def resolved(found: Any, place: str = "") -> tuple[Any, list[str]]:
    """Return a file's configuration with its settings as Slurm reads them, and a line for each that cannot be."""
    if isinstance(found, Number):  # an alias of a setting, elsewhere
        return found.value, []
    if isinstance(found, list):
        parts = [(number, *resolved(each, _entry(place, number, each))) for number, each in enumerate(found)]
        return [part for _number, part, _lines in parts], [line for *_part, lines in parts for line in lines]
    if not isinstance(found, Mapping):
        return found, []
    good, lines = {}, []
    for key, inner in found.items():
        here = f"{place}/{key}".lstrip("/")
        good[key], more = _custom(inner, here) if key == KEY else resolved(inner, here)
        lines += more
    return good, lines


def _custom(found: Any, place: str) -> tuple[Any, list[str]]:
    if isinstance(found, list):
        parts = [_custom(each, f"{place}[{number}]") for number, each in enumerate(found)]
        return [part for part, _lines in parts], [line for _part, lines in parts for line in lines]
    if isinstance(found, Mapping):
        return settings(f"{place}/", found, written)
    return resolved(found)


def _entry(place: str, number: int, entry: Any) -> str:
    name = entry.get("Name") if isinstance(entry, Mapping) else None
    return f"{place}[{name if isinstance(name, str) else number}]"
