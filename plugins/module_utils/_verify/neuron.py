# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stage `neuron`: Trainium and Inferentia have all their devices, and a collective among the cores of a node works.

neuron-ls tells of the devices, nccom-test measures; both come with aws-neuronx-tools (AWS' "Neuron LS User Guide" and
"NCCOM-TEST User Guide"). Where one of them is missing, nothing is measured, which is told. nccom-test needs MPI, or a
head node that has it, to run on several nodes at once: that is not measured here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._efa import devices
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._node.neuron import TYPES, has_neuron
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import shown
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import nccl_expected as expected
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.cluster import Context, Node, Output
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.nccl import AT_ONCE, SLOW, STATUSES, whole_nodes
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.report import Check

# Where aws-neuronx-tools puts its programs, which no profile script adds to a job's PATH.
TOOLS = "/opt/aws/neuron/bin"
_COLLECTIVE = "all_reduce"
# From 1 MiB to 1 GiB, as in AWS' guide: a core of Trainium has 16 GiB for its input and its output.
_MEASURE = f"nccom-test {_COLLECTIVE} -r @RANKS@ -b 1MB -e 1GB -f 4 -d fp32 --non-interactive --check"
# In parts: srun takes a line of more than 1024 bytes apart.
_BEGIN = f"""
PATH=$PATH:{TOOLS}
folder=$(mktemp -d) && cd "$folder" || exit
trap 'rm -rf "$folder"' EXIT
parts() {{ (tr '\\n' ' '; echo) | fold -b -w 400 | while IFS= read -r part; do say "$1" "$part"; done; }}
"""
LIST = (
    _BEGIN
    + """
if ! command -v neuron-ls > /dev/null; then say none neuron-ls
else
  timeout 60 neuron-ls --json-output > told 2> errors
  say code $?
  parts told < told
  parts errors < errors
fi
"""
)
MEASURE = (
    _BEGIN
    + f"""
if ! command -v nccom-test > /dev/null; then say none nccom-test
else
  {_MEASURE} > told 2>&1
  say code $?
  while IFS= read -r line; do say row "$line"; done < told
fi
"""
)
# What nccom-test says instead of a row, and at its end, where it failed (AWS' guide).
_FAILED = re.compile(r"Failure running|errors found|is not running", re.IGNORECASE)


class Row(NamedTuple):
    """What was measured of one size."""

    size: int  # bytes
    time: float  # µs
    algbw: float  # GB/s
    busbw: float  # GB/s


class _Found(NamedTuple):
    """What neuron-ls tells of a node."""

    devices: int
    cores: int  # physical
    ranks: int  # logical cores, each of which is a rank


def run(context: Context) -> Iterator[Check]:
    """Yield what becomes of each check; the runs themselves are added to context.runs."""
    kind_of = _kinds(context)
    done: set[str] = set()
    none = True
    for partition, nodes, skipped in context.selected(
        "neuron", every=True, only=lambda node: has_neuron(kind_of(node))
    ):
        none = False
        if skipped:
            yield skipped
            continue
        yield from _partition(context, partition, nodes, kind_of, done)
    if none:
        partitions = ", ".join(context.options.partitions)
        why = f"{partitions} has no Neuron devices" if partitions else "no partition has Neuron devices"
        yield Check("neuron", "cluster", "skipped", why, missed=False)


def _kinds(context: Context) -> Callable[[Node], str]:
    return lambda node: context.options.instance_types.get(node.name) or node.instance_type


