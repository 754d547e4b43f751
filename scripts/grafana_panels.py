# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What dashboards are made of: panels, variables, and their places. scripts/dashboards.py puts them together.

The result is the schema of Grafana 11, which newer ones take as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

Json = dict[str, Any]
TAG = "pcluster"
SCHEMA = 39  # Grafana 11.0; later ones migrate it, and nothing here is what they migrate
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

# What queries select by. Head and login nodes have no queue, and `.*` matches that too.
CLUSTER = 'pc_cluster="$cluster"'
NODES = f'{CLUSTER}, pc_queue=~"$queue", pc_node=~"$node"'

# What Grafana puts into every dashboard that lacks it.
_ANNOTATIONS = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "#EAB839", "orange", "red", "blue", "#6e7077"


class Query(NamedTuple):
    """One query of a panel, and how its series are called."""

    expr: str
    legend: str = ""


def targets(queries: Iterable[Query], instant: bool = False) -> list[Json]:
    """The queries as Grafana has them."""
    kind: Json = {"instant": True, "range": False, "format": "table"} if instant else {"range": True, "instant": False}
    return [
        {
            "refId": chr(ord("A") + number),
            "datasource": SOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            **kind,
        }
        for number, query in enumerate(queries)
    ]


def steps(*limits: tuple[float, str], base: str = GREEN) -> Json:
    """Thresholds: a colour from each value on."""
    return {
        "mode": "absolute",
        "steps": [{"color": base, "value": None}, *({"color": color, "value": value} for value, color in limits)],
    }


def panel(kind: str, title: str, queries: list[Json], width: int, height: int, **rest: Any) -> Json:
    """What all panels have. Its place and number come later."""
    description = rest.pop("description", "")
    return {
        "type": kind,
        "title": title,
        **({"description": description} if description else {}),
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height, "x": 0, "y": 0},
        "targets": queries,
        **rest,
    }


def named(pattern: str, **properties: Any) -> Json:
    """What is special about the series whose names match a pattern. Without slashes it would be a whole name."""
    return {
        "matcher": {"id": "byRegexp", "options": f"/{pattern}/"},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }


