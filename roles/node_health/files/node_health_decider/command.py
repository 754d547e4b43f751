# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What administrators do on the head node: see what was decided, hold a node, release it, and have a finding acted on
again after the history has stopped that.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator

from .decision import CLASSES, OURS
from .records import Clock, History, Record, Settings, alone, scan, settings_of
from .run import remembered
from .slurm import NoAnswer, Node, parse_nodes, scontrol
from .text import visible

CONFIGURATION = "/etc/pcluster-postboot/node-health-decider.json"


class Refused(Exception):
    """What an administrator asks for cannot be done."""


def reservation(node: str) -> str:
    """Return the name of the reservation that holds a node.

    clustermgtd deletes those whose names begin with `pcluster-` and belong to no capacity block
    (capacity_block_manager.py of aws-parallelcluster-node 3.16.1).
    """
    return f"node_health_{node}"


def reserved(settings: Settings) -> set[str]:
    """Return the nodes that a reservation of `hold` keeps jobs away from, also one that a killed `hold` has left."""
    shown = scontrol(settings.scontrol, "--oneliner", "show", "reservations")
    return set(re.findall(rf"^ReservationName={reservation('')}(\S+) ", shown, re.MULTILINE))


def ago(now: float, then: float) -> str:
    minutes = max(0, int(now - then) // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h" if minutes < 2880 else f"{minutes // 1440} d"


def status(settings: Settings, history: History, clock: Clock) -> Iterator[str]:
    """Yield the lines that tell how things are, from what the timer's last run has seen."""
    now = clock.now
    limits = f"at most {settings.max_nodes} nodes at a time, {settings.max_share:g} % of a queue's (or one of them), "
    yield f"action: {settings.action}; {limits}{settings.max_per_hour} an hour"
    cache = remembered(settings.cache, clock)
    states = scan(settings.states, cache.states, clock, cache.up)[0]
    drained = {one["node"]: one for one in history.open()}
    withheld = {(one[0], one[1]): one[2:] for one in cache.withheld}
    yield f"states: {len(states)} nodes; silent: {', '.join(cache.silent) or 'none'}"
    for name, state in sorted(states.items()):
        for found in state["findings"]:
            why = withheld.get((name, found["finding"]), ["", ""])
            what = f"not drained ({why[0]}): {why[1]}" if why[0] else "watched"
            if name in drained:
                what = f"drained {ago(now, drained[name]['time'])} ago"
            elif found["class"] in CLASSES and not why[0]:
                what = "not judged: another finding counts, or the node takes no jobs anyway"
            since = f"for {ago(now, found['since'])}"
            where = f"{name}: {found['finding']} ({found['class']}) {found['subject']}"
            yield f"{where} {since}: {found['evidence']}: {what}"
    for name, record in drained.items():
        if name not in states or not states[name]["findings"]:
            yield f"{name}: drained {ago(now, record['time'])} ago: {record['reason']}"
    for name, hold in history.holds.items():
        yield f"{name}: held for {ago(now, hold['time'])} by {hold['by']}: {hold['reason']}"
    yield from unfinished(settings, history)
    for kind, stop in history.stops.items():
        instances = " and then ".join(stop["instances"])
        yield f"{kind}: stopped {ago(now, stop['time'])} ago: {stop['node']} had it as {instances}"
    for record in [one for one in history.drains if one["end"]][-10:]:
        yield f"{record['node']}: {ago(now, record['time'])} ago: {record['reason']}: {record['end']}"


def unfinished(settings: Settings, history: History) -> Iterator[str]:
    """Yield what a `hold` or `release` that was killed, or whoever has deleted a reservation, has left."""
    try:
        found = reserved(settings)
    except NoAnswer as problem:
        yield f"reservations are not known: {problem}"
        return
    for name in sorted(found - set(history.holds)):
        yield f"{name}: {reservation(name)} keeps jobs away, and no hold is noted: hold the node again, or release it"
    for name in sorted(set(history.holds) - found):
        yield f"{name}: held, but Slurm has no {reservation(name)}, so jobs start: hold the node again, or release it"


def known(settings: Settings, name: str) -> Node:
    """Return a node of Slurm; one node alone, and not a list of nodes such as Slurm takes, too."""
    nodes = parse_nodes(scontrol(settings.scontrol, "--oneliner", "show", "nodes"))
    if name not in nodes:
        raise Refused(f"{name!r} is no node of this cluster; 'sinfo --Node' has the names of all of them")
    return nodes[name]


def hold(settings: Settings, history: History, name: str, reason: str, clock: Clock) -> str:
    """Keep jobs away from a node by a reservation, so that ParallelCluster does not replace the node.

    Without the flag `maint`: ParallelCluster up to 3.15 terminates a static node that boots in a reservation for
    maintenance. With `ignore_jobs`: a job that runs there ends first. Because a drained node is replaced although it is
    reserved, the drain ends. The history comes first, so that the same command finishes what a killed one has begun.
    """
    node = known(settings, name)
    drained = "DRAIN" in node.states
    if drained and node.off:
        cure = f"'scontrol update nodename={name} state=power_down_force' gives it back to jobs"
        raise Refused(f"{name} is drained ({node.reason}), and its instance is gone or about to go: {cure}")
    mine = [one for one in history.drains if one["node"] == name and one["reason"] == node.reason]
    drains = [one for one in mine if one["end"] in ("", "held")]
    is_reserved = name in reserved(settings)
    if drained and not drains:
        raise Refused(f"{name} is drained ({node.reason}), and so is replaced: resume it before it is held")
    if name in history.holds and is_reserved and not drained:
        raise Refused(f"{name} is held already: {history.holds[name]['reason']}")
    before = history.holds.get(name)
    history.holds[name] = {**clock.stamp(), "reason": reason, "by": os.environ.get("SUDO_USER", "root")}
    history.save(clock.now)
    if not is_reserved:
        words = ("nodes=" + name, "users=root", "starttime=now", "duration=infinite", "flags=ignore_jobs")
        try:
            scontrol(settings.scontrol, "create", "reservation", f"reservationname={reservation(name)}", *words)
        except NoAnswer:
            history.holds.pop(name)
            history.holds.update({name: before} if before else {})
            history.save(clock.now)
            raise
    for record in drains:
        record.update(end="held", ended=clock.now)
    history.save(clock.now)
    if drained:
        scontrol(settings.scontrol, "update", f"nodename={name}", "state=undrain", f"reason={OURS}held")
    return f"{name} is held: no job starts there, and it is not drained, until 'pcluster-node-health release {name}'"


def release(settings: Settings, history: History, name: str, now: float) -> str:
    found = reserved(settings)
    if name not in history.holds and name not in found:
        held = ", ".join(sorted({*history.holds, *found})) or "none"
        raise Refused(f"{name} is not held; held are: {held}")
    # A reservation that somebody has deleted already is what is wanted.
    if name in found:
        scontrol(settings.scontrol, "delete", f"reservationname={reservation(name)}")
    history.holds.pop(name, None)
    history.save(now)
    return f"{name} is released"


def forget(history: History, kind: str, now: float) -> str:
    """Have a finding acted on again."""
    past: list[Record] = [one for one in history.drains if one["end"] and not one.get("forgotten")]
    due = [one for one in past if one["finding"] == kind]
    if kind not in history.stops and not due:
        have = sorted({*history.stops, *(one["finding"] for one in past)})
        raise Refused(f"the history has no {kind!r} to forget; it has: {', '.join(have) or 'nothing'}")
    history.stops.pop(kind, None)
    for record in due:
        record["forgotten"] = True
    history.save(now)
    return f"{kind}: {len(due)} drains are forgotten, and the finding is acted on again"


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pcluster-node-health", description="The health of this cluster's nodes.")
    parser.add_argument("--config", default=CONFIGURATION, help="the configuration file (default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("status", help="findings, and what is done about each")
    one = commands.add_parser("hold", help="keep jobs away from a node, which is not replaced")
    one.add_argument("node", metavar="NODE")
    one.add_argument("reason", metavar="REASON")
    commands.add_parser("release", help="give a held node back to jobs").add_argument("node", metavar="NODE")
    one = commands.add_parser("forget", help="act on a finding again that the history has stopped")
    one.add_argument("finding", metavar="FINDING")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    options = arguments(words)
    try:
        clock = Clock.read()
        try:
            settings = settings_of(options.config)
        except ValueError as error:
            raise Refused(f"{options.config}: {error}") from error
        if options.command == "status":
            print("\n".join(map(visible, status(settings, History(settings.history), clock))))
            return 0
        if os.geteuid():
            raise Refused(f"'{options.command}' is for root: use sudo")
        with alone(settings.history):
            history = History(settings.history)
            if options.command == "hold":
                print(visible(hold(settings, history, options.node, options.reason, clock)))
            elif options.command == "release":
                print(visible(release(settings, history, options.node, clock.now)))
            else:
                print(visible(forget(history, options.finding, clock.now)))
    except (OSError, ValueError, TypeError, RecursionError, NoAnswer, Refused) as error:
        print(visible(f"pcluster-node-health: {error}"), file=sys.stderr)
        return 1
    return 0
