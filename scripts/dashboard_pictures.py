#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Draw pictures of the dashboards for the documentation, from the same queries, asked of a Prometheus.

Grafana's own renderer is not needed, and what it would draw looks similar. With the sandbox running:

  scripts/dashboard_pictures.py --prometheus http://10.115.0.10:9090 --job 12 --node gpu-st-p5-1 --mountpoint '/fsx'
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CELL, LINE, GAP = 50, 30, 8  # a column of Grafana's grid, a line of it, and what lies between panels
PAPER, CARD, EDGE, INK, FAINT = "#111217", "#181b1f", "#2c3235", "#ccccdc", "#8e8e9a"
PALETTE = ["#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#fade2a", "#96d98d", "#ca95e5"]
NAMED = {"green": "#73bf69", "red": "#f2495c", "orange": "#ff9830", "blue": "#5794f2", "light-blue": "#8ab8ff"}
STEPS = 60


class Series(NamedTuple):
    """One line: what it is called, and its values over time."""

    name: str
    values: list[tuple[float, float]]


# What Prometheus says


class Source:
    """A Prometheus, and what is chosen in a dashboard."""

    def __init__(self, url: str, minutes: int, interval: int, chosen: Mapping[str, str], node: str = "") -> None:
        self.url, self.seconds, self.end, self.node = url.rstrip("/"), minutes * 60, time.time(), node
        self.chosen = {
            "__rate_interval": f"{4 * interval}s",
            "__range": f"{minutes}m",
            "__interval": f"{interval}s",
            **chosen,
        }

    def get(self, path: str, **parameters: Any) -> Any:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
            return json.load(answer)["data"]["result"]

    def fill(self, text: str) -> str:
        # All nodes are shown, and in the panels of a single one, that one.
        text = text.replace('pc_node="$node"', f'pc_node="{self.node}"')
        return re.sub(r"\$\{?([a-z_]\w*)\}?", lambda match: self.chosen.get(match[1], ".*"), text)

    def lines(self, target: Mapping[str, Any]) -> list[Series]:
        found = self.get(
            "query_range",
            query=self.fill(target["expr"]),
            start=self.end - self.seconds,
            end=self.end,
            step=self.seconds / STEPS,
        )
        return [
            Series(legend(target, one["metric"]), [(at, float(value)) for at, value in one["values"] if value != "NaN"])
            for one in found
        ]

    def now(self, target: Mapping[str, Any]) -> list[tuple[dict[str, str], float]]:
        found = self.get("query", query=self.fill(target["expr"]), time=self.end)
        return [(one["metric"], float(one["value"][1])) for one in found]


def legend(target: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    text = target["legendFormat"]
    return "" if text == "__auto" else re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), text)


# How values are written


def scaled(value: float, base: float, units: str) -> str:
    names = units.split()
    size = min(int(math.log(abs(value), base)), len(names) - 1) if abs(value) >= 1 else 0
    number = value / base**size
    return f"{number:.3g} {names[size]}" if abs(number) < 100 else f"{number:.0f} {names[size]}"


def written(value: float, unit: str) -> str:
    if math.isnan(value):
        return ""
    sizes = {
        "Bps": (1000, "B/s kB/s MB/s GB/s TB/s", 1),
        "bytes": (1024, "B KiB MiB GiB TiB", 1),
        "mbytes": (1024, "B KiB MiB GiB TiB", 2**20),
        "watt": (1000, "W kW MW", 1),
        "hertz": (1000, "Hz kHz MHz GHz", 1),
        "pps": (1000, "p/s kp/s Mp/s", 1),
        "cps": (1000, "c/s kc/s", 1),
        "short": (1000, "- K Mil Bil", 1),
    }
    if unit in sizes:
        base, names, factor = sizes[unit]
        return scaled(value * factor, base, names).removesuffix(" -")
    if unit == "s":
        for size, name in ((86400, "days"), (3600, "hours"), (60, "min")):
            if abs(value) >= size:
                return f"{value / size:.1f} {name}"
        return f"{value:.3g} s" if abs(value) >= 1 or not value else f"{value * 1000:.3g} ms"
    if unit == "percentunit":
        value, unit = value * 100, "percent"
    ends = {"percent": "%", "celsius": " °C", "kwatth": " kWh"}
    return f"{value:.3g}{ends.get(unit, '')}" if abs(value) < 1000 else f"{value:.0f}{ends.get(unit, '')}"


