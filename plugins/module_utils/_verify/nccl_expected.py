# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nccl-tests should measure: published figures, each with its source, and what no machine can exceed.

The figures are bus bandwidths out of place, in GB/s (10^9 bytes), for message sizes as nccl-tests means them (16G is
16 GiB). Only what somebody published for just that instance type, number of nodes, collective and size is here. Where
sources contradict each other (two nodes of p6-b200; the network of p6e-gb200) there is nothing: such results are shown,
not judged.

The limits follow from the hardware. With N nodes of g GPUs each (n = N g) and W GB/s from a node in each direction: an
all_reduce moves 2 (N-1)/N of the message over each node's wire, and bus bandwidth counts 2 (n-1)/n of it, so it is at
most W (n-1)/n / ((N-1)/N). For two nodes of eight GPUs that is 1.875 W: what stays inside the nodes counts, too, and
does not use the wire. An all_gather and a reduce_scatter have the same bound. Of an alltoall, (n-g)/n of what each GPU
sends leaves the node, hence W (n-1) / (g (n-g)). Inside one node each GPU's NVLink bounds what it sends or receives;
only an all_reduce may exceed that, where the switches add (NVLink SHARP): then at most 2 (n-1)/n of it.

Beyond the sizes that somebody has published, only what is far below the limit is judged: no published figure is. Of an
all_gather and a reduce_scatter between nodes, W stands for the limit there: NCCL has a ring for them alone, by which
all bytes cross the wire. Without NVLink the GPUs of a node may be slower among themselves than the wire, so that the
limit says nothing of what is well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.nccl_results import (
    COLLECTIVES,
    Result,
    collective_of,
)

TOLERANCE = 0.1
# Rounding and timers' noise
_SLACK = 1.01
# Sizes of collectives are cut to what divides by the ranks.
_SAME_SIZE = 0.01
_MIB, _GIB = 2**20, 2**30
_UNITS = {"": 1, "K": 2**10, "M": _MIB, "G": _GIB, "T": 2**40}
_AWSOME = "https://github.com/awslabs/awsome-distributed-ai/blob/main/"
_EC2 = "EC2's DescribeInstanceTypes, as https://karpenter.sh/docs/reference/instance-types/ lists it"
_NVLINK = _AWSOME + "1.architectures/efa-cheatsheet.md (NVLinks of each GPU)"
_READ = {"all_reduce", "all_gather", "reduce_scatter"}
# From which size on less than which share of the limit is too little, whoever has published what.
_TOO_LOW = ((16 * _GIB, 0.4), (_GIB, 0.2))
_NOBODY = "nobody has published what to expect"
KEYS = ("instance_type", "nodes", "collective", "size", "busbw", "source", "meaning", "tolerance")


class Expectation(NamedTuple):
    """A bus bandwidth that somebody has measured."""

    instance_type: str
    nodes: int
    collective: str
    size: int
    busbw: float  # GB/s
    source: str
    meaning: str
    and_up: bool = False  # whether larger messages should reach it too
    tolerance: float | None = None  # how much less is well, where the row says so


class Limit(NamedTuple):
    """A bus bandwidth that cannot be exceeded."""

    busbw: float  # GB/s
    meaning: str
    source: str


class Judgement(NamedTuple):
    """What a measurement means."""

    status: str  # ok, short, suspicious or unknown
    message: str


class Hardware(NamedTuple):
    """What an instance type has."""

    gpus: int
    gbps: int  # Gbit/s of all EFA devices, in each direction; _efa tells how many there are
    nvlink: int = 0  # GB/s of one GPU in one direction; 0 where there is none, or no switch
    sharp: bool = False  # whether the NVLink switches can add


