# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report of verify as one page that needs nothing else: render(report). page.html.j2 has its words and its looks.

_verify/report.py in module_utils describes the report. Every part of the report may be missing, because that of a job
which failed is worth most; unknown keys are passed over.

There is one chart for each stage, partition, instance type, number of nodes and collective; runs that differ in
container or nodes are lines of one chart, the slowest, median and fastest of them where they are many.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import html as site_html


class _Status(NamedTuple):
    word: str
    kind: str
    picture: str  # in a box of 16


_STATUSES = {
    "ok": _Status("passed", "good", "M4.5 8.2l2.4 2.4 4.6-5"),
    "failed": _Status("failed", "bad", "M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"),
    "skipped": _Status("skipped", "none", "M5 8h6"),
    "short": _Status("too slow", "bad", "M8 4.4v5.4M5.4 7.6L8 10.4l2.6-2.8"),
    "suspicious": _Status("impossible", "warn", "M8 4.2v4.8M8 11.4v.4"),
    "unknown": _Status("not judged", "none", "M6.2 6.2c0-2.4 3.8-2.4 3.8-.2 0 1.5-2 1.5-2 3M8 11.5v.3"),
}
_GRAVITY = ("failed", "short", "suspicious", "unknown", "skipped", "ok")
# What is to be done with a node on which something was found, the gravest first.
_CLASSES = {"replace": "bad", "reboot": "bad", "reset": "bad", "watch": "warn"}
_SECRET = re.compile(r"secret|token|passw|credential|_key$", re.IGNORECASE)
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
# The lines of a chart differ in colour and in the shape of their marks.
_SERIES = {
    "a": "M-2.8 0a2.8 2.8 0 1 0 5.6 0a2.8 2.8 0 1 0-5.6 0z",
    "b": "M-2.5-2.5h5v5h-5z",
    "c": "M0-3.4l3.3 5.8h-6.6z",
    "d": "M0-3.5l3.5 3.5-3.5 3.5-3.5-3.5z",
}


# ------------------------------------------------------------------------------------------------ words


