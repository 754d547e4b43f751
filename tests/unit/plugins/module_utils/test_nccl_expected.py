# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What to expect of nccl-tests, and what is impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl_expected as table
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl_results as results

P5 = "p5.48xlarge"
GIB = 2**30
MINE: dict[str, Any] = {"instance_type": P5, "nodes": 2, "collective": "all_reduce", "size": "16G", "busbw": 450}
LOG = Path(__file__).parents[2] / "fixtures" / "nccl" / "2.17-timestamps.txt"


@pytest.mark.parametrize("row", table.PUBLISHED, ids=lambda row: f"{row.instance_type}-{row.nodes}-{row.collective}")
def test_every_published_figure_has_a_source_and_is_possible(row: table.Expectation) -> None:
    """A figure above the limit would say that one of the two is wrong."""
    assert row.source.startswith("https://")
    assert row.meaning
    most = table.limit(row.instance_type, row.nodes, row.collective)
    assert most is not None
    assert 0.35 * most.busbw < row.busbw < most.busbw


def test_the_published_figure_of_two_p5_nodes() -> None:
    """It is above the 400 GB/s of the wire, and the reason is told."""
    row = table.expected(P5, 2, "all_reduce", 16 * GIB)
    assert row is not None
    assert row.busbw == 487.09
    assert "NVLink" in row.meaning
    # three nodes of eight GPUs: sizes are cut to what 24 ranks share
    assert table.expected(P5, 2, "all_reduce_perf", 16 * GIB - 64) == row


@pytest.mark.parametrize(
    ("kind", "nodes", "collective", "size"),
    [
        (P5, 3, "all_reduce", 16 * GIB),
        (P5, 2, "all_gather", 16 * GIB),
        (P5, 2, "all_reduce", 32 * GIB),
        (P5, 2, "all_reduce", 64 * 2**20),
        ("p6-b200.48xlarge", 2, "all_reduce", 16 * GIB),
        ("c7i.large", 2, "all_reduce", 16 * GIB),
    ],
)
def test_what_nobody_has_published_is_not_made_up(kind: str, nodes: int, collective: str, size: int) -> None:
    assert table.expected(kind, nodes, collective, size) is None
    assert table.judge(1.0, table.expected(kind, nodes, collective, size)).status == "unknown"


@pytest.mark.parametrize(("kind", "like"), [("p5e.48xlarge", P5), ("p4d.24xlarge", "p4de.24xlarge")])
def test_types_with_the_same_links_share_figures(kind: str, like: str) -> None:
    """And say whose they are. Of p4d there is another one, measured with settings that cost 40 % of it."""
    own, other = table.curve(kind, 2, "all_reduce"), table.curve(like, 2, "all_reduce")
    assert [(row.size, row.busbw) for row in own] == [(row.size, row.busbw) for row in other]
    assert all(like in row.meaning for row in own)
    assert table.limit(kind, 2, "all_reduce") == table.limit(like, 2, "all_reduce")
    assert table.judge_run([(GIB, 45.73)], "p4d.24xlarge", 2, "all_reduce").status == "short"


@pytest.mark.parametrize(
    ("kind", "nodes", "collective", "size", "busbw", "status"),
    [
        # A fabric without GPUDirect RDMA, or half of whose devices are gone
        ("p5en.48xlarge", 2, "all_reduce", 16 * GIB, 98.0, "short"),
        ("p6-b200.48xlarge", 2, "all_gather", 16 * GIB, 159.0, "short"),
        (P5, 4, "all_reduce", 16 * GIB, 200.0, "short"),
        (P5, 16, "reduce_scatter", GIB, 79.0, "short"),
        ("p6-b200.48xlarge", 1, "all_reduce", 16 * GIB, 500.0, "short"),
        # What is not far below what is possible is nobody's to judge
        ("p5en.48xlarge", 2, "all_reduce", 16 * GIB, 310.0, "unknown"),
        (P5, 4, "all_reduce", GIB, 150.0, "unknown"),
        # As much on the wire as AWS' all_reduce of 654 GB/s
        ("p6-b300.48xlarge", 2, "all_gather", 16 * GIB, 349.0, "unknown"),
        ("p6-b300.48xlarge", 2, "reduce_scatter", 16 * GIB, 319.0, "short"),
        # Small messages are slow everywhere, an alltoall has another law, and without NVLink the wire is not the bound
        ("p5en.48xlarge", 2, "all_reduce", 2**29, 20.0, "unknown"),
        (P5, 2, "alltoall", 16 * GIB, 10.0, "unknown"),
        ("g5.48xlarge", 2, "all_reduce", 16 * GIB, 1.0, "unknown"),
    ],
)
def test_far_below_what_is_possible_is_short_without_a_figure(
    kind: str, nodes: int, collective: str, size: int, busbw: float, status: str
) -> None:
    found = table.judge_run([(8, 0.0), (size, busbw)], kind, nodes, collective)
    assert found.status == status, found
    assert "nobody has published what to expect" in found.message


