#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the dashboards of role grafana: a cluster, its nodes, GPUs, fabrics, file systems and jobs."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from grafana_panels import (
    BLUE,
    GREEN,
    GREY,
    JOB_LINK,
    NODE_LINK,
    ORANGE,
    RED,
    TAG,
    YELLOW,
    Column,
    Json,
    Number,
    carpet,
    dashboard,
    lines,
    numbers,
    row,
    states,
    table,
)
from render_gpu_messages import XIDS as XID_CLASSES
from render_gpu_messages import load

FOLDER = Path("roles/grafana/files/dashboards")
WIDTH = 120
# All of the time that is shown, looked at once and not at each point of a line.
SHOWN = "[$__range] @ end()"
HIGHEST = "The ten highest of the time that is shown, and the median of all."
LOWEST = "The ten lowest of the time that is shown, of those that did anything, and the median of all."
LOWEST_OF_JOB = "The ten lowest of the time that is shown, and the median of all."
TWICE = "With Slurm's own metrics, a node that is in several partitions counts in each."
CHOOSE = "Choose one node above."

PERCENT: Any = {"unit": "percent", "max": 100}
RATIO: Any = {**PERCENT, "factor": "100"}  # a ratio, drawn in percent
# The XIDs that the alerts count: of every fault, and not those that a program causes, such as 13.
OF_PROGRAMS = sorted(
    xid for group in load(Path(__file__).resolve().parents[1] / XID_CLASSES)["none"] for xid in group["xids"]
)
FAULTS = f'xid!="", xid!~"{"|".join(map(str, OF_PROGRAMS))}"'
ALARM, NOTICE = ((1, RED),), ((1, ORANGE),)
FULL, FULL_SHARED = ((80, YELLOW), (95, RED)), ((80, YELLOW), (90, RED))
HOT, HOT_MEMORY = ((87, RED),), ((95, RED),)

# Several kinds of one series: of each legend, the word in the name of the series.
Words = dict[str, str]
EFA, NVLINK = "pc_node:efa_%s:rate5m", "pc_node:nvlink_%s_bytes:sum"
NETWORK, DISKS = "pc_node:network_%s_bytes:rate5m", "pc_node:disk_%s_bytes:rate5m"
RX_TX, RX_TX_BYTES = {"received": "rx", "sent": "tx"}, {"received": "rx_bytes", "sent": "tx_bytes"}
RECEIVE_TRANSMIT, READ_WRITTEN = {"received": "receive", "sent": "transmit"}, {"read": "read", "written": "written"}

# What slurm_exporter says of nodes in a state, as in the rules of role prometheus: each is in one of the first four,
# whatever the mark behind it tells of power: ~ is powered down, % on its way there, and # on its way up.
BROKEN = "(down|drain|fail|error|unknown|inval).*"
STATES = {
    "in_use": ("(allocated|mixed|completing).*", BLUE),
    "idle": ("(idle|planned|reserved|blocked|maint|reboot).*", GREEN),
    "drained": ("drain.*", ORANGE),
    "down": ("(down|fail|error|unknown|inval).*", RED),
}
POWER = {"powered_down": (".+[~%]", GREY), "powering_up": (".+#", YELLOW)}


# Panels of series of nodes: of all chosen nodes, or of the nodes of one job.
# A panel draws ten lines, picked over all of the time that is shown, because at each point others might stand out.
HELD = "pc_node:job_gpus:count{JOB}"


def of_nodes(name: str, over: str = "avg", least: bool = False) -> tuple[str, str]:
    """Return a recorded series of the chosen nodes, and the ten that stand out."""
    series = f"{name}{{NODES}}"
    whole = f"{over}_over_time({series}{SHOWN})"
    return series, f"({series} and {f'bottomk(10, {whole} > 0)' if least else f'topk(10, {whole})'})"


def of_job(name: str) -> tuple[str, str]:
    """Return a recorded series of the nodes on which the job holds a GPU, as long as it does, and the ten highest."""
    series = f"{name}{{CLUSTER}} and on (pc_node) {HELD}"
    whole = f"avg_over_time({name}{{CLUSTER}}{SHOWN}) and on (pc_node) last_over_time({HELD}{SHOWN})"
    return series, f"({series} and topk(10, {whole}))"


def by(label: str, how: str, series: str) -> dict[str, str]:
    """Return the query of a line for each value of a label."""
    return {f"{{{{{label}}}}}": f"{how} by ({label}) ({series})"}


def described(description: str, which: str) -> str:
    return f"{description} {which}".strip()


def spread(
    title: str, name: str, unit: str, description: str = "", *, over: str = "avg", least: bool = False, **options: Any
) -> Json:
    """Of a series for each node: the ten that stand out, and the highest, the median and the lowest of all."""
    series, ten = of_nodes(name, over, least)
    queries = {
        "highest": f"max({series})",
        "median": f"quantile(0.5, {series})",
        "lowest": f"min({series})",
        "{{pc_node}}": ten,
    }
    colors = {"highest": GREY, "median": BLUE, "lowest": GREY}
    which = LOWEST if least else HIGHEST
    return lines(title, queries, unit, described(description, which), colors=colors, **options)


def medians(
    title: str,
    series: dict[str, tuple[str, str]],
    unit: str,
    description: str = "",
    *,
    which: str = HIGHEST,
    **options: Any,
) -> Json:
    """Of each kind of series, by its name: the ten that stand out, and the median of all."""
    queries = {f"median {name}".strip(): f"quantile(0.5, {every})" for name, (every, _ten) in series.items()}
    queries.update({f"{{{{pc_node}}}} {name}".strip(): ten for name, (_every, ten) in series.items()})
    colors = {"median": BLUE} if "" in series else {}
    return lines(title, queries, unit, described(description, which), colors=colors, **options)


def kinds(
    title: str,
    series: str,
    words: Words,
    unit: str,
    description: str = "",
    *,
    over: str = "avg",
    least: bool = False,
    job: bool = False,
    **options: Any,
) -> Json:
    """Several recorded series, by their legends."""
    names = {legend: series % word for legend, word in words.items()}
    found = {legend: of_job(name) if job else of_nodes(name, over, least) for legend, name in names.items()}
    return medians(title, found, unit, description, which=LOWEST if least else HIGHEST, **options)


def directions(title: str, series: str, words: Words, description: str = "", unit: str = "Bps", **options: Any) -> Json:
    """What goes into nodes, and downwards what comes out of them."""
    return kinds(title, series, words, unit, description, mirror=f"{list(words)[-1]}$", **options)


def totals(title: str, series: str, words: Words, description: str = "", width: int = 8) -> Json:
    """What goes into all nodes of the cluster together, and downwards what comes out of them."""
    queries = {legend: f"sum({series % word}{{CLUSTER}})" for legend, word in words.items()}
    return lines(title, queries, "Bps", description, mirror=list(words)[-1], width=width)


def job_nodes(title: str, name: str, unit: str, description: str = "", **options: Any) -> Json:
    """A recorded series of the job's nodes."""
    return medians(title, {"": of_job(name)}, unit, description, **options)