_A100, _H100, _B200 = (300, False), (450, True), (900, True)
HARDWARE = {
    "p3dn.24xlarge": Hardware(8, 100),
    "p4d.24xlarge": Hardware(8, 400, *_A100),
    "p4de.24xlarge": Hardware(8, 400, *_A100),
    "p5.4xlarge": Hardware(1, 100),
    "p5.48xlarge": Hardware(8, 3200, *_H100),
    "p5e.48xlarge": Hardware(8, 3200, *_H100),
    "p5en.48xlarge": Hardware(8, 3200, *_H100),
    "p6-b200.48xlarge": Hardware(8, 3200, *_B200),
    "p6-b300.48xlarge": Hardware(8, 6400, *_B200),
    "g4dn.8xlarge": Hardware(1, 50),
    "g4dn.12xlarge": Hardware(4, 50),
    "g4dn.16xlarge": Hardware(1, 50),
    "g4dn.metal": Hardware(8, 100),
    "g5.8xlarge": Hardware(1, 25),
    "g5.12xlarge": Hardware(4, 40),
    "g5.16xlarge": Hardware(1, 25),
    "g5.24xlarge": Hardware(4, 50),
    "g5.48xlarge": Hardware(8, 100),
    "g6.8xlarge": Hardware(1, 25),
    "g6.12xlarge": Hardware(4, 40),
    "g6.16xlarge": Hardware(1, 25),
    "g6.24xlarge": Hardware(4, 50),
    "g6.48xlarge": Hardware(8, 100),
    "g6e.8xlarge": Hardware(1, 25),
    "g6e.12xlarge": Hardware(4, 100),
    "g6e.16xlarge": Hardware(1, 35),
    "g6e.24xlarge": Hardware(4, 200),
    "g6e.48xlarge": Hardware(8, 400),
    "g7e.8xlarge": Hardware(1, 100),
    "g7e.12xlarge": Hardware(2, 400),
    "g7e.24xlarge": Hardware(4, 800),
    "g7e.48xlarge": Hardware(8, 1600),
}


def _series(
    kind: str, nodes: int, collective: str, source: str, meaning: str, figures: dict[int, float], and_up: bool = False
) -> list[Expectation]:
    return [
        Expectation(kind, nodes, collective, size, busbw, source, meaning, and_up) for size, busbw in figures.items()
    ]


