# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report of verify as one page that needs nothing else: render(report).

The report is a dictionary. Every part may be missing; unknown keys are passed over. Times are ISO 8601, sizes bytes,
bandwidths GB/s::

    ok           whether something was checked and nothing failed
    verdict      one sentence
    cluster, region, user, started, finished
    checks       a list of {stage, name, subject, status, message, details, missed}; status is ok, failed, unknown or
                 skipped, and missed then says whether something is not known because of it
    runs         a list of
      stage, partition, instance_type, nodes (names), ranks, collective, log (where it is)
      container  whether it ran inside one
      rows       as _nccl_results.plain(Result.rows): {size, out_of_place: {time_us, algbw, busbw, wrong}, in_place}
      expectation   as _nccl_expected.for_report(): {points: [{size, busbw, source, meaning, and_up}],
                    limit: {busbw, meaning, source} or null, tolerance}; or null
      judgement  {status, message}; status is ok, short, suspicious or unknown
      provider, nics, environment (a dictionary), versions (a dictionary)
    pairs        a list of {partition, collective, size, nodes (names), busbw, expected, status, message}, the runs that
                 looked for a slow node; status as above, or failed

There is one chart for each stage, partition, instance type, number of nodes and collective; runs that differ in
container or nodes are lines of one chart, the slowest, median and fastest of them where they are many. Nothing is
fetched, and no script runs: a policy inside the page forbids both.
"""

from __future__ import annotations

import datetime
import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

# Word, class and the picture (in a box of 16) of each status
_STATUSES = {
    "ok": ("passed", "good", "M4.5 8.2l2.4 2.4 4.6-5"),
    "failed": ("failed", "bad", "M5.2 5.2l5.6 5.6M10.8 5.2l-5.6 5.6"),
    "skipped": ("skipped", "none", "M5 8h6"),
    "short": ("too slow", "bad", "M8 4.4v5.4M5.4 7.6L8 10.4l2.6-2.8"),
    "suspicious": ("impossible", "warn", "M8 4.2v4.8M8 11.4v.4"),
    "unknown": ("not judged", "none", "M6.2 6.2c0-2.4 3.8-2.4 3.8-.2 0 1.5-2 1.5-2 3M8 11.5v.3"),
}
_GRAVITY = ("failed", "short", "suspicious", "unknown", "skipped", "ok")
_SECRET = re.compile(r"secret|token|passw|credential|_key$", re.IGNORECASE)
# What a cell begins with that holds a number, and one that names its row; escaped text has no such characters.
_N, _H = "\x01", "\x02"
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
# The lines of a chart differ in colour and in the shape of their marks.
_SERIES = ("a", "b", "c", "d")
_MARKS = (
    "M-2.8 0a2.8 2.8 0 1 0 5.6 0a2.8 2.8 0 1 0-5.6 0z",
    "M-2.5-2.5h5v5h-5z",
    "M0-3.4l3.3 5.8h-6.6z",
    "M0-3.5l3.5 3.5-3.5 3.5-3.5-3.5z",
)

_CSS = """
:root { color-scheme: light dark;
  --paper: #f7f6f3; --card: #fff; --ink: #1c2330; --soft: #566070; --line: #e3e1db; --wash: #f1f0ec;
  --good: #0d7444; --bad: #b3261e; --warn: #855300; --none: #4f5b6e;
  --good-wash: #e6f3ec; --bad-wash: #fbebe9; --warn-wash: #faf0dc; --none-wash: #eceef2;
  --a: #1c5cb8; --b: #b4500a; --c: #0f766e; --d: #86308f; --goal: #566070; --wall: #8f1d4c; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #12151a; --card: #1a1f27; --ink: #e7eaef; --soft: #a2adbb; --line: #2b323d; --wash: #222833;
  --good: #5fcb95; --bad: #ff9389; --warn: #e8b95a; --none: #aab4c3;
  --good-wash: #163126; --bad-wash: #3a1f1e; --warn-wash: #352a14; --none-wash: #262d38;
  --a: #82b4ff; --b: #ffb074; --c: #5fd6c8; --d: #e0a3e8; --goal: #a2adbb; --wall: #ff9dbd; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5; font-size: 16px;
  font-family: Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%; }
main, header, footer { max-width: 1120px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 48px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -.02em; margin: 2px 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 20px; letter-spacing: -.01em; margin: 56px 0 14px; }
h3 { font-size: 16px; margin: 0; }
p { margin: 0 0 8px; }
a { color: var(--a); text-underline-offset: 2px; }
.over { font-size: 13px; letter-spacing: .07em; text-transform: uppercase; color: var(--soft); margin: 0; }
.soft { color: var(--soft); }
.small { font-size: 14px; }
.facts { display: flex; flex-wrap: wrap; gap: 2px 20px; margin: 0; color: var(--soft); font-size: 15px; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px;
  overflow-wrap: anywhere; }
pre { margin: 8px 0 0; padding: 12px; background: var(--wash); border-radius: 8px; white-space: pre-wrap; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 20px 22px; }
.verdict { margin: 28px 0 0; display: flex; gap: 18px; align-items: flex-start; border-left: 6px solid; }
.verdict > svg { flex: none; width: 40px; height: 40px; margin-top: 2px; }
.verdict p { margin: 0; }
.verdict .said { font-size: 22px; line-height: 1.35; letter-spacing: -.01em; font-weight: 600;
  overflow-wrap: anywhere; }