def job_gpus(title: str, how: str, metric: str, unit: str, *, least: bool = False, **options: Any) -> Json:
    """What the job's own GPUs do, by node."""
    series = f"{how} by (pc_node) ({metric}{{JOB}})"
    whole = f"{how} by (pc_node) (avg_over_time({metric}{{JOB}}{SHOWN}))"
    ten = f"({series} and {'bottomk' if least else 'topk'}(10, {whole}))"
    return medians(title, {"": (series, ten)}, unit, which=LOWEST_OF_JOB if least else HIGHEST, **options)


def node_gpus(title: str, metric: str, unit: str, **options: Any) -> Json:
    """Each GPU of the chosen node. A series of its own begins with each job on a GPU, and the GPU is still the same."""
    return lines(title, {"{{pc_node}} {{gpu}}": f"max by (pc_node, gpu) ({metric}{{NODE}})"}, unit, CHOOSE, **options)


def node_nvlink(title: str, older: str, newer: str) -> Json:
    """Errors of each GPU of the chosen node: NVLink 5 (B200 and newer) counts them in fields of its own."""
    names = (f"{older}_ERROR_COUNT_TOTAL", newer)
    either = " or ".join(f"rate(DCGM_FI_DEV_NVLINK_{name}{{NODE}}[$__rate_interval])" for name in names)
    return lines(title, {"{{pc_node}} {{gpu}}": f"sum by (pc_node, gpu) ({either})"}, "cps", CHOOSE)


def node_efa(title: str, metric: str, unit: str) -> Json:
    """Each EFA device of the chosen node."""
    rate = f"rate(node_amazonefa_{metric}{{NODE}}[$__rate_interval])"
    return lines(title, by("device", "sum", rate), unit, f"{CHOOSE} A node's devices should be alike.")


def with_xid(selection: str, xids: str) -> str:
    """The number of GPUs that had such an XID in the time that is shown. DCGM_FI_DEV_XID_ERRORS keeps the last one."""
    xids = f"max by (UUID) (max_over_time(DCGM_EXP_XID_ERRORS_COUNT{{{selection}, {xids}}}[$__range]))"
    return f"count({xids} > 0) or vector(0)"


# Panels of Slurm


def nodes_in(selection: str, *states: str) -> str:
    """How many nodes are in one of the states: each once, where they are known by name."""
    status = "|".join({**STATES, **POWER}[state][0] for state in states)
    named = f'count by (node) (slurm_node_status{{{selection}, status=~"{status}"}})'
    kind, more = (f"_{states[0]}", "") if states[0] in POWER else ("", f', state=~"{"|".join(states)}"')
    counted = f"sum(partition:slurm_nodes{kind}:sum{{{selection}{more}}})"
    return f"count({named}) or ({counted} unless on () slurm_node_status{{{selection}}}) or vector(0)"


def node_states(selection: str) -> Json:
    """What the nodes do, over time, in colours that mean something."""
    return lines(
        "Nodes by state",
        {state: nodes_in(selection, state) for state in (*STATES, *POWER)},
        "none",
        f"A node is in use, idle, drained or down, and may be powered down besides. {TWICE}",
        colors={state: color for state, (_status, color) in {**STATES, **POWER}.items()},
    )


def partitions(title: str, rule: str, description: str = "") -> Json:
    """A number of each partition, piled up."""
    return lines(title, by("partition", "sum", f"{rule}{{PARTITION}}"), "none", description, stack=True)


def share_of_jobs(title: str, what: str) -> Json:
    """How much of each partition is given to jobs."""
    given, there = (
        f"sum by (partition) (partition:slurm_{what}{kind}:sum{{PARTITION}})" for kind in ("_allocated", "")
    )
    return lines(title, {"{{partition}}": f"100 * {given} / ({there} > 0)"}, **PERCENT)


def either(exporter: str, native: str) -> str:
    """A number of the scheduler's, as slurm_exporter or Slurm itself names it."""
    return f'{{__name__=~"{exporter}|{native}", CLUSTER}}'


def scheduled(what: str) -> str:
    """How many jobs were submitted, started, … in ten minutes."""
    return f"round(sum(increase({either(f'slurm_scheduler_jobs_{what}', f'slurm_sdiag_jobs_{what}')}[10m])))"


def load_of(title: str, kind: str) -> Json:
    """What users or accounts run, as slurm_exporter or Slurm itself, which calls a user username, names it."""

    def query(*names: str) -> str:
        values = " or ".join(f"slurm_{kind}_{name}{{CLUSTER}}" for name in names)
        if kind == "user":
            values = f'label_replace({values}, "user", "$1", "username", "(.+)")'
        return f"sum by ({kind}) ({values})"

    columns = [
        Column(kind.capitalize(), label=kind),
        Column("Jobs running", query("jobs_running")),
        Column("Jobs waiting", query("jobs_pending")),
        Column("CPUs", query("cpus_running", "jobs_cpus_alloc")),
        Column("GPUs", query("gpus_running", "jobs_gpus_alloc")),
    ]
    told = "GPUs only where Slurm counts them: AccountingStorageTRES=gres/gpu."
    return table(title, kind, columns, told, width=8, height=8)


# The dashboard of the cluster


def most(title: str, name: str) -> Column:
    """The ten nodes of which something is fullest."""
    return Column(title, f"100 * topk(10, max by (pc_node) (pc_node:{name}:ratio{{CLUSTER}}))", "percent", FULL, 100)


NODE_COLUMN = Column("Node", label="pc_node", link=NODE_LINK)

# Role node_health, by the rules of role prometheus.
STATE = "pc_node:health_state:max{CLUSTER}"
DECIDED = 'label_replace(pc_node:health_drained:max{CLUSTER}, "why", "drained", "", "")'


def of_decider(name: str, more: str = "") -> str:
    """How many nodes the decider has something to tell of."""
    return f"count(group by (pc_node) (pc_node:health_{name}:max{{CLUSTER{more}}})) or vector(0)"


