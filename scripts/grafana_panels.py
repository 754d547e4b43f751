# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kinds of panels that scripts/dashboards.py lists, their variables and places, as Grafana's JSON.

The schema is that of Grafana 11, which newer releases read as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Json = dict[str, Any]
Limits = Iterable[tuple[float, str]]  # a colour from each value on
TAG = "pcluster"
SCHEMA = 39  # Grafana 11.0; newer releases migrate a dashboard, and find nothing to migrate in these
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "#EAB839", "orange", "red", "blue", "#6e7077"

# What a query selects by: sum(up{CLUSTER, job="node"}) stands for sum(up{pc_cluster="$cluster", job="node"}).
SELECTIONS = {
    "CLUSTER": 'pc_cluster="$cluster"',
    # Head and login nodes have no queue, and `.*`, the value of All, matches that too.
    "NODES": 'pc_cluster="$cluster", pc_queue=~"$queue", pc_node=~"$node"',
    # Because the value of All, or of several nodes, is no node's name, this selects nothing until one node is chosen.
    "NODE": 'pc_cluster="$cluster", pc_node="$node"',
    "JOB": 'pc_cluster="$cluster", hpc_job="$job"',
    "PARTITION": 'pc_cluster="$cluster", partition=~"$partition"',
    "SHARED": 'pc_cluster="$cluster", mountpoint=~"$mountpoint"',
}
NODE_LINK, JOB_LINK = (
    f"/d/{TAG}-{name}?${{__url_time_range}}&var-datasource=${{datasource}}&var-cluster=${{cluster}}"
    f"&var-{name}=${{__value.text}}"
    for name in ("node", "job")
)
DECIMALS = {"percent": 0, "bytes": 1, "mbytes": 1, "kwatth": 2}


def selected(expr: str) -> str:
    """Return a query with its selections written out."""
    return re.sub(r"(?<=[{ ])[A-Z]+(?=[,}])", lambda match: SELECTIONS[match[0]], expr)


def steps(limits: Limits = (), base: str = GREEN) -> Json:
    """Return Grafana's thresholds."""
    colors = [{"color": color, "value": value} for value, color in limits]
    return {"mode": "absolute", "steps": [{"color": base, "value": None}, *colors]}


def panel(
    kind: str,
    title: str,
    queries: Iterable[tuple[str, str]],
    size: tuple[int, int],
    description: str,
    *,
    instant: bool = False,
    **rest: Any,
) -> Json:
    """Return a panel of some kind; `queries` are pairs of a legend and an expression."""
    how: Json = {"instant": True, "range": False, "format": "table"} if instant else {"range": True, "instant": False}
    how.update(editorMode="code", datasource=SOURCE)
    return {
        "type": kind,
        "id": 0,  # is set in laid_out(), as are x and y
        "title": title,
        "gridPos": {"w": size[0], "h": size[1], "x": 0, "y": 0},
        **({"description": description} if description else {}),
        "datasource": SOURCE,
        "targets": [
            {"refId": chr(ord("A") + place), "legendFormat": legend or "__auto", **how, "expr": selected(expr)}
            for place, (legend, expr) in enumerate(queries)
        ],
        **rest,
    }


def override(matcher: str, pattern: str, **properties: Any) -> Json:
    """Return what is special about the series of a name (byName), or of names that match /a pattern/ (byRegexp)."""
    return {
        "matcher": {"id": matcher, "options": pattern},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }


