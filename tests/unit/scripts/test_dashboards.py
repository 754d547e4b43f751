# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The dashboards: files that are up to date, Grafana's schema, and names that our exporters and rules have."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import units

from ansible_collections.pcluster.postboot.tests.programs import load

REPO = Path(__file__).resolve().parents[3]
FILES = sorted((REPO / "roles/grafana/files/dashboards").glob("*.json"))
UIDS = {json.loads(path.read_text())["uid"] for path in FILES}
# Of node_exporter and Prometheus, which are not ours to list.
FOREIGN = re.compile(r"node_(?!amazonefa_)\w+|up|ALERTS")
# Of role node_health: what nodes tell, and what the decider does.
HEALTH = re.compile(
    r"pcluster_node_health_(finding|check_timestamp_seconds|check_seconds|drained|drains_total|withheld|silent"
    r"|decider_timestamp_seconds)"
)
# What SckyzO's exporter and Slurm's own metrics are known to have, by the contract of role slurm_exporter.
SLURM = re.compile(
    r"slurm_(jobs_(pending|running|completing)|partition_jobs_(pending|running)|queue_pending"
    r"|(user|account)_(jobs_running|jobs_pending|cpus_running|gpus_running|jobs_cpus_alloc|jobs_gpus_alloc)"
    r"|node_(status|cpu_alloc|cpu_total|mem_alloc|mem_total|drain_reason_info)"
    r"|scheduler_(jobs_(submitted|started|completed|failed|canceled)|(backfill_)?last_cycle|threads|queue_size)"
    r"|sdiag_jobs_(submitted|started|completed|failed|canceled)|schedule_cycle_last|bf_cycle_last|server_thread_cnt"
    r"|agent_queue_size)"
)

# Prometheus' own and role prometheus', node_exporter's, dcgm-exporter's, slurm_exporter's, node_health's,
# and neuron-monitor's.
LABELS = {
    *("__name__", "alertstate", "job", "pc_cluster", "pc_node", "pc_node_type", "pc_queue"),
    *("device", "fstype", "mode", "mountpoint", "name", "state", "type"),
    *("UUID", "gpu", "hpc_job", "modelName", "xid"),
    *("account", "node", "partition", "reason", "since", "status", "user", "username"),
    *("class", "finding", "why"),
    *("memory_location", "neuroncore", "runtime_tag", "status_type"),
}


@pytest.fixture(scope="module")
def program() -> Any:
    return load("scripts/dashboards.py")


@pytest.fixture(scope="module")
def bench() -> Any:
    """The benchmark of the dashboards, which evaluates queries on the labels of a simulated cluster."""
    return load("tests/bench/dashboards.py")


@pytest.fixture(scope="module", params=FILES, ids=lambda path: path.stem)
def made(request: pytest.FixtureRequest) -> Any:
    return json.loads(request.param.read_text())


def panels(made: Any) -> list[Any]:
    """The panels that ask for something."""
    return [panel for panel in made["panels"] if panel["type"] != "row"]


def queries(made: Any) -> Iterator[tuple[str, str, str]]:
    """Each query with its panel's title and its legend."""
    for panel in panels(made):
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


def names(selector: Any) -> set[str]:
    """The names of metrics that a selector asks for."""
    return {name for label, _sign, value in selector[1] if label == "__name__" for name in value.split("|")}


def test_the_files_are_up_to_date(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--check"]) == 0, capsys.readouterr().err


def test_a_file_that_is_not_is_named_and_written(
    program: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "roles/grafana/files/dashboards"
    folder.mkdir(parents=True)
    (folder / "gone.json").write_text("{}\n")
    assert program.main(["--check", "--root", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"{folder}/gone.json is out of date: run scripts/dashboards.py" in said
    assert f"{folder}/gpu.json is out of date" in said
    assert program.main(["--root", str(tmp_path)]) == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == {path.name: path.read_text() for path in FILES}
    assert program.main(["--check", "--root", str(tmp_path)]) == 0


def test_a_file_is_written_for_people(program: Any, made: Any) -> None:
    text = program.text_of(made)
    assert json.loads(text) == made
    # A line is longer only where it has a single string, which JSON cannot break.
    assert [line for line in text.splitlines() if len(line) > 120 and not re.match(r' *"\w+": "[^{]', line)] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, {}], "b": None}, '{"a": [1, {}], "b": null}'),
        ({"a": 1, "b": "é", "long": "x" * 110, "c": []}, '{\n "a": 1, "b": "é",\n "long": "%s",\n "c": []\n}'),
        (["x" * 110, 1, {"a": 2}], '[\n "%s",\n 1,\n {"a": 2}\n]'),
        ({"a": [{"b": "x" * 110}, {"c": "x" * 110}]}, '{\n "a": [{\n  "b": "%s"\n }, {\n  "c": "%s"\n }]\n}'),
    ],
)
def test_what_fits_into_a_line_stands_on_one(program: Any, value: Any, text: str) -> None:
    assert program.text_of(value) == text.replace("%s", "x" * 110)