OVERVIEW_ROWS = (
    numbers(
        Number("Nodes up", 'count(up{job="node", CLUSTER} == 1)'),
        Number(
            "Nodes silent",
            'count(up{job="node", CLUSTER} == 0) or vector(0)',
            limits=ALARM,
            description="Slurm has these up, and their node_exporter does not answer.",
        ),
        Number("GPUs", "sum(pc_node:gpus:count{CLUSTER})"),
        Number(
            "GPUs in jobs",
            "100 * (sum(pc_node:job_gpus:count{CLUSTER}) or vector(0)) / sum(pc_node:gpus:count{CLUSTER})",
            "percent",
        ),
        Number("GPU utilisation", "avg(pc_node:gpu_utilization:avg{CLUSTER})", "percent"),
        Number("Jobs running", "sum(slurm_jobs_running{CLUSTER})"),
        Number("Jobs waiting", "sum(slurm_jobs_pending{CLUSTER})"),
        Number(
            "Alerts",
            'count(ALERTS{alertstate="firing", CLUSTER}) or vector(0)',
            limits=ALARM,
            description="What fires now of the rules that come with Prometheus' role.",
        ),
    ),
    row(
        "Fleet health",
        states(
            "Nodes that were not well",
            f"{STATE} and topk(20, max_over_time({STATE}{SHOWN}) > 0)",
            "{{pc_node}}",
            "What role node_health has found: at most twenty nodes, the worst of the time that is shown.",
            {"well": GREEN, "watched": YELLOW, "faulty": RED},
        ),
        lines(
            "Nodes with a finding",
            by("finding", "sum", "finding:health_nodes:count{CLUSTER}"),
            "none",
            "A node may have several findings.",
            width=12,
        ),
        lines(
            "What the decider does",
            {
                "drained": of_decider("drained"),
                "only reported": of_decider("withheld", ', why="report"'),
                "waits for you": of_decider("withheld", ', why!="report"'),
                "silent": of_decider("silent"),
            },
            "none",
            "Nodes. What waits for you is above a limit, or came back; silent nodes are up, and tell nothing.",
            width=12,
            colors={"drained": BLUE, "only reported": GREY, "waits for you": RED, "silent": YELLOW},
        ),
        table(
            "Findings",
            "",
            [
                NODE_COLUMN,
                Column("Finding", label="finding"),
                Column("Class", label="class"),
                Column("", "topk(50, max by (pc_node, finding, class) (pcluster_node_health_finding{CLUSTER}))"),
            ],
            "At most fifty. A finding of class watch drains nobody.",
            width=12,
        ),
        table(
            "Decisions",
            "",
            [
                NODE_COLUMN,
                Column("Finding", label="finding"),
                Column("Drained, or why not", label="why"),
                Column(
                    "",
                    f"topk(50, {DECIDED} or max by (pc_node, finding, why) (pc_node:health_withheld:max{{CLUSTER}}))",
                ),
            ],
            "At most fifty: drained by the decider; report, limit, successor or came_back tell why a node is not.",
            width=12,
        ),
    ),
    row(
        "GPUs",
        lines(
            "GPU utilisation",
            by("pc_queue", "avg", "pc_node:gpu_utilization:avg{CLUSTER}"),
            description="The share of time in which a kernel ran, however small. Of a queue, its mean.",
            **PERCENT,
        ),
        lines("GPU memory in use", by("pc_queue", "avg", "pc_node:gpu_memory_utilization:ratio{CLUSTER}"), **RATIO),
        lines("GPU power", by("pc_queue", "sum", "pc_node:gpu_power_watts:sum{CLUSTER}"), "watt", stack=True),
    ),
    row(
        "Slurm",
        lines(
            "Jobs",
            {
                "running": "sum(slurm_jobs_running{CLUSTER})",
                "waiting": "sum(slurm_jobs_pending{CLUSTER})",
                "completing": "sum(slurm_jobs_completing{CLUSTER})",
            },
            "none",
            stack=True,
        ),
        lines("Jobs that wait, by partition", by("partition", "sum", "slurm_partition_jobs_pending{CLUSTER}"), "none"),
        node_states("CLUSTER"),
    ),
    row(
        "Fabrics",
        totals("EFA", EFA, RX_TX_BYTES),
        totals("NVLink", NVLINK, RX_TX),
        totals(
            "TCP/IP", NETWORK, RECEIVE_TRANSMIT, "Everything on the nodes' network interfaces, with Lustre and NFS."
        ),
    ),
    row(
        "Nodes",
        table(
            "Nodes that stand out",
            "pc_node",
            [
                NODE_COLUMN,
                Column("Up for", "bottomk(10, max by (pc_node) (time() - node_boot_time_seconds{CLUSTER}))", "s"),
                most("CPU", "cpu_utilization"),
                most("Memory", "memory_utilization"),
                most("GPU memory", "gpu_memory_utilization"),
                most("Root disk", "root_utilization"),
            ],
            "Of each column the ten highest, and the ten that were started last. "
            "Where a node is none of these, its cell is empty.",
        ),
    ),
)

# The dashboard of GPUs

AVERAGE, LEAST = "pc_node:gpu_utilization:avg{NODES}", "pc_node:gpu_utilization:min{NODES}"
APART = f"topk(10, avg_over_time({AVERAGE}{SHOWN}) - avg_over_time({LEAST}{SHOWN}))"
FIRST = "topk(10, 1000 * pc_node:gpus_with_errors:count{NODES} + pc_node:gpu_temperature_celsius:max{NODES})"
XIDS = "max_over_time(DCGM_EXP_XID_ERRORS_COUNT{%s, FAULTS}[$__range])".replace("FAULTS", FAULTS)
XIDS_OF_NODES = f"sum by (pc_node) ({XIDS % 'NODES'})"


def active(title: str, name: str, description: str) -> Json:
    """The share of time in which a part of the GPUs was active."""
    description += " The mean of a node's GPUs."
    return spread(title, f"pc_node:gpu_{name}_active:avg", least=True, description=description, **RATIO)


def of_first(title: str, name: str, unit: str = "none", limits: Any = ()) -> Column:
    """A number of the nodes whose GPUs need a look."""
    return Column(title, f"max by (pc_node) (pc_node:{name}{{NODES}}) and on (pc_node) {FIRST}", unit, limits)


def of_gpu(title: str, metric: str, unit: str = "none", limits: Any = (), labels: str = "UUID") -> Column:
    """A number of each GPU of the chosen node."""
    return Column(title, f"max by ({labels}) (DCGM_FI_DEV_{metric}{{NODE}})", unit, limits)