def _clean(value: Any) -> Any:
    """Return a copy of the report, of which no text has characters that a page may not have."""
    if isinstance(value, dict):
        return {_clean(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode("utf-8")
        return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]", "�", text)
    return value


def _words(name: Any) -> str:
    """Return 'Two nodes' for two_nodes."""
    text = str(name or "").replace("_", " ").strip()
    return text[:1].upper() + text[1:]


def _count(number: int, word: str, plural: str = "") -> str:
    return f"{number} {word if number == 1 else plural or word + 's'}"


def _size(size: float) -> str:
    for unit, word in _UNITS:
        if size >= unit:
            return f"{size / unit:.4g} {word}"
    return f"{size:.0f} B"


def _gbps(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _addresses(text: Any) -> list[str]:
    """Return the parts of a text: what is no address, and after each of them an address."""
    return re.split(r"(https://[^\s()]+)", str(text))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, default=str)


# ------------------------------------------------------------------------------------------------ parts of the report


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _judgement(run: dict[str, Any]) -> dict[str, Any]:
    return _dict(run.get("judgement"))


def _status(item: dict[str, Any]) -> str:
    status = str(_judgement(item).get("status") or item.get("status") or "unknown")
    return status if status in _STATUSES else "unknown"


def _worst(statuses: Iterable[str]) -> str:
    return min(statuses, key=_GRAVITY.index, default="unknown")


def _points(run: dict[str, Any], half: str = "out_of_place") -> list[tuple[int, float]]:
    """Return (size, busbw) by size; of a size that was run again, the last."""
    found = {}
    for row in _dicts(run.get("rows")):
        size, busbw = _number(row.get("size")), _number(_dict(row.get(half)).get("busbw"))
        if size and size > 0 and busbw is not None and busbw >= 0:
            found[int(size)] = busbw
    return sorted(found.items())


def _goals(expectation: dict[str, Any]) -> list[dict[str, Any]]:
    points = [
        {**p, "size": _number(p.get("size")), "busbw": _number(p.get("busbw"))}
        for p in _dicts(expectation.get("points"))
    ]
    return sorted(
        (p for p in points if p["size"] and p["size"] > 0 and p["busbw"] is not None), key=lambda p: p["size"]
    )


def _goal_at(expectation: dict[str, Any], size: float) -> float | None:
    best = None
    for point in _goals(expectation):
        if abs(point["size"] - size) <= 0.01 * point["size"]:
            return float(point["busbw"])
        if point.get("and_up") and size > point["size"]:
            best = float(point["busbw"])
    return best


def _limit(expectation: dict[str, Any]) -> float | None:
    value = _number(_dict(expectation.get("limit")).get("busbw"))
    return value if value and value > 0 else None


class _Result(NamedTuple):
    size: int
    busbw: float
    goal: float | None
    status: str


def _result(run: dict[str, Any]) -> _Result | None:
    """Return the run at the largest size that has an expectation, or at the largest."""
    points, expectation = _points(run), _dict(run.get("expectation"))
    for size, busbw in reversed(points):
        goal = _goal_at(expectation, size)
        if goal:
            return _Result(size, busbw, goal, _status(run))
    return _Result(*points[-1], None, _status(run)) if points else None


def _where(run: dict[str, Any]) -> str:
    nodes, kind = len(_list(run.get("nodes"))), run.get("instance_type") or "unknown type"
    return f"{nodes} × {kind}" if nodes else str(kind)


def _name_of(run: dict[str, Any]) -> str:
    place = "in a container" if run.get("container") else "on the host"
    nodes = _list(run.get("nodes"))
    return f"{place}, {nodes[0]}" if len(nodes) == 1 else place


def _rows(run: dict[str, Any]) -> list[dict[str, Any]]:
    expectation, rows = _dict(run.get("expectation")), []
    for row in _dicts(run.get("rows")):
        size, halves = _number(row.get("size")), []
        if size is None:
            continue
        for half in (_dict(row.get("out_of_place")), _dict(row.get("in_place"))):
            numbers = [_number(half.get(key)) for key in ("time_us", "algbw", "busbw")]
            halves.append({"numbers": numbers, "wrong": _number(half.get("wrong"))})
        rows.append({"size": size, "halves": halves, "goal": _goal_at(expectation, size)})
    return rows


# ------------------------------------------------------------------------------------------------ drawings


class _Line:
    def __init__(self, name: str, run: dict[str, Any], key: str) -> None:
        self.name, self.key, self.mark = name, key, _SERIES[key]
        self.points, self.in_place = _points(run), _points(run, "in_place")
        self.label = 0.0  # how far down its last value is written


class _Chart:
    """Bus bandwidth over message size, which is logarithmic."""

    WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 540, 300, 46, 58, 22, 44

    def __init__(self, runs: dict[str, dict[str, Any]], number: int) -> None:
        self.number = number
        self.lines = [_Line(name, run, key) for (name, run), key in zip(runs.items(), _SERIES)]
        measured = [size for line in self.lines for size, _busbw in line.points]
        self.low, self.high = (min(measured), max(measured)) if measured else (1, 2)
        self.expectation = next((_dict(run["expectation"]) for run in runs.values() if run.get("expectation")), {})
        goals = _goals(self.expectation)
        self.goals = [point for point in goals if self.low * 0.99 <= point["size"] <= self.high * 1.01]
        self.limit = _limit(self.expectation)
        values = [busbw for line in self.lines for _size_, busbw in [*line.points, *line.in_place]]
        highest = max([*values, *(point["busbw"] for point in self.goals)], default=1.0)
        # A limit far above all that was measured would press the curve flat.
        self.limit_fits = self.limit is not None and self.limit <= 2.2 * highest
        self.top = max(highest * 1.06, (self.limit or 0) * 1.07 if self.limit_fits else 0, 0.01)
        taken = [self.y(self.limit)] if self.limit and self.limit_fits else []
        for line in self.lines:
            if line.points:
                line.label = self.y(line.points[-1][1])
                while any(abs(line.label - where) < 14 for where in taken):
                    line.label += 2
                taken.append(line.label)

    def x(self, size: float) -> float:
        span = math.log2(self.high / self.low) if self.high > self.low else 0
        share = math.log2(max(size, self.low) / self.low) / span if span else 0.5
        return round(self.LEFT + min(share, 1) * (self.WIDTH - self.LEFT - self.RIGHT), 1)

    def y(self, busbw: float) -> float:
        return round(self.HEIGHT - self.BOTTOM - busbw / self.top * (self.HEIGHT - self.TOP - self.BOTTOM), 1)

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(size)} {self.y(busbw)}" for size, busbw in points)

    def steps(self) -> list[float]:
        """Return round bandwidths from 0 to the top, four to six of them."""
        raw = self.top / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
        return [step * index for index in range(math.floor(self.top / step + 1e-9) + 1)]

    def sizes(self) -> list[int]:
        first, last = math.ceil(math.log2(self.low) - 1e-6), math.floor(math.log2(self.high) + 1e-6)
        every = max(1, math.ceil((last - first) / 6))
        return sorted({2**power for power in range(last, first - 1, -every)} or {self.low})

    def goal_line(self) -> list[tuple[float, float]]:
        """Return the expectation at each size, up to the largest where it holds from its last size on."""
        points = [(point["size"], point["busbw"]) for point in self.goals]
        if points and self.goals[-1].get("and_up") and points[-1][0] < self.high:
            points.append((self.high, points[-1][1]))
        return points

    def told(self) -> list[str]:
        """Return the chart in words, for who does not see it."""
        told = []
        for line in self.lines:
            if line.points:
                (first, _busbw), (size, busbw) = line.points[0], line.points[-1]
                told.append(f"{_words(line.name)}: from {_size(first)} on, {_gbps(busbw)} GB/s at {_size(size)}.")
        if self.goals:
            last = self.goals[-1]
            told.append(f"Expected: {_gbps(last['busbw'])} GB/s at {_size(last['size'])}.")
        return [*told, f"Impossible above {_gbps(self.limit)} GB/s."] if self.limit else told