@pytest.mark.parametrize(
    "row", [row for row in table.PUBLISHED if row.collective != "alltoall"], ids=lambda row: row[:4]
)
def test_no_published_figure_would_be_called_far_too_low(row: table.Expectation) -> None:
    most = table.limit(row.instance_type, row.nodes, row.collective)
    assert most is not None
    assert table.too_low(row.instance_type, row.nodes, row.collective, row.size, row.busbw, most) == ""


@pytest.mark.parametrize("busbw", [float("nan"), float("inf")])
@pytest.mark.parametrize(("kind", "size"), [(P5, 16 * GIB), ("p6-b200.48xlarge", 16 * GIB), (P5, 1024)])
def test_what_is_no_number_is_no_success(kind: str, size: int, busbw: float) -> None:
    found = table.judge_run([(size, busbw), (32 * GIB, 480.0)], kind, 2, "all_reduce")
    assert found.status == "suspicious"
    assert f"{busbw} GB/s is no bandwidth" in found.message


def test_a_peak_holds_for_larger_messages() -> None:
    """Where the source tells the peak alone."""
    row = table.expected(P5, 1, "all_reduce", 16 * GIB)
    assert row is not None
    assert (row.busbw, row.size) == (480.0, 8 * GIB)
    assert table.expected(P5, 1, "all_reduce", GIB) is None


@pytest.mark.parametrize(
    ("kind", "nodes", "collective", "ranks", "most"),
    [
        (P5, 2, "all_reduce", 0, 750.0),  # 400 x 15/16 / (1/2)
        (P5, 4, "all_gather", 0, 516.67),  # 400 x 31/32 / (3/4)
        (P5, 2, "all_reduce", 2, 400.0),  # one GPU of each node: nothing stays inside
        (P5, 2, "alltoall", 0, 93.75),  # 400 x 15 / (8 x 8)
        (P5, 8, "alltoall", 0, 56.25),
        (P5, 2, "broadcast", 0, 400.0),
        (P5, 1, "all_reduce", 0, 787.5),  # 450 x 2 x 7/8
        (P5, 1, "alltoall", 0, 450.0),
        ("p4d.24xlarge", 1, "all_reduce", 0, 300.0),  # its switches do not add
        ("p4d.24xlarge", 2, "all_reduce", 0, 93.75),
    ],
)
def test_limits(kind: str, nodes: int, collective: str, ranks: int, most: float) -> None:
    found = table.limit(kind, nodes, collective, ranks)
    assert found is not None
    assert found.busbw == pytest.approx(most, abs=0.01)
    assert "GB/s" in found.meaning


@pytest.mark.parametrize(
    ("kind", "nodes", "collective", "ranks"),
    [
        ("c7i.large", 2, "all_reduce", 0),
        ("g5.48xlarge", 1, "all_reduce", 0),  # no NVLink
        ("p5.4xlarge", 1, "all_reduce", 0),  # one GPU
        (P5, 2, "all_reduce", 15),  # not the same on each node
        (P5, 2, "all_reduce", 32),  # more than there are
        (P5, 2, "sendrecv", 0),
        (P5, 0, "all_reduce", 0),
    ],
)
def test_where_no_limit_is_known(kind: str, nodes: int, collective: str, ranks: int) -> None:
    assert table.limit(kind, nodes, collective, ranks) is None


@pytest.mark.parametrize(
    ("busbw", "status"),
    [(500.0, "ok"), (439.0, "ok"), (438.0, "short"), (0.0, "short"), (755.0, "ok"), (760.0, "suspicious")],
)
def test_judging(busbw: float, status: str) -> None:
    row, most = table.expected(P5, 2, "all_reduce", 16 * GIB), table.limit(P5, 2, "all_reduce")
    found = table.judge(busbw, row, most=most)
    assert found.status == status
    assert "GB/s" in found.message


def test_a_run_is_judged_by_its_largest_known_size() -> None:
    well = [(8, 0.0), (128 * 2**20, 100.0), (16 * GIB, 480.0), (32 * GIB, 430.0)]
    found = table.judge_run(well, P5, 2, "all_reduce")
    assert found == table.Judgement(
        "ok", "480 GB/s at 16 GiB, 99% of the 487.1 GB/s expected; less than expected at 128 MiB too"
    )
    sizes = [(2**power, 243.0) for power in range(27, 35)]
    said = table.judge_run(sizes, P5, 2, "all_reduce").message
    assert said.endswith("; less than expected at 7 sizes from 128 MiB to 8 GiB too")
    assert table.judge_run([*well, (64, 900.0)], P5, 2, "all_reduce").status == "suspicious"
    assert table.judge_run(well[:3][::2], P5, 3, "all_reduce").status == "unknown"
    assert table.judge_run([], P5, 2, "all_reduce").status == "unknown"
    assert table.judge_run([*well[:3], (32 * GIB, 10.0)], P5, 2, "all_reduce") == table.Judgement(
        "short",
        "10 GB/s at 32 GiB, 1% of the 750 GB/s that is possible; nobody has published what to expect, and less than "
        "40% of that is no healthy fabric",
    )
    assert table.judge_run([(16 * GIB, 400.0)], P5, 2, "all_reduce").status == "short"
    assert table.judge_run([(16 * GIB, 400.0)], P5, 2, "all_reduce", tolerance=0.2).status == "ok"