.verdict.good { border-left-color: var(--good); } .verdict.bad { border-left-color: var(--bad); }
.verdict ul { margin: 12px 0 0; padding-left: 18px; } .verdict li { margin: 4px 0; overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); } .none { color: var(--none); }
.verdict .said, .verdict ul, .verdict .soft { color: var(--ink); } .verdict .soft { color: var(--soft); }
.badge { display: inline-flex; align-items: center; gap: 5px; white-space: nowrap; border-radius: 999px;
  font-size: 13px; font-weight: 600; padding: 2px 10px 2px 5px; }
.badge.good { background: var(--good-wash); } .badge.bad { background: var(--bad-wash); }
.badge.warn { background: var(--warn-wash); } .badge.none { background: var(--none-wash); }
.badge svg { width: 16px; height: 16px; }
.icon { fill: none; stroke: currentColor; stroke-width: 1.7; stroke-linecap: round; stroke-linejoin: round; }
.icon .disc { fill: currentColor; stroke: none; opacity: .16; }
.matrix { margin-top: 16px; } .matrix th, .matrix td { padding: 10px 18px 10px 0; }
.matrix td { white-space: nowrap; }
.matrix .icon { width: 16px; height: 16px; vertical-align: -3px; margin-right: 6px; }
.matrix .num { font-weight: 600; font-size: 16px; } .matrix .bar { width: 120px; height: 8px; margin-top: 6px; }
.heroes { display: grid; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); gap: 16px; margin-top: 16px; }
.hero .big { font-size: 40px; line-height: 1.1; letter-spacing: -.03em; font-weight: 650; margin: 8px 0 2px; }
.hero .big small { font-size: 16px; letter-spacing: 0; font-weight: 500; color: var(--soft); }
.hero { display: flex; flex-direction: column; } .hero .badge { margin-top: auto; align-self: flex-start; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 18px; }
.charts > :only-child { grid-column: 1 / -1; }
figure { margin: 0; display: flex; flex-direction: column; }
figure .top { display: flex; justify-content: space-between; gap: 12px; align-items: baseline; flex-wrap: wrap; }
figcaption { padding-top: 10px; }
.figures table { font-size: 13px; } .figures th, .figures td { padding: 3px 14px 3px 0; }
figcaption > p { margin: 6px 0 0; display: flex; gap: 10px; align-items: baseline; }
figcaption .badge { flex: none; align-self: flex-start; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 13px; color: var(--soft); list-style: none;
  margin: 8px 0 0; padding: 0; }
.legend li { display: inline-flex; align-items: center; gap: 6px; }
.legend svg { width: 26px; height: 12px; flex: none; }
.chart { width: 100%; height: auto; display: block; margin-top: 10px; overflow: visible; }
.chart text { fill: var(--soft); font-size: 12px; }
.chart .value { font-weight: 650; font-size: 13px; }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; opacity: .6; }
.measured { fill: none; stroke-width: 2.4; stroke-linejoin: round; stroke-linecap: round; }
.inplace { fill: none; stroke-width: 1.2; opacity: .75; stroke-dasharray: 1 4; stroke-linecap: round; }
.area { stroke: none; opacity: .09; }
.goal { fill: none; stroke: var(--goal); stroke-width: 1.8; stroke-dasharray: 6 5; }
.goalmark { fill: var(--card); stroke: var(--goal); stroke-width: 1.6; }
.wall { stroke: var(--wall); stroke-width: 1.6; } .hatch { stroke: var(--wall); stroke-width: 1; opacity: .28; }
.chart text.walltext { fill: var(--wall); }
.sa { stroke: var(--a); } .sb { stroke: var(--b); } .sc { stroke: var(--c); } .sd { stroke: var(--d); }
.fa { fill: var(--a); } .fb { fill: var(--b); } .fc { fill: var(--c); } .fd { fill: var(--d); }
.chart text.fa { fill: var(--a); } .chart text.fb { fill: var(--b); }
.chart text.fc { fill: var(--c); } .chart text.fd { fill: var(--d); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 9px 14px 9px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: 13px; white-space: nowrap; }
tbody th { color: var(--ink); font-size: 14px; font-weight: 500; }
tbody tr:last-child > * { border-bottom: 0; }
td.n, th.n { text-align: right; white-space: nowrap; padding-right: 20px; }
.message { overflow-wrap: anywhere; min-width: 200px; }
.bar { width: 170px; height: 16px; display: block; margin-top: 3px; }
.track { fill: var(--wash); } .mark { stroke: var(--ink); stroke-width: 2; }
.fgood { fill: var(--good); } .fbad { fill: var(--bad); } .fwarn { fill: var(--warn); } .fnone { fill: var(--none); }
details { margin-top: 8px; font-size: 14px; }
summary { cursor: pointer; color: var(--soft); width: fit-content; }
summary:focus-visible, a:focus-visible, .scroll:focus-visible { outline: 2px solid var(--a); outline-offset: 3px;
  border-radius: 4px; }
.two { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 18px; align-items: start; }
.differs { color: var(--warn); font-weight: 600; }
.checks { padding-top: 4px; } .stage { margin: 18px 0 6px; }
footer { padding: 48px 24px 64px; color: var(--soft); font-size: 14px; }
@media (max-width: 860px) { .charts, .two { grid-template-columns: minmax(0, 1fr); } header { padding-top: 28px; }
  main, header, footer { padding-left: 16px; padding-right: 16px; } .card { padding: 16px; } }