GPU_ROWS = (
    numbers(
        Number("GPUs", "sum(pc_node:gpus:count{NODES})"),
        Number("Utilisation", f"avg({AVERAGE})", "percent"),
        Number("Memory in use", "sum(pc_node:gpu_memory_used_mib:sum{NODES})", "mbytes"),
        Number("Power", "sum(pc_node:gpu_power_watts:sum{NODES})", "watt"),
        Number("Hottest", "max(pc_node:gpu_temperature_celsius:max{NODES})", "celsius", ((80, YELLOW), (87, RED))),
        Number(
            "With an XID",
            with_xid("NODES", FAULTS),
            limits=ALARM,
            description="GPUs that had one in the time that is shown. XIDs that a program causes are left out.",
        ),
        Number(
            "ECC errors",
            "sum(pc_node:gpu_ecc_uncorrected:sum{NODES})",
            limits=ALARM,
            description="Those that could not be corrected, since the driver was loaded.",
        ),
        Number(
            "Slowed down",
            "count(pc_node:gpu_thermal_violation:rate5m{NODES} + pc_node:gpu_power_violation:rate5m{NODES} > 0)"
            " or vector(0)",
            limits=NOTICE,
            description="Nodes with a GPU whose clock heat or power has lowered within five minutes.",
        ),
    ),
    row(
        "Work",
        carpet(
            "Nodes whose GPUs are least alike",
            f"({AVERAGE} - {LEAST}) and {APART}",
            "{{pc_node}}",
            "How far the utilisation of a node's idlest GPU is below the mean of its GPUs: the ten nodes where it is "
            "furthest in the time that is shown. A GPU that waits for others stands out.",
        ),
        spread(
            "Utilisation",
            "pc_node:gpu_utilization:avg",
            description="The share of time in which a kernel ran, however small. Of a node, the mean.",
            least=True,
            **PERCENT,
        ),
        active("Graphics engine", "engine", "The share of time in which any engine worked."),
        kinds(
            "Streaming multiprocessors",
            "pc_node:gpu_sm_%s:avg",
            {"active": "active", "occupied": "occupancy"},
            description="How many of them had a warp, and how many warps of those that fit they had.",
            least=True,
            **RATIO,
        ),
        active("Tensor cores", "tensor", "The share of cycles in which tensor cores worked: what training pays for."),
        active("Memory interface", "dram", "The share of cycles in which the memory moved data."),
        spread("Memory in use", "pc_node:gpu_memory_utilization:ratio", description="Of all GPUs of a node.", **RATIO),
        directions("PCIe", "pc_node:gpu_pcie_%s_bytes:sum", RX_TX, width=24),
    ),
    row(
        "Health",
        spread("Power", "pc_node:gpu_power_watts:sum", "watt", "Of all GPUs of a node."),
        spread(
            "Temperature",
            "pc_node:gpu_temperature_celsius:max",
            "celsius",
            "The hottest GPU of a node.",
            over="max",
            limits=HOT,
        ),
        spread(
            "Temperature of the memory",
            "pc_node:gpu_memory_temperature_celsius:max",
            "celsius",
            "The hottest GPU of a node.",
            over="max",
            limits=HOT_MEMORY,
        ),
        spread(
            "Clock of the multiprocessors",
            "pc_node:gpu_sm_clock_hertz:min",
            "hertz",
            "The slowest GPU of a node.",
            least=True,
        ),
        kinds(
            "Slowed down",
            "pc_node:gpu_%s_violation:rate5m",
            {"by heat": "thermal", "by power": "power"},
            "percentunit",
            "The share of time in which the clock was lowered, summed over the GPUs of a node.",
        ),
        kinds(
            "ECC errors",
            "pc_node:gpu_ecc_%s:sum",
            {"corrected": "corrected", "uncorrected": "uncorrected"},
            "none",
            over="max",
        ),
        table(
            "Nodes whose GPUs need a look",
            "pc_node",
            [
                NODE_COLUMN,
                of_first("GPUs", "gpus:count"),
                of_first("With errors", "gpus_with_errors:count", limits=ALARM),
                Column(
                    "XIDs",
                    f"{XIDS_OF_NODES} and on (pc_node) {FIRST} or on (pc_node) 0 * max by (pc_node) ({FIRST})",
                    limits=ALARM,
                ),
                of_first("Uncorrected ECC", "gpu_ecc_uncorrected:sum", limits=ALARM),
                of_first("Hottest", "gpu_temperature_celsius:max", "celsius", HOT),
                of_first("Power", "gpu_power_watts:sum", "watt"),
            ],
            "Ten: first those whose GPUs have uncorrected ECC errors, or rows of memory whose remapping failed or "
            "waits for a reset; then the hottest. XIDs are of the time that is shown, without those of programs.",
        ),
    ),
    row(
        "Each GPU of one node",
        carpet(
            "Utilisation of each GPU",
            "max by (pc_node, gpu) (DCGM_FI_DEV_GPU_UTIL{NODE})",
            "{{pc_node}} {{gpu}}",
            f"{CHOOSE} The share of time in which a kernel ran.",
        ),
        node_gpus("Memory of each GPU", "DCGM_FI_DEV_FB_USED", "mbytes"),
        node_gpus("Temperature of each GPU", "DCGM_FI_DEV_GPU_TEMP", "celsius", limits=HOT),
        node_gpus("Clock of each GPU", "DCGM_FI_DEV_SM_CLOCK", "hertz", factor="1e6"),
        table(
            "Each GPU",
            "UUID",
            [
                NODE_COLUMN,
                Column("GPU", label="gpu"),
                Column("Model", label="modelName"),
                Column("Job", label="hpc_job", link=JOB_LINK),
                Column("UUID", label="UUID"),
                Column(
                    "XIDs",
                    f"sum by (UUID) (max by (UUID, xid) ({XIDS % 'NODE'})) "
                    "or on (UUID) 0 * max by (UUID) (DCGM_FI_DEV_GPU_TEMP{NODE})",
                    limits=ALARM,
                ),
                of_gpu("Uncorrected ECC", "ECC_DBE_VOL_TOTAL", limits=ALARM),
                of_gpu("Rows remapped", "UNCORRECTABLE_REMAPPED_ROWS", limits=NOTICE),
                of_gpu("Remapping failed", "ROW_REMAP_FAILURE", limits=ALARM),
                of_gpu("Temperature", "GPU_TEMP", "celsius", HOT, labels="UUID, pc_node, gpu, modelName, hpc_job"),
                of_gpu("Power", "POWER_USAGE", "watt"),
            ],
            CHOOSE,
        ),
    ),
)


# The dashboard of Neuron devices

BUSY, IDLEST = "pc_node:neuroncore_utilization:avg{NODES}", "pc_node:neuroncore_utilization:min{NODES}"
UNEVEN = f"topk(10, avg_over_time({BUSY}{SHOWN}) - avg_over_time({IDLEST}{SHOWN}))"
SUSPECT = (
    "topk(10, 1000 * pc_node:neuron_ecc_uncorrected:sum{NODES}"
    " + max_over_time(pc_node:neuron_memory_utilization:ratio{NODES}[$__range]))"
)


def of_suspect(title: str, name: str, unit: str = "none", limits: Any = (), factor: str = "") -> Column:
    """A number of the nodes whose Neuron devices need a look."""
    series = f"max by (pc_node) (pc_node:{name}{{NODES}}) and on (pc_node) {SUSPECT}"
    return Column(title, f"{factor}({series})" if factor else series, unit, limits)


# What the memory of a device is used for, by the words for it.
MEMORY = {
    "weights": "constants",
    "code": "model_code",
    "scratchpad": "model_shared_scratchpad",
    "runtime": "runtime_memory",
    "tensors": "tensors",
}
EACH_MEMORY = f'{{__name__=~"{"|".join(f"neuroncore_memory_usage_{kind}" for kind in MEMORY.values())}", NODE}}'
FULL_CORES = f"sum by (pc_node, neuroncore) ({EACH_MEMORY})"
FULLEST = f"topk(10, sum by (pc_node, neuroncore) ({EACH_MEMORY} @ end()))"


def of_program(title: str, expr: str, unit: str = "none", limits: Any = ()) -> Column:
    """A number of each program of the chosen node."""
    return Column(title, f"sum by (runtime_tag) ({expr})", unit, limits)


