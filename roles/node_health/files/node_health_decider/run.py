# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decide on the head node which nodes with findings are drained in Slurm, and tell what was decided.

Nodes leave their states in one folder on the shared file system. A timer starts this program anew each time, so that a
cache in memory says what the last run has seen.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .decision import OURS, Look, Outcome, Withheld, acting, is_present
from .records import Clock, History, Record, Settings, alone, put, read, scan, settings_of
from .slurm import NAME, NoAnswer, Node, parse_nodes, scontrol
from .text import visible

# How long the same findings may go without a look at Slurm. What has changed is looked at in the next run.
ASK_AGAIN = 60.0
# Levels of the journal, which systemd takes from the beginning of a line.
NOTICE, ERROR = "<5>", "<3>"
METRICS = {
    "drained": "A node that this cluster's node health has drained, and that is not back yet",
    "drains_total": "Nodes drained by node health",
    "withheld": "A finding for which a node would be drained, and why that node is not",
    "silent": "A node that is up and has not told its state for a while",
    "decider_timestamp_seconds": "When node health last decided",
}


class Cache(NamedTuple):
    """What the last run has seen, so that a run in which nothing has changed neither reads states nor asks Slurm."""

    states: dict[str, Record] = {}
    # The settings, and when the history was last written: an administrator's command has Slurm asked again.
    key: list[Any] = []
    asked: float = -math.inf
    waiting: bool = False
    withheld: list[list[str]] = []
    silent: list[str] = []
    # Of nodes that are withheld or silent.
    addresses: dict[str, str] = {}
    # When the states were scanned.
    boot: str = ""
    up: float = -math.inf


