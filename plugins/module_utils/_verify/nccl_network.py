# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NCCL_DEBUG=INFO tells of the network that a job has used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_LIBRARY = re.compile(r"NCCL version (\d+(?:\.\d+)+[\w.-]*)(?:\+cuda(\d[\d.]*))?")


class HostNetwork(NamedTuple):
    """What NCCL used on one node, joined by commas where its processes differ."""

    provider: str  # of libfabric
    fabric: str
    nics: int | None  # the fewest that a process found
    network: str  # as NCCL names it: Libfabric, Socket, IB
    gdr: bool | None = None  # whether a NIC reaches a GPU's memory on some way; None where no way is told


class Network(NamedTuple):
    """What NCCL_DEBUG=INFO tells of the network; "" and None where it says nothing."""

    provider: str = ""
    fabric: str = ""
    nics: int | None = None
    network: str = ""
    transport: str = ""  # ofi, socket or ib
    plugin: str = ""  # the network plugin and its version
    libfabric: str = ""
    protocol: str = ""  # the plugin's, RDMA or SENDRECV
    gdr: bool | None = None  # whether NICs reach the GPUs' memory on all nodes
    tuner: str = ""
    nccl: str = ""
    cuda: str = ""
    environment: dict[str, str] = {}
    hosts: dict[str, HostNetwork] = {}


def network_problem(network: Network, nics: int | None = None) -> str:
    """Return in one line why a job did not use EFA on all nodes, with that many NICs; nothing if it did."""
    if not network.provider:
        if network.transport:
            return f"NCCL used {network.network} and no EFA: the network plugin aws-ofi-nccl was not loaded"
        return "NCCL said nothing of its network: the job needs NCCL_DEBUG=INFO"
    for host, seen in sorted(network.hosts.items()):
        if seen.provider and seen.provider != "efa":
            return f"libfabric selected the provider {seen.provider} on {host}; needed: efa"
        if seen.network and _transport(seen.network) != "ofi":
            return f"NCCL used {seen.network} on {host}, though the provider {seen.provider or 'efa'} is there"
        if nics is not None and seen.nics is not None and seen.nics != nics:
            return f"NCCL found {seen.nics} EFA devices on {host}; needed: {nics}"
    return ""


def _transport(network: str) -> str:
    name = network.lower()
    for word, transport in (("libfabric", "ofi"), ("ofi", "ofi"), ("socket", "socket"), ("ib", "ib")):
        if word in name:
            return transport
    return ""


def _joined(values: Iterable[str]) -> str:
    return ",".join(sorted({value for value in values if value}))