_P5 = "p5.48xlarge"
_TESTS = _AWSOME + "micro-benchmarks/nccl-tests/README.md"
_PCS = _AWSOME + "architectures/aws-pcs/tests/compute-test.md"
# Of July 2026: later ones have other machines.
_EP = (
    "https://github.com/awslabs/awsome-distributed-ai/blob/4f1c49ccc1b60227fdb29e73c011fbca3f5fd49b/"
    "micro-benchmarks/expert-parallelism/ep-backend-comparison/"
)
_ISSUE_1442 = "https://github.com/NVIDIA/nccl/issues/1442 (NVLink SHARP Performance on AWS P5)"
PUBLISHED: tuple[Expectation, ...] = (
    *(
        row
        for kind, whose in ((_P5, "p5.48xlarge"), ("p5e.48xlarge", "p5.48xlarge, which has the same links"))
        for row in _series(
            kind,
            2,
            "all_reduce",
            _TESTS,
            f"AWS's sample run on two nodes of {whose}. More than the 400 GB/s of the wire: bus bandwidth counts 1.875 "
            "times the message, of which one crosses the wire, and NVLink moves the rest",
            {
                128 * _MIB: 289.16,
                256 * _MIB: 342.81,
                512 * _MIB: 393.34,
                1 * _GIB: 436.95,
                2 * _GIB: 443.72,
                4 * _GIB: 465.87,
                8 * _GIB: 479.28,
                16 * _GIB: 487.09,
            },
        )
    ),
    # Of p4d itself ParallelCluster's own test tells 45.73, with NCCL_ALGO and NCCL_PROTO set, which are harmful.
    *(
        row
        for kind, whose in (
            ("p4de.24xlarge", "p4de.24xlarge"),
            ("p4d.24xlarge", "p4de.24xlarge, which has the same links"),
        )
        for row in _series(
            kind,
            2,
            "all_reduce",
            _TESTS,
            f"AWS's sample run on two nodes of {whose}. More than the 50 GB/s of the wire, because NVLink moves a part",
            {
                128 * _MIB: 64.31,
                256 * _MIB: 69.89,
                512 * _MIB: 74.28,
                1 * _GIB: 76.79,
                2 * _GIB: 78.33,
            },
        )
    ),
    *_series(
        "p4d.24xlarge",
        1,
        "all_reduce",
        "https://github.com/NVIDIA/nccl/issues/527 (a user's figures for one to four nodes)",
        "Eight A100 over NVLink, 300 GB/s in each direction",
        {1 * _GIB: 230.77},
    ),
    *_series(
        _P5,
        1,
        "all_reduce",
        _ISSUE_1442 + " and https://github.com/NVIDIA/nccl-tests/issues/212",
        "The peak of eight H100, which NVIDIA confirms: 370 GB/s of NVLink that reach NCCL, and 30 % more because the "
        "switches add (NVLink SHARP). The size is not stated; 256 MiB are said to be too few",
        {8 * _GIB: 480.0},
        and_up=True,
    ),
    *(
        row
        for collective in ("all_gather", "reduce_scatter")
        for row in _series(
            _P5,
            1,
            collective,
            _ISSUE_1442,
            "NVIDIA's word for all but all_reduce: of NVLink's 450 GB/s in each direction, 370 reach NCCL. The size is "
            "not stated",
            {8 * _GIB: 370.0},
            and_up=True,
        )
    ),
    *(
        row
        for kind in ("p5e.48xlarge", "p5en.48xlarge")
        for row in _series(
            kind,
            1,
            "all_reduce",
            "https://github.com/NVIDIA/nccl-tests/issues/272 (8 H200 with NVLink 4)",
            "Eight H200 in a server with the same GPUs and NVLink switches, which is none of AWS's",
            {4 * _GIB: 475.0},
            and_up=True,
        )
    ),
    *_series(
        "p6-b200.48xlarge",
        4,
        "all_reduce",
        _PCS,
        "AWS's run on four nodes, said not to be tuned. More nodes mean that less of it stays inside one",
        {128 * _MIB: 295.0, 256 * _MIB: 325.0, 1 * _GIB: 367.0, 4 * _GIB: 375.0, 16 * _GIB: 377.0},
    ),
    *_series(
        "p6-b300.48xlarge",
        2,
        "all_reduce",
        _PCS,
        "AWS's run on two nodes. The 16 EFA devices are not yet busy with 16 GiB",
        {16 * _GIB: 654.0, 64 * _GIB: 751.0},
    ),
    *(
        row
        for kind, nodes, page, busbw, peak in (
            (_P5, 4, "RESULTS-p5.md", 45.1, 53.9),
            (_P5, 8, "RESULTS-p5.md", 40.4, 51.1),
            ("p6-b300.48xlarge", 2, "RESULTS.md", 104.9, 179.6),
            ("p6-b300.48xlarge", 4, "RESULTS.md", 93.9, 116.9),
            ("p6-b300.48xlarge", 8, "RESULTS.md", 72.5, 103.1),
            ("p6-b300.48xlarge", 16, "RESULTS.md", 73.8, 84.0),
            ("p6-b300.48xlarge", 32, "RESULTS.md", 54.7, 74.4),
        )
        for size, figure, meaning in (
            (64 * _MIB, busbw, "AWS's reference for expert parallelism, at its size of message"),
            (8 * _GIB, peak, "The peak of AWS's reference for expert parallelism, which ran up to 8 GiB"),
        )
        for row in _series(
            kind,
            nodes,
            "alltoall",
            _EP + page,
            f"{meaning}. Most of an alltoall leaves the node: it is far below all_reduce",
            {size: figure},
            and_up=figure == peak,
        )
    ),
)


