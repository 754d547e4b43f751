# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The user's own groups and variables, from the inventory plugin's configuration, for the node's own inventory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jinja2
import yaml
from ansible.inventory.group import to_safe_group_name
from jinja2 import defaults, nodes

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import nodes as node
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.variables import shown

_PLUGIN = "pcluster.postboot.pcluster"
_ENDINGS = ("pcluster.yml", "pcluster.yaml")  # of the files that the plugin takes
_EXPRESSIONS = {"compose": dict, "groups": dict, "keyed_groups": list}
_CARRIED = (*_EXPRESSIONS, "leading_separator", "tags")
_TAGS = "pcluster_tags"
_OF_NODES = {f"pcluster_{name}" for name in node.VARIABLES if name not in (*node.EC2_ONLY, "slurm_node")}
_OF_ANSIBLE = {"group_names", "now", "omit", "undef", *defaults.DEFAULT_NAMESPACE}
_JINJA = jinja2.Environment()


class Own(NamedTuple):
    text: str = ""  # YAML for the node's own inventory
    groups: Sequence[str] = ()  # regular expressions of the groups' names
    warnings: Sequence[str] = ()


def read(sources: Sequence[str], group_vars: str | None, cluster: Mapping[str, Any] | None = None) -> Own:
    """Return what configurations of the plugin among the sources have; where none is, of those beside group_vars."""
    found = _configurations(_files(sources))
    if not found and group_vars and os.path.isdir(group_vars):
        beside = os.path.dirname(os.path.abspath(group_vars))
        found = _configurations(os.path.join(beside, name) for name in sorted(os.listdir(beside)))
    if not found:
        return Own()
    (path, config), *others = found.items()
    for other, theirs in others:
        if theirs != config:
            raise Problem(
                f"{path} and {other} make different groups or variables ({', '.join(_CARRIED)}, slurm_names), and a "
                "node has one inventory; needed: the same in both, or -i with the one that nodes are to have"
            )
    return _Worker(path, config).own(cluster)


def _files(sources: Iterable[str]) -> Iterator[str]:
    for source in sources:
        for top, folders, names in os.walk(source):
            folders[:] = sorted(name for name in folders if name not in ("group_vars", "host_vars") and name[0] != ".")
            yield from (os.path.join(top, name) for name in sorted(names))
        yield source