@media print { body { background: none; } .card { break-inside: avoid; } }
"""


def _e(value: Any) -> str:
    """Return text that is safe inside an element and inside quotes."""
    text = str(value).encode("utf-8", "replace").decode("utf-8")
    return html.escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]", "�", text), quote=True)


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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _cell(content: str, head: str = "") -> str:
    """Return a cell, whose content may begin with a mark."""
    kind = ' class="n"' if content[:1] == _N else ""
    name = "th" if head or content[:1] == _H else "td"
    scope = f' scope="{head or "row"}"' if name == "th" else ""
    return f"<{name}{scope}{kind}>{content.lstrip(_N + _H)}</{name}>"


def _row(*cells: str) -> str:
    return f"<tr>{''.join(map(_cell, cells))}</tr>"


def _table(heads: Sequence[str], lines: Iterable[str]) -> str:
    """Return a table that may be wider than the page; `heads` are plain text, after > that of a column of numbers."""
    named = "".join(_cell(_N + _e(head[1:]) if head[:1] == ">" else _e(head), "col") for head in heads)
    top = f"<thead><tr>{named}</tr></thead>" if heads else ""
    return f'<div class="scroll" tabindex="0"><table>{top}<tbody>{"".join(lines)}</tbody></table></div>'


def _status(item: dict[str, Any]) -> str:
    status = str(_dict(item.get("judgement")).get("status") or item.get("status") or "unknown")
    return status if status in _STATUSES else "unknown"


def _worst(statuses: Iterable[str]) -> str:
    return min(statuses, key=_GRAVITY.index, default="unknown")


def _icon(status: str, label: str = "") -> str:
    _word, kind, path = _STATUSES[status]
    name = f'role="img" aria-label="{_e(label)}"' if label else 'aria-hidden="true"'
    drawn = f'<circle class="disc" cx="8" cy="8" r="8"/><path d="{path}"/>'
    return f'<svg class="icon {kind}" viewBox="0 0 16 16" {name}>{drawn}</svg>'


def _badge(status: str) -> str:
    word, kind, _path = _STATUSES[status]
    return f'<span class="badge {kind}">{_icon(status)}{_e(word)}</span>'


def _when(value: Any) -> datetime.datetime | None:
    try:
        moment = datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)


def _time(report: dict[str, Any]) -> str:
    begun, ended = _when(report.get("started")), _when(report.get("finished"))
    if not begun:
        return _e(report.get("started") or "")
    said = f'<time datetime="{begun.isoformat()}">{begun:%-d %B %Y, %H:%M %Z}</time>'
    if ended and ended >= begun:
        seconds = int((ended - begun).total_seconds())
        said += f", took {seconds} s" if seconds < 120 else f", took {round(seconds / 60)} min"
    return said


def _source(text: Any) -> str:
    """Return a source with its addresses as links."""
    parts = re.split(r"(https://[^\s()]+)", str(text))
    return "".join(
        f'<a href="{_e(part)}" rel="noreferrer">{_e(part)}</a>' if index % 2 else _e(part)
        for index, part in enumerate(parts)
    )


def _points(run: dict[str, Any], half: str = "out_of_place") -> list[tuple[int, float]]:
    """Return (size, busbw) by size; of a size that was run again, the last."""
    found = {}
    for row in _dicts(run.get("rows")):
        size, busbw = _number(row.get("size")), _number(_dict(row.get(half)).get("busbw"))
        if size and size > 0 and busbw is not None and busbw >= 0:
            found[int(size)] = busbw
    return sorted(found.items())


def _goals(expectation: dict[str, Any]) -> list[dict[str, Any]]:
    points = [p for p in _dicts(expectation.get("points")) if _is_number(p.get("size")) and _is_number(p.get("busbw"))]
    return sorted((p for p in points if p["size"] > 0), key=lambda p: int(p["size"]))


def _goal_at(expectation: dict[str, Any], size: int) -> float | None:
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


def _telling(run: dict[str, Any]) -> tuple[int, float, float | None] | None:
    """Return size, busbw and expectation where the run was judged: the largest size that has one, or the largest."""
    points, expectation = _points(run), _dict(run.get("expectation"))
    for size, busbw in reversed(points):
        goal = _goal_at(expectation, size)
        if goal:
            return size, busbw, goal
    return (*points[-1], None) if points else None


def _where(run: dict[str, Any]) -> str:
    nodes, kind = len(_list(run.get("nodes"))), run.get("instance_type") or "unknown type"
    return f"{nodes} × {kind}" if nodes else str(kind)


# ------------------------------------------------------------------------------------------------ charts


def _steps(top: float) -> list[float]:
    """Return round marks from 0 to `top`, four to six of them."""
    raw = max(top, 0.01) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    return [step * index for index in range(math.floor(top / step + 1e-9) + 1)]


class _Chart:
    """Bus bandwidth over message size, which is logarithmic."""

    WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 540, 300, 46, 58, 22, 44

    def __init__(self, runs: dict[str, dict[str, Any]], number: int) -> None:
        self.names, self.number = list(runs), number
        self.lines = [(_points(run), _points(run, "in_place")) for run in runs.values()]
        sizes = [size for line, _other in self.lines for size, _busbw in line]
        self.low, self.high = (min(sizes), max(sizes)) if sizes else (1, 2)
        self.expectation = next((_dict(run["expectation"]) for run in runs.values() if run.get("expectation")), {})
        self.goals = [
            point for point in _goals(self.expectation) if self.low * 0.99 <= point["size"] <= self.high * 1.01
        ]
        self.limit = _limit(self.expectation)
        values = [busbw for pair in self.lines for line in pair for _size_, busbw in line]
        values += [float(point["busbw"]) for point in self.goals]
        highest = max(values, default=1.0)
        # A limit far above all that was measured would press the curve flat.
        self.limit_fits = bool(self.limit) and (self.limit or 0) <= 2.2 * highest
        self.top = max(highest * 1.06, (self.limit or 0) * 1.07 if self.limit_fits else 0, 0.01)

    def x(self, size: float) -> float:
        """Return where a size lies."""
        span = math.log2(self.high / self.low) if self.high > self.low else 0
        share = math.log2(max(size, self.low) / self.low) / span if span else 0.5
        return round(self.LEFT + min(share, 1) * (self.WIDTH - self.LEFT - self.RIGHT), 1)

    def y(self, busbw: float) -> float:
        """Return where a bandwidth lies."""
        return round(self.HEIGHT - self.BOTTOM - busbw / self.top * (self.HEIGHT - self.TOP - self.BOTTOM), 1)

    def _path(self, points: Iterable[tuple[int, float]]) -> str:
        return "M" + "L".join(f"{self.x(size)} {self.y(busbw)}" for size, busbw in points)

    def _axes(self) -> str:
        right, floor = self.WIDTH - self.RIGHT, self.HEIGHT - self.BOTTOM
        parts = []
        for step in _steps(self.top):
            y = self.y(step)
            parts.append(f'<path class="{"grid" if step else "axis"}" d="M{self.LEFT} {y}H{right}"/>')
            parts.append(f'<text x="{self.LEFT - 8}" y="{y + 4}" text-anchor="end">{step:.4g}</text>')
        first, last = math.ceil(math.log2(self.low) - 1e-6), math.floor(math.log2(self.high) + 1e-6)
        every = max(1, math.ceil((last - first) / 6))
        marks = sorted({2**power for power in range(last, first - 1, -every)} or {self.low})
        for size in marks:
            parts.append(f'<path class="axis" d="M{self.x(size)} {floor}v5"/>')
            parts.append(f'<text x="{self.x(size)}" y="{floor + 19}" text-anchor="middle">{_size(size)}</text>')
        middle = (self.LEFT + right) / 2
        parts.append(f'<text x="{middle}" y="{self.HEIGHT - 6}" text-anchor="middle">message size</text>')
        parts.append('<text x="0" y="10">bus bandwidth, GB/s</text>')
        return "".join(parts)

    def _limit(self) -> str:
        if not self.limit:
            return ""
        right, top = self.WIDTH - self.RIGHT, self.TOP
        if not self.limit_fits:
            said = f"impossible above {_gbps(self.limit)}, beyond this chart"
            return f'<text class="walltext" x="{right}" y="{top - 4}" text-anchor="end">{said} ↑</text>'
        y, name = self.y(self.limit), f"hatch{self.number}"
        return (
            f'<defs><pattern id="{name}" width="7" height="7" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><path class="hatch" d="M0 0V7"/></pattern></defs>'
            f'<rect x="{self.LEFT}" y="{top - 6}" width="{right - self.LEFT}" height="{max(y - top + 6, 0):.1f}" '
            f'fill="url(#{name})"/><path class="wall" d="M{self.LEFT} {y}H{right}"/>'
            f'<text class="walltext" x="{right + 6}" y="{y + 4}">{_gbps(self.limit)}</text>'
        )

    def _goal(self) -> str:
        if not self.goals:
            return ""
        points = [(int(point["size"]), float(point["busbw"])) for point in self.goals]
        if self.goals[-1].get("and_up") and points[-1][0] < self.high:
            points.append((self.high, points[-1][1]))
        marks = []
        for point in self.goals:
            x, y = self.x(point["size"]), self.y(point["busbw"])
            said = f"expected at {_size(point['size'])}: {_gbps(point['busbw'])} GB/s"
            marks.append(
                f'<path class="goalmark" d="M{x} {y - 4.5}l4.5 4.5-4.5 4.5-4.5-4.5z"><title>{said}</title></path>'
            )
        return (f'<path class="goal" d="{self._path(points)}"/>' if len(points) > 1 else "") + "".join(marks)

    def _measured(self) -> str:
        parts, taken = [], [self.y(self.limit)] if self.limit and self.limit_fits else []
        floor = self.HEIGHT - self.BOTTOM
        for index, (name, (line, other)) in enumerate(zip(self.names, self.lines)):
            key = _SERIES[index % len(_SERIES)]
            if not line:
                continue
            path = self._path(line)
            if len(line) > 1:
                # One wash only: several would mix to mud.
                area = f"{path}V{floor}H{self.x(line[0][0])}Z"
                parts.append(f'<path class="area f{key}" d="{area}"/>' if not index else "")
                parts.append(f'<path class="measured s{key}" d="{path}"/>')
            if len(other) > 1:
                parts.append(f'<path class="inplace s{key}" d="{self._path(other)}"/>')
            for size, busbw in line:
                said = f"{name}, {_size(size)}: {_gbps(busbw)} GB/s"
                mark = _MARKS[index % len(_MARKS)]
                place = f'transform="translate({self.x(size)} {self.y(busbw)})"'
                parts.append(f'<path class="f{key}" d="{mark}" {place}><title>{_e(said)}</title></path>')
            size, busbw = line[-1]
            y = self.y(busbw)
            while any(abs(y - where) < 14 for where in taken):
                y += 2
            taken.append(y)
            parts.append(f'<text class="value f{key}" x="{self.x(size) + 8}" y="{y + 4:.1f}">{_gbps(busbw)}</text>')
        return "".join(parts)

    def svg(self, title: str) -> str:
        """Return the drawing."""
        told = []
        for name, (line, _other) in zip(self.names, self.lines):
            if line:
                size, busbw = line[-1]
                told.append(f"{_words(name)}: from {_size(line[0][0])} on, {_gbps(busbw)} GB/s at {_size(size)}.")
        if self.goals:
            last = self.goals[-1]
            told.append(f"Expected: {_gbps(last['busbw'])} GB/s at {_size(last['size'])}.")
        if self.limit:
            told.append(f"Impossible above {_gbps(self.limit)} GB/s.")
        title_id, told_id = f"c{self.number}t", f"c{self.number}d"
        return (
            f'<svg class="chart" viewBox="0 0 {self.WIDTH} {self.HEIGHT}" role="img" '
            f'aria-labelledby="{title_id} {told_id}">'
            f'<title id="{title_id}">{_e(title)}: bus bandwidth over message size</title>'
            f'<desc id="{told_id}">{_e(" ".join(told) or "Nothing was measured.")}</desc>'
            f"{self._axes()}{self._limit()}{self._goal()}{self._measured()}</svg>"
        )

    def legend(self) -> str:
        """Return what the lines mean."""
        items = []
        for index, (name, (line, other)) in enumerate(zip(self.names, self.lines)):
            key = _SERIES[index % len(_SERIES)]
            if line:
                mark = f'<path class="f{key}" d="{_MARKS[index % len(_MARKS)]}" transform="translate(13 6)"/>'
                drawn = f'<path class="measured s{key}" d="M1 6H25"/>{mark}'
                items.append((drawn, name))
            if len(other) > 1 and index == 0:
                items.append((f'<path class="inplace s{key}" d="M1 6H25"/>', "the same in place"))
        if self.goals:
            drawn = '<path class="goal" d="M1 6H25"/><path class="goalmark" d="M13 1.5l4.5 4.5-4.5 4.5-4.5-4.5z"/>'
            items.append((drawn, "expected"))
        if self.limit and self.limit_fits:
            items.append(('<path class="wall" d="M1 6H25"/>', "impossible above"))
        picture = '<svg viewBox="0 0 26 12" aria-hidden="true">'
        return (
            f'<ul class="legend">{"".join(f"<li>{picture}{p}</svg>{_e(t)}</li>" for p, t in items)}</ul>'
            if items
            else ""
        )


def _name_of(run: dict[str, Any]) -> str:
    place = "in a container" if run.get("container") else "on the host"
    nodes = _list(run.get("nodes"))
    return f"{place}, {nodes[0]}" if len(nodes) == 1 else place


# ------------------------------------------------------------------------------------------------ parts of the page


def _header(report: dict[str, Any]) -> str:
    facts = [_time(report)]
    if report.get("region"):
        facts.append(_e(report["region"]))
    if report.get("user"):
        facts.append(f"jobs submitted by {_e(report['user'])}")
    said = "".join(f"<span>{fact}</span>" for fact in facts if fact)
    return (
        f'<header><p class="over">Cluster verification</p><h1>{_e(report.get("cluster") or "This cluster")}</h1>'
        f'<p class="facts">{said}</p></header>'
    )


def _verdict(report: dict[str, Any]) -> str:
    checks, runs = _dicts(report.get("checks")), _dicts(report.get("runs"))
    good = bool(report.get("ok"))
    said = str(report.get("verdict") or ("All is well." if good else "Not all is well."))
    statuses = [_status(check) for check in checks]
    counts = [
        (statuses.count("ok"), "passed"),
        (statuses.count("failed"), "failed"),
        (statuses.count("skipped"), "skipped"),
    ]
    told = [f"{number} {word}" for number, word in counts if number]
    line = f"{_count(len(checks), 'check')}: {', '.join(told)}" if told else "No check was made"
    open_runs = sum(_status(run) == "unknown" for run in runs)
    if runs:
        line += f"; {_count(len(runs), 'measurement')}"
        line += f", {open_runs} of them without a published figure to compare with" if open_runs else ""
    wrong = [
        f"{check.get('subject')}: {check.get('name')}: {check.get('message')}"
        for check in checks
        if _status(check) == "failed"
    ]
    for run in runs:
        if _status(run) in ("short", "suspicious", "failed"):
            what = f"{_words(run.get('stage'))}, {run.get('collective')} {_name_of(run)}, {_where(run)}"
            wrong.append(f"{what}: {_dict(run.get('judgement')).get('message')}")
    wrong = list(dict.fromkeys(wrong))
    more = f"<li>and {len(wrong) - 6} more below</li>" if len(wrong) > 6 else ""
    reasons = f"<ul>{''.join(f'<li>{_e(text)}</li>' for text in wrong[:6])}{more}</ul>" if wrong else ""
    kind, label = ("good", "good") if good else ("bad", "not good")
    icon = _icon("ok" if good else "failed", f"The result is {label}")
    return (
        f'<section class="card verdict {kind}" aria-label="Verdict">{icon}<div><p class="said">{_e(said)}</p>'
        f'<p class="soft">{_e(line)}.</p>{reasons}</div></section>'
    )


def _bar(busbw: float, goal: float | None, limit: float | None, status: str) -> str:
    """Return a bar up to what was measured, with a mark where the expectation is."""
    whole = max(busbw, goal or 0, min(limit or 0, 2.2 * max(busbw, goal or 0)))
    share = busbw / whole if whole else 0
    mark = f'<path class="mark" d="M{1 + 168 * goal / whole:.1f} 0V16"/>' if goal and whole else ""
    said = f"{_gbps(busbw)} GB/s measured" + (f", {_gbps(goal)} GB/s expected" if goal else "")
    return (
        f'<svg class="bar" viewBox="0 0 170 16" preserveAspectRatio="none" role="img" aria-label="{said}">'
        f"<title>{said}</title>"
        f'<rect class="track" x="0" y="3" width="170" height="10" rx="5"/>'
        f'<rect class="f{_STATUSES[status][1]}" x="0" y="3" width="{max(170 * share, 2):.1f}" height="10" rx="5"/>'
        f"{mark}</svg>"
    )


def _heroes(runs: Sequence[dict[str, Any]]) -> str:
    """Return the number of each stage that most people look for: all_reduce at the largest size."""
    chosen: dict[str, dict[str, Any]] = {}
    for run in runs:
        stage = str(run.get("stage") or "")
        other = chosen.get(stage)
        better = other is None or (run.get("collective") == "all_reduce" and other.get("collective") != "all_reduce")
        if _telling(run) and better:
            chosen[stage] = run
    cards = []
    for stage, run in list(chosen.items())[:4]:
        size, busbw, goal = _telling(run) or (0, 0.0, None)
        compared = f", {busbw / goal:.0%} of what is expected" if goal else ""
        cards.append(
            f'<div class="card hero"><p class="over">{_e(_words(stage))}</p>'
            f'<p class="big">{_gbps(busbw)} <small>GB/s</small></p>'
            f'<p class="small soft">{_e(run.get("collective"))} of {_size(size)} on {_e(_where(run))}{compared}</p>'
            f"{_badge(_status(run))}</div>"
        )
    return f'<div class="heroes">{"".join(cards)}</div>' if cards else ""


def _matrix(runs: Sequence[dict[str, Any]]) -> str:
    """Return all collectives by all places at one look."""
    several = len({run.get("partition") for run in runs}) > 1
    columns: dict[str, None] = {}
    cells: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for run in runs:
        column = _words(run.get("stage")) + (", in a container" if run.get("container") else "")
        column += f", {run.get('partition')}" if several else ""
        columns[column] = None
        cells.setdefault(str(run.get("collective") or ""), {}).setdefault(column, []).append(run)
    if len(runs) < 2:
        return ""
    lines = [
        _row(f"{_H}{_e(name)}", *(_at_a_look(row.get(column, [])) for column in columns)) for name, row in cells.items()
    ]
    return f'<div class="card matrix">{_table(("GB/s", *columns), lines)}</div>'


def _at_a_look(runs: Sequence[dict[str, Any]]) -> str:
    """Return the slowest of some runs of the same kind."""
    worst = _worst(_status(run) for run in runs)
    told = [(*found, _status(run)) for run in runs for found in [_telling(run)] if found]
    if not told:
        return _badge(worst) if runs else "–"
    size, busbw, goal, status = min(told, key=lambda item: (_GRAVITY.index(item[3]), item[1]))
    share = f' <span class="soft small">at {_size(size)}{f", {busbw / goal:.0%}" if goal else ""}</span>'
    more = f' <span class="soft small">slowest of {len(runs)}</span>' if len(runs) > 1 else ""
    drawn = _bar(busbw, goal, None, status) if goal else ""
    return f'{_icon(worst, _STATUSES[worst][0])}<span class="num">{_gbps(busbw)}</span>{share}{more}{drawn}'


def _rows_table(run: dict[str, Any]) -> str:
    expectation = _dict(run.get("expectation"))
    lines = []
    for row in _dicts(run.get("rows")):
        if not _is_number(row.get("size")):
            continue
        cells = [_size(row["size"])]
        for half in (_dict(row.get("out_of_place")), _dict(row.get("in_place"))):
            numbers = [_number(half.get(key)) for key in ("time_us", "algbw", "busbw")]
            wrong = _number(half.get("wrong"))
            cells += ["–" if number is None else f"{number:,.2f}" for number in numbers]
            cells.append("–" if wrong is None else f'<span class="bad">{wrong:.0f}</span>' if wrong else "0")
        goal = _goal_at(expectation, int(row["size"]))
        cells.insert(4, _gbps(goal) if goal else "–")
        lines.append(_row(*(_N + cell for cell in cells)))
    first = (">size", ">time, µs", ">algbw", ">busbw", ">expected", ">wrong")
    return _table((*first, ">in place, µs", ">algbw", ">busbw", ">wrong"), lines)


def _figure(runs: dict[str, dict[str, Any]], number: int, count: int) -> str:
    """Return a chart of runs by their names; `count` is how many there were in all."""
    first = next(iter(runs.values()))
    title = f"{first.get('collective') or 'unknown collective'} on {_where(first)}"
    chart = _Chart(runs, number)
    said, tables = [], []
    for name, run in runs.items():
        message = _e(_dict(run.get("judgement")).get("message") or "not judged")
        said.append(
            f'<p class="small">{_badge(_status(run))}<span class="soft">{_e(_words(name))}: {message}</span></p>'
        )
        figures = f"<summary>Figures {_e(name)}</summary>{_rows_table(run)}{_log(run)}"
        tables.append(f'<details class="figures">{figures}</details>')
    facts = [f"partition {first['partition']}" if first.get("partition") else "", _ranks(first)]
    facts.append(f"{count} runs" if count > len(runs) else "")
    sources = _sources(chart.expectation, [size for line, _other in chart.lines for size, _busbw in line])
    where = _e(", ".join(filter(None, facts)))
    return (
        f'<figure class="card"><div class="top"><h3>{_e(title)}</h3><span class="small soft">{where}</span></div>'
        f"{chart.legend()}{chart.svg(title)}<figcaption>{''.join(said + tables)}{sources}</figcaption></figure>"
    )


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
        told = [(found[1], index, run) for index, run in enumerate(runs) for found in [_telling(run)] if found]
        ranked = [run for _busbw, _index, run in sorted(told, key=lambda item: item[:2])]
        ranked = [run for run in ranked if bool(run.get("container")) is container]
        if ranked:
            chosen = {"slowest": ranked[0], "median": ranked[len(ranked) // 2], "fastest": ranked[-1]}
            charts.append({f"{word} {_name_of(run)}": run for word, run in chosen.items()})
    return charts


def _ranks(run: dict[str, Any]) -> str:
    ranks = _number(run.get("ranks"))
    return _count(int(ranks), "GPU") if ranks else ""


def _log(run: dict[str, Any]) -> str:
    return f'<p class="small soft">Log: <code>{_e(run["log"])}</code></p>' if run.get("log") else ""


def _sources(expectation: dict[str, Any], sizes: Sequence[int]) -> str:
    """Return where the expectations come from, and what they mean."""
    told: dict[tuple[str, str], list[str]] = {}
    for point in _goals(expectation):
        if any(_goal_at({"points": [point]}, size) for size in sizes):
            key = (str(point.get("meaning") or ""), str(point.get("source") or ""))
            told.setdefault(key, []).append(f"{_gbps(point['busbw'])} GB/s at {_size(point['size'])}")
    lines = []
    for (meaning, source), figures in told.items():
        known = ", ".join(figures[-2:]) + (", and less for smaller ones" if len(figures) > 2 else "")
        lines.append(f"<li><strong>Expected:</strong> {_e(known)}. {_e(meaning)}. {_source(source)}</li>")
    limit = _dict(expectation.get("limit"))
    if _limit(expectation):
        lines.append(
            f"<li><strong>Impossible above:</strong> {_gbps(limit['busbw'])} GB/s: {_e(limit.get('meaning') or '')}. "
            f"{_source(limit.get('source') or '')}</li>"
        )
    if not lines:
        return ""
    return f"<details><summary>What to compare with</summary><ul>{''.join(lines)}</ul></details>"


def _charts(runs: Sequence[dict[str, Any]]) -> str:
    stages: dict[str, dict[tuple[str, ...], list[dict[str, Any]]]] = {}
    for run in runs:
        key = [str(run.get(name)) for name in ("partition", "instance_type", "collective")]
        stage = stages.setdefault(str(run.get("stage") or ""), {})
        stage.setdefault((*key, str(len(_list(run.get("nodes"))))), []).append(run)
    parts, number = [], 0
    for name, groups in stages.items():
        figures = []
        for group in groups.values():
            for lines in _shown(group):
                number += 1
                figures.append(_figure(lines, number, len(group)))
        title = _e(_words(name) or "Measurements")
        parts.append(f'<section><h2>{title}</h2><div class="charts">{"".join(figures)}</div></section>')
    return "".join(parts)


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
        """Return what sorts the worst first."""
        return _GRAVITY.index(self.status), max(self.pairs, default=0.0), self.name

    def line(self, most: float) -> str:
        """Return its row of the table."""
        size, busbw = max(self.alone, default=(0, 0.0))
        alone = f'{_gbps(busbw)} <span class="soft">at {_size(size)}</span>' if self.alone else "–"
        low, high = min(self.pairs, default=0.0), max(self.pairs, default=0.0)
        pairs = " to ".join(dict.fromkeys((_gbps(low), _gbps(high))))
        drawn = _bar(high, None, most, self.status) if self.pairs else ""
        return _row(
            f"{_H}<code>{_e(self.name)}</code>",
            _e(", ".join(sorted(self.types))),
            f"{_N}{alone}",
            f"{_N}{pairs if self.pairs else '–'}",
            drawn,
            _badge(self.status),
        )


def _nodes(runs: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]]) -> str:
    """Return a table of the nodes of which something is known, the worst first."""
    nodes: dict[str, _Node] = {}
    for run in runs:
        names = [str(name) for name in _list(run.get("nodes"))]
        for name in names:
            node = nodes.setdefault(name, _Node(name))
            node.types |= {str(run["instance_type"])} if run.get("instance_type") else set()
            told = _telling(run) if len(names) == 1 else None
            if told:
                node.statuses.append(_status(run))
                node.alone += [told[:2]] if run.get("collective") == "all_reduce" else []
    for pair in pairs:
        for name in _list(pair.get("nodes")):
            node = nodes.setdefault(str(name), _Node(str(name)))
            node.pair_statuses.append(_status(pair))
            node.pairs += [float(pair["busbw"])] if _is_number(pair.get("busbw")) else []
    known = sorted((node for node in nodes.values() if node.alone or node.pair_statuses), key=lambda node: node.rank)
    if not known:
        return ""
    most = max((busbw for node in known for busbw in node.pairs), default=0.0)
    heads = ("Node", "Type", ">all_reduce alone, GB/s", ">in pairs, GB/s", "Best pair", "Result")
    rest = len(nodes) - len(known)
    more = f'<p class="small soft">{_count(rest, "more node")} ran together with others only.</p>' if rest else ""
    table = _table(heads, [node.line(most) for node in known])
    return f'<section><h2>Nodes</h2><div class="card">{table}{more}{_pairs(pairs)}</div></section>'


def _pairs(pairs: Sequence[dict[str, Any]]) -> str:
    if not pairs:
        return ""
    lines = []
    for pair in sorted(pairs, key=lambda item: (_GRAVITY.index(_status(item)), _number(item.get("busbw")) or 0)):
        busbw, size = _number(pair.get("busbw")), _number(pair.get("size"))
        names = ", ".join(f"<code>{_e(name)}</code>" for name in _list(pair.get("nodes")))
        what = _e(pair.get("collective") or "") + (f" of {_size(size)}" if size else "")
        drawn = "" if busbw is None else _bar(busbw, _number(pair.get("expected")), None, _status(pair))
        shown = "–" if busbw is None else _gbps(busbw)
        badge, why = _badge(_status(pair)), f'<div class="message">{_e(pair.get("message") or "")}</div>'
        lines.append(_row(f"{_H}{names}", what, f"{_N}{shown}", drawn, badge, why))
    title = _count(len(pairs), "pair or group that looked", "pairs and groups that looked")
    heads = ("Nodes", "What", ">GB/s", "Against the expected", "Result", "Why")
    return f'<details open="open"><summary>{title} for a slow node</summary>{_table(heads, lines)}</details>'


def _values(title: str, values: dict[str, dict[str, list[str]]]) -> str:
    """Return a card with a row for each name; `values` has the places of each of its values."""
    lines = []
    for key in sorted(values):
        differ = len(values[key]) > 1
        cells = []
        for value, places in values[key].items():
            shown = "hidden" if _SECRET.search(key) and value else value
            where = f' <span class="soft">in {_e(", ".join(dict.fromkeys(places)))}</span>' if differ else ""
            cells.append(f"<div><code>{_e(shown) or '–'}</code>{where}</div>")
        mark = ' <span class="differs">differs</span>' if differ else ""
        lines.append(_row(f"{_H}<code>{_e(key)}</code>{mark}", f'<div class="message">{"".join(cells)}</div>'))
    return f'<div class="card"><h3>{_e(title)}</h3>{_table((), lines)}</div>' if lines else ""


def _settings(runs: Sequence[dict[str, Any]]) -> str:
    """Return versions and environment; what differs between runs is shown for each value."""
    versions: dict[str, dict[str, list[str]]] = {}
    environment: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        where = f"{_words(run.get('stage'))} {'in a container' if run.get('container') else 'on the host'}".strip()
        network = {"libfabric's provider": run.get("provider"), "EFA devices of a node": run.get("nics")}
        network = {key: value for key, value in network.items() if value not in (None, "")}
        for found, values in (
            (versions, {**_dict(run.get("versions")), **network}),
            (environment, _dict(run.get("environment"))),
        ):
            for key, value in values.items():
                found.setdefault(str(key), {}).setdefault(str(value), []).append(where)
    cards = _values("Versions and network", versions) + _values("Environment of the jobs", environment)
    return f'<section><h2>What it ran on</h2><div class="two">{cards}</div></section>' if cards else ""


def _checks(checks: Sequence[dict[str, Any]]) -> str:
    stages: dict[str, list[dict[str, Any]]] = {}
    for check in checks:
        stages.setdefault(str(check.get("stage") or ""), []).append(check)
    parts = []
    for stage, members in stages.items():
        lines = []
        for check in sorted(members, key=lambda item: _GRAVITY.index(_status(item))):
            details = check.get("details")
            shown = json.dumps(details, indent=1, sort_keys=True, default=str) if details else ""
            more = f"<details><summary>Details</summary><pre>{_e(shown)}</pre></details>" if shown else ""
            seen = f'<div class="message">{_e(check.get("message") or "")}{more}</div>'
            name, where = _e(check.get("name") or ""), _e(check.get("subject") or "")
            lines.append(_row(_badge(_status(check)), f"{_H}{name}", where, seen))
        heads = ("Result", "Check", "Where", "What was seen")
        parts.append(f'<h3 class="over stage">{_e(_words(stage))}</h3>{_table(heads, lines)}')
    return f'<section><h2>Checks</h2><div class="card checks">{"".join(parts)}</div></section>' if parts else ""


def render(report: dict[str, Any]) -> str:
    """Return the page."""
    runs, pairs = _dicts(report.get("runs")), _dicts(report.get("pairs"))
    title = f"{report.get('cluster') or 'Cluster'}: {'verified' if report.get('ok') else 'not verified'}"
    body = "".join(
        (
            _verdict(report),
            _heroes(runs),
            _matrix(runs),
            _charts(runs),
            _nodes(runs, pairs),
            _settings(runs),
            _checks(_dicts(report.get("checks"))),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n"
        f"<title>{_e(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n{_header(report)}\n<main>{body}</main>\n"
        "<footer><p>Bus bandwidth is what nccl-tests calls <em>busbw</em>: what each link would have to carry if all "
        "were equal. It allows comparing collectives and numbers of GPUs. Between few nodes it exceeds the network's, "
        "because NVLink moves a part.</p>"
        "<p>Made by pcluster.postboot.verify.</p></footer>\n</body>\n</html>\n"
    )