def _partition(
    context: Context, partition: str, nodes: Sequence[Node], kind_of: Callable[[Node], str], done: set[str]
) -> Iterator[Check]:
    seen, asked, busy = context.ask(partition, nodes, LIST, gpus=False)
    if busy:
        yield Check("neuron-ls", partition, "skipped", context.no_room(busy))
    if not asked:
        return
    if seen.code:
        yield Check("job", partition, "failed", f"srun ended with {seen.code}: {'; '.join(seen.errors)}")
        return
    kinds: dict[str, list[Node]] = {}
    for node in asked:
        kinds.setdefault(kind_of(node), []).append(node)
    for kind, some in sorted(kinds.items()):
        subject = partition if len(kinds) == 1 else f"{partition} {kind}"
        found: dict[str, _Found] = {}
        yield from _devices(subject, kind, some, seen, found)
        well = [node for node in some if node.name in found and node.name not in done]
        done |= {node.name for node in well}
        if well:
            yield from _collective(context, partition, subject, kind, well, found)
        if len(some) > 1 and devices.DEVICES.get(kind):
            why = "nccom-test is not started on several nodes at once: docs/trainium.md has a job that does"
            yield Check("nccom-test on 2 nodes", subject, "skipped", why)


def _devices(subject: str, kind: str, nodes: Sequence[Node], seen: Output, found: dict[str, _Found]) -> Iterator[Check]:
    """Compare what neuron-ls lists with what the type of the instance has; add what it has told of a node to `found`.

    A node with less than it should have is not added.
    """
    wanted, bad, without = TYPES.get(kind), dict[str, list[str]](), list[str]()
    for node in nodes:
        values = seen.values.get(node.name, {})
        if "none" in values:
            without.append(node.name)
            continue
        told = _listed(values)
        if isinstance(told, str):
            bad.setdefault(f"{told} on {{}}", []).append(node.name)
        elif wanted and told.devices != wanted.devices:
            why = f"{{}} has {told.devices} of the {wanted.devices} Neuron devices of a {kind}"
            bad.setdefault(why, []).append(node.name)
        elif wanted and told.cores != wanted.cores:
            bad.setdefault(f"{{}} has {told.cores} of the {wanted.cores} cores of a {kind}", []).append(node.name)
        else:
            found[node.name] = told
    if without:
        why = f"there is no neuron-ls on {shown(without)}; run site with --tags neuron"
        yield Check("neuron-ls", subject, "skipped", why)
    for why, names in bad.items():
        yield Check(
            "neuron-ls", subject, "failed", f"{why.replace('{}', shown(names))}; see 'dmesg | grep -i neuron' there"
        )
    if found:
        counts = sorted({(one.devices, one.cores) for one in found.values()})
        what = " or ".join(f"{count} device{'s' if count > 1 else ''} with {cores} cores" for count, cores in counts)
        if wanted:
            yield Check("neuron-ls", subject, "ok", f"{what} on {shown(found)}")
        else:
            why = f"{what} on {shown(found)}; what a {kind} has is not known here, so it is not judged"
            yield Check("neuron-ls", subject, "unknown", why)


def _listed(values: Mapping[str, Sequence[str]]) -> _Found | str:
    """Return what neuron-ls lists, or why that is not known."""
    code, text = values.get("code", ["?"])[-1], "".join(values.get("told", []))
    said = " ".join("".join(values.get("errors", [])).split()) or " ".join(text.split())
    if code != "0":
        return f"neuron-ls ended with {code} and said '{said[-200:] or 'nothing'}'"
    try:
        listed = document.parse(text)
        cores = [int(one["nc_count"]) for one in listed]
        # Only Trainium2 and newer have logical cores, of which each is so many physical ones.
        logical = [int(one.get("logical_neuroncore_config") or 1) for one in listed]
    except (ValueError, TypeError, KeyError, AttributeError):
        return f"neuron-ls printed no list of devices ('{said[:100]}')"
    return _Found(len(cores), sum(count * each for count, each in zip(cores, logical)), sum(cores))