def lost(before: Any, after: Any, path: str) -> Iterator[str]:
    """What did not come through."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            yield from lost(value, after[key], f"{path}.{key}") if key in after else [f"{path}.{key}"]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, other) in enumerate(zip(before, after)):
            yield from lost(one, other, f"{path}[{place}]")
    elif before != after:
        yield path


@pytest.mark.parametrize(
    ("status", "state", "power"),
    [
        *(("idle", "idle", ""), ("planned*", "idle", ""), ("mixed", "in_use", ""), ("allocated+", "in_use", "")),
        *(("completing", "in_use", ""), ("idle~", "idle", "powered_down"), ("idle%", "idle", "powered_down")),
        *(("idle!", "idle", ""), ("idle#", "idle", "powering_up"), ("mixed#", "in_use", "powering_up")),
        *(("drained", "drained", ""), ("draining", "drained", ""), ("drained~", "drained", "powered_down")),
        *(("down", "down", ""), ("down*", "down", ""), ("down~", "down", "powered_down"), ("reboot^", "idle", "")),
    ],
)
def test_a_node_is_in_one_state_whether_it_has_power_or_not(program: Any, status: str, state: str, power: str) -> None:
    def taken(kinds: dict[str, tuple[str, str]]) -> list[str]:
        return [name for name, (pattern, _color) in kinds.items() if re.fullmatch(pattern, status)]

    assert taken(program.STATES) == [state]
    assert taken(program.POWER) == [power] * bool(power)
    assert bool(re.fullmatch(program.BROKEN, status)) == (state in ("drained", "down"))


def test_dashboards_count_nodes_as_the_rules_do(program: Any) -> None:
    """Of each state the same nodes, by the exporter's names for them."""
    groups = yaml.safe_load((REPO / "roles/prometheus/files/rules/slurm.yml").read_text())["groups"]
    found = {}
    for rule in groups[0]["rules"]:
        if "slurm_node_status" in rule["expr"]:
            state = rule.get("labels", {}).get("state") or rule["record"].split("nodes_")[1].split(":")[0]
            found[state] = re.findall(r'status=~"([^"]*)"', rule["expr"])
    kinds = {**program.STATES, **program.POWER}
    assert found == {state: [pattern] for state, (pattern, _color) in kinds.items()}


def test_they_are_of_grafanas_schema(made: Any) -> None:
    """Grafana's own library, made from its schema, drops what it does not know."""
    plugins.register_default_plugins()
    after = json.loads(json.dumps(models.Dashboard.from_json(made), cls=encoder.JSONEncoder))
    unknown = list(lost(made, after, ""))
    # What Grafana shows in its list of variables.
    assert [path for path in unknown if not re.fullmatch(r"\.templating\.list\[\d+\]\.definition", path)] == []


def test_units_are_grafanas(made: Any) -> None:
    known = {value for name, value in vars(units).items() if not name.startswith("_") and isinstance(value, str)}
    for panel in panels(made):
        config = panel["fieldConfig"]
        used = [config["defaults"]["unit"]] if "unit" in config["defaults"] else []
        used += [p["value"] for one in config["overrides"] for p in one["properties"] if p["id"] == "unit"]
        assert set(used) <= known, panel["title"]
        assert used or panel["type"] == "table", panel["title"]