def _bar(busbw: float, goal: float | None, most: float | None, status: str) -> dict[str, Any]:
    """Return a bar up to what was measured, with a mark where the expectation is."""
    whole = max(busbw, goal or 0, min(most or 0, 2.2 * max(busbw, goal or 0)))
    said = f"{_gbps(busbw)} GB/s measured" + (f", {_gbps(goal)} GB/s expected" if goal else "")
    width = f"{max(170 * busbw / whole if whole else 0, 2):.1f}"
    mark = f"{1 + 168 * goal / whole:.1f}" if goal and whole else ""
    return {"said": said, "width": width, "mark": mark, "kind": _STATUSES[status].kind}


# ------------------------------------------------------------------------------------------------ parts of the page


def _begun(report: dict[str, Any]) -> dict[str, str]:
    """Return when the run began, and how long it took; nothing where the report does not tell a time."""

    def moment(value: Any) -> datetime.datetime | None:
        try:
            told = datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        except ValueError:
            return None
        return told if told.tzinfo else told.replace(tzinfo=datetime.timezone.utc)

    begun, ended, took = moment(report.get("started")), moment(report.get("finished")), ""
    if not begun:
        return {}
    if ended and ended >= begun:
        seconds = int((ended - begun).total_seconds())
        took = f", took {seconds} s" if seconds < 120 else f", took {round(seconds / 60)} min"
    return {"moment": begun.isoformat(), "shown": f"{begun:%-d %B %Y, %H:%M %Z}", "took": took}