def coloured(value: float, thresholds: Mapping[str, Any]) -> str:
    color = "green"
    for step in thresholds["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return NAMED.get(color, color)


def heat(share: float) -> str:
    """From the panel's own colour to blue."""
    share = min(max(share, 0), 1)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip((24, 27, 31), (87, 148, 242)))


# What is drawn


def text(x: float, y: float, words: str, size: int = 11, color: str = INK, more: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" fill="{color}" {more}>{escape(words)}</text>'


def line(path: str, color: str, more: str = 'stroke-width="1.4"') -> str:
    return f'<path d="{path}" fill="none" stroke="{color}" {more}/>'


def area(path: str, ground: float, color: str, opacity: float) -> str:
    """What lies between a line, in each of its parts, and the ground."""
    parts = [part.split("L") for part in path.split("M") if "L" in part]
    shapes = "".join(
        f"M{'L'.join(part)}L{part[-1].split()[0]} {ground:.1f}L{part[0].split()[0]} {ground:.1f}Z" for part in parts
    )
    return f'<path d="{shapes}" fill="{color}" opacity="{opacity}"/>' if shapes else ""


def box(x: float, y: float, w: float, h: float, color: str, opacity: float = 1) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{w:.0f}" height="{h:.0f}" fill="{color}" opacity="{opacity}"/>'


def cut(words: str, width: float, size: int = 11) -> str:
    room = int(width / (size * 0.55))
    return words if len(words) <= room else words[: max(room - 1, 1)] + "…"


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    raw = (high - low) / count or 1
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first = math.ceil(low / step) * step
    return [first + number * step for number in range(int((high - first) / step + 1e-9) + 1)]


class Plot(NamedTuple):
    """Where a panel's drawing lies, and whose it is."""

    x: float
    y: float
    w: float
    h: float
    source: Source

    def path(self, values: list[tuple[float, float]], low: float, high: float) -> str:
        begin, span = self.source.end - self.source.seconds, self.source.seconds
        spread = (high - low) or 1
        step, last, parts = 2.5 * span / STEPS, None, []
        for at, value in values:
            x = self.x + (at - begin) / span * self.w
            y = self.y + self.h - (value - low) / spread * self.h
            parts.append(f"{'M' if last is None or at - last > step else 'L'}{x:.0f} {y:.1f}")
            last = at
        return "".join(parts)


def time_series(panel: Mapping[str, Any], plot: Plot) -> Iterator[str]:
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    overrides = panel["fieldConfig"]["overrides"]
    downwards = [o["matcher"]["options"].strip("/") for o in overrides if o["matcher"]["id"] == "byRegexp"]
    pinned = {
        o["matcher"]["options"]: o["properties"][0]["value"]["fixedColor"]
        for o in overrides
        if o["matcher"]["id"] == "byName"
    }
    found = [one for target in panel["targets"] for one in plot.source.lines(target) if one.values]
    drawn: list[Series] = []
    below: dict[float, float] = {}
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    for one in found:
        sign = -1 if any(re.search(pattern, one.name) for pattern in downwards) else 1
        values = [(at, sign * value) for at, value in one.values]
        if stacked:
            values = [(at, below.get(at, 0) + value) for at, value in values]
            below.update(values)
        drawn.append(Series(one.name, values))
    numbers = [value for one in drawn for _at, value in one.values] or [0.0]
    low, high = min(*numbers, defaults.get("min", math.inf)), max(*numbers, defaults.get("max", -math.inf))
    low, high = (low, high) if high > low else (min(low, 0), max(high, 1))
    colors = [pinned.get(one.name, PALETTE[number % len(PALETTE)]) for number, one in enumerate(found)]
    colors = [NAMED.get(color, color) for color in colors]
    rows = min(len(found), 3 if plot.h < 220 else 8)
    inner = plot._replace(x=plot.x + 62, w=plot.w - 74, h=plot.h - 18 - rows * 15)
    for tick in ticks(low, high):
        y = inner.y + inner.h - (tick - low) / (high - low) * inner.h
        yield line(f"M{inner.x:.0f} {y:.1f}h{inner.w:.0f}", EDGE, "")
        yield text(inner.x - 6, y + 4, written(abs(tick), unit), 10, FAINT, 'text-anchor="end"')
    for part in range(1, 4):
        at = plot.source.end - plot.source.seconds * (1 - part / 4)
        clock = time.strftime("%H:%M", time.gmtime(at))
        yield text(inner.x + inner.w * part / 4, inner.y + inner.h + 13, clock, 10, FAINT, 'text-anchor="middle"')
    dashed = defaults["custom"]["thresholdsStyle"]["mode"] == "dashed"
    for step in defaults["thresholds"]["steps"][1:] if dashed else []:
        if low <= step["value"] <= high:
            y = inner.y + inner.h - (step["value"] - low) / (high - low) * inner.h
            color = NAMED.get(step["color"], step["color"])
            yield line(f"M{inner.x:.0f} {y:.1f}h{inner.w:.0f}", color, 'stroke-dasharray="6 5" opacity=".7"')
    order = list(enumerate(drawn))
    for number, one in reversed(order) if stacked else order:
        color = colors[number]
        path = inner.path(one.values, low, high)
        ground = inner.y + inner.h - (max(low, 0) - low) / (high - low) * inner.h
        if stacked:
            yield area(path, ground, CARD, 1)
        yield area(path, ground, color, 0.55 if stacked else defaults["custom"]["fillOpacity"] / 100)
        yield line(path, color)
    for number, one in enumerate(found[:rows]):
        y = inner.y + inner.h + 30 + number * 15
        yield box(plot.x, y - 5, 12, 3, colors[number])
        yield text(plot.x + 18, y, cut(one.name or "value", plot.w - 100), 11)
        yield text(plot.x + plot.w - 4, y, written(one.values[-1][1], unit), 11, INK, 'text-anchor="end"')
    if not found:
        yield text(plot.x + plot.w / 2, plot.y + plot.h / 2, "No data", 13, FAINT, 'text-anchor="middle"')


def stat(panel: Mapping[str, Any], plot: Plot) -> Iterator[str]:
    defaults = panel["fieldConfig"]["defaults"]
    found = [one for target in panel["targets"] for one in plot.source.lines(target) if one.values]
    if not found:
        yield text(plot.x + plot.w / 2, plot.y + plot.h / 2, "No data", 13, FAINT, 'text-anchor="middle"')
        return
    values = found[0].values
    color = coloured(values[-1][1], defaults["thresholds"])
    low, high = min(value for _at, value in values), max(value for _at, value in values)
    course = plot._replace(y=plot.y + plot.h * 0.6, h=plot.h * 0.38)
    path = course.path(values, low if high > low else low - 1, high)
    yield area(path, plot.y + plot.h, color, 0.15)
    yield line(path, color, 'stroke-width="1.2" opacity=".7"')
    shown = written(values[-1][1], defaults["unit"])
    size = min(30, int(plot.w / (0.6 * max(len(shown), 4))))
    yield text(plot.x + plot.w / 2, plot.y + plot.h * 0.5, shown, size, color, 'text-anchor="middle" font-weight="500"')


def history(panel: Mapping[str, Any], plot: Plot) -> Iterator[str]:
    defaults = panel["fieldConfig"]["defaults"]
    found = sorted((one for target in panel["targets"] for one in plot.source.lines(target)), key=lambda one: one.name)
    left = 150
    height = min((plot.h - 20) / max(len(found), 1), 26)
    begin, width = plot.source.end - plot.source.seconds, plot.w - left - 8
    for number, one in enumerate(found):
        y = plot.y + number * height
        yield text(plot.x + left - 8, y + height * 0.7, cut(one.name, left - 12), 11, INK, 'text-anchor="end"')
        for at, value in one.values:
            x = plot.x + left + (at - begin) / plot.source.seconds * width * (1 - 1 / STEPS)
            color = heat(value / defaults["max"]) if "max" in defaults else coloured(value, defaults["thresholds"])
            yield box(x, y + 1, width / STEPS - 1, height - 2, color)


def table(panel: Mapping[str, Any], plot: Plot) -> Iterator[str]:
    single = len(panel["targets"]) == 1
    steps = {one["id"]: one["options"] for one in panel["transformations"]}
    organize = steps["organize"]
    key = steps.get("joinByField", {}).get("byField", "")
    rows: dict[Any, dict[str, Any]] = {}
    for target in panel["targets"]:
        for labels, value in plot.source.now(target):
            row = rows.setdefault(labels.get(key) if key else tuple(sorted(labels.items())), {})
            row.update({**labels, "Value" if single else f"Value #{target['refId']}": value})
    fields = sorted(organize["indexByName"], key=lambda name: organize["indexByName"][name])
    titles = organize["renameByName"]
    by_title = {
        o["matcher"]["options"]: {p["id"]: p["value"] for p in o["properties"]}
        for o in panel["fieldConfig"]["overrides"]
    }
    width = plot.w / max(len(fields), 1)
    for number, field in enumerate(fields):
        yield text(
            plot.x + number * width + 6, plot.y + 12, cut(titles[field], width - 10), 11, "#6e9fff", 'font-weight="500"'
        )
    yield line(f"M{plot.x:.0f} {plot.y + 19:.0f}h{plot.w:.0f}", EDGE, "")
    order = sorted(rows.values(), key=lambda row: [str(row.get(field, "")) for field in fields])
    for sort in panel["options"]["sortBy"]:
        (field,) = (name for name in fields if titles[name] == sort["displayName"])
        order.sort(key=lambda row: row.get(field, ""), reverse=sort["desc"])
    for place, row in enumerate(order):
        y = plot.y + 36 + place * 22
        if y > plot.y + plot.h:
            break
        for number, field in enumerate(fields):
            x, value, how = plot.x + number * width + 6, row.get(field, ""), by_title.get(titles[field], {})
            if not isinstance(value, float):
                yield text(x, y, cut(str(value), width - 10), 11)
                continue
            color = coloured(value, how["thresholds"]) if "thresholds" in how else INK
            if "max" in how:
                bar, color = color if "thresholds" in how else "#73bf69", INK
                share = min(max(value / how["max"], 0), 1) if value == value else 0
                yield box(x, y - 11, share * (width - 60), 14, bar, 0.5)
            yield text(
                x + (width - 12 if "max" in how else 0),
                y,
                written(value, how.get("unit", "short")),
                11,
                color,
                'text-anchor="end"' if "max" in how else "",
            )


DRAWN = {"timeseries": time_series, "stat": stat, "status-history": history, "table": table}


def picture(made: Mapping[str, Any], source: Source) -> str:
    job = source.chosen.get("job") if made["uid"].endswith("-job") else ""
    title = f"{made['title']}: job {job}" if job else made["title"]
    lines = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in made["panels"])
    width, height = 24 * CELL + 2 * GAP, lines * (LINE + GAP) + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="Inter, Helvetica, Arial, sans-serif"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
        text(GAP + 8, 32, title, 20, INK, 'font-weight="500"'),
    ]
    for panel in made["panels"]:
        place = panel["gridPos"]
        x, y = GAP + place["x"] * CELL, 48 + place["y"] * (LINE + GAP)
        w, h = place["w"] * CELL - GAP, place["h"] * (LINE + GAP) - GAP
        if panel["type"] == "row":
            parts.append(text(x + 4, y + 20, f"⌄  {panel['title']}", 15, INK, 'font-weight="500"'))
            continue
        parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="3" fill="{CARD}" stroke="{EDGE}"/>')
        parts.append(text(x + 10, y + 20, cut(panel["title"], w - 16, 13), 13, INK, 'font-weight="500"'))
        parts += [part for part in DRAWN[panel["type"]](panel, Plot(x + 10, y + 32, w - 20, h - 40, source)) if part]
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", required=True, help="where Prometheus answers")
    parser.add_argument("--cluster", default="main", help="which cluster is shown (default: %(default)s)")
    parser.add_argument("--job", default="", help="which job is shown")
    parser.add_argument("--node", default="", help="which node the panels of a single node show")
    parser.add_argument("--mountpoint", default=".*", help="which file systems, as a pattern (default: %(default)s)")
    parser.add_argument("--minutes", type=int, default=30, help="how much of the past is shown (default: %(default)s)")
    parser.add_argument("--interval", type=int, default=15, help="seconds between two scrapes (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images", help="where the pictures go")
    parser.add_argument("dashboards", nargs="*", help="which ones (default: all)")
    options = parser.parse_args(arguments)
    chosen = {name: getattr(options, name) for name in ("cluster", "job", "mountpoint")}
    source = Source(options.prometheus, options.minutes, options.interval, chosen, options.node)
    options.out.mkdir(parents=True, exist_ok=True)
    for path in sorted((ROOT / "roles/grafana/files/dashboards").glob("*.json")):
        if not options.dashboards or path.stem in options.dashboards:
            target = options.out / f"dashboard-{path.stem}.svg"
            target.write_text(picture(json.loads(path.read_text(encoding="utf-8")), source), encoding="utf-8")
            print(f"{target}: {target.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