def test_panels_have_a_place_of_their_own(made: Any) -> None:
    taken: dict[tuple[int, int], str] = {}
    widths: Counter[int] = Counter()
    for panel in made["panels"]:
        x, y, width, height = (panel["gridPos"][key] for key in "xywh")
        widths[y] += width
        for place in product(range(x, x + width), range(y, y + height)):
            assert place not in taken, f"{panel['title']} lies on {taken.get(place)}"
            taken[place] = panel["title"]
    # In Grafana's own order, in which it stores them, or each run would put them back.
    places = [(panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in made["panels"]]
    assert places == sorted(places)
    # No line is half empty or too long: what begins a line is beside what ends it.
    assert set(widths.values()) == {24}, {y: width for y, width in widths.items() if width != 24}
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


def test_every_query_asks_the_chosen_source_for_the_chosen_cluster(made: Any) -> None:
    for panel in panels(made):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            # A division's other half is matched by its labels.
            assert 'pc_cluster="$cluster"' in target["expr"], panel["title"]


def test_selections_name_labels_that_there_are(made: Any) -> None:
    """One that is misspelt would select everything."""
    for title, expr, legend in queries(made):
        used = set(re.findall(r"(\w+)\s*[=!]~?\s*\"", expr)) | set(re.findall(r"\{\{(\w+)\}\}", legend))
        for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expr):
            used |= set(re.findall(r"\w+", group))
        assert used <= LABELS, f"{title}: {used - LABELS}"


def test_variables_are_there(made: Any) -> None:
    defined = [variable["name"] for variable in made["templating"]["list"]]
    assert defined[:2] == ["datasource", "cluster"]
    for title, expr, _legend in queries(made):
        used = set(re.findall(r"\$\{?([a-z]\w*)", expr))
        assert used <= set(defined), title
    for place, variable in enumerate(made["templating"]["list"]):
        used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(variable["query"])))
        assert used <= set(defined[:place]), variable["name"]


def test_legends_name_labels_that_are_left(made: Any) -> None:
    for title, expr, legend in queries(made):
        labels = set(re.findall(r"\{\{(\w+)\}\}", legend))
        grouped = re.search(r"^[^{]*\bby \(([^)]*)\)", expr)
        if labels and grouped:
            assert labels <= {label.strip() for label in grouped[1].split(",")}, f"{title}: {expr}"


def test_what_is_drawn_downwards_is_there(made: Any) -> None:
    """Grafana takes a pattern without slashes for a whole name."""
    for panel in panels(made):
        for one in panel["fieldConfig"]["overrides"]:
            if one["matcher"]["id"] == "byRegexp":
                pattern = re.fullmatch(r"/(.*)/", one["matcher"]["options"])
                assert pattern, panel["title"]
                found = [bool(re.search(pattern[1], target["legendFormat"])) for target in panel["targets"]]
                assert set(found) == {False, True}, panel["title"]
                assert found.count(True) == found.count(False), panel["title"]


def test_lines_of_many_nodes_are_not_filled(made: Any) -> None:
    for panel in panels(made):
        if panel["type"] == "timeseries" and any("{{pc_node}}" in one["legendFormat"] for one in panel["targets"]):
            custom = panel["fieldConfig"]["defaults"]["custom"]
            assert custom["stacking"]["mode"] == "normal" or custom["fillOpacity"] == 0, panel["title"]


def test_links_lead_to_dashboards(made: Any) -> None:
    assert set(re.findall(r"/d/([\w-]+)\?", json.dumps(made))) <= UIDS


def test_names_are_those_of_our_exporters_and_rules(made: Any, bench: Any) -> None:
    known = {*bench.gpu_counters(), *(f"node_amazonefa_{name}" for name in bench.efa_counters()), *bench.recorded()}
    known |= {name for name, _labels in bench.neuron_series()}
    for title, expr, _legend in queries(made):
        for name in (name for selector in bench.selectors(bench.parsed(expr)) for name in names(selector)):
            found = any(pattern.fullmatch(name) for pattern in (FOREIGN, HEALTH, SLURM))
            assert name in known or found, f"{title}: {name}"


def crowded(made: Any, bench: Any) -> dict[str, int]:
    """How many lines the panels have that have more than fifty. What grows with the nodes has, with two hundred."""
    return {one["title"]: drawn for one in panels(made) if (drawn := bench.drawn(one, 200, 3)[0]) > 50}