def _summary(checks: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> str:
    statuses = [_status(check) for check in checks]
    counts = [(statuses.count(key), _STATUSES[key].word) for key in ("ok", "failed", "skipped")]
    told = [f"{number} {word}" for number, word in counts if number]
    line = f"{_count(len(checks), 'check')}: {', '.join(told)}" if told else "No check was made"
    unknown = sum(_status(run) == "unknown" for run in runs)
    line += f"; {_count(len(runs), 'measurement')}" if runs else ""
    return line + (f", {unknown} of them without a published figure to compare with" if unknown else "")


def _wrong(checks: Sequence[dict[str, Any]], runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return one line for each check that failed, and for each run that is not what it should be."""
    wrong = [
        f"{check.get('subject')}: {check.get('name')}: {check.get('message')}"
        for check in checks
        if _status(check) == "failed"
    ]
    for run in runs:
        if _status(run) in ("short", "suspicious", "failed"):
            what = f"{_words(run.get('stage'))}, {run.get('collective')} {_name_of(run)}, {_where(run)}"
            wrong.append(f"{what}: {_judgement(run).get('message')}")
    return list(dict.fromkeys(wrong))


def _heroes(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the number of each stage that most people look for: all_reduce at the largest size."""
    chosen: dict[str, dict[str, Any]] = {}
    for run in runs:
        stage = str(run.get("stage") or "")
        other = chosen.get(stage)
        better = other is None or (run.get("collective") == "all_reduce" and other.get("collective") != "all_reduce")
        if _points(run) and better:
            chosen[stage] = run
    told = ((run, _result(run)) for run in list(chosen.values())[:4])
    return [{"run": run, **found._asdict()} for run, found in told if found]


def _matrix(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return all collectives by all places; a place has the slowest of its runs."""
    several = len({str(run.get("partition")) for run in runs}) > 1
    columns: dict[str, None] = {}
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in runs:
        column = _words(run.get("stage")) + (", in a container" if run.get("container") else "")
        column += f", {run.get('partition')}" if several else ""
        columns[column] = None
        groups.setdefault(str(run.get("collective") or ""), {}).setdefault(column, []).append(run)
    if len(runs) < 2:
        return {}
    rows: dict[str, dict[str, Any]] = {}
    for collective, row in groups.items():
        for column, members in row.items():
            found = [result for run in members for result in [_result(run)] if result]
            slowest = min(found, key=lambda one: (_GRAVITY.index(one.status), one.busbw), default=None)
            cell = {"worst": _worst(map(_status, members)), "slowest": slowest, "count": len(members)}
            rows.setdefault(collective, {})[column] = cell
    return {"columns": list(columns), "rows": rows}


def _expected(chart: _Chart) -> list[dict[str, str]]:
    """Return what is expected, once for all figures of the same source."""
    told: dict[tuple[str, str], list[str]] = {}
    for point in _goals(chart.expectation):
        if any(_goal_at({"points": [point]}, size) for line in chart.lines for size, _busbw in line.points):
            key = (str(point.get("meaning") or ""), str(point.get("source") or ""))
            told.setdefault(key, []).append(f"{_gbps(point['busbw'])} GB/s at {_size(point['size'])}")
    return [
        {
            "figures": ", ".join(figures[-2:]) + (", and less for smaller ones" if len(figures) > 2 else ""),
            "meaning": meaning,
            "source": source,
        }
        for (meaning, source), figures in told.items()
    ]


def _figure(runs: dict[str, dict[str, Any]], number: int, count: int) -> dict[str, Any]:
    """Return a chart of runs by their names; `count` is how many there were in all."""
    first, chart = next(iter(runs.values())), _Chart(runs, number)
    ranks = _number(first.get("ranks"))
    facts = [f"partition {first['partition']}" if first.get("partition") else ""]
    facts += [_count(int(ranks), "GPU") if ranks else "", f"{count} runs" if count > len(runs) else ""]
    return {
        "title": f"{first.get('collective') or 'unknown collective'} on {_where(first)}",
        "facts": [fact for fact in facts if fact],
        "runs": runs,
        "chart": chart,
        "expected": _expected(chart),
    }


def _shown(runs: Sequence[dict[str, Any]]) -> list[dict[str, dict[str, Any]]]:
    """Return the lines of each chart by name: all runs, or three of them where they are too many to tell apart."""
    if len(runs) <= len(_SERIES):
        named: dict[str, dict[str, Any]] = {}
        for run in runs:
            name = _name_of(run)
            named[name if name not in named else f"{name} ({len(named) + 1})"] = run
        return [named]
    charts = []
    for container in (False, True):
        told = [(run, _result(run)) for run in runs if bool(run.get("container")) is container]
        ranked = [run for run, found in sorted(told, key=lambda one: one[1].busbw if one[1] else 0.0) if found]
        if ranked:
            chosen = {"slowest": ranked[0], "median": ranked[len(ranked) // 2], "fastest": ranked[-1]}
            charts.append({f"{word} {_name_of(run)}": run for word, run in chosen.items()})
    return charts


def _sections(runs: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    stages: dict[str, dict[tuple[str, ...], list[dict[str, Any]]]] = {}
    for run in runs:
        key = [str(run.get(name)) for name in ("partition", "instance_type", "collective")]
        stage = stages.setdefault(str(run.get("stage") or ""), {})
        stage.setdefault((*key, str(len(_list(run.get("nodes"))))), []).append(run)
    number, sections = 0, []
    for name, groups in stages.items():
        figures = []
        for group in groups.values():
            for lines in _shown(group):
                number += 1
                figures.append(_figure(lines, number, len(group)))
        sections.append((name, figures))
    return sections


class _Node:
    """What one node did by itself, and in the pairs that looked for a slow one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.types: set[str] = set()
        self.alone: list[tuple[int, float]] = []
        self.statuses: list[str] = []
        self.pairs: list[float] = []
        self.pair_statuses: list[str] = []

    @property
    def status(self) -> str:
        """Return the worst of what is known. Only a node whose pairs are all slow is: else it was the other one."""
        known = [status for status in self.statuses if status != "unknown"]
        if self.pair_statuses:
            known.append(max(self.pair_statuses, key=_GRAVITY.index))
        return _worst(known)

    @property
    def rank(self) -> tuple[int, float, str]:
        return _GRAVITY.index(self.status), max(self.pairs, default=0.0), self.name


def _nodes(runs: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the nodes of which something is known, the worst first, and the number of the others."""
    nodes: dict[str, _Node] = {}
    for run in runs:
        names = [str(name) for name in _list(run.get("nodes"))]
        for name in names:
            node = nodes.setdefault(name, _Node(name))
            node.types |= {str(run["instance_type"])} if run.get("instance_type") else set()
            found = _result(run) if len(names) == 1 else None
            if found:
                node.statuses.append(found.status)
                node.alone += [(found.size, found.busbw)] if run.get("collective") == "all_reduce" else []
    for pair in pairs:
        for name in _list(pair.get("nodes")):
            node = nodes.setdefault(str(name), _Node(str(name)))
            node.pair_statuses.append(_status(pair))
            node.pairs += [pair["busbw"]] if pair["busbw"] is not None else []
    known = sorted((node for node in nodes.values() if node.alone or node.pair_statuses), key=lambda node: node.rank)
    most = max((busbw for node in known for busbw in node.pairs), default=0.0)
    return {"known": known, "rest": len(nodes) - len(known), "most": most}


def _findings(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is wrong with nodes, the gravest first; a class that is not known is told as it stands."""
    order = list(_CLASSES)

    def rank(finding: dict[str, Any]) -> tuple[int, str, str]:
        told = finding["class"]
        return order.index(told) if told in order else len(order), finding["node"], finding["subject"]

    keys = ("node", "finding", "class", "subject", "evidence", "source")
    found = []
    for one in _dicts(report.get("findings")):
        told = {key: str(one.get(key) or "") for key in keys}
        found.append({**told, "deep": one.get("deep") is not False, "kind": _CLASSES.get(told["class"], "none")})
    return sorted(found, key=rank)


def _pairs(report: dict[str, Any]) -> list[dict[str, Any]]:
    pairs = [
        {**pair, "status": _status(pair), **{key: _number(pair.get(key)) for key in ("busbw", "expected", "size")}}
        for pair in _dicts(report.get("pairs"))
    ]
    return sorted(pairs, key=lambda pair: (_GRAVITY.index(pair["status"]), pair["busbw"] or 0))


def _settings(runs: Sequence[dict[str, Any]]) -> dict[str, list[tuple[str, list[tuple[str, list[str]]]]]]:
    """Return versions and environment by name: each of their values, and where it was found."""
    settings: dict[str, dict[str, dict[str, list[str]]]] = {"versions": {}, "environment": {}}
    for run in runs:
        where = f"{_words(run.get('stage'))} {'in a container' if run.get('container') else 'on the host'}".strip()
        network = {"libfabric's provider": run.get("provider"), "EFA devices of a node": run.get("nics")}
        network = {key: value for key, value in network.items() if value not in (None, "")}
        for kind, more in (("versions", network), ("environment", {})):
            for key, value in {**_dict(run.get(kind)), **more}.items():
                settings[kind].setdefault(key, {}).setdefault(str(value), []).append(where)
    return {
        kind: [
            (key, [("hidden" if _SECRET.search(key) and value else value, where) for value, where in values.items()])
            for key, values in sorted(found.items())
        ]
        for kind, found in settings.items()
    }


def _by_stage(checks: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    stages: dict[str, list[dict[str, Any]]] = {}
    for check in sorted(checks, key=lambda one: _GRAVITY.index(_status(one))):
        stages.setdefault(str(check.get("stage") or ""), []).append(check)
    return {str(check.get("stage") or ""): stages[str(check.get("stage") or "")] for check in checks}


def render(report: dict[str, Any]) -> str:
    report = _clean(report)
    runs, checks, pairs = _dicts(report.get("runs")), _dicts(report.get("checks")), _pairs(report)
    engine = site_html.engine(Path(__file__).parent)
    engine.filters.update(words=_words, size=_size, gbps=_gbps)
    engine.globals.update(
        statuses=_STATUSES,
        count=_count,
        addresses=_addresses,
        json=_json,
        status_of=_status,
        judgement_of=_judgement,
        rows_of=_rows,
        bar_of=_bar,
        where=_where,
    )
    return engine.get_template("page.html.j2").render(
        report=report,
        begun=_begun(report),
        summary=_summary(checks, runs),
        wrong=_wrong(checks, runs),
        heroes=_heroes(runs),
        matrix=_matrix(runs),
        sections=_sections(runs),
        nodes=_nodes(runs, pairs),
        pairs=pairs,
        findings=_findings(report),
        settings=_settings(runs),
        checks=_by_stage(checks),
    )