def remembered(path: str, clock: Clock) -> Cache:
    """Return what the last run of this boot has seen."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        cache = Cache(**read(path))  # another version's may have other keys
        whole = all(isinstance(found, type(default)) for found, default in zip(cache, Cache()))
        if whole and cache.boot == clock.boot and cache.up <= clock.up:
            return cache
    return Cache()


def say(line: str, level: str = NOTICE) -> None:
    print(visible(f"{level}{line}"), flush=True)


def shown(names: Iterable[str]) -> str:
    ordered = sorted(set(names))
    return ", ".join(ordered[:20]) + (f" and {len(ordered) - 20} more" if len(ordered) > 20 else "")


def silent(
    settings: Settings, clock: Clock, states: dict[str, Record], nodes: dict[str, Node], history: History
) -> Iterator[str]:
    """Yield the nodes that are up and tell nothing. The files of nodes that are gone are removed."""
    for name, state in states.items():
        if clock.up - state["heard"] <= settings.silent_after:
            continue
        node, unknown = nodes.get(name), "wrong" in state or state["heard"] == -math.inf
        if not NAME.fullmatch(name) or (node and node.up and (unknown or is_present(state, node, history))):
            yield name
        elif node is None or "POWERED_DOWN" in node.states or node.up:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(settings.states, f"{name}.json"))


def act(settings: Settings, history: History, outcome: Outcome, now: float) -> bool:
    """Tell Slurm what was decided; return whether Slurm has taken all of that.

    The history is written before, too: what a killed run had told Slurm or not, the next run sees in Slurm.
    """
    for record in outcome.undrain:
        record["healing"] = now
    history.drains += outcome.drain
    history.save(now)
    well = True
    for record in outcome.drain + outcome.undrain:
        healing = "healing" in record
        reason = f"{OURS}{record['finding']} is gone" if healing else record["reason"]
        words = [f"state={'undrain' if healing else 'drain'}", f"reason={reason}"]
        try:
            scontrol(settings.scontrol, "update", f"nodename={record['node']}", *words)
        except NoAnswer as problem:
            say(f"{record['node']}: could not be {'undrained' if healing else 'drained'}: {problem}", ERROR)
            well = False
            continue
        if healing:
            record.update(end="healed", ended=now)
            say(f"{record['node']}: undrained: {record['finding']} is gone")
        else:
            history.confirm(record)
            say(f"{record['node']}: drained ({record['class']}): {record['reason']}")
    history.save(now)
    return well


def tell(cache: Cache, withheld: list[Withheld], quiet: list[str], drained: set[str]) -> None:
    """Tell of what is withheld, and of silent nodes, once for as long as that is so."""
    before = {tuple(one[:3]) for one in cache.withheld}
    groups: dict[tuple[str, str, str], list[str]] = {}
    for node, finding, why, words in withheld:
        if (node, finding, why) not in before:
            groups.setdefault((finding, why, words), []).append(node)
    for (finding, why, words), nodes in groups.items():
        say(f"{shown(nodes)}: not drained for {finding} ({why}): {words}")
    for node, finding in sorted({(one[0], one[1]) for one in cache.withheld} - {(one[0], one[1]) for one in withheld}):
        if node not in drained:
            say(f"{node}: {finding} is no longer withheld: the finding or the node is gone, or the node takes no jobs")
    if set(quiet) - set(cache.silent):
        say(f"{shown(set(quiet) - set(cache.silent))}: silent: the node has told no state for a while")
    if set(cache.silent) - set(quiet):
        say(f"{shown(set(cache.silent) - set(quiet))}: no longer silent")


def label(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def names(node: str, address: str) -> str:
    """Return a node's labels: its name in Slurm, and that in EC2's DNS, which is all that EC2 tells Prometheus."""
    host = f',host="ip-{address.replace(".", "-")}"' if address.replace(".", "").isdigit() else ""
    return f"node={label(node)}{host}"


def metrics(history: History, withheld: list[Withheld], quiet: list[str], addresses: dict[str, str], now: float) -> str:
    samples: dict[str, list[str]] = {name: [] for name in METRICS}
    for record in history.open():
        if record["done"]:
            node = names(record["node"], record["address"])
            samples["drained"].append(f"{{{node},finding={label(record['finding'])}}} 1")
    for finding, count in sorted(history.totals.items()):
        samples["drains_total"].append(f"{{finding={label(finding)}}} {count}")
    for node, finding, why, _words in withheld:
        labels = f"{names(node, addresses.get(node, ''))},finding={label(finding)},why={label(why)}"
        samples["withheld"].append(f"{{{labels}}} 1")
    samples["silent"] = [f"{{{names(node, addresses.get(node, ''))}}} 1" for node in quiet]
    samples["decider_timestamp_seconds"] = [f" {now:.3f}"]
    lines = []
    for name, found in samples.items():
        metric = f"pcluster_node_health_{name}"
        lines += [f"# HELP {metric} {METRICS[name]}", f"# TYPE {metric} {'counter' if '_total' in name else 'gauge'}"]
        lines += [metric + sample for sample in found]
    return "\n".join(lines) + "\n"


def run(settings: Settings, clock: Clock) -> None:
    """Decide once."""
    now, cache = clock.now, remembered(settings.cache, clock)
    states, changed, lines = scan(settings.states, cache.states, clock, cache.up)
    for line in lines:
        say(line)
    history = History(settings.history)
    key = [*settings, history.stamp()]
    old = any(clock.up - state["heard"] > settings.silent_after for state in states.values())
    worth = bool(old or history.open() or any(acting(state) for state in states.values()))
    due = changed or cache.waiting or cache.key != key or clock.up - cache.asked >= ASK_AGAIN
    withheld: list[Withheld] = []
    quiet: list[str] = []
    addresses: dict[str, str] = {}
    waiting, asked, drained = False, -math.inf, set[str]()
    if worth and due:
        asked = clock.up
        nodes = parse_nodes(scontrol(settings.scontrol, "--oneliner", "show", "nodes"))
        outcome = Look(settings, clock, states, nodes, history).decide()
        quiet = sorted(silent(settings, clock, states, nodes, history))
        for line in outcome.lines:
            say(line)
        withheld, drained = outcome.withheld, {record["node"] for record in outcome.drain}
        told = {*quiet, *(one[0] for one in withheld)}
        addresses = {name: nodes[name].address for name in sorted(told) if name in nodes}
        waiting = not act(settings, history, outcome, now) or outcome.waiting
    elif worth:
        withheld = [(one[0], one[1], one[2], one[3]) for one in cache.withheld]
        quiet, waiting, asked, addresses = cache.silent, cache.waiting, cache.asked, cache.addresses
    tell(cache, withheld, quiet, drained)
    held = [list(one) for one in withheld]
    key = [*settings, history.stamp()]
    new = Cache(states, key, asked, waiting, held, quiet, addresses, clock.boot, clock.up)
    put(settings.cache, json.dumps(new._asdict()))
    put(settings.metrics, metrics(history, withheld, quiet, addresses, now))


def main(words: list[str]) -> int:
    if words == ["--help"] or len(words) not in (1, 2) or words[:-1] not in ([], ["--check"]):
        print("usage: node-health-decider [--check] CONFIGURATION", file=sys.stderr)
        return 0 if words == ["--help"] else 2
    try:
        settings = settings_of(words[-1])
    except (OSError, ValueError, TypeError) as error:
        print(visible(f"{words[-1]}: {error}"), file=sys.stderr)
        return 2
    if len(words) == 2:
        return 0
    try:
        with alone(settings.history):
            run(settings, Clock.read())
    except (OSError, ValueError, TypeError, RecursionError, NoAnswer) as error:
        say(f"nothing is decided: {error}", ERROR)
        return 1
    return 0