NEURON_ROWS = (
    numbers(
        Number("Neuron devices", "sum(pc_node:neuron_devices:count{NODES})"),
        Number("Programs", "sum(pc_node:neuron_programs:count{NODES}) or vector(0)"),
        Number("Utilisation", f"100 * avg({BUSY})", "percent"),
        Number("Memory in use", "sum(pc_node:neuron_memory_used_bytes:sum{NODES})", "bytes"),
        Number(
            "Executions",
            "sum(pc_node:neuron_completed:rate5m{NODES})",
            "ops",
            description="Of models, or of the graphs that a training step is made of, that ended well.",
        ),
        Number(
            "Not completed",
            "sum(pc_node:neuron_not_completed:rate5m{NODES})",
            "ops",
            limits=((1e-9, ORANGE),),
            description="Executions that failed, took too long, or were refused.",
        ),
        Number(
            "Fullest memory",
            "100 * max(pc_node:neuron_memory_utilization:ratio{NODES})",
            "percent",
            FULL,
            "Of the devices of a node together.",
        ),
        Number(
            "ECC errors",
            "sum(pc_node:neuron_ecc_uncorrected:sum{NODES})",
            limits=ALARM,
            description="Those that could not be corrected. Whether there are some counts, and not how many.",
        ),
    ),
    row(
        "Work",
        carpet(
            "Nodes whose cores are least alike",
            f"100 * (({BUSY} - {IDLEST}) and {UNEVEN})",
            "{{pc_node}}",
            "How far the utilisation of a node's idlest core is below the mean of its cores: the ten nodes where it is "
            "furthest in the time that is shown.",
        ),
        spread(
            "Utilisation",
            "pc_node:neuroncore_utilization:avg",
            description="The share of time in which a core worked. Of a node, the mean of its cores.",
            least=True,
            **RATIO,
        ),
        spread(
            "Executions",
            "pc_node:neuron_completed:rate5m",
            "ops",
            "That ended well. Nodes of one job should be alike.",
            least=True,
        ),
        kinds(
            "Latency",
            "pc_node:neuron_latency_seconds:%s",
            {"p50": "p50", "p99": "p99"},
            "s",
            "Of an execution, as Neuron's runtime measures it. Of a node, the slowest program.",
        ),
        spread(
            "Memory of the devices",
            "pc_node:neuron_memory_utilization:ratio",
            description="Of all devices of a node.",
            width=12,
            **RATIO,
        ),
        spread(
            "Memory of the host",
            "pc_node:neuron_host_memory_used_bytes:sum",
            "bytes",
            "What Neuron's programs use of it.",
            width=12,
        ),
    ),
    row(
        "Health",
        kinds(
            "ECC errors",
            "pc_node:neuron_ecc_%s:sum",
            {"corrected": "corrected", "uncorrected": "uncorrected"},
            "none",
            "Whether there are some counts, and not how many: the exporter may count one again and again.",
            over="max",
            width=12,
        ),
        spread(
            "Not completed",
            "pc_node:neuron_not_completed:rate5m",
            "ops",
            "Executions that failed, took too long, or were refused.",
            over="max",
            width=12,
        ),
        table(
            "Nodes that need a look",
            "pc_node",
            [
                NODE_COLUMN,
                of_suspect("Devices", "neuron_devices:count"),
                of_suspect("Uncorrected ECC", "neuron_ecc_uncorrected:sum", limits=ALARM),
                of_suspect("Memory", "neuron_memory_utilization:ratio", "percent", FULL, "100 * "),
                of_suspect("Not completed", "neuron_not_completed:rate5m", "ops", ((1e-9, ORANGE),)),
            ],
            "Ten: first those with ECC errors that could not be corrected, then those whose devices were fullest.",
        ),
    ),
    row(
        "Each core of one node",
        carpet(
            "Utilisation of each core",
            "100 * max by (pc_node, neuroncore) (neuroncore_utilization_ratio{NODE})",
            "{{pc_node}} {{neuroncore}}",
            f"{CHOOSE} The share of time in which the core worked.",
        ),
        lines(
            "Memory by what it is for",
            {word: f"sum(neuroncore_memory_usage_{kind}{{NODE}})" for word, kind in MEMORY.items()},
            "bytes",
            f"{CHOOSE} Of all of its cores.",
            stack=True,
            width=12,
        ),
        lines(
            "Memory of the fullest cores",
            {"{{pc_node}} {{neuroncore}}": f"{FULL_CORES} and {FULLEST}"},
            "bytes",
            f"{CHOOSE} The ten that are fullest at the end of the time that is shown.",
            width=12,
        ),
        table(
            "Programs",
            "runtime_tag",
            [
                Column("Program", label="runtime_tag"),
                of_program("Completed", 'execution_status_total{NODE, status_type="completed"}'),
                of_program("Timed out", 'execution_status_total{NODE, status_type="timed_out"}', limits=NOTICE),
                of_program("Errors", "execution_errors_total{NODE}", limits=NOTICE),
                of_program(
                    "Memory", 'neuron_runtime_memory_used_bytes{NODE, memory_location="neuron_device"}', "bytes"
                ),
                of_program("CPU", "100 * neuron_runtime_vcpu_usage_ratio{NODE}", "percent"),
            ],
            f"{CHOOSE} By NEURON_PROCESS_TAG or the process id. Programs that have ended stay as long as another runs.",
        ),
    ),
)


# The dashboard of NVLink


def nvlink_errors(title: str, name: str, description: str) -> Json:
    return spread(title, f"pc_node:nvlink_{name}:rate5m", "cps", description, width=6)


BOTH_WAYS = "DCGM_FI_PROF_NVLINK_RX_BYTES{NODE} + DCGM_FI_PROF_NVLINK_TX_BYTES{NODE}"

NVLINK_ROWS = (
    numbers(
        Number("Received", "sum(pc_node:nvlink_rx_bytes:sum{NODES})", "Bps"),
        Number("Sent", "sum(pc_node:nvlink_tx_bytes:sum{NODES})", "Bps"),
        Number(
            "Busiest GPU",
            "max(pc_node:nvlink_gpu_bytes:max{NODES})",
            "Bps",
            description="An H100 or H200 can do 900 GB/s, both directions together; a B200 1800 GB/s.",
        ),
        Number(
            "Links that had to recover",
            "sum(pc_node:nvlink_recoveries:sum{NODES})",
            limits=ALARM,
            description="Since the driver was loaded.",
        ),
    ),
    row(
        "Traffic",
        directions("Traffic of nodes", NVLINK, RX_TX, width=12),
        spread("Busiest GPU of each node", "pc_node:nvlink_gpu_bytes:max", "Bps", "Both directions.", width=12),
    ),
    row(
        "Errors",
        nvlink_errors(
            "Flits with errors",
            "crc_flit_errors",
            "Corrected by sending again. Many of them make a link slow. Of NVLink 5, packets.",
        ),
        nvlink_errors(
            "Data with errors", "crc_data_errors", "Corrected by sending again. Of NVLink 5, what was not corrected."
        ),
        nvlink_errors(
            "Sent again",
            "replay_errors",
            "Each costs time. A link that goes on doing so is about to fail. NVLink 5 has no such count.",
        ),
        nvlink_errors("Recoveries", "recoveries", "The link was trained anew; a job may not survive that."),
    ),
    row(
        "Each GPU of one node",
        lines(
            "Traffic of each GPU",
            {"{{pc_node}} {{gpu}}": f"max by (pc_node, gpu) ({BOTH_WAYS})"},
            "Bps",
            f"{CHOOSE} Both directions. In a job that is well balanced all are alike.",
        ),
        node_nvlink("Flits with errors of each GPU", "CRC_FLIT", "COUNT_RX_ERRORS"),
        node_nvlink("Recoveries of each GPU", "RECOVERY", "COUNT_LINK_RECOVERY_EVENTS"),
    ),
)

# The dashboard of EFA

