# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read a cluster's configuration that people have written, so that the rest of the code can change it in place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_file import rules, slurm

_NEEDED = "needed: a configuration of ParallelCluster"
_FREE = (slurm.KEY, "AdditionalSssdConfigs")  # whose keys and values are other programs'
_MOST_VALUES = 100_000
_MERGE = "tag:yaml.org,2002:merge"


class Mistakes(Problem):
    """What is wrong with a file, one line for each mistake."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("")
        self.args = ("\n".join(lines),)


class _Tagged(NamedTuple):
    """A value with a tag of another program, such as CloudFormation's !Sub."""

    tag: str


class _Loader(yaml.SafeLoader):
    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._marked: set[yaml.Node] = set()

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if key.value in seen:
                raise _Twice(f"has {key.value} twice, in line {key.start_mark.line + 1} again; needed: each key once")
            seen.add(key.value)
            if key.value == slurm.KEY:
                slurm.mark(value, self._marked)
        return node


class _Twice(Exception):
    """A key that a section has twice, of which YAML would keep the last."""


slurm.construct(_Loader)
_Loader.add_multi_constructor("!", lambda _loader, suffix, _node: _Tagged(f"!{suffix}"))


def load(variable: str, path: str) -> dict[str, Any]:
    """Return what a file has, without aliases and without keys that are null, or say why it is no configuration."""
    where = f"{variable}: {path}"
    try:
        with open(path, "rb") as stream:
            documents = list(yaml.load_all(stream, Loader=_Loader))
        size = _size(documents, {})
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Problem(f"{variable}: {os.path.abspath(path)} does not exist; {_NEEDED}") from error
    except OSError as error:
        raise Problem(f"{where} cannot be read: {error.strerror}; {_NEEDED}") from error
    except _Twice as error:
        raise Problem(f"{where} {error}") from error
    except RecursionError as error:
        raise Problem(f"{where} is nested too deeply or refers to itself; {_NEEDED}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: such as of 2024-02-30
        raise Problem(f"{where} is no YAML: {error}; {_NEEDED}") from error
    if size > _MOST_VALUES:
        raise Problem(f"{where} has aliases for more than {_MOST_VALUES} values; {_NEEDED}")
    if len(documents) > 1:
        raise Problem(f"{where} has {len(documents)} documents; needed: one, with a configuration of ParallelCluster")
    found = documents[0] if documents else None
    if not isinstance(found, dict):
        raise Problem(f"{where} has no sections; {_NEEDED}")
    _refuse_template(where, found)
    good, lines = slurm.resolved({key: present(value) for key, value in found.items() if value is not None})
    if lines:
        raise Mistakes([f"{where}: {line}" for line in lines])
    return dict(good)


def check(variable: str, path: str, found: Mapping[str, Any], sections: rules.Section) -> None:
    """Refuse a configuration with mistakes in these sections, with a line for each."""
    lines = [f"{variable}: {path}: {line}" for line in rules.problems(found, sections)]
    if lines:
        raise Mistakes(lines)


def unshared(value: Any) -> Any:
    """Return a copy in which every place has an object of its own. copy.deepcopy would keep the aliases of YAML."""
    if isinstance(value, Mapping):
        return {key: unshared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [unshared(inner) for inner in value]
    return value


def present(value: Any) -> Any:
    """Return an unshared copy without keys that are null, as ParallelCluster's own dump of a configuration has them."""
    if isinstance(value, dict):
        return {
            key: unshared(inner) if key in _FREE else present(inner)
            for key, inner in value.items()
            if inner is not None
        }
    if isinstance(value, list):
        return [present(inner) for inner in value]
    return value


def _size(value: Any, known: dict[int, int]) -> int:
    """Return how many values there are once each alias has a copy of its own. Aliases of aliases grow exponentially."""
    if id(value) not in known:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        known[id(value)] = 1 + sum(_size(each, known) for each in inner)
    return known[id(value)]


def _refuse_template(where: str, found: Mapping[Any, Any]) -> None:
    resources = found.get("Resources")
    if "AWSTemplateFormatVersion" in found or (isinstance(resources, dict) and "Scheduling" not in found):
        why = f"{where} is a CloudFormation template"
        for name, resource in resources.items() if isinstance(resources, dict) else ():
            properties = resource.get("Properties") if isinstance(resource, dict) else None
            if isinstance(properties, dict) and "ClusterConfiguration" in properties:
                raise Problem(
                    f"{why}; needed: the configuration below Resources/{name}/Properties/ClusterConfiguration, in a "
                    "file of its own and with values in place of CloudFormation's functions"
                )
        raise Problem(f"{why}; {_NEEDED}")
    tagged = next(_tagged(found), None)
    if tagged:
        raise Problem(f"{where} has {tagged[1]} at {tagged[0]}; needed: plain values, without tags of other programs")


def _tagged(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, _Tagged):
        yield place, value.tag
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _tagged(inner, f"{place}/{key}".lstrip("/"))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _tagged(inner, f"{place}[{number}]")
