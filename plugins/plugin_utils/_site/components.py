# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Each component as roles/<component>/meta/component.yml describes it, in the order of the rows of site.yml.

It imports nothing of this collection, so that scripts of the repository read it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).absolute().parents[3]
_ROW = re.compile(r"^ +vars: \{postboot_component: (\w+)\}$", re.MULTILINE)
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Unit:
    """A unit of systemd that has to run where the component is."""

    name: str  # a service without its suffix, or a timer with it
    metrics: str = ""  # which metrics are missing without it, for people
    where: str = ""  # on which nodes it runs: all, gpu, neuron, or head
    job: str = ""  # the job of Prometheus that scrapes it
    address: str = ""  # the role's variable with the address and the port on which it listens
    option: str = ""  # the option of its program that takes this address
    relabel: Sequence[Mapping[str, Any]] = ()  # what Prometheus drops of its metrics
    port: str = ""  # in words, where there is no such variable
    alert: str = ""  # who tells when it is down
    template: str = ""  # the role's template of it; by default it is called like the service
    exposure: float = 0  # what `systemd-analyze security` of systemd 252 may find: 10 is a service without any limits

    @property
    def service(self) -> str:
        """Return the service's name, a timer's too."""
        return self.name.partition(".")[0]

    @property
    def source(self) -> str:
        return self.template or f"{self.service}.service.j2"


@dataclass(frozen=True)
class Need:
    """What a component takes of a node, by which a cluster's configuration is made."""

    source: str  # of the figure
    nodes: Sequence[str] = ()  # head, login, compute
    times: Mapping[str, float] = field(default_factory=dict)  # GB of disk: so many for each of these
    scratch: bool = False  # whether it is on the node's own disks, where there are some
    seconds: int = 0  # of the boot


@dataclass(frozen=True)
class Elsewhere:
    """What a component is on a platform other than ParallelCluster."""

    why: str = ""  # what differs there, and for which reason
    runs: bool = True
    refuses: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # values of the role's variables


@dataclass(frozen=True)
class Component:
    """What is known of a component outside its role."""

    name: str
    title: str = ""  # what a node has with it, for people
    nodes: Mapping[str, Any] = field(default_factory=dict)  # what it is on nodes of a type: true, or words
    packages: Sequence[str] = ()  # any of which says that a node has it
    programs: Sequence[str] = ()  # the same, of files
    units: Sequence[Unit] = ()
    needs: Sequence[Need] = ()
    platforms: Mapping[str, Elsewhere] = field(default_factory=dict)  # where it is not what it is on ParallelCluster
    essential: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)  # the role's

    def port(self, unit: Unit) -> int:
        return _port(self.defaults[unit.address])


def _port(address: Any) -> int:
    return int(str(address).rpartition(":")[2])


def load(path: Path) -> Any:
    """Read a YAML file; an absent one is an empty dictionary."""
    # The plain loader: Ansible's own is several times slower.
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return yaml.load(text, Loader=_YamlLoader) or {}


def names(root: Path = ROOT) -> list[str]:
    """Return the components that site.yml has rows of, in their order."""
    return _ROW.findall((root / "playbooks/site.yml").read_text(encoding="utf-8"))


def read(root: Path = ROOT) -> list[Component]:
    return [component(root / "roles" / name) for name in names(root)]


def component(role: Path) -> Component:
    defaults, found = load(role / "defaults/main.yml"), dict(load(role / "meta/component.yml"))
    units = tuple(Unit(**unit) for unit in found.pop("units", ()))
    needs = tuple(Need(**need) for need in found.pop("needs", ()))
    platforms = {name: Elsewhere(**what) for name, what in found.pop("platforms", {}).items()}
    essential = defaults.get(f"{role.name}_essential") is True
    return Component(
        role.name, **found, units=units, needs=needs, platforms=platforms, essential=essential, defaults=defaults
    )


def services(components: Iterable[Component]) -> list[str]:
    return sorted({unit.service for each in components for unit in each.units})


def scrape_jobs(components: Iterable[Component], value_of: Callable[[str, Any], Any]) -> list[dict[str, Any]]:
    """Return jobs of Prometheus for what runs on every node, and then for what runs on those with GPUs or Neuron.

    `value_of` returns what a variable comes to, or the given default where nobody has set it.
    """
    jobs = []
    for each in components:
        for unit in each.units:
            if unit.where not in ("all", "gpu", "neuron") or not value_of(f"{each.name}_enabled", True):
                continue
            job: dict[str, Any] = {"name": unit.job}
            job["port"] = _port(value_of(unit.address, each.defaults[unit.address]))
            if unit.relabel:
                job["metric_relabel_configs"] = [dict(rule) for rule in unit.relabel]
            if unit.where != "all":
                job[f"{unit.where}_only"] = True
            jobs.append(job)
    return sorted(jobs, key=lambda job: ("neuron_only" in job, "gpu_only" in job))


def exporters(components: Iterable[Component]) -> list[dict[str, Any]]:
    """Return the units that tell by an option of their command line where they have metrics."""
    return [
        {"component": each.name, "unit": unit.name, "port": each.port(unit), "option": unit.option, "where": unit.where}
        for each in components
        for unit in each.units
        if unit.option
    ]