def test_an_alltoall_is_judged_by_its_peak() -> None:
    """What it has at the size of expert parallelism is less, and varies more."""
    assert table.judge_run([(2**26, 40.0), (GIB, 53.0), (16 * GIB, 53.9)], P5, 4, "alltoall").message == (
        "53.9 GB/s at 16 GiB, 100% of the 53.9 GB/s expected; less than expected at 64 MiB too"
    )
    assert table.judge_run([(2**26, 45.1), (GIB, 8.0), (16 * GIB, 5.0)], P5, 4, "alltoall").status == "short"
    assert table.judge_run([(2**26, 45.1), (GIB, 50.0)], P5, 4, "alltoall").status == "ok"


def test_judging_an_output() -> None:
    """Nodes and ranks come from it; what measured something else is not judged."""
    (result,) = results.parse(LOG.read_text())
    assert table.judge_result(result, P5).status == "ok"
    assert table.judge_result(result, "p6-b200.48xlarge").status == "unknown"
    assert table.judge_result(result, P5, rows=table.parse_rows([{**MINE, "busbw": 600}])).status == "short"
    assert "-C 1" in table.judge_result(result._replace(cputime=True), P5).message
    split = [rank._replace(group=rank.rank % 8) for rank in result.ranks]
    assert "8 sets of GPUs" in table.judge_result(result._replace(ranks=split), P5).message


def test_own_rows() -> None:
    """They come before published ones, and may be stricter."""
    rows = table.parse_rows([{**MINE, "tolerance": 0.01, "source": "our acceptance test"}])
    row = table.expected(P5, 2, "all_reduce", 16 * GIB, rows)
    assert row is not None
    assert (row.busbw, row.source, row.tolerance) == (450.0, "our acceptance test", 0.01)
    assert table.judge(440, row).status == "short"
    assert table.parse_rows(None) == table.parse_rows([]) == ()
    own = table.parse_rows([{**MINE, "instance_type": "g6e.48xlarge", "size": 1073741824, "nodes": "4", "busbw": 50}])
    assert table.expected("g6e.48xlarge", 4, "all_reduce", GIB, own) == own[0]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": 1}, "mine: found dict; needed: a list of dictionaries"),
        (["x"], "mine[0]: found 'x'; needed: a dictionary with instance_type, nodes, collective, size, busbw"),
        ([{**MINE, "bandwidth": 3}], "mine[0]: found bandwidth; needed: no other keys than instance_type"),
        ([{**MINE, "nodes": None, "size": ""}], "mine[0]: nodes, size not set; needed"),
        ([{**MINE, "instance_type": "p5"}], "mine[0]: instance_type: found 'p5'; needed: one such as p5.48xlarge"),
        ([MINE, {**MINE, "collective": "allsum"}], "mine[1]: collective: found 'allsum'; needed: one of all_reduce"),
        ([{**MINE, "size": "16GX"}], "mine[0]: size: '16GX' is no size; needed"),
        ([{**MINE, "size": 0}], "mine[0]: size: 0 is no size; needed"),
        ([{**MINE, "nodes": 0}], "mine[0]: nodes: found 0; needed: a number of nodes, 1 or more"),
        ([{**MINE, "nodes": 1.5}], "mine[0]: nodes: found 1.5; needed: a whole number"),
        ([{**MINE, "busbw": "fast"}], "mine[0]: busbw: found 'fast'; needed: a bus bandwidth in GB/s, above 0"),
        ([{**MINE, "busbw": float("nan")}], "mine[0]: busbw: found nan; needed"),
        ([{**MINE, "nodes": 64, "busbw": 470}], "mine[0]: busbw: found 470; needed: 405.6 GB/s or less, because more"),
        ([{**MINE, "tolerance": 10}], "mine[0]: tolerance: found 10; needed: a share below 1, such as 0.1"),
        ([MINE, MINE], "mine[1]: the same instance type, nodes, collective and size as another row"),
    ],
)
def test_wrong_rows_are_one_clear_line(value: Any, told: str) -> None:
    with pytest.raises(Problem) as error:
        table.parse_rows(value, "mine")
    assert str(error.value).startswith(told)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "size"), [("16G", 16 * GIB), ("128M", 2**27), ("64KiB", 65536), ("8", 8), (8, 8), (" 1g ", GIB)]
)
def test_sizes(value: Any, size: int) -> None:
    assert table.parse_size(value) == size
    assert table.parse_size(table.readable(size).replace(" ", "")) == size


def test_what_the_report_draws() -> None:
    drawn = table.for_report(P5, 2, "all_reduce")
    assert drawn is not None
    assert [point["busbw"] for point in drawn["points"]][-1] == 487.09
    assert drawn["limit"]["busbw"] == 750.0
    assert table.for_report("c7i.large", 2, "all_reduce") is None