def readable(size: int) -> str:
    """Return 16 GiB for 17179869184."""
    for unit, word in ((2**40, "TiB"), (_GIB, "GiB"), (_MIB, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {word}"
    return f"{size} B"


def parse_size(value: Any) -> int:
    """Return the bytes that 16G, 128M, 64KiB or a number mean, as nccl-tests reads them."""
    match = re.fullmatch(r"(\d{1,18})\s*([KMGT]?)(?:i?B)?", str(value).strip(), re.IGNORECASE)
    if isinstance(value, bool) or not match or not int(match[1]):
        raise Problem(f"{value!r} is no size; needed: a number of bytes, or one such as 128M or 16G")
    return int(match[1]) * _UNITS[match[2].upper()]


def parse_rows(value: Any, variable: str = "verify_nccl_expected") -> tuple[Expectation, ...]:
    """Return the user's own rows: a list of dictionaries."""
    if value in (None, ""):
        return ()
    if not isinstance(value, (list, tuple)):
        raise Problem(f"{variable}: found {type(value).__name__}; needed: a list of dictionaries")
    rows = [_row(item, f"{variable}[{index}]", variable) for index, item in enumerate(value)]
    keys = [row[:4] for row in rows]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            raise Problem(f"{variable}[{index}]: the same instance type, nodes, collective and size as another row")
    return tuple(rows)


def _row(item: Any, where: str, variable: str) -> Expectation:
    if not isinstance(item, dict):
        raise Problem(f"{where}: found {item!r}; needed: a dictionary with {', '.join(KEYS[:5])}")
    strange = sorted(str(key) for key in item if key not in KEYS)
    if strange:
        raise Problem(f"{where}: found {', '.join(strange)}; needed: no other keys than {', '.join(KEYS)}")
    missing = [key for key in KEYS[:5] if item.get(key) in (None, "")]
    if missing:
        raise Problem(f"{where}: {', '.join(missing)} not set; needed: {', '.join(KEYS[:5])}")
    kind = str(item["instance_type"])
    if not re.fullmatch(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", kind):
        raise Problem(f"{where}: instance_type: found {kind!r}; needed: one such as p5.48xlarge")
    collective = collective_of(str(item["collective"]))
    if not collective:
        names = ", ".join(COLLECTIVES)
        raise Problem(f"{where}: collective: found {item['collective']!r}; needed: one of {names}")
    try:
        size = parse_size(item["size"])
    except Problem as error:
        raise Problem(f"{where}: size: {error}") from error
    nodes = _above(item["nodes"], f"{where}: nodes", "a number of nodes, 1 or more")
    if nodes != int(nodes):
        raise Problem(f"{where}: nodes: found {item['nodes']!r}; needed: a whole number")
    busbw = _above(item["busbw"], f"{where}: busbw", "a bus bandwidth in GB/s, above 0")
    tolerance = item.get("tolerance")
    if tolerance not in (None, ""):
        tolerance = _above(tolerance, f"{where}: tolerance", "a share such as 0.1", zero=True)
        if tolerance >= 1:
            raise Problem(f"{where}: tolerance: found {item['tolerance']!r}; needed: a share below 1, such as 0.1")
    most = limit(kind, int(nodes), collective)
    if most and busbw > most.busbw:
        possible = f"{most.busbw:.4g} GB/s or less, because more is not possible: {most.meaning}"
        raise Problem(f"{where}: busbw: found {busbw:.4g}; needed: {possible}")
    source, meaning = str(item.get("source") or variable), str(item.get("meaning") or "the user's own figure")
    tolerance = None if tolerance in (None, "") else tolerance
    return Expectation(kind, int(nodes), collective, size, busbw, source, meaning, False, tolerance)


def _above(value: Any, where: str, needed: str, zero: bool = False) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not (number > 0 or (zero and number == 0)) or number == float("inf"):
        raise Problem(f"{where}: found {value!r}; needed: {needed}")
    return number


def curve(instance_type: str, nodes: int, collective: str, rows: Iterable[Expectation] = ()) -> tuple[Expectation, ...]:
    """Return all rows for one kind of run, by size; the user's own ones replace published ones of the same size."""
    found: dict[int, Expectation] = {}
    for row in (*PUBLISHED, *rows):
        if (row.instance_type, row.nodes, row.collective) == (instance_type, nodes, collective_of(collective)):
            found[row.size] = row
    return tuple(found[size] for size in sorted(found))


def expected(
    instance_type: str, nodes: int, collective: str, size_bytes: int, rows: Iterable[Expectation] = ()
) -> Expectation | None:
    """Return what should be measured; None where nobody has published it and the user's rows do not say."""
    largest = None
    for row in curve(instance_type, nodes, collective, rows):
        if abs(size_bytes - row.size) <= _SAME_SIZE * row.size:
            return row
        if row.and_up and size_bytes > row.size:
            largest = row
    return largest


def limit(instance_type: str, nodes: int, collective: str, ranks: int = 0) -> Limit | None:
    """Return what cannot be exceeded, None where that is unknown; by default all GPUs take part."""
    hardware, collective = HARDWARE.get(instance_type), collective_of(collective)
    if not hardware or nodes < 1:
        return None
    n = ranks or nodes * hardware.gpus
    per_node = n // nodes
    if n < 2 or per_node * nodes != n or per_node > hardware.gpus:
        return None
    if nodes == 1:
        return _inside(hardware, collective, n)
    wire = hardware.gbps / 8
    said = f"{nodes} nodes with {wire:.4g} GB/s of EFA each, in each direction"
    if collective in _READ:
        share = (n - 1) / n / ((nodes - 1) / nodes)
        return Limit(wire * share, f"{said}, times {share:.4g} for what stays inside the nodes", _EC2)
    if collective == "alltoall":
        return Limit(wire * (n - 1) / (per_node * (n - per_node)), f"{said}, shared by {per_node} GPUs", _EC2)
    if collective in ("broadcast", "reduce"):
        return Limit(wire, said, _EC2)
    return None


def _inside(hardware: Hardware, collective: str, n: int) -> Limit | None:
    if not hardware.nvlink or collective not in (*_READ, "alltoall", "broadcast", "reduce", "sendrecv"):
        return None
    said = f"{hardware.nvlink} GB/s of NVLink for each GPU, in each direction"
    if collective == "all_reduce" and hardware.sharp:
        share = 2 * (n - 1) / n
        return Limit(hardware.nvlink * share, f"{said}, times {share:.4g} where the switches add", _NVLINK)
    return Limit(float(hardware.nvlink), said, _NVLINK)


def too_low(instance_type: str, nodes: int, collective: str, size: int, busbw: float, most: Limit | None) -> str:
    """Return why no healthy machine is that slow at this size; nothing where one may be."""
    hardware, collective = HARDWARE.get(instance_type), collective_of(collective)
    if not most or not hardware or not hardware.nvlink or collective not in _READ:
        return ""
    wire = nodes > 1 and collective != "all_reduce"
    possible = min(most.busbw, hardware.gbps / 8) if wire else most.busbw
    share = next((share for at, share in _TOO_LOW if size >= at * (1 - _SAME_SIZE)), 0.0)
    if busbw >= share * possible:
        return ""
    what = f"of the {possible:.4g} GB/s of the wire" if wire else "of that"
    return f"{_NOBODY}, and less than {share:.0%} {what} is no healthy fabric"


def judge(
    result: float,
    expectation: Expectation | None,
    tolerance: float = TOLERANCE,
    most: Limit | None = None,
    size: int = 0,
) -> Judgement:
    """Judge a bus bandwidth by the expected and the possible one."""
    if not math.isfinite(result):
        return Judgement("suspicious", f"{result} GB/s is no bandwidth")
    if most and result > most.busbw * _SLACK:
        return Judgement(
            "suspicious", f"{result:.4g} GB/s is more than is possible, {most.busbw:.4g} GB/s: {most.meaning}"
        )
    if not expectation:
        at = f" at {readable(size)}" if size else ""
        of = f", {result / most.busbw:.0%} of the {most.busbw:.4g} GB/s that is possible" if most else ""
        return Judgement("unknown", f"{result:.4g} GB/s{at}{of}; {_NOBODY}, so it is not judged")
    tolerance = tolerance if expectation.tolerance is None else expectation.tolerance
    share = result / expectation.busbw
    at = readable(size or expectation.size)
    said = f"{result:.4g} GB/s at {at}, {share:.0%} of the {expectation.busbw:.4g} GB/s expected"
    return Judgement("short" if share < 1 - tolerance else "ok", said)


def judge_run(
    measured: Sequence[tuple[int, float]],
    instance_type: str,
    nodes: int,
    collective: str,
    *,
    ranks: int = 0,
    rows: Iterable[Expectation] = (),
    tolerance: float = TOLERANCE,
) -> Judgement:
    """Judge a whole run, (size, busbw) for each row: by the largest size that has an expectation.

    Smaller sizes depend more on versions and settings: what is short there is told, and does not decide. Beyond all
    expectations the largest size is judged by what is possible.
    """
    rows, most = tuple(rows), limit(instance_type, nodes, collective, ranks)
    if not measured:
        return Judgement("unknown", "nothing was measured")
    judged: list[tuple[int, Judgement]] = []
    for size, busbw in sorted(measured):
        row = expected(instance_type, nodes, collective, size, rows)
        verdict = judge(busbw, row, tolerance, most, size)
        if verdict.status == "suspicious":
            return Judgement("suspicious", f"at {readable(size)}: {verdict.message}")
        if row:
            judged.append((size, verdict))
    size, busbw = max(measured)
    if not judged or size > judged[-1][0]:
        verdict = judge(busbw, None, most=most, size=size)
        why = too_low(instance_type, nodes, collective, size, busbw, most)
        if why:
            return Judgement("short", f"{verdict.message.partition(';')[0]}; {why}")
        if not judged:
            return verdict
    *smaller, (_size, last) = judged
    short = [readable(size) for size, verdict in smaller if verdict.status == "short"]
    where = ", ".join(short) if len(short) < 3 else f"{len(short)} sizes from {short[0]} to {short[-1]}"
    more = f"; less than expected at {where} too" if short else ""
    return last._replace(message=last.message + more)


def judge_result(
    result: Result,
    instance_type: str,
    *,
    nodes: int = 0,
    rows: Iterable[Expectation] = (),
    tolerance: float = TOLERANCE,
) -> Judgement:
    """Judge a test's output; what cannot be compared with published figures is told, and not judged."""
    if result.cputime:
        return Judgement("unknown", "its times are the CPU's (-C 1), which say nothing of the bandwidth")
    if result.groups > 1:
        return Judgement("unknown", f"{result.groups} sets of GPUs ran at the same time (NCCL_TESTS_SPLIT)")
    measured = [(row.size, row.busbw) for row in result.rows]
    nodes, ranks = nodes or len(result.hosts) or 1, len(result.ranks)
    return judge_run(measured, instance_type, nodes, result.collective, ranks=ranks, rows=rows, tolerance=tolerance)


def for_report(
    instance_type: str,
    nodes: int,
    collective: str,
    *,
    ranks: int = 0,
    rows: Iterable[Expectation] = (),
    tolerance: float = TOLERANCE,
) -> dict[str, Any] | None:
    """Return what the report draws beside what was measured: `points`, `limit`, `tolerance`; None without both."""
    points, most = curve(instance_type, nodes, collective, rows), limit(instance_type, nodes, collective, ranks)
    if not points and not most:
        return None
    return {
        "points": [
            {key: getattr(row, key) for key in ("size", "busbw", "source", "meaning", "and_up")} for row in points
        ],
        "limit": most._asdict() if most else None,
        "tolerance": tolerance,
    }
