# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pictures of the dashboards, from a Prometheus that knows one node."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

REPO = Path(__file__).resolve().parents[3]
FILES = (REPO / "roles/grafana/files/dashboards").glob("*.json")
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FILES)}
LABELS = {"pc_node": "gpu-1", "gpu": "0", "UUID": "GPU-1", "node": "gpu-1", "user": "alice", "mountpoint": "/fsx"}


@pytest.fixture(scope="module")
def pictures() -> Any:
    return load("scripts/dashboard_pictures.py")


@pytest.fixture
def source(pictures: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Any]:
    """source(known) is a Prometheus with or without data; `asked` has its queries."""

    def make(known: bool) -> Any:
        made = pictures.Source("http://nowhere", 30, 15, {"cluster": "main", "job": "7"}, "gpu-2")
        made.asked = []

        def get(path: str, **parameters: Any) -> Any:
            made.asked.append(parameters["query"])
            values = [(made.end - 1800 + 30 * step, str(step % 7)) for step in range(60)]
            one = {"metric": LABELS, "values": values, "value": values[-1]}
            return [one] if known else []

        made.get = get
        return made

    return make


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_is_drawn_from_its_queries(pictures: Any, source: Callable[[bool], Any], name: str) -> None:
    made, prometheus = DASHBOARDS[name], source(True)
    drawn = pictures.picture(made, prometheus)
    ElementTree.fromstring(drawn)
    texts = [re.sub("…$", "", text) for text in re.findall(r">([^<]+)</text>", drawn.replace("&#x27;", "'"))]
    for panel in made["panels"]:
        assert any(panel["title"].startswith(text.removeprefix("⌄  ")) for text in texts), panel["title"]
    assert len(prometheus.asked) == sum(len(panel.get("targets", [])) for panel in made["panels"])
    assert not [query for query in prometheus.asked if re.search(r"\$[a-z_{]", query)]
    assert "No data" not in drawn


def test_panels_of_one_node_show_that_one_and_all_others_all(pictures: Any, source: Callable[[bool], Any]) -> None:
    prometheus = source(True)
    pictures.picture(DASHBOARDS["gpu"], prometheus)
    nodes = {node for query in prometheus.asked for node in re.findall(r'pc_node(=~?"[^"]*")', query)}
    assert nodes == {'=~".*"', '="gpu-2"'}


def test_the_job_is_in_the_title_of_its_picture_only(pictures: Any, source: Callable[[bool], Any]) -> None:
    drawn = {name: pictures.picture(made, source(True)) for name, made in DASHBOARDS.items()}
    assert [name for name, svg in drawn.items() if "job 7</title>" in svg] == ["job"]


def test_states_have_colours_that_mean_something(pictures: Any, source: Callable[[bool], Any]) -> None:
    panels = [panel for panel in DASHBOARDS["slurm"]["panels"] if panel["title"] == "Nodes by state"]
    drawn = pictures.picture({**DASHBOARDS["slurm"], "panels": panels}, source(True))
    found = dict(re.findall(r'height="3" fill="([^"]+)"[^>]*/>\n<text[^>]*>([^<]+)<', drawn))
    assert {name: color for color, name in found.items()} == {
        "in_use": "#5794f2",
        "idle": "#73bf69",
        "drained": "#ff9830",
        "down": "#f2495c",
        "powered_down": "#6e7077",
        "powering_up": "#EAB839",
    }


def test_a_strip_of_a_nodes_health_has_the_colours_of_its_states(
    pictures: Any, source: Callable[[bool], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (panel,) = (one for one in DASHBOARDS["overview"]["panels"] if one["title"] == "Nodes that were not well")
    assert panel["fieldConfig"]["defaults"]["mappings"][0]["options"]["2"]["text"] == "faulty"
    prometheus = source(True)
    values = [(prometheus.end - 1800 + 600 * state, str(state)) for state in range(3)]
    monkeypatch.setattr(prometheus, "get", lambda path, **asked: [{"metric": LABELS, "values": values}])
    drawn = pictures.history(panel, pictures.Plot(0, 0, 500, 100, prometheus))
    colors = [found[1] for part in drawn if (found := re.search(r'<rect .*fill="([^"]+)"', part))]
    assert colors == ["#73bf69", "#EAB839", "#f2495c"]


def test_what_has_no_data_says_so(pictures: Any, source: Callable[[bool], Any]) -> None:
    drawn = pictures.picture(DASHBOARDS["efa"], source(False))
    ElementTree.fromstring(drawn)
    assert "No data" in drawn


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "Bps", "0 B/s"),
        (3.2e9, "Bps", "3.2 GB/s"),
        (1024**3, "bytes", "1 GiB"),
        (2048, "mbytes", "2 GiB"),
        (42.123, "percent", "42.1%"),
        (0.5, "percentunit", "50%"),
        (7200, "s", "2.0 hours"),
        (0.0025, "s", "2.5 ms"),
        (1.98e9, "hertz", "1.98 GHz"),
        (1500, "short", "1.5 K"),
        (12, "none", "12"),
        (float("nan"), "none", ""),
    ],
)
def test_values_are_written_as_grafana_does(pictures: Any, value: float, unit: str, text: str) -> None:
    assert pictures.written(value, unit) == text