def raw(made: Any, bench: Any) -> list[str]:
    """What panels ask of exporters though it is recorded, or though a node has many series of it.

    A single node, a single job and a table, which is asked at one point, may be looked at closely.
    """
    rules = [bench.parsed(rule["expr"]) for rule in bench.rules() if "record" in rule]
    read = {name for rule in rules for selector in bench.selectors(rule) for name in names(selector)}
    recorded = {name for name in read if ":" not in name and not name.startswith("slurm_")}
    found = []
    for panel in panels(made):
        for query, points in bench.queries(panel, 3):
            for selector in bench.selectors(query):
                few, many = (len(bench.cluster(nodes, query).select(selector[1])) for nodes in (4, 8))
                each = (many - few) / 4
                asked_closely = points == 1 or ("hpc_job", "=", bench.JOB) in selector[1]
                if not asked_closely and (each > 8 or (each > 1 and names(selector) & recorded)):
                    found.append(f"{panel['title']}: {'|'.join(names(selector))}, {each:.0f} series a node")
    return found


def test_no_panel_draws_more_lines_than_one_can_tell_apart(made: Any, bench: Any) -> None:
    assert crowded(made, bench) == {}


def test_panels_ask_for_what_is_recorded(made: Any, bench: Any) -> None:
    assert raw(made, bench) == []


def test_what_is_recorded_has_the_labels_that_panels_choose_by(made: Any, bench: Any) -> None:
    """A queue or a node that is chosen would select nothing of a series that does not have it."""
    store, _read = bench.of_queues()
    for title, expr, _legend in queries(made):
        for selector in bench.selectors(bench.parsed(expr)):
            for name in (name for name in names(selector) if ":" in name):
                assert store.series[name], name
                for labels in store.series[name]:
                    assert {label for label, _sign, _value in selector[1]} <= set(labels), f"{title}: {name}"


def test_no_query_holds_too_many_samples_for_prometheus(made: Any, bench: Any) -> None:
    for panel in panels(made):
        assert bench.most_nodes(panel, 24) >= 1024, panel["title"]


def test_a_panel_of_all_gpus_would_be_noticed(bench: Any) -> None:
    every = 'max by (pc_node, gpu) (DCGM_FI_DEV_GPU_UTIL{pc_cluster="$cluster", pc_node=~"$node"})'
    devices = 'sum(rate(node_amazonefa_rx_bytes{pc_cluster="$cluster"}[$__rate_interval]))'
    one = every.replace("=~", "=")
    wide = {"type": "timeseries", "gridPos": {"w": 8}}
    panels = [{**wide, "title": expr, "targets": [{"expr": expr, "instant": False}]} for expr in (every, devices, one)]
    assert crowded({"panels": panels}, bench) == {every: 1600}
    assert [what.rsplit(": ", 1)[1] for what in raw({"panels": panels}, bench)] == [
        "DCGM_FI_DEV_GPU_UTIL, 8 series a node",
        "node_amazonefa_rx_bytes, 32 series a node",
    ]
    # 50 million samples ÷ 32 series ÷ 181 points, and ÷ 721.
    assert [int(bench.most_nodes(panels[1], hours)) for hours in (3, 24)] == [8632, 2167]


def test_only_xids_that_the_alerts_count_are_red() -> None:
    """A program's own XID 13 is no fault, and the gauge of the last XID keeps it until the driver is loaded anew."""
    (count,) = re.findall(r'xid!~"([0-9|]+)"}\[1h\]', (REPO / "roles/prometheus/files/rules/gpu.yml").read_text())
    asked = {}
    for path in FILES:
        for panel in panels(json.loads(path.read_text())):
            for target in panel["targets"]:
                assert "DCGM_FI_DEV_XID_ERRORS" not in target["expr"], panel["title"]
                if "XID_ERRORS_COUNT" in target["expr"]:
                    asked[path.stem, panel["title"]] = f'xid!~"{count}"' in target["expr"]
    assert asked == {
        ("gpu", "With an XID"): True,
        ("gpu", "Nodes whose GPUs need a look"): True,
        ("gpu", "Each GPU"): True,
        ("job", "GPUs with an XID"): False,
    }