EFA_ROWS = (
    numbers(
        Number("Nodes with EFA", "count(pc_node:efa_devices:count{NODES})"),
        Number("Devices", "sum(pc_node:efa_devices:count{NODES})"),
        Number("Received", "sum(pc_node:efa_rx_bytes:rate5m{NODES})", "Bps"),
        Number("Sent", "sum(pc_node:efa_tx_bytes:rate5m{NODES})", "Bps"),
        Number(
            "Sent again",
            "(sum(pc_node:efa_retrans_pkts:rate5m{NODES}) / (sum(pc_node:efa_tx_pkts:rate5m{NODES}) > 0)) or vector(0)",
            "percentunit",
            ((0.001, YELLOW), (0.01, RED)),
            "Packets that had to be sent again, of all that were sent.",
        ),
        Number(
            "Silent peers",
            "300 * sum(pc_node:efa_unresponsive_remote_events:rate5m{NODES})",
            limits=ALARM,
            description="How often another node did not answer any more, within five minutes.",
            decimals=0,
        ),
    ),
    row(
        "Traffic",
        directions(
            "Traffic",
            EFA,
            {"received": "rx_bytes", "sent": "tx_bytes"},
            "All of a node's devices together: a p5.48xlarge can do 400 GB/s each way.",
        ),
        directions(
            "RDMA reads",
            EFA,
            {"read": "rdma_read_bytes", "served": "rdma_read_resp_bytes"},
            "What a node read from others, and what others read from it.",
        ),
        directions(
            "RDMA writes",
            EFA,
            {"written-by-others": "rdma_write_recv_bytes", "written": "rdma_write_bytes"},
            "What others wrote to a node, and what it wrote to them.",
        ),
        directions(
            "Messages",
            EFA,
            {"received": "recv_bytes", "sent": "send_bytes"},
            "Sends and receives, without RDMA.",
            width=12,
        ),
        directions("Packets", EFA, {"received": "rx_pkts", "sent": "tx_pkts"}, unit="pps", width=12),
    ),
    row(
        "Losses",
        spread(
            "Packets sent again",
            EFA % "retrans_pkts",
            "pps",
            "Some are usual under load. Many on one node point to that node's path.",
        ),
        kinds(
            "Peers in trouble",
            EFA,
            {
                "timeouts": "retrans_timeout_events",
                "silent": "unresponsive_remote_events",
                "impaired": "impaired_remote_conn_events",
            },
            "cps",
        ),
        spread("Dropped on receipt", EFA % "rx_drops", "pps"),
        kinds("RDMA errors", EFA, {"reads": "rdma_read_wr_err", "writes": "rdma_write_wr_err"}, "cps"),
        kinds("Commands to the device", EFA, {"submitted": "submitted_cmds", "failed": "cmds_err"}, "cps"),
        spread("Bytes sent again", EFA % "retrans_bytes", "Bps"),
    ),
    row(
        "Each device of one node",
        node_efa("Received by each device", "rx_bytes", "Bps"),
        node_efa("Sent by each device", "tx_bytes", "Bps"),
        node_efa("Sent again by each device", "retrans_pkts", "pps"),
    ),
)

# The dashboard of nodes

CPUS, CPU_SECONDS = "sum(pc_node:cpus:count{NODES})", "pc_node:cpu_seconds:rate5m"
TOTAL, AVAILABLE, FREE = (f"sum(node_memory_Mem{kind}_bytes{{NODES}})" for kind in ("Total", "Available", "Free"))
RESENT = "node_netstat_Tcp_RetransSegs{NODES}"
# With those in memory, such as /dev/shm, which stop jobs when they are full; below /run are those of single users.
FILE_SYSTEMS = 'NODES, fstype!~"ramfs|overlay|squashfs|autofs", mountpoint!~"/run/.+"'
USED = f"1 - node_filesystem_avail_bytes{{{FILE_SYSTEMS}}} / node_filesystem_size_bytes{{{FILE_SYSTEMS}}}"
UNITS = 'max by (pc_node, name, state) (node_systemd_unit_state{NODES, type!="oneshot", state%s"failed"} == 1)'

NODE_ROWS = (
    numbers(
        Number("Nodes", "count(node_uname_info{NODES})"),
        Number("CPUs", CPUS),
        Number(
            "CPU",
            f"100 * sum(pc_node:cpu_utilization:ratio{{NODES}} * pc_node:cpus:count{{NODES}}) / {CPUS}",
            "percent",
        ),
        Number("Memory", TOTAL, "bytes"),
        Number("Memory in use", f"100 * (1 - {AVAILABLE} / {TOTAL})", "percent", FULL),
        Number("Fullest root disk", "100 * max(pc_node:root_utilization:ratio{NODES})", "percent", FULL),
        Number("Up for at least", "min(time() - node_boot_time_seconds{NODES})", "s", decimals=1),
        Number(
            "Failed services",
            'sum(node_systemd_unit_state{NODES, state="failed"})',
            limits=ALARM,
            description="Of those that a cluster lives on: node_exporter_flags names them.",
        ),
    ),
    row(
        "CPU and memory",
        spread("CPU", "pc_node:cpu_utilization:ratio", **RATIO),
        lines(
            "CPU by mode",
            {
                "{{mode}}": f'100 * sum by (mode) ({CPU_SECONDS}{{NODES, mode!="idle"}}) / on () group_left () {CPUS}',
                "other": f"100 * clamp_min(1 - sum({CPU_SECONDS}{{NODES}}) / {CPUS}, 0)",
            },
            "percent",
            "Of all chosen nodes. iowait: CPUs had nothing to do but to wait for a disk. "
            "other: interrupts, niced programs, and what the hypervisor took.",
            stack=True,
        ),
        spread(
            "Load for each CPU",
            "pc_node:load1_per_cpu:ratio",
            "none",
            "Above 1, processes wait for a CPU.",
            limits=((1, YELLOW),),
        ),
        spread("Memory in use", "pc_node:memory_utilization:ratio", **RATIO),
        lines(
            "Memory by use",
            {"in use": f"{TOTAL} - {AVAILABLE}", "cache": f"{AVAILABLE} - {FREE}", "free": FREE},
            "bytes",
            stack=True,
        ),
        kinds(
            "Processes",
            "node_procs_%s",
            {"run": "running", "blocked": "blocked"},
            "none",
            "Blocked ones wait for a disk or a file system.",
        ),
    ),
    row(
        "Disks and network",
        directions("Disks", DISKS, READ_WRITTEN),
        spread(
            "Disks at work", "pc_node:disk_utilization:max", "percent", "The busiest disk of each node.", factor="100"
        ),
        spread("Fullest file system", "pc_node:filesystem_utilization:max", over="max", limits=FULL, **RATIO),
        directions("TCP/IP", NETWORK, RECEIVE_TRANSMIT),
        kinds("Packets lost", "pc_node:network_%s_drops:rate5m", RECEIVE_TRANSMIT, "pps"),
        lines(
            "TCP segments sent again",
            {
                "median": f"quantile(0.5, rate({RESENT}[$__rate_interval]))",
                "{{pc_node}}": f"rate({RESENT}[$__rate_interval]) and topk(10, rate({RESENT}{SHOWN}))",
            },
            "pps",
            HIGHEST,
        ),
    ),
    row(
        "Services and file systems",
        table(
            "File systems",
            "",
            [
                Column("Node", label="pc_node"),
                Column("Mounted at", label="mountpoint"),
                Column("Type", label="fstype"),
                Column("Device", label="device"),
                Column(
                    "Used",
                    f"topk(50, 100 * max by (pc_node, mountpoint, fstype, device) ({USED}))",
                    "percent",
                    FULL,
                    100,
                ),
            ],
            "The fifty fullest, with /dev/shm, /run and others in memory.",
            width=12,
            sort="Used",
        ),
        table(
            "Services",
            "",
            [
                Column("Node", label="pc_node"),
                Column("Service", label="name"),
                Column("State", label="state"),
                Column("", f"topk(50, 2 * {UNITS % '='} or {UNITS % '!='})"),
            ],
            "At most fifty, those that failed first: choose a node to see all of its services.",
            width=12,
            sort="State",
        ),
    ),
)