def pinned(name: str, color: str) -> Json:
    """A series that has the same colour wherever it is drawn."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
    }


def lines(title: str, *queries: Query, unit: str = "short", width: int = 8, **options: Any) -> Json:
    """Lines over time. `stack` piles them up, `mirror` draws those of its pattern downwards, `colors` are of names."""
    stack, mirror = options.get("stack", False), options.get("mirror", "")
    # What lies below the lines of many nodes or GPUs adds up to a wall.
    few = not any("{{pc_node}}" in query.legend for query in queries)
    limits = options.get("limits", ())
    defaults: Json = {
        "unit": unit,
        "color": {"mode": "palette-classic"},
        "thresholds": steps(*limits),
        "custom": {
            "drawStyle": "line",
            "lineInterpolation": "linear",
            "lineWidth": 1,
            "fillOpacity": 60 if stack else 10 * few,
            "gradientMode": "none" if stack else "opacity",
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if stack else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if limits else "off"},
        },
    }
    for key in ("min", "max", "decimals"):
        if key in options:
            defaults[key] = options[key]
    if "min" not in options and not mirror:
        defaults["min"] = 0
    overrides = [named(mirror, **{"custom.transform": "negative-Y"})] if mirror else []
    overrides += [pinned(name, color) for name, color in options.get("colors", {}).items()]
    return panel(
        "timeseries",
        title,
        targets(queries),
        width,
        options.get("height", 8),
        description=options.get("description", ""),
        fieldConfig={"defaults": defaults, "overrides": overrides},
        options={
            "legend": {
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
                "calcs": ["mean", "max", "lastNotNull"],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def number(
    title: str, expr: str, unit: str = "short", *, limits: Iterable[tuple[float, str]] = (), **more: Any
) -> Json:
    """One number, coloured by its limits, with its course behind it."""
    defaults: Json = {
        "unit": unit,
        "color": {"mode": "thresholds"},
        "thresholds": steps(*limits, base=more.get("base", GREEN)),
    }
    if "decimals" in more:
        defaults["decimals"] = more["decimals"]
    return panel(
        "stat",
        title,
        targets([Query(expr)]),
        more.get("width", 3),
        4,
        description=more.get("description", ""),
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


def carpet(title: str, query: Query, unit: str, top: float, *, height: int = 9, description: str = "") -> Json:
    """A line for each series, the bluer the higher: who is different stands out, and no value is bad."""
    return panel(
        "status-history",
        title,
        targets([query]),
        24,
        height,
        description=description,
        maxDataPoints=120,
        fieldConfig={
            "defaults": {
                "unit": unit,
                "min": 0,
                "max": top,
                "color": {"mode": "continuous-blues"},
                "thresholds": steps(),
                "custom": {"fillOpacity": 85, "lineWidth": 0},
            },
            "overrides": [],
        },
        options={
            "showValue": "never",
            "rowHeight": 0.92,
            "colWidth": 0.98,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


class Column(NamedTuple):
    """A column of a table: a label, or the newest value of a query; one without a title only brings labels."""

    title: str
    expr: str = ""
    label: str = ""
    unit: str = "short"
    limits: tuple[tuple[float, str], ...] = ()
    top: float | None = None  # draws a bar up to here
    link: str = ""


def table(title: str, key: str, *columns: Column, width: int = 24, **more: Any) -> Json:
    """The newest values side by side, a line for each value of the label `key`; those on top are first in `sort`."""
    asked = [column for column in columns if column.expr]
    single = len(asked) == 1
    values = {
        ("Value" if single else f"Value #{chr(ord('A') + place)}"): column.title for place, column in enumerate(asked)
    }
    names = {field: name for field, name in values.items() if name}
    labels = {column.label: column.title for column in columns if column.label}
    overrides = []
    for column in columns:
        properties: list[Json] = []
        if column.expr and column.title:
            properties.append({"id": "unit", "value": column.unit})
        if column.limits:
            properties += [
                {"id": "thresholds", "value": steps(*column.limits)},
                {"id": "color", "value": {"mode": "thresholds"}},
            ]
        if column.top is not None:
            properties += [
                {"id": "min", "value": 0},
                {"id": "max", "value": column.top},
                {
                    "id": "custom.cellOptions",
                    "value": {"type": "gauge", "mode": "gradient", "valueDisplayMode": "text"},
                },
            ]
        elif column.limits:
            properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
        if column.link:
            properties.append({"id": "links", "value": [{"title": "Look closer", "url": column.link}]})
        if properties:
            overrides.append({"matcher": {"id": "byName", "options": column.title}, "properties": properties})
    order = [name for column in columns for name, shown in {**labels, **names}.items() if shown == column.title]
    transformations: list[Json] = (
        [] if single else [{"id": "joinByField", "options": {"byField": key, "mode": "outer"}}]
    )
    clutter = ["Time", *(f"Time {place + 1}" for place in range(0 if single else len(asked)))]
    clutter += [field for field, name in values.items() if not name]
    transformations.append(
        {
            "id": "organize",
            "options": {
                "excludeByName": dict.fromkeys(clutter, True),
                "indexByName": {name: place for place, name in enumerate(order)},
                "renameByName": {**labels, **names},
            },
        }
    )
    return panel(
        "table",
        title,
        targets([Query(column.expr) for column in asked], instant=True),
        width,
        more.get("height", 10),
        description=more.get("description", ""),
        fieldConfig={
            "defaults": {
                "custom": {"align": "auto", "filterable": True, "cellOptions": {"type": "auto"}},
                "thresholds": steps(),
            },
            "overrides": overrides,
        },
        options={
            "showHeader": True,
            "cellHeight": "sm",
            "sortBy": [{"displayName": more["sort"], "desc": True}] if "sort" in more else [],
            "footer": {"show": False, "reducer": ["sum"], "countRows": False, "fields": ""},
        },
        transformations=transformations,
    )


class Row(NamedTuple):
    """Panels under a title; without one they stand at the top."""

    title: str
    panels: list[Json]


def laid_out(rows: list[Row]) -> list[Json]:
    """Put the panels where they fit: from left to right, then below."""
    found: list[Json] = []
    top = 0
    for row in rows:
        if row.title:
            found.append(
                {
                    "type": "row",
                    "title": row.title,
                    "collapsed": False,
                    "panels": [],
                    "gridPos": {"w": 24, "h": 1, "x": 0, "y": top},
                }
            )
            top += 1
        left = height = 0
        for one in row.panels:
            place = one["gridPos"]
            if left + place["w"] > 24:
                left, top, height = 0, top + height, 0
            place["x"], place["y"] = left, top
            left, height = left + place["w"], max(height, place["h"])
            found.append(one)
        top += height
    for identity, one in enumerate(found, 1):
        one["id"] = identity
    return found


def variable(name: str, label: str, query: str, *, several: bool = True, pattern: str = ".*") -> Json:
    """A choice among the values of a label. Without a pattern for all of them, they are all those of the query."""
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


def variables(*names: str) -> list[Json]:
    """The data source, the cluster, and what else a dashboard lets one choose."""
    info = f"node_uname_info{{{CLUSTER}"
    known = {
        "queue": variable("queue", "Queue", f'label_values({info}, pc_node_type="compute"}}, pc_queue)'),
        "node": variable("node", "Node", f'label_values({info}, pc_queue=~"$queue"}}, pc_node)'),
        "job": variable(
            "job", "Job", f"label_values(hpc_job:gpu_utilization:avg{{{CLUSTER}}}, hpc_job)", several=False
        ),
        "partition": variable(
            "partition", "Partition", f"label_values(slurm_partition_jobs_pending{{{CLUSTER}}}, partition)"
        ),
        # The rules of role prometheus know which file systems are shared ones.
        "mountpoint": variable(
            "mountpoint", "File system", f"label_values(fsx:used:ratio{{{CLUSTER}}}, mountpoint)", pattern=""
        ),
    }
    source = {
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
    cluster = variable("cluster", "Cluster", "label_values(node_uname_info, pc_cluster)", several=False)
    return [source, cluster, *(known[name] for name in names)]


def dashboard(name: str, title: str, description: str, choices: Iterable[str], rows: list[Row]) -> Json:
    """A whole dashboard."""
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
        "annotations": {"list": [_ANNOTATIONS]},
        "links": [
            {
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
        ],
        "templating": {"list": variables(*choices)},
        "panels": laid_out(rows),
    }


def to_node(label: str = "${__value.text}") -> str:
    return (
        f"/d/{TAG}-node?${{__url_time_range}}&var-datasource=${{datasource}}&var-cluster=${{cluster}}&var-node={label}"
    )


def to_job(label: str = "${__value.text}") -> str:
    return f"/d/{TAG}-job?${{__url_time_range}}&var-datasource=${{datasource}}&var-cluster=${{cluster}}&var-job={label}"