def _collective(
    context: Context, partition: str, subject: str, kind: str, nodes: Sequence[Node], found: Mapping[str, _Found]
) -> Iterator[Check]:
    """Measure each node by itself, so that a node that dies costs its own job alone."""
    name = f"{_COLLECTIVE} on one node"
    outputs: dict[str, Output] = {}

    def measure(node: Node) -> Output:
        script = MEASURE.replace("@RANKS@", str(found[node.name].ranks))
        return context.srun(partition, [node], script, *whole_nodes([node], 1), gpus=False)

    over = False
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for node, output in zip(nodes, pool.map(measure, nodes)):
                outputs[node.name] = output
                context.save()
        except cluster.TimeOver:
            over = True
    told: dict[tuple[str, str], list[str]] = {}
    best: dict[str, float] = {}
    for node_name, output in outputs.items():
        values = output.values.get(node_name, {})
        ranks, rows = found[node_name].ranks, table(values.get("row", []))
        if cluster.is_busy(output):
            told.setdefault(("skipped", f"no room within {context.options.wait} s on {{}}"), []).append(node_name)
        elif "none" in values:
            why = "there is no nccom-test on {}: aws-neuronx-tools has it"
            told.setdefault(("skipped", why), []).append(node_name)
        elif _problem(values, output, rows):
            told.setdefault(("failed", f"{_problem(values, output, rows)} on {{}}"), []).append(node_name)
        else:
            judgement = expected.judge_run(
                [(row.size, row.busbw) for row in rows],
                kind,
                1,
                _COLLECTIVE,
                ranks=ranks,
                rows=context.options.nccl.expected,
                tolerance=context.options.nccl.tolerance,
            )
            best[node_name] = max(rows).busbw
            context.runs.append(_for_report(context, partition, kind, node_name, ranks, rows, judgement))
            message = f"{{}}, {ranks} cores: {judgement.message}"
            told.setdefault((STATUSES[judgement.status], message), []).append(node_name)
    for (status, message), names in told.items():
        yield Check(name, subject, status, message.replace("{}", shown(names)))
    usual = max(best.values(), default=0.0)
    behind = [node_name for node_name, busbw in best.items() if busbw < SLOW * usual]
    if behind:
        why = f"{shown(behind)}: less than {SLOW:.0%} of the {usual:.4g} GB/s of the best node"
        yield Check("alike on one node", subject, "failed", why, {"nodes": behind})
    if over:
        raise cluster.TimeOver


def table(lines: Sequence[str]) -> list[Row]:
    """Return the rows of nccom-test's table, whose columns are by name: versions differ in what they call the time."""
    rows, columns = [], list[str]()
    for line in lines:
        words = line.split()
        if words[:1] == ["size(B)"]:
            columns = ["time" if word.startswith("time") else word.partition("(")[0] for word in words]
        elif columns and len(words) == len(columns):
            cells = dict(zip(columns, words))
            try:
                rows.append(Row(int(cells["size"]), float(cells["time"]), float(cells["algbw"]), float(cells["busbw"])))
            except (KeyError, ValueError):
                continue
    return rows


def _problem(values: Mapping[str, Sequence[str]], output: Output, rows: Sequence[Row]) -> str:
    """Return in one line why nccom-test has measured nothing that counts; nothing if it has."""
    if "code" not in values:
        return f"srun ended with {output.code} ({'; '.join(output.errors) or 'it said nothing'})"
    said = [line.strip() for line in values.get("row", []) if line.strip()]
    failures = [line for line in said if _FAILED.search(line)]
    if values["code"][-1] != "0" or failures or not rows:
        why = (failures or said or ["nothing"])[-1]
        return f"nccom-test ended with {values['code'][-1]} and said '{why[-200:]}'"
    return ""


def _for_report(
    context: Context,
    partition: str,
    kind: str,
    node: str,
    ranks: int,
    rows: Sequence[Row],
    judgement: expected.Judgement,
) -> dict[str, Any]:
    options = context.options.nccl
    return {
        "stage": "one_node",
        "partition": partition,
        "instance_type": kind,
        "nodes": [node],
        "ranks": ranks,
        "collective": _COLLECTIVE,
        "container": False,
        "rows": [
            {
                "size": row.size,
                "out_of_place": {"time_us": row.time, "algbw": row.algbw, "busbw": row.busbw, "wrong": 0},
                "in_place": None,
            }
            for row in rows
        ],
        "expectation": expected.for_report(
            kind, 1, _COLLECTIVE, ranks=ranks, rows=options.expected, tolerance=options.tolerance
        ),
        "judgement": judgement._asdict(),
        "log": "",
    }