# The dashboard of Slurm

FIFTY = "topk(50, max by (node) (slurm_node_cpu_alloc{PARTITION}))"
DOWN = f'slurm_node_status{{PARTITION, status=~"{BROKEN}"}}'
REASONS = "max by (node, since, reason) (slurm_node_drain_reason_info{CLUSTER})"


def of_fifty(title: str, what: str, unit: str = "none") -> Column:
    """A number of the nodes that give most CPUs to jobs."""
    return Column(title, f"max by (node) (slurm_node_{what}{{PARTITION}}) and {FIFTY}", unit)


SLURM_ROWS = (
    numbers(
        Number("Jobs running", "sum(slurm_partition_jobs_running{PARTITION})"),
        Number("Jobs waiting", "sum(slurm_partition_jobs_pending{PARTITION})"),
        Number("Nodes in use", nodes_in("PARTITION", "in_use"), description=TWICE, base=BLUE),
        Number("Nodes idle", nodes_in("PARTITION", "idle"), description=f"Also those that are powered down. {TWICE}"),
        Number("Powering up", nodes_in("PARTITION", "powering_up"), description=TWICE, base=YELLOW),
        Number("Powered down", nodes_in("PARTITION", "powered_down"), description=TWICE, base=GREY),
        Number("Down or drained", nodes_in("PARTITION", "down", "drained"), limits=ALARM, description=TWICE),
        Number(
            "GPUs free",
            "sum(partition:slurm_gpus:sum{PARTITION}) - sum(partition:slurm_gpus_allocated:sum{PARTITION})",
            description="A node that is in several of the chosen partitions counts in each.",
        ),
    ),
    row(
        "Partitions",
        partitions("Jobs that run", "slurm_partition_jobs_running"),
        partitions("Jobs that wait", "slurm_partition_jobs_pending"),
        partitions(
            "Jobs that wait for nodes",
            "partition:slurm_jobs_waiting:sum",
            "Without those that are held, or wait for another job or a time.",
        ),
        node_states("PARTITION"),
        share_of_jobs("CPUs given to jobs", "cpus"),
        share_of_jobs("GPUs given to jobs", "gpus"),
    ),
    row(
        "Users and accounts",
        load_of("Users", "user"),
        load_of("Accounts", "account"),
        lines("Why jobs wait", by("reason", "sum", "slurm_queue_pending{PARTITION}"), "none", stack=True),
        table(
            "Nodes",
            "node",
            [
                Column("Node", label="node", link=NODE_LINK),
                Column("State", label="status"),
                Column("", f"max by (node, status) (slurm_node_status{{PARTITION}}) and on (node) {FIFTY}"),
                of_fifty("CPUs given to jobs", "cpu_alloc"),
                of_fifty("CPUs", "cpu_total"),
                of_fifty("Memory given to jobs", "mem_alloc", "mbytes"),
                of_fifty("Memory", "mem_total", "mbytes"),
            ],
            "The fifty that give most CPUs to jobs; `sinfo -N` lists all. "
            "A ~ after the state: powered down; a * after it: does not answer.",
            width=16,
        ),
        table(
            "Nodes that are down or drained",
            "",
            [
                Column("Node", label="node"),
                Column("Since", label="since"),
                Column("Why", label="reason"),
                Column("", f"topk(50, {REASONS} and on (node) {DOWN} or on (node) max by (node) ({DOWN}))"),
            ],
            "At most fifty; `sinfo --list-reasons` lists all.",
            width=8,
        ),
    ),
    row(
        "Scheduler",
        lines(
            "Jobs in ten minutes",
            {
                "submitted": scheduled("submitted"),
                "started": scheduled("started"),
                "completed": scheduled("completed"),
                "failed": scheduled("failed"),
                "cancelled": scheduled("canceled"),
            },
            "short",
        ),
        lines(
            "How long scheduling takes",
            {
                "main": f"1e-6 * max({either('slurm_scheduler_last_cycle', 'slurm_schedule_cycle_last')})",
                "backfill": f"1e-6 * max({either('slurm_scheduler_backfill_last_cycle', 'slurm_bf_cycle_last')})",
            },
            "s",
            "The last cycle of each.",
        ),
        lines(
            "Slurm's controller",
            {
                "threads": f"max({either('slurm_scheduler_threads', 'slurm_server_thread_cnt')})",
                "messages to send": f"max({either('slurm_scheduler_queue_size', 'slurm_agent_queue_size')})",
            },
            "none",
        ),
    ),
)

# The dashboard of one job

BUSY = "DCGM_FI_DEV_GPU_UTIL{JOB}"