class NetworkReader:
    """What the lines of NCCL_DEBUG have told of the network."""

    # The first group of each is the value; a later line replaces an earlier one.
    _FACTS = {
        "plugin": re.compile(r"NET/OFI Initializing (aws-ofi-nccl \S+)"),
        "libfabric": re.compile(r"NET/OFI Using Libfabric version (\S+)"),
        "protocol": re.compile(r"NET/OFI Using transport protocol (\w+)"),
        "loaded": re.compile(r"^NET/Plugin *: Loaded net plugin (\S.*?) \(v\d+\)"),
        "base_tuner": re.compile(r"NET/OFI (Region|Model) base Tuner is chosen"),
        "tuner": re.compile(r"TUNER/Plugin: Using (?:tuner plugin )?(?!internal)(\S.*?)(?: \(v\d+\))?$"),
        "no_tuner": re.compile(
            r"NET/OFI The (tuner) plugin can not be loaded when explicitly"
            r"|^(?:(?!TUNER/Plugin: |tuner ).)*(?:TUNER/Plugin:|tuner) .*(internal) tuner"
        ),
    }
    _PROVIDER = re.compile(
        r"NET/OFI Selected [Pp]rovider is (\S+?)(?:, fabric is (\S+))?(?: \(found (\d{1,9}) nics?\))?$"
    )
    _USED = re.compile(r"^(?:Using network|Assigned NET plugin) (\S.*?)(?: to comm)?$")
    _CHANNEL = re.compile(r"^Channel \S+ : .* via NET/([^/]+)/\S+")
    _WEAK = re.compile(r"^NET/(Socket|IB) *: Using ?\[0\]")
    _SET = re.compile(r"^((?:NCCL|OFI|FI)_\w+) set by environment to (.*?)\.?$")

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.seen: dict[str, dict[str, set[str]]] = {}
        self.weak: dict[str, set[str]] = {}
        self.nics: dict[str, set[int]] = {}
        self.gdr: dict[str, bool] = {}

    def adopt(self, other: NetworkReader) -> None:
        """Take over the lines of another reader."""
        self.facts = {**other.facts, **self.facts}
        self.environment = {**other.environment, **self.environment}
        for host, direct in other.gdr.items():
            self.gdr[host] = self.gdr.get(host, False) or direct
        for host, kinds in other.seen.items():
            for kind, values in kinds.items():
                self._add(host, kind, values)
        for host, names in other.weak.items():
            self.weak.setdefault(host, set()).update(names)
        for host, counts in other.nics.items():
            self.nics.setdefault(host, set()).update(counts)

    def version(self, text: str) -> None:
        """Read NCCL's version, which some settings print without a host."""
        match = _LIBRARY.search(text)
        if match:
            self.facts["nccl"], self.facts["cuda"] = match[1], match[2] or ""

    def read(self, host: str, text: str) -> None:
        """Read one line."""
        text = text.strip()
        self.version(text)
        for name, pattern in self._FACTS.items():
            match = pattern.search(text)
            if match:
                self.facts[name] = next(group for group in match.groups() if group)
        match = self._PROVIDER.search(text)
        if match:
            self._add(host, "provider", {match[1]})
            self._add(host, "fabric", {match[2] or ""})
            if match[3]:
                self.nics.setdefault(host, set()).add(int(match[3]))
        match = self._USED.match(text)
        if match:
            self._add(host, "network", {match[1]})
        match = self._CHANNEL.search(text)
        if match:
            self._add(host, "network", {match[1]})
            self.gdr[host] = self.gdr.get(host, False) or "/GDRDMA" in text
        match = self._WEAK.match(text)
        if match:
            self.weak.setdefault(host, set()).add(match[1])
        match = self._SET.match(text)
        if match:
            self.environment[match[1]] = match[2]

    def _add(self, host: str, kind: str, values: set[str]) -> None:
        self.seen.setdefault(host, {}).setdefault(kind, set()).update(values)

    def _hosts(self) -> Iterator[tuple[str, HostNetwork]]:
        for host in sorted({*self.seen, *self.weak}):
            kinds = self.seen.get(host, {})
            used = kinds.get("network") or (set() if kinds.get("provider") else self.weak.get(host, set()))
            provider, fabric = _joined(kinds.get("provider", ())), _joined(kinds.get("fabric", ()))
            nics = min(self.nics.get(host, ()), default=None)
            yield host, HostNetwork(provider, fabric, nics, _joined(used), self.gdr.get(host))

    def network(self) -> Network:
        """Return what was read."""
        hosts = dict(self._hosts())
        used = _joined(name for host in hosts.values() for name in host.network.split(","))
        facts = self.facts
        tuner = facts.get("tuner", "")
        if facts.get("base_tuner"):
            tuner = f"{facts['base_tuner'].lower()} tuner of aws-ofi-nccl"
        elif facts.get("no_tuner") and not tuner:
            tuner = "NCCL's own"
        return Network(
            provider=_joined(name for host in hosts.values() for name in host.provider.split(",")),
            fabric=_joined(name for host in hosts.values() for name in host.fabric.split(",")),
            nics=min((host.nics for host in hosts.values() if host.nics is not None), default=None),
            network=used,
            transport=_joined(_transport(name) for name in used.split(",")),
            plugin=facts.get("plugin") or facts.get("loaded", ""),
            libfabric=facts.get("libfabric", ""),
            protocol=facts.get("protocol", ""),
            gdr=all(self.gdr.values()) if self.gdr else None,
            tuner=tuner,
            nccl=facts.get("nccl", ""),
            cuda=facts.get("cuda", ""),
            environment=self.environment,
            hosts=hosts,
        )
