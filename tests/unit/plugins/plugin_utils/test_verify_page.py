# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report's page."""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl_expected
from ansible_collections.pcluster.postboot.plugins.plugin_utils._verify.page import render

P5 = "p5.48xlarge"
SIZES = [2**power for power in range(20, 35, 2)]
EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&"


def run(stage: str = "two_nodes", nodes: int = 2, busbw: float = 480.0, **more: Any) -> dict[str, Any]:
    """Return a run whose bandwidth grows evenly with the size's logarithm."""
    rows = []
    for index, size in enumerate(SIZES):
        half = {"time_us": 10.0 * size, "algbw": 1.0, "busbw": busbw * (index + 1) / len(SIZES), "wrong": 0}
        rows.append({"size": size, "count": size // 4, "out_of_place": half, "in_place": half})
    made = {
        "stage": stage,
        "partition": "gpu",
        "instance_type": P5,
        "nodes": [f"gpu-{index + 1}" for index in range(nodes)],
        "ranks": 8 * nodes,
        "container": False,
        "collective": "all_reduce",
        "rows": rows,
        "expectation": nccl_expected.for_report(P5, nodes, "all_reduce"),
        "judgement": {"status": "ok", "message": "480 GB/s at 16 GiB, 99% of the 487.1 GB/s expected"},
        "provider": "efa",
        "nics": 32,
        "environment": {"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_secret"},
        "versions": {"NCCL": "2.32.3"},
        "log": "/fsx/nccl-tests/results/x.log",
    }
    return {**made, **more}


def report(**more: Any) -> dict[str, Any]:
    """Return a small report."""
    checks = [
        {"stage": "fabric", "name": "EFA", "subject": "gpu", "status": "ok", "message": "32 each", "details": {"a": 1}},
        {"stage": "fabric", "name": "versions", "subject": "gpu", "status": "skipped", "message": "none is up"},
    ]
    made = {"ok": True, "verdict": "It performs.", "cluster": "east", "region": "us-east-1", "user": "ubuntu"}
    times = {"started": "2026-11-20T09:00:00Z", "finished": "2026-11-20T09:21:00Z"}
    return {**made, **times, "checks": checks, "runs": [run()], "pairs": [], **more}


def page(value: dict[str, Any]) -> ElementTree.Element:
    """Return the parsed page, which is well-formed XML too."""
    return ElementTree.fromstring(render(value).replace("<!DOCTYPE html>", ""))


def text(element: ElementTree.Element) -> str:
    """Return the text of an element, its parts separated."""
    return " ".join(" ".join(element.itertext()).split())


def charts(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Return the drawings of curves."""
    return [item for item in root.iter("svg") if item.get("class") == "chart"]


def test_the_page_needs_nothing_else() -> None:
    """No script, no address that is fetched, and a policy that forbids both."""
    root = page(report())
    assert {item.tag for item in root.iter()}.isdisjoint({"script", "link", "img", "iframe", "object", "embed"})
    assert not [key for item in root.iter() for key in item.attrib if key.startswith("on") or key in ("src", "srcset")]
    assert set(re.findall(r"url\(([^)]*)\)|@import", render(report()))) <= {"#hatch1"}
    policies = [item.get("content") for item in root.iter("meta") if item.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    links = [str(item.get("href")) for item in root.iter("a")]
    assert links
    assert all(link.startswith("https://") for link in links)


def test_the_verdict_comes_first() -> None:
    """With what is wrong."""
    said = text(next(page(report()).iter("main")))
    assert said.startswith("It performs. 2 checks: 1 passed, 1 skipped; 1 measurement.")
    bad = report(ok=False, verdict="gpu-2 is slow.")
    bad["checks"][0].update(status="failed", message="16 devices on gpu-2")
    bad["runs"][0]["judgement"] = {"status": "short", "message": "48% of it"}
    root = page(bad)
    points = [text(item) for item in next(root.iter("section")).iter("li")]
    assert points == ["gpu: EFA: 16 devices on gpu-2", f"Two nodes, all_reduce on the host, 2 × {P5}: 48% of it"]
    assert text(next(root.iter("title"))) == "east: not verified"


def evil(value: Any) -> Any:
    """Return the same with evil words everywhere."""
    if isinstance(value, dict):
        return {f"{key}{EVIL}" if key in ("NCCL", "NCCL_DEBUG") else key: evil(item) for key, item in value.items()}
    if isinstance(value, list):
        return [evil(item) for item in value]
    return value + EVIL if isinstance(value, str) else value


def test_everything_is_escaped() -> None:
    """Names, messages and logs come from jobs of users."""
    pair = {"nodes": ["gpu-1", "gpu-2"], "busbw": 1.0, "expected": 2.0, "collective": "x", "size": 8, "message": "y"}
    value = evil(report(pairs=[{**pair, "status": "short"}]))
    root = page(value)
    assert {item.tag for item in root.iter()}.isdisjoint({"script", "img"})
    assert not [key for item in root.iter() for key in item.attrib if key.startswith("on")]
    for said in ("It performs.", "east", "ubuntu", "32 each", "gpu-1", "2.32.3", "x.log", "INFO", "NCCL", P5):
        assert said + " ".join(EVIL.split()) in text(root), said
    value["verdict"] = "a\x00b\udcffc\x1b[1m"
    assert "a�b?c�[1m" in text(page(value))


def test_a_chart_is_drawn_to_scale() -> None:
    """Sizes by their logarithm, bandwidths in proportion, all inside of the picture."""
    (chart,) = charts(page(report()))
    places = []
    for mark in chart.iter("path"):
        match = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", mark.get("transform", ""))
        if match:
            places.append((float(match[1]), float(match[2])))
    assert len(places) == len(SIZES)
    steps = [b[0] - a[0] for a, b in zip(places, places[1:])]
    assert max(steps) - min(steps) < 0.3
    heights = [a[1] - b[1] for a, b in zip(places, places[1:])]
    assert max(heights) - min(heights) < 0.3
    assert steps[0] > 0
    assert heights[0] > 0
    width, height = (float(number) for number in str(chart.get("viewBox")).split()[2:])
    assert all(0 < x < width and 0 < y < height for x, y in places)


def test_a_chart_has_expectation_limit_and_words() -> None:
    """For who sees it and for who hears it."""
    (chart,) = charts(page(report()))
    kinds = [item.get("class") for item in chart.iter()]
    assert kinds.count("goalmark") == len(nccl_expected.curve(P5, 2, "all_reduce"))
    assert kinds.count("wall") == 1
    title, told = (text(next(chart.iter(tag))) for tag in ("title", "desc"))
    assert title == f"all_reduce on 2 × {P5}: bus bandwidth over message size"
    assert "480 GB/s at 16 GiB" in told
    assert "Expected: 487 GB/s at 16 GiB. Impossible above 750 GB/s." in told
    names = str(chart.get("aria-labelledby")).split()
    assert {item.get("id") for item in chart.iter() if item.tag in ("title", "desc") and item.get("id")} == set(names)


def test_a_limit_far_above_does_not_press_the_curve_flat() -> None:
    """It is told in words instead."""
    (chart,) = charts(page(report(runs=[run(busbw=100.0, expectation={"limit": {"busbw": 750.0}, "points": []})])))
    assert "wall" not in [item.get("class") for item in chart.iter()]
    assert "impossible above 750, beyond this chart" in text(chart)


def test_one_chart_for_each_stage_and_collective() -> None:
    """Bare and in a container are lines of one; identifiers are not used twice."""
    runs = [
        run("one_node", 1),
        run("one_node", 1, container=True),
        run("two_nodes", 2),
        run("two_nodes", 2, collective="alltoall", expectation=None, judgement={"status": "unknown", "message": "?"}),
    ]
    root = page(report(runs=runs))
    assert len(charts(root)) == 3
    assert [item.get("class") for item in charts(root)[0].iter()].count("measured sb") == 1
    names = [item.get("id") for item in root.iter() if item.get("id")]
    assert len(names) == len(set(names))
    heads = [text(item) for item in root.iter("h2")]
    assert heads[:3] == ["One node", "Two nodes", "Nodes"]
    assert "1 of them without a published figure" in text(root)


def test_many_runs_of_a_kind_are_three_lines() -> None:
    """The slowest, the median and the fastest node."""
    runs = [{**run("one_node", 1, 400.0 + 10 * index), "nodes": [f"gpu-{index}"]} for index in range(9)]
    root = page(report(runs=runs))
    (chart,) = charts(root)
    told = text(next(chart.iter("desc")))
    assert [f"{word} on the host, gpu-{n}" in told for word, n in (("Slowest", 0), ("Median", 4), ("Fastest", 8))]
    assert [item.get("class") for item in chart.iter()].count("measured sc") == 1
    assert "9 runs" in text(root)


def test_the_slow_node_comes_first() -> None:
    """A node whose pairs are all slow; its partners are not blamed for it."""
    pairs = []
    for nodes, busbw, status in ((("a", "b"), 486, "ok"), (("a", "c"), 231, "short"), (("b", "c"), 230, "short")):
        pairs.append(
            {"nodes": list(nodes), "busbw": busbw, "expected": 487, "status": status, "collective": "all_reduce"}
        )
    section = next(item for item in page(report(pairs=pairs)).iter("section") if text(item).startswith("Nodes"))
    rows = [[text(cell) for cell in row] for row in next(section.iter("tbody"))]
    assert [(row[0], row[3], row[-1]) for row in rows] == [
        ("c", "230 to 231", "too slow"),
        ("a", "231 to 486", "passed"),
        ("b", "230 to 486", "passed"),
    ]
    assert "2 more nodes ran together with others only." in text(section)


def test_findings_are_a_table_with_the_gravest_first() -> None:
    one = {"node": "gpu-1", "finding": "gpu_diag", "subject": "GPU 3", "evidence": EVIL, "source": "https://x.y/z"}
    found = [
        {**one, "class": "watch"},
        {**one, "class": "replace", "node": "gpu-2"},
        {"class": "odd", "node": "gpu-0", "deep": False},
        "no finding",
    ]
    assert "What is wrong with nodes" not in render(report())
    root = page(report(findings=found))
    (table,) = [item for item in root.iter("table") if "Evidence" in text(item)]
    rows = [text(row) for row in table.iter("tr")][1:]
    assert [row.split()[0] for row in rows] == ["gpu-2", "gpu-1", "gpu-0"]
    assert rows[0].split()[1:5] == ["gpu_diag", "replace", "GPU", "3"]
    assert EVIL in rows[0].replace("  ", " ")
    assert "by the node's own checks" in rows[2]
    assert "https://x.y/z" in [link.get("href") for link in table.iter("a")]
    kinds = [item.get("class") for item in table.iter("span") if "badge" in (item.get("class") or "")]
    assert kinds == ["badge word bad", "badge word warn", "badge word none"]


def test_what_differs_is_told_and_secrets_are_not() -> None:
    """Versions inside of a container are its own."""
    said = text(page(report(runs=[run(), run(container=True, versions={"NCCL": "2.30.4"})])))
    assert "NCCL differs 2.32.3 in Two nodes on the host 2.30.4 in Two nodes in a container" in said
    assert "HF_TOKEN hidden" in said
    assert "hf_secret" not in said


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"runs": [{}], "checks": [{}], "pairs": [{}]},
        {"runs": None, "checks": "x", "pairs": 3, "started": "yesterday"},
        {"runs": [{"rows": [{"size": 8}, {"size": None}, 7], "stage": ["x"], "nodes": "abc", "expectation": []}]},
        {"runs": [run(rows=[])], "pairs": [{"nodes": [None], "busbw": float("nan"), "status": "?"}]},
        {"runs": [run(rows=run()["rows"][:1], expectation={"points": [{"size": 0, "busbw": 1}], "limit": {}})]},
    ],
)
def test_whatever_is_missing(value: dict[str, Any]) -> None:
    """A report of a job that failed is worth most."""
    before = copy.deepcopy(value)
    assert len(charts(page(value))) == len(value.get("runs") or [])
    assert repr(value) == repr(before)


def luminance(colour: str) -> float:
    """Return how light a colour is, as WCAG has it."""
    digits = colour.lstrip("#") if len(colour) == 7 else "".join(digit * 2 for digit in colour.lstrip("#"))
    parts = [int(digits[index : index + 2], 16) / 255 for index in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_everything_can_be_read(mode: int) -> None:
    """Text has a contrast of at least 4.5 to what it stands on, in both modes; lines have 3."""
    blocks = re.findall(r":root \{(.*?)\}", render(report()), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", blocks[mode]))
    for front in ("ink", "soft", "good", "bad", "warn", "none", "a", "b", "c", "d", "wall", "goal"):
        backs = ["card", "paper", *([f"{front}-wash"] if f"{front}-wash" in colours else [])]
        for back in backs:
            dark, light = sorted((luminance(colours[front]), luminance(colours[back])))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (front, back)