def _configurations(paths: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what counts in each configuration that has expressions."""
    read = {os.path.realpath(path): None for path in paths if path.endswith(_ENDINGS) and os.path.isfile(path)}
    found = {path: _configuration(path) for path in read}
    return {path: config for path, config in found.items() if any(config.get(name) for name in _EXPRESSIONS)}


def _configuration(path: str) -> dict[str, Any]:
    """Return what counts of a file. The rest of it is passed over, as it may be encrypted."""
    try:
        with open(path, "rb") as stream:
            content = stream.read()
        if content.startswith(b"$ANSIBLE_VAULT;"):
            raise Problem(f"{path} is encrypted as a whole; needed: its secrets alone, so that its groups can be read")
        top = yaml.compose(content, Loader=yaml.SafeLoader)
        entries = {key.value: value for key, value in top.value} if isinstance(top, yaml.MappingNode) else {}
        loader = yaml.SafeLoader("")
        config: dict[str, Any] = {
            name: loader.construct_object(entries[name], deep=True)
            for name in ("plugin", "source", "slurm_names", *_CARRIED)
            if name in entries
        }
    except (yaml.YAMLError, ValueError) as error:  # ValueError: such as of 2024-02-30
        raise Problem(f"{path} cannot be read: {error}; needed: plain YAML for {', '.join(_CARRIED)}") from error
    if config.pop("plugin", "") != _PLUGIN or config.pop("source", "ec2") != "ec2":
        return {}
    for name, kind in _EXPRESSIONS.items():
        if not isinstance(config.get(name) or kind(), kind):
            raise Problem(f"{path}: {name} is no {kind.__name__}; needed: one, as for every inventory plugin")
    for entry in config.get("keyed_groups") or []:
        if not isinstance(entry, Mapping):
            raise Problem(f"{path}: keyed_groups has {shown(entry)}; needed: - key: <an expression>")
    return config


class _Worker:
    """Takes from a configuration what a node can work out."""

    def __init__(self, path: str, config: Mapping[str, Any]) -> None:
        self.path, self.config = path, config
        self.known = {*_OF_NODES, *_OF_ANSIBLE, _TAGS}
        if config.get("slurm_names"):
            self.known.add("pcluster_slurm_node")  # otherwise no push knows it
        self.left_out: list[str] = []
        self.tags: set[str] = set()

    def own(self, cluster: Mapping[str, Any] | None) -> Own:
        given = self.config.get("compose") or {}
        # How a node is reached is not its own business.
        compose = self._kept("compose", {name: given[name] for name in given if not name.startswith("ansible_")})
        self.known.update(compose)
        groups = self._kept("groups", self.config.get("groups") or {})
        keyed = [entry for entry in self.config.get("keyed_groups") or () if self._holds_keyed(entry)]
        options = {**self.config, "compose": compose, "groups": groups, "keyed_groups": keyed}
        text = {name: options[name] for name in _CARRIED if options.get(name) not in (None, {}, [])}
        patterns = [re.escape(_safe(name)) for name in groups]
        for entry in keyed:
            patterns += _patterns(entry, self.config.get("leading_separator") is not False)
        return Own(f"# Own groups and variables, as by push:\n{_dump(text)}", patterns, self._warnings(cluster))

    def _kept(self, option: str, given: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if self._holds(f"{option} {name}", f"{{{{ {value} }}}}")}

    def _holds_keyed(self, entry: Mapping[str, Any]) -> bool:
        key, parent = entry.get("key"), entry.get("parent_group") or ""
        return self._holds(f"keyed_groups {entry.get('prefix') or key}", f"{{{{ {key} }}}}{parent}")

    def _holds(self, what: str, template: str) -> bool:
        """Say whether a node knows what a template uses."""
        try:
            tree = _JINJA.parse(template)
        except jinja2.TemplateSyntaxError:
            return True  # it holds nowhere
        names = list(tree.find_all(nodes.Name))
        used = {name.name for name in names} - {name.name for name in names if name.ctx != "load"} - self.known
        tags = {str(name.value) for name in _asked(tree) if isinstance(name, nodes.Const)}
        used |= {tag for tag in tags if tag.startswith(("aws:", node.TAG)) and tag not in node.OWN_TAGS}
        if used:
            self.left_out.append(f"{what} ({', '.join(sorted(used))})")
            return False
        self.tags |= tags
        return True

    def _warnings(self, cluster: Mapping[str, Any] | None) -> list[str]:
        found = []
        if self.left_out:
            found.append(
                f"{self.path}: left out of the node's inventory, because a node does not know what is in brackets: "
                f"{', '.join(self.left_out)}"
            )
        strange = self.tags - _tags_of(cluster) - set(node.OWN_TAGS) if cluster is not None else set()
        if strange:
            found.append(
                f"{self.path}: {', '.join(sorted(strange))}: no Tags of publish_config, and a node does not know tags "
                "that its instance has from elsewhere"
            )
        return found


def _asked(tree: nodes.Template) -> Iterator[nodes.Node]:
    """Yield what stands for Team in pcluster_tags.Team, pcluster_tags['Team'] and pcluster_tags.get('Team')."""

    def is_tags(part: nodes.Node) -> bool:
        return isinstance(part, nodes.Name) and part.name == _TAGS

    for item in tree.find_all(nodes.Getitem):
        if is_tags(item.node):
            yield item.arg
    for attribute in tree.find_all(nodes.Getattr):
        if is_tags(attribute.node) and not hasattr(dict, attribute.attr):
            yield nodes.Const(attribute.attr)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr == "get" and is_tags(call.node.node):
            yield from call.args[:1]


def _tags_of(cluster: Mapping[str, Any]) -> set[str]:
    queues = (cluster.get("Scheduling") or {}).get("SlurmQueues") or []
    resources = [resource for queue in queues for resource in queue.get("ComputeResources") or []]
    return {tag["Key"] for section in (cluster, *queues, *resources) for tag in section.get("Tags") or []}


def _patterns(entry: Mapping[str, Any], leading: bool) -> Iterator[str]:
    """Yield which names the groups of an entry of keyed_groups may have."""
    prefix, separator = str(entry.get("prefix") or ""), str(entry.get("separator", "_"))
    yield re.escape(_safe(prefix + (separator if prefix or leading else ""))) + ".*"
    parent = entry.get("parent_group")
    if parent:
        yield ".*".join(re.escape(_safe(part)) for part in re.split(r"{{(?:(?!{{|}}).)*}}", str(parent)))


def _safe(name: str) -> str:
    return str(to_safe_group_name(name, force=True, silent=True))


def _dump(options: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(options), sort_keys=False, allow_unicode=True, width=1 << 16))