def lines(
    title: str,
    queries: Mapping[str, str],
    unit: str,
    description: str = "",
    *,
    width: int = 8,
    max: float | None = None,
    limits: Limits = (),
    stack: bool = False,
    mirror: str = "",
    factor: str = "",
    colors: Mapping[str, str] | None = None,
) -> Json:
    """Lines over time: an expression for each legend, multiplied by the factor.

    `stack` piles the lines up, `mirror` draws those whose legends match it downwards, `colors` belong to legends.
    """
    if factor:
        queries = {legend: f"{factor} * {expr}" for legend, expr in queries.items()}
    # Because the areas below the lines of many nodes or GPUs add up to a wall, these lines have none.
    fill = 60 if stack else 0 if any("{{pc_node}}" in legend for legend in queries) else 10
    overrides = [override("byRegexp", f"/{mirror}/", **{"custom.transform": "negative-Y"})] if mirror else []
    for legend, color in (colors or {}).items():
        overrides.append(override("byName", legend, color={"mode": "fixed", "fixedColor": color}))
    defaults = {
        "unit": unit,
        "color": {"mode": "palette-classic"},
        "thresholds": steps(limits),
        "custom": {
            "drawStyle": "line",
            "lineInterpolation": "linear",
            "lineWidth": 1,
            "fillOpacity": fill,
            "gradientMode": "none" if stack else "opacity",
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if stack else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if limits else "off"},
        },
        **({} if max is None else {"max": max}),
        **({} if mirror else {"min": 0}),
    }
    calculated = ["mean", "max", "lastNotNull"]
    return panel(
        "timeseries",
        title,
        queries.items(),
        (width, 8),
        description,
        fieldConfig={"defaults": defaults, "overrides": overrides},
        options={
            "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": calculated},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


class Number(NamedTuple):
    """One number at the top of a dashboard, coloured by its limits, with its course behind it."""

    title: str
    expr: str
    unit: str = "none"
    limits: Limits = ()
    description: str = ""
    decimals: int | None = None  # otherwise those of the unit
    base: str = GREEN

    def panel(self, width: int) -> Json:
        decimals = DECIMALS.get(self.unit) if self.decimals is None else self.decimals
        defaults = {
            "unit": self.unit,
            "color": {"mode": "thresholds"},
            "thresholds": steps(self.limits, self.base),
            **({} if decimals is None else {"decimals": decimals}),
        }
        return panel(
            "stat",
            self.title,
            [("", self.expr)],
            (width, 4),
            self.description,
            fieldConfig={"defaults": defaults, "overrides": []},
            options={
                "colorMode": "value",
                "graphMode": "area",
                "justifyMode": "auto",
                "orientation": "auto",
                "textMode": "value",
                "wideLayout": True,
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            },
        )


def numbers(*found: Number) -> list[Json]:
    """Numbers side by side, as wide as the dashboard."""
    return [number.panel(24 // len(found)) for number in found]


def carpet(title: str, expr: str, legend: str, description: str) -> Json:
    """Percentages: a strip for each series, the bluer the higher, so that others stand out and none is bad."""
    color = {"mode": "continuous-blues"}
    return strips(title, expr, legend, description, unit="percent", min=0, max=100, color=color, thresholds=steps())


def states(title: str, expr: str, legend: str, description: str, words: Mapping[str, str]) -> Json:
    """Numbers from 0 on that stand for words: a strip for each series, in the colours of these words."""
    limits = tuple(enumerate(words.values()))
    texts = {str(number): {"text": word, "index": number} for number, word in enumerate(words)}
    return strips(
        title,
        expr,
        legend,
        description,
        unit="none",
        color={"mode": "thresholds"},
        thresholds=steps(limits[1:], limits[0][1]),
        mappings=[{"type": "value", "options": texts}],
    )


def strips(title: str, expr: str, legend: str, description: str, **defaults: Any) -> Json:
    """A strip for each series, in colours that tell its values over time."""
    defaults["custom"] = {"fillOpacity": 85, "lineWidth": 0}
    return panel(
        "status-history",
        title,
        [(legend, expr)],
        (24, 9),
        description,
        maxDataPoints=120,
        fieldConfig={"defaults": defaults, "overrides": []},
        options={
            "showValue": "never",
            "rowHeight": 0.92,
            "colWidth": 0.98,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


class Column(NamedTuple):
    """A column of a table: a label, or the newest value of a query; a query without a title only brings labels."""

    title: str
    expr: str = ""
    unit: str = "none"
    limits: Limits = ()
    top: float | None = None  # draws a bar up to here
    label: str = ""
    link: str = ""

    def properties(self) -> Json:
        """Return how Grafana writes the column's cells."""
        found: Json = {"unit": self.unit} if self.expr and self.title else {}
        if self.limits:
            found.update(thresholds=steps(self.limits), color={"mode": "thresholds"})
        if self.top is not None:
            cells = {"type": "gauge", "mode": "gradient", "valueDisplayMode": "text"}
            found.update({"min": 0, "max": self.top, "custom.cellOptions": cells})
        elif self.limits:
            found["custom.cellOptions"] = {"type": "color-text"}
        if self.link:
            found["links"] = [{"title": "Look closer", "url": self.link}]
        return found


def table(
    title: str, key: str, columns: list[Column], description: str, *, width: int = 24, height: int = 10, sort: str = ""
) -> Json:
    """The newest values side by side, a line for each value of the label `key`; the highest of `sort` are on top."""
    asked = [column for column in columns if column.expr]
    single = len(asked) == 1
    # Grafana joins the results by the key, and numbers the fields that each of them has.
    places = range(len(asked))
    values = iter(["Value"] if single else [f"Value #{chr(ord('A') + place)}" for place in places])
    fields = [(column.label or next(values), column.title) for column in columns]
    names = {field: shown for field, shown in fields if shown}
    clutter = ["Time"] if single else ["Time", *(f"Time {place + 1}" for place in places)]
    clutter += [field for field, shown in fields if not shown]
    organize = {
        "excludeByName": dict.fromkeys(clutter, True),
        "indexByName": {name: place for place, name in enumerate(names)},
        "renameByName": names,
    }
    joined = [] if single else [{"id": "joinByField", "options": {"byField": key, "mode": "outer"}}]
    defaults = {"custom": {"align": "auto", "filterable": True, "cellOptions": {"type": "auto"}}, "thresholds": steps()}
    overrides = [override("byName", column.title, **column.properties()) for column in columns if column.properties()]
    return panel(
        "table",
        title,
        [("", column.expr) for column in asked],
        (width, height),
        description,
        instant=True,
        fieldConfig={"defaults": defaults, "overrides": overrides},
        options={
            "showHeader": True,
            "cellHeight": "sm",
            "sortBy": [{"displayName": sort, "desc": True}] if sort else [],
            "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": ""},
        },
        transformations=[*joined, {"id": "organize", "options": organize}],
    )


def row(title: str, *panels: Json) -> list[Json]:
    """Panels under a title."""
    place = {"w": 24, "h": 1, "x": 0, "y": 0}
    return [{"type": "row", "id": 0, "title": title, "gridPos": place, "collapsed": False, "panels": []}, *panels]


def laid_out(panels: list[Json]) -> list[Json]:
    """Put the panels where they fit: from left to right, then below."""
    left = top = height = 0
    for identity, one in enumerate(panels, 1):
        place = one["gridPos"]
        if left + place["w"] > 24:
            left, top, height = 0, top + height, 0
        place.update(x=left, y=top)
        left, height = left + place["w"], max(height, place["h"])
        one["id"] = identity
    return panels


def variable(name: str, label: str, query: str, *, several: bool = True, pattern: str = ".*") -> Json:
    """A choice among the values of a label. Without a pattern for all of them, they are all those of the query."""
    query = selected(query)
    every_one: Json = {"current": {"text": ["All"], "value": ["$__all"]}, "includeAll": True, "multi": True}
    if pattern:
        every_one["allValue"] = pattern
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,  # whenever the time range changes: nodes come and go
        "sort": 7,  # naturally: node 10 comes after node 9
        "regex": "",
        "hide": 0,
        "options": [],
        **(every_one if several else {"current": {}, "includeAll": False, "multi": False}),
    }


DATA_SOURCE: Json = {
    "type": "datasource",
    "name": "datasource",
    "label": "Data source",
    "query": "prometheus",
    "regex": "",
    "refresh": 1,
    "current": {},
    "hide": 0,
    "includeAll": False,
    "multi": False,
    "options": [],
}
VARIABLES = {
    one["name"]: one
    for one in (
        variable("cluster", "Cluster", "label_values(node_uname_info, pc_cluster)", several=False),
        variable("queue", "Queue", 'label_values(node_uname_info{CLUSTER, pc_node_type="compute"}, pc_queue)'),
        variable("node", "Node", 'label_values(node_uname_info{CLUSTER, pc_queue=~"$queue"}, pc_node)'),
        variable("job", "Job", "label_values(hpc_job:gpu_utilization:avg{CLUSTER}, hpc_job)", several=False),
        variable("partition", "Partition", "label_values(slurm_partition_jobs_pending{CLUSTER}, partition)"),
        # The rules of role prometheus know which file systems are shared ones.
        variable("mountpoint", "File system", "label_values(fsx:used:ratio{CLUSTER}, mountpoint)", pattern=""),
    )
}
# Grafana puts these into every dashboard that lacks them.
ANNOTATIONS = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}
LINKS = {
    "type": "dashboards",
    "title": "Dashboards",
    "tags": [TAG],
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "icon": "external link",
    "tooltip": "",
    "url": "",
}


def dashboard(name: str, title: str, description: str, choices: list[str], rows: Iterable[list[Json]]) -> Json:
    """A whole dashboard; beside the data source and the cluster, `choices` can be made at its top."""
    return {
        "uid": f"{TAG}-{name}",
        "title": title,
        "description": description,
        "tags": [TAG],
        "schemaVersion": SCHEMA,
        "version": 0,
        "editable": True,
        "graphTooltip": 1,  # one crosshair for all panels
        "fiscalYearStartMonth": 0,
        "timezone": "browser",
        "weekStart": "",
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "refresh": "1m",
        "annotations": {"list": [ANNOTATIONS]},
        "links": [LINKS],
        "templating": {"list": [DATA_SOURCE, *(VARIABLES[choice] for choice in ("cluster", *choices))]},
        "panels": laid_out([one for panels in rows for one in panels]),
    }