JOB_ROWS = (
    numbers(
        Number("Nodes", f"count({HELD})"),
        Number("GPUs", f"sum({HELD})"),
        Number("GPU utilisation", f"avg({BUSY})", "percent"),
        Number(
            "Idlest GPU",
            f"min(avg_over_time({BUSY}[5m]))",
            "percent",
            description="Over five minutes. Far below the others, it holds them up, or has no work.",
        ),
        Number("Tensor cores", "100 * avg(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{JOB})", "percent"),
        Number("Power", "sum(DCGM_FI_DEV_POWER_USAGE{JOB})", "watt"),
        Number(
            "Energy",
            f"sum(increase(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{JOB}}{SHOWN})) / 3.6e9",
            "kwatth",
            description="Of its GPUs, in the time that is shown.",
        ),
        Number(
            "GPUs with an XID",
            with_xid("JOB", 'xid!=""'),
            limits=NOTICE,
            description="In the time that is shown, XIDs that the program causes included.",
        ),
    ),
    row(
        "Is every GPU at work?",
        carpet(
            "Utilisation of each GPU",
            f"{BUSY} and bottomk(32, avg_over_time({BUSY}{SHOWN}))",
            "{{pc_node}} {{gpu}}",
            "Of a job on more than 32 GPUs, the 32 that did least in the time that is shown.",
        ),
    ),
    row(
        "GPUs · network · nodes",
        job_gpus("GPU utilisation", "avg", "DCGM_FI_DEV_GPU_UTIL", least=True, **PERCENT),
        directions(
            "EFA",
            EFA,
            {"received": "rx_bytes", "sent": "tx_bytes"},
            "Between nodes. Other jobs on the same nodes count too.",
            job=True,
        ),
        job_nodes("CPU", "pc_node:cpu_utilization:ratio", **RATIO),
        job_gpus("Tensor cores", "avg", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", least=True, **RATIO),
        directions("NVLink", NVLINK, RX_TX, "Between the GPUs of one node, with those of other jobs on it.", job=True),
        job_nodes("Memory in use", "pc_node:memory_utilization:ratio", **RATIO),
        job_nodes(
            "GPU memory in use", "pc_node:gpu_memory_utilization:ratio", description="Of all GPUs of a node.", **RATIO
        ),
        job_nodes(
            "EFA: sent again",
            EFA % "retrans_pkts",
            "pps",
            "Packets. Many of them on one node explain a job that has become slow.",
        ),
        directions("Local disks", DISKS, READ_WRITTEN, job=True),
        job_gpus("GPU power", "sum", "DCGM_FI_DEV_POWER_USAGE", "watt"),
        directions(
            "TCP/IP",
            NETWORK,
            RECEIVE_TRANSMIT,
            "Data loading and checkpoints: Lustre and NFS without EFA are here.",
            job=True,
        ),
        job_nodes("Processes that wait for a disk or a file system", "node_procs_blocked", "none"),
        job_gpus("GPU temperature", "max", "DCGM_FI_DEV_GPU_TEMP", "celsius", limits=HOT),
        job_gpus("GPU clock", "min", "DCGM_FI_DEV_SM_CLOCK", "hertz", factor="1e6", least=True),
        job_nodes("Load for each CPU", "pc_node:load1_per_cpu:ratio", "none"),
    ),
)

# The dashboard of shared file systems

ROOM = "fsx:avail_bytes:min{SHARED}"
FILES, FILES_FREE = "fsx:files:max{SHARED}", "fsx:files_free:min{SHARED}"


def file_systems(title: str, expr: str, unit: str, description: str = "", **options: Any) -> Json:
    """A line for each shared file system."""
    return lines(title, {"{{mountpoint}}": expr}, unit, description, width=12, **options)


FSX_ROWS = (
    numbers(
        Number("Fullest", "100 * max(fsx:used:ratio{SHARED})", "percent", FULL_SHARED),
        Number("Size", "sum(fsx:size_bytes:max{SHARED})", "bytes"),
        Number("Free", f"sum({ROOM})", "bytes"),
        Number(
            "First one full in",
            f"clamp_max(min({ROOM} / clamp_min(-deriv({ROOM}[6h]), 1)), 315360000)",
            "s",
            description="If it goes on as in the last six hours. Ten years stand for never.",
            decimals=0,
        ),
        Number(
            "Most files",
            f"100 * max(1 - {FILES_FREE} / ({FILES} > 0))",
            "percent",
            FULL_SHARED,
            "Of the files (inodes) that fit.",
        ),
        Number(
            "Nodes with errors",
            "count(count by (pc_node) (node_filesystem_device_error{SHARED} > 0)) or vector(0)",
            limits=ALARM,
            description="Nodes on which a file system does not answer.",
        ),
    ),
    row(
        "Space",
        file_systems("Used", "100 * fsx:used:ratio{SHARED}", limits=FULL_SHARED, **PERCENT),
        file_systems("Free", ROOM, "bytes"),
        file_systems(
            "Written",
            f"clamp_min(-deriv({ROOM}[30m]), 0)",
            "Bps",
            "How fast they fill up; less what is removed meanwhile.",
        ),
        file_systems("Files", f"{FILES} - {FILES_FREE}", "short"),
    ),
    row(
        "Nodes",
        file_systems("Nodes that have it mounted", "fsx:nodes:count{SHARED}", "none"),
        totals(
            "What nodes receive and send over TCP/IP",
            NETWORK,
            RECEIVE_TRANSMIT,
            "Lustre without EFA is most of it. FSx' own view is in CloudWatch.",
            width=12,
        ),
        table(
            "What is mounted",
            "device",
            [
                Column("Device", label="device"),
                Column("Mounted at", label="mountpoint"),
                Column("Type", label="fstype"),
                Column("Nodes", "count by (mountpoint, fstype, device) (node_filesystem_size_bytes{SHARED})"),
                Column("Free", "min by (device) (node_filesystem_avail_bytes{SHARED})", "bytes"),
            ],
            "On how many nodes. Two devices at one place: not all nodes have the same.",
        ),
    ),
)

DASHBOARDS = (
    # the file's name, title, description, what can be chosen, panels
    dashboard(
        "overview",
        "Cluster overview",
        "What a cluster does now, and whether anything needs a person.",
        [],
        OVERVIEW_ROWS,
    ),
    dashboard(
        "gpu", "GPUs", "How hard GPUs work, how they are, and what is wrong with them.", ["queue", "node"], GPU_ROWS
    ),
    dashboard(
        "neuron",
        "Neuron",
        "How hard the cores of Trainium and Inferentia work, and what is wrong with the devices.",
        ["queue", "node"],
        NEURON_ROWS,
    ),
    dashboard(
        "nvlink",
        "NVLink",
        "What GPUs of one node say to each other, and what is lost on the way.",
        ["queue", "node"],
        NVLINK_ROWS,
    ),
    dashboard(
        "efa",
        "EFA",
        "What nodes say to each other over the Elastic Fabric Adapter, and what is lost on the way.",
        ["queue", "node"],
        EFA_ROWS,
    ),
    dashboard("node", "Nodes", "CPUs, memory, disks and services of nodes.", ["queue", "node"], NODE_ROWS),
    dashboard(
        "slurm", "Slurm", "Partitions, who waits for what, and the nodes as Slurm sees them.", ["partition"], SLURM_ROWS
    ),
    dashboard(
        "job",
        "Slurm jobs",
        "One job that holds GPUs: its GPUs, its network and its nodes side by side.",
        ["job"],
        JOB_ROWS,
    ),
    dashboard(
        "fsx",
        "FSx",
        "How full shared file systems are, when they will be, and which nodes have them.",
        ["mountpoint"],
        FSX_ROWS,
    ),
)


def text_of(value: Any, start: str = "") -> str:
    """Return JSON that a person can review: what fits into 120 columns is on one line, and members share lines.

    `start` stands before the value on its line: the indentation, and the key.
    """
    line = start + json.dumps(value, ensure_ascii=False)
    if len(line) < WIDTH or not isinstance(value, (dict, list)):  # one column is for the comma behind the value
        return line
    indent = " " * (len(start) - len(start.lstrip()))
    if isinstance(value, list):
        longer = [text_of(one, indent) for one in value]
        if all("\n" in one for one in longer):
            return start + "[" + ", ".join(one.lstrip() for one in longer) + "]"
        inner, brackets = [text_of(one, f"{indent} ") for one in value], "[]"
    else:
        inner, brackets = [], "{}"
        for member in (text_of(one, f"{indent} {json.dumps(key)}: ") for key, one in value.items()):
            beside = f"{inner[-1]}, {member.lstrip()}" if inner else ""
            if beside and "\n" not in beside and len(beside) < WIDTH:
                inner[-1] = beside
            else:
                inner.append(member)
    return "\n".join([start + brackets[0], ",\n".join(inner), indent + brackets[1]])


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail when a file is out of date")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    options = parser.parse_args(arguments)
    folder = options.root / FOLDER
    wanted = {folder / f"{made['uid'].removeprefix(f'{TAG}-')}.json": text_of(made) + "\n" for made in DASHBOARDS}
    found = {path: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    stale = [path for path in sorted({*wanted, *found}) if wanted.get(path) != found.get(path)]
    for path in stale:
        if options.check:
            print(f"{path} is out of date: run scripts/dashboards.py", file=sys.stderr)
            before, after = (texts.get(path, "").splitlines(True) for texts in (found, wanted))
            sys.stderr.writelines(list(difflib.unified_diff(before, after, n=0))[:40])
        elif path in wanted:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
            print(f"{path} written")
        else:
            path.unlink()
            print(f"{path} removed")
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
