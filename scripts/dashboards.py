#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the dashboards of role grafana: a cluster, its nodes, GPUs, fabrics, file systems and jobs."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from grafana_panels import (
    BLUE,
    CLUSTER,
    GREEN,
    GREY,
    NODES,
    ORANGE,
    RED,
    TAG,
    YELLOW,
    Column,
    Json,
    Query,
    Row,
    carpet,
    dashboard,
    lines,
    number,
    table,
    to_job,
    to_node,
)

FOLDER = Path("roles/grafana/files/dashboards")
R = "[$__rate_interval]"
# All of the time that is shown, looked at once and not at each point of a line.
SHOWN = "[$__range] @ end()"
JOB = f'{CLUSTER}, hpc_job="$job"'
# What stands for all nodes, or for several, is no node's name: this selects something only once a single one is chosen.
ONE = f'{CLUSTER}, pc_node="$node"'
SHARED = f'{CLUSTER}, mountpoint=~"$mountpoint"'
PARTITION = f'{CLUSTER}, partition=~"$partition"'
TWICE = "With Slurm's own metrics, a node that is in several partitions counts in each."
HIGHEST = "The ten highest of the time that is shown, and the median of all."
LOWEST = "The ten lowest of the time that is shown, of those that did anything, and the median of all."
CHOOSE = "Choose one node above."


def ten(series: str, over: str = "avg", least: bool = False) -> str:
    """The ten of the series that stand out over all of the time that is shown: of each point, more than ten might."""
    whole = f"{over}_over_time({series}{SHOWN})"
    return f"({series} and {f'bottomk(10, {whole} > 0)' if least else f'topk(10, {whole})'})"


def told(*sentences: str) -> str:
    """A panel's description."""
    return " ".join(filter(None, sentences))


def scaled(expr: str, factor: str) -> str:
    """A query in the unit of its panel."""
    return f"{factor} * {expr}" if factor else expr


def spread(
    title: str, series: str, *, over: str = "avg", factor: str = "", least: bool = False, **options: Any
) -> Json:
    """Of a series for each node: the ten that stand out, and the highest, the median and the lowest of all."""
    of_all = ("highest", f"max({series})"), ("median", f"quantile(0.5, {series})"), ("lowest", f"min({series})")
    options["description"] = told(options.get("description", ""), LOWEST if least else HIGHEST)
    return lines(
        title,
        *(Query(scaled(expr, factor), name) for name, expr in of_all),
        Query(scaled(ten(series, over, least), factor), "{{pc_node}}"),
        colors={"highest": GREY, "median": BLUE, "lowest": GREY},
        **options,
    )


def kinds(
    title: str, *series: tuple[str, str], over: str = "avg", factor: str = "", least: bool = False, **options: Any
) -> Json:
    """Of several series for each node: of each kind the ten that stand out, and the median of all."""
    queries = [Query(scaled(f"quantile(0.5, {one})", factor), f"median {name}") for one, name in series]
    queries += [Query(scaled(ten(one, over, least), factor), f"{{{{pc_node}}}} {name}") for one, name in series]
    options["description"] = told(options.get("description", ""), LOWEST if least else HIGHEST)
    return lines(title, *queries, **options)


def with_xid(selection: str) -> str:
    """How many GPUs have had an XID in the time that is shown. What tells the last one only keeps it for ever."""
    xids = f'max by (UUID) (max_over_time(DCGM_EXP_XID_ERRORS_COUNT{{{selection}, xid!=""}}[$__range]))'
    return f"count({xids} > 0) or vector(0)"


# What slurm_exporter says of nodes in a state, as in the rules of role prometheus: each is in one of the first four,
# whatever the mark behind it tells of power: ~ is powered down, % on its way there, and # on its way up.
BROKEN = "(down|drain|fail|error|unknown|inval).*"
STATES = {
    "in_use": ("(allocated|mixed|completing).*", BLUE),
    "idle": ("(idle|planned|reserved|blocked|maint|reboot).*", GREEN),
    "drained": ("drain.*", ORANGE),
    "down": ("(down|fail|error|unknown|inval).*", RED),
}
POWER = {
    "powered_down": (".+[~%]", GREY),
    "powering_up": (".+#", YELLOW),
}


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
        *(Query(nodes_in(selection, state), state) for state in (*STATES, *POWER)),
        unit="none",
        colors={state: color for state, (_status, color) in {**STATES, **POWER}.items()},
        description=f"A node is in use, idle, drained or down, and may be powered down besides. {TWICE}",
    )


def overview() -> Json:
    both = f"sum(pc_node:efa_%s_bytes:rate5m{{{CLUSTER}}})"
    link = f"sum(pc_node:nvlink_%s_bytes:sum{{{CLUSTER}}})"
    wire = f"sum(pc_node:network_%s_bytes:rate5m{{{CLUSTER}}})"
    held, gpus = (f"sum(pc_node:{kind}:count{{{CLUSTER}}})" for kind in ("job_gpus", "gpus"))

    def most(expr: str) -> str:
        return f"topk(10, max by (pc_node) ({expr}{{{CLUSTER}}}))"

    percent: Any = {"unit": "percent", "top": 100, "limits": ((80.0, YELLOW), (95.0, RED))}
    return dashboard(
        "overview",
        "Cluster overview",
        "What a cluster does now, and whether anything needs a person.",
        [],
        [
            Row(
                "",
                [
                    number("Nodes up", f'count(up{{job="node", {CLUSTER}}} == 1)', "none"),
                    number(
                        "Nodes silent",
                        f'count(up{{job="node", {CLUSTER}}} == 0) or vector(0)',
                        "none",
                        limits=[(1, RED)],
                        description="Slurm has these up, and their node_exporter does not answer.",
                    ),
                    number("GPUs", gpus, "none"),
                    number("GPUs in jobs", f"100 * ({held} or vector(0)) / {gpus}", "percent", decimals=0),
                    number("GPU utilisation", f"avg(pc_node:gpu_utilization:avg{{{CLUSTER}}})", "percent", decimals=0),
                    number("Jobs running", f"sum(slurm_jobs_running{{{CLUSTER}}})", "none"),
                    number("Jobs waiting", f"sum(slurm_jobs_pending{{{CLUSTER}}})", "none"),
                    number(
                        "Alerts",
                        f'count(ALERTS{{alertstate="firing", {CLUSTER}}}) or vector(0)',
                        "none",
                        limits=[(1, RED)],
                        description="What fires now of the rules that come with Prometheus' role.",
                    ),
                ],
            ),
            Row(
                "GPUs",
                [
                    lines(
                        "GPU utilisation",
                        Query(f"avg by (pc_queue) (pc_node:gpu_utilization:avg{{{CLUSTER}}})", "{{pc_queue}}"),
                        unit="percent",
                        max=100,
                        description="The share of time in which a kernel ran, however small. Of a queue, its mean.",
                    ),
                    lines(
                        "GPU memory in use",
                        Query(
                            f"100 * avg by (pc_queue) (pc_node:gpu_memory_utilization:ratio{{{CLUSTER}}})",
                            "{{pc_queue}}",
                        ),
                        unit="percent",
                        max=100,
                    ),
                    lines(
                        "GPU power",
                        Query(f"sum by (pc_queue) (pc_node:gpu_power_watts:sum{{{CLUSTER}}})", "{{pc_queue}}"),
                        unit="watt",
                        stack=True,
                    ),
                ],
            ),
            Row(
                "Slurm",
                [
                    lines(
                        "Jobs",
                        Query(f"sum(slurm_jobs_running{{{CLUSTER}}})", "running"),
                        Query(f"sum(slurm_jobs_pending{{{CLUSTER}}})", "waiting"),
                        Query(f"sum(slurm_jobs_completing{{{CLUSTER}}})", "completing"),
                        unit="none",
                        stack=True,
                    ),
                    lines(
                        "Jobs that wait, by partition",
                        Query(f"sum by (partition) (slurm_partition_jobs_pending{{{CLUSTER}}})", "{{partition}}"),
                        unit="none",
                    ),
                    node_states(CLUSTER),
                ],
            ),
            Row(
                "Fabrics",
                [
                    lines(
                        "EFA",
                        Query(both % "rx", "received"),
                        Query(both % "tx", "sent"),
                        unit="Bps",
                        mirror="sent",
                    ),
                    lines(
                        "NVLink", Query(link % "rx", "received"), Query(link % "tx", "sent"), unit="Bps", mirror="sent"
                    ),
                    lines(
                        "TCP/IP",
                        Query(wire % "receive", "received"),
                        Query(wire % "transmit", "sent"),
                        unit="Bps",
                        mirror="sent",
                        description="Everything on the nodes' network interfaces, with Lustre and NFS.",
                    ),
                ],
            ),
            Row(
                "Nodes",
                [
                    table(
                        "Nodes that stand out",
                        "pc_node",
                        Column("Node", label="pc_node", link=to_node()),
                        Column(
                            "Up for",
                            f"bottomk(10, max by (pc_node) (time() - node_boot_time_seconds{{{CLUSTER}}}))",
                            unit="s",
                        ),
                        Column("CPU", f"100 * {most('pc_node:cpu_utilization:ratio')}", **percent),
                        Column("Memory", f"100 * {most('pc_node:memory_utilization:ratio')}", **percent),
                        Column("GPU memory", f"100 * {most('pc_node:gpu_memory_utilization:ratio')}", **percent),
                        Column("Root disk", f"100 * {most('pc_node:root_utilization:ratio')}", **percent),
                        description="Of each column the ten highest, and the ten that were started last. "
                        "Where a node is none of these, its cell is empty.",
                    )
                ],
            ),
        ],
    )


def gpu() -> Json:
    def of(name: str) -> str:
        return f"pc_node:{name}{{{NODES}}}"

    def active(title: str, name: str, description: str) -> Json:
        return spread(
            title,
            of(f"gpu_{name}_active:avg"),
            factor="100",
            least=True,
            unit="percent",
            max=100,
            description=f"{description} The mean of a node's GPUs.",
        )

    def each(title: str, metric: str, factor: str = "", **options: Any) -> Json:
        # A series of its own begins with each job on a GPU, and the GPU is still the same.
        query = Query(scaled(f"max by (pc_node, gpu) ({metric}{{{ONE}}})", factor), "{{pc_node}} {{gpu}}")
        return lines(title, query, description=CHOOSE, **options)

    average, least = of("gpu_utilization:avg"), of("gpu_utilization:min")
    apart = f"topk(10, avg_over_time({average}{SHOWN}) - avg_over_time({least}{SHOWN}))"
    first = f"topk(10, 1000 * {of('gpus_with_errors:count')} + {of('gpu_temperature_celsius:max')})"
    xids = f'sum by (pc_node) (max_over_time(DCGM_EXP_XID_ERRORS_COUNT{{{NODES}, xid!=""}}[$__range]))'

    def of_first(name: str) -> str:
        return f"max by (pc_node) ({of(name)}) and on (pc_node) {first}"

    def of_one(metric: str, labels: str = "UUID") -> str:
        return f"max by ({labels}) ({metric}{{{ONE}}})"

    return dashboard(
        "gpu",
        "GPUs",
        "How hard GPUs work, how they are, and what is wrong with them.",
        ["queue", "node"],
        [
            Row(
                "",
                [
                    number("GPUs", f"sum({of('gpus:count')})", "none"),
                    number("Utilisation", f"avg({average})", "percent", decimals=0),
                    number("Memory in use", f"sum({of('gpu_memory_used_mib:sum')})", "mbytes", decimals=1),
                    number("Power", f"sum({of('gpu_power_watts:sum')})", "watt"),
                    number(
                        "Hottest",
                        f"max({of('gpu_temperature_celsius:max')})",
                        "celsius",
                        limits=[(80, YELLOW), (87, RED)],
                    ),
                    number(
                        "With an XID",
                        with_xid(NODES),
                        "none",
                        limits=[(1, RED)],
                        description="GPUs that had one in the time that is shown, a program's own included.",
                    ),
                    number(
                        "ECC errors",
                        f"sum({of('gpu_ecc_uncorrected:sum')})",
                        "none",
                        limits=[(1, RED)],
                        description="Those that could not be corrected, since the driver was loaded.",
                    ),
                    number(
                        "Slowed down",
                        f"count({of('gpu_thermal_violation:rate5m')} + {of('gpu_power_violation:rate5m')} > 0)"
                        " or vector(0)",
                        "none",
                        limits=[(1, ORANGE)],
                        description="Nodes with a GPU whose clock heat or power has lowered within five minutes.",
                    ),
                ],
            ),
            Row(
                "Work",
                [
                    carpet(
                        "Nodes whose GPUs are least alike",
                        Query(f"({average} - {least}) and {apart}", "{{pc_node}}"),
                        "percent",
                        100,
                        description="How far the utilisation of a node's idlest GPU is below the mean of its GPUs: "
                        "the ten nodes where it is furthest in the time that is shown. A GPU that waits for others "
                        "stands out.",
                    ),
                    spread(
                        "Utilisation",
                        average,
                        least=True,
                        unit="percent",
                        max=100,
                        description="The share of time in which a kernel ran, however small. Of a node, the mean.",
                    ),
                    active("Graphics engine", "engine", "The share of time in which any engine worked."),
                    kinds(
                        "Streaming multiprocessors",
                        (of("gpu_sm_active:avg"), "active"),
                        (of("gpu_sm_occupancy:avg"), "occupied"),
                        factor="100",
                        least=True,
                        unit="percent",
                        max=100,
                        description="How many of them had a warp, and how many warps of those that fit they had.",
                    ),
                    active(
                        "Tensor cores",
                        "tensor",
                        "The share of cycles in which tensor cores worked: what training pays for.",
                    ),
                    active("Memory interface", "dram", "The share of cycles in which the memory moved data."),
                    spread(
                        "Memory in use",
                        of("gpu_memory_utilization:ratio"),
                        factor="100",
                        unit="percent",
                        max=100,
                        description="Of all GPUs of a node.",
                    ),
                    kinds(
                        "PCIe",
                        (of("gpu_pcie_rx_bytes:sum"), "received"),
                        (of("gpu_pcie_tx_bytes:sum"), "sent"),
                        unit="Bps",
                        width=24,
                        mirror="sent$",
                    ),
                ],
            ),
            Row(
                "Health",
                [
                    spread("Power", of("gpu_power_watts:sum"), unit="watt", description="Of all GPUs of a node."),
                    spread(
                        "Temperature",
                        of("gpu_temperature_celsius:max"),
                        over="max",
                        unit="celsius",
                        limits=[(87.0, RED)],
                        description="The hottest GPU of a node.",
                    ),
                    spread(
                        "Temperature of the memory",
                        of("gpu_memory_temperature_celsius:max"),
                        over="max",
                        unit="celsius",
                        limits=[(95.0, RED)],
                        description="The hottest GPU of a node.",
                    ),
                    spread(
                        "Clock of the multiprocessors",
                        of("gpu_sm_clock_hertz:min"),
                        least=True,
                        unit="hertz",
                        description="The slowest GPU of a node.",
                    ),
                    kinds(
                        "Slowed down",
                        (of("gpu_thermal_violation:rate5m"), "by heat"),
                        (of("gpu_power_violation:rate5m"), "by power"),
                        unit="percentunit",
                        description="The share of time in which the clock was lowered, summed over the GPUs of a node.",
                    ),
                    kinds(
                        "ECC errors",
                        (of("gpu_ecc_corrected:sum"), "corrected"),
                        (of("gpu_ecc_uncorrected:sum"), "uncorrected"),
                        over="max",
                        unit="none",
                    ),
                    table(
                        "Nodes whose GPUs need a look",
                        "pc_node",
                        Column("Node", label="pc_node", link=to_node()),
                        Column("GPUs", of_first("gpus:count"), unit="none"),
                        Column("With errors", of_first("gpus_with_errors:count"), unit="none", limits=((1.0, RED),)),
                        Column(
                            "XIDs",
                            f"{xids} and on (pc_node) {first} or on (pc_node) 0 * max by (pc_node) ({first})",
                            unit="none",
                            limits=((1.0, RED),),
                        ),
                        Column(
                            "Uncorrected ECC", of_first("gpu_ecc_uncorrected:sum"), unit="none", limits=((1.0, RED),)
                        ),
                        Column(
                            "Hottest", of_first("gpu_temperature_celsius:max"), unit="celsius", limits=((87.0, RED),)
                        ),
                        Column("Power", of_first("gpu_power_watts:sum"), unit="watt"),
                        description="Ten: first those whose GPUs have uncorrected ECC errors, or rows of memory whose "
                        "remapping failed or waits for a reset; then the hottest. XIDs are of the time that is shown.",
                    ),
                ],
            ),
            Row(
                "Each GPU of one node",
                [
                    carpet(
                        "Utilisation of each GPU",
                        Query(f"max by (pc_node, gpu) (DCGM_FI_DEV_GPU_UTIL{{{ONE}}})", "{{pc_node}} {{gpu}}"),
                        "percent",
                        100,
                        description=f"{CHOOSE} The share of time in which a kernel ran.",
                    ),
                    each("Memory of each GPU", "DCGM_FI_DEV_FB_USED", unit="mbytes"),
                    each("Temperature of each GPU", "DCGM_FI_DEV_GPU_TEMP", unit="celsius", limits=[(87.0, RED)]),
                    each("Clock of each GPU", "DCGM_FI_DEV_SM_CLOCK", "1e6", unit="hertz"),
                    table(
                        "Each GPU",
                        "UUID",
                        Column("Node", label="pc_node", link=to_node()),
                        Column("GPU", label="gpu"),
                        Column("Model", label="modelName"),
                        Column("Job", label="hpc_job", link=to_job()),
                        Column("UUID", label="UUID"),
                        Column(
                            "Last XID",
                            of_one("DCGM_FI_DEV_XID_ERRORS", "UUID, pc_node, gpu, modelName, hpc_job"),
                            unit="none",
                            limits=((1.0, RED),),
                        ),
                        Column(
                            "Uncorrected ECC",
                            of_one("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
                            unit="none",
                            limits=((1.0, RED),),
                        ),
                        Column(
                            "Rows remapped",
                            of_one("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"),
                            unit="none",
                            limits=((1.0, ORANGE),),
                        ),
                        Column(
                            "Remapping failed",
                            of_one("DCGM_FI_DEV_ROW_REMAP_FAILURE"),
                            unit="none",
                            limits=((1.0, RED),),
                        ),
                        Column("Temperature", of_one("DCGM_FI_DEV_GPU_TEMP"), unit="celsius", limits=((87.0, RED),)),
                        Column("Power", of_one("DCGM_FI_DEV_POWER_USAGE"), unit="watt"),
                        description=CHOOSE,
                    ),
                ],
            ),
        ],
    )


def nvlink() -> Json:
    per = "{{pc_node}} {{gpu}}"

    def of(name: str) -> str:
        return f"pc_node:nvlink_{name}{{{NODES}}}"

    def errors(title: str, name: str, description: str) -> Json:
        return spread(title, of(f"{name}:rate5m"), unit="cps", width=6, description=description)

    def each(title: str, metric: str, newer: str) -> Json:
        # NVLink 5 (B200 and newer) counts its errors in fields of its own; a GPU has either these or those.
        old, new = (f"rate(DCGM_FI_DEV_NVLINK_{name}{{{ONE}}}{R})" for name in (f"{metric}_ERROR_COUNT_TOTAL", newer))
        return lines(
            title, Query(f"sum by (pc_node, gpu) ({old} or {new})", per), unit="cps", width=8, description=CHOOSE
        )

    both = f"DCGM_FI_PROF_NVLINK_RX_BYTES{{{ONE}}} + DCGM_FI_PROF_NVLINK_TX_BYTES{{{ONE}}}"
    return dashboard(
        "nvlink",
        "NVLink",
        "What GPUs of one node say to each other, and what is lost on the way.",
        ["queue", "node"],
        [
            Row(
                "",
                [
                    number("Received", f"sum({of('rx_bytes:sum')})", "Bps", width=6),
                    number("Sent", f"sum({of('tx_bytes:sum')})", "Bps", width=6),
                    number(
                        "Busiest GPU",
                        f"max({of('gpu_bytes:max')})",
                        "Bps",
                        width=6,
                        description="An H100 or H200 can do 900 GB/s, both directions together; a B200 1800 GB/s.",
                    ),
                    number(
                        "Links that had to recover",
                        f"sum({of('recoveries:sum')})",
                        "none",
                        width=6,
                        limits=[(1, RED)],
                        description="Since the driver was loaded.",
                    ),
                ],
            ),
            Row(
                "Traffic",
                [
                    kinds(
                        "Traffic of nodes",
                        (of("rx_bytes:sum"), "received"),
                        (of("tx_bytes:sum"), "sent"),
                        unit="Bps",
                        width=12,
                        mirror="sent$",
                    ),
                    spread(
                        "Busiest GPU of each node",
                        of("gpu_bytes:max"),
                        unit="Bps",
                        width=12,
                        description="Both directions.",
                    ),
                ],
            ),
            Row(
                "Errors",
                [
                    errors(
                        "Flits with errors",
                        "crc_flit_errors",
                        "Corrected by sending again. Many of them make a link slow. Of NVLink 5, packets.",
                    ),
                    errors(
                        "Data with errors",
                        "crc_data_errors",
                        "Corrected by sending again. Of NVLink 5, what was not corrected.",
                    ),
                    errors(
                        "Sent again",
                        "replay_errors",
                        "Each costs time. A link that goes on doing so is about to fail. NVLink 5 has no such count.",
                    ),
                    errors("Recoveries", "recoveries", "The link was trained anew; a job may not survive that."),
                ],
            ),
            Row(
                "Each GPU of one node",
                [
                    lines(
                        "Traffic of each GPU",
                        Query(f"max by (pc_node, gpu) ({both})", per),
                        unit="Bps",
                        description=f"{CHOOSE} Both directions. In a job that is well balanced all are alike.",
                    ),
                    each("Flits with errors of each GPU", "CRC_FLIT", "COUNT_RX_ERRORS"),
                    each("Recoveries of each GPU", "RECOVERY", "COUNT_LINK_RECOVERY_EVENTS"),
                ],
            ),
        ],
    )


def efa() -> Json:
    def of(name: str) -> str:
        return f"pc_node:efa_{name}:rate5m{{{NODES}}}"

    def both(title: str, into: tuple[str, str], out: tuple[str, str], description: str = "", **options: Any) -> Json:
        series = [(of(metric), name) for metric, name in (into, out)]
        options = {"unit": "Bps", "mirror": f"{out[1]}$", "description": description, **options}
        return kinds(title, *series, **options)

    def events(title: str, *metrics: tuple[str, str], unit: str = "cps", description: str = "") -> Json:
        return kinds(title, *((of(metric), name) for metric, name in metrics), unit=unit, description=description)

    def each(title: str, metric: str, unit: str) -> Json:
        query = Query(f"sum by (device) (rate(node_amazonefa_{metric}{{{ONE}}}{R}))", "{{device}}")
        return lines(title, query, unit=unit, description=f"{CHOOSE} A node's devices should be alike.")

    again, sent = (f"sum({of(kind)})" for kind in ("retrans_pkts", "tx_pkts"))
    devices = f"pc_node:efa_devices:count{{{NODES}}}"
    return dashboard(
        "efa",
        "EFA",
        "What nodes say to each other over the Elastic Fabric Adapter, and what is lost on the way.",
        ["queue", "node"],
        [
            Row(
                "",
                [
                    number("Nodes with EFA", f"count({devices})", "none", width=4),
                    number("Devices", f"sum({devices})", "none", width=4),
                    number("Received", f"sum({of('rx_bytes')})", "Bps", width=4),
                    number("Sent", f"sum({of('tx_bytes')})", "Bps", width=4),
                    number(
                        "Sent again",
                        f"({again} / ({sent} > 0)) or vector(0)",
                        "percentunit",
                        width=4,
                        limits=[(0.001, YELLOW), (0.01, RED)],
                        description="Packets that had to be sent again, of all that were sent.",
                    ),
                    number(
                        "Silent peers",
                        f"300 * sum({of('unresponsive_remote_events')})",
                        "none",
                        width=4,
                        decimals=0,
                        limits=[(1, RED)],
                        description="How often another node did not answer any more, within five minutes.",
                    ),
                ],
            ),
            Row(
                "Traffic",
                [
                    both(
                        "Traffic",
                        ("rx_bytes", "received"),
                        ("tx_bytes", "sent"),
                        "All of a node's devices together: a p5.48xlarge can do 400 GB/s each way.",
                    ),
                    both(
                        "RDMA reads",
                        ("rdma_read_bytes", "read"),
                        ("rdma_read_resp_bytes", "served"),
                        "What a node read from others, and what others read from it.",
                    ),
                    both(
                        "RDMA writes",
                        ("rdma_write_recv_bytes", "written-by-others"),
                        ("rdma_write_bytes", "written"),
                        "What others wrote to a node, and what it wrote to them.",
                    ),
                    both(
                        "Messages",
                        ("recv_bytes", "received"),
                        ("send_bytes", "sent"),
                        "Sends and receives, without RDMA.",
                        width=12,
                    ),
                    both("Packets", ("rx_pkts", "received"), ("tx_pkts", "sent"), unit="pps", width=12),
                ],
            ),
            Row(
                "Losses",
                [
                    spread(
                        "Packets sent again",
                        of("retrans_pkts"),
                        unit="pps",
                        description="Some are usual under load. Many on one node point to that node's path.",
                    ),
                    events(
                        "Peers in trouble",
                        ("retrans_timeout_events", "timeouts"),
                        ("unresponsive_remote_events", "silent"),
                        ("impaired_remote_conn_events", "impaired"),
                    ),
                    spread("Dropped on receipt", of("rx_drops"), unit="pps"),
                    events("RDMA errors", ("rdma_read_wr_err", "reads"), ("rdma_write_wr_err", "writes")),
                    events("Commands to the device", ("submitted_cmds", "submitted"), ("cmds_err", "failed")),
                    spread("Bytes sent again", of("retrans_bytes"), unit="Bps"),
                ],
            ),
            Row(
                "Each device of one node",
                [
                    each("Received by each device", "rx_bytes", "Bps"),
                    each("Sent by each device", "tx_bytes", "Bps"),
                    each("Sent again by each device", "retrans_pkts", "pps"),
                ],
            ),
        ],
    )


def node() -> Json:
    percent = [(80.0, YELLOW), (95.0, RED)]
    kept = f'{NODES}, fstype!~"tmpfs|ramfs|overlay|squashfs|autofs"'
    used = f"1 - node_filesystem_avail_bytes{{{kept}}} / node_filesystem_size_bytes{{{kept}}}"
    units = f'node_systemd_unit_state{{{NODES}, type!="oneshot", state%s"failed"}} == 1'

    def of(name: str) -> str:
        return f"pc_node:{name}{{{NODES}}}"

    def memory(kind: str) -> str:
        return f"sum(node_memory_Mem{kind}_bytes{{{NODES}}})"

    resent = f"node_netstat_Tcp_RetransSegs{{{NODES}}}"
    cpus = f"sum({of('cpus:count')})"
    seconds = f"pc_node:cpu_seconds:rate5m{{{NODES}%s}}"
    busy = ', mode!="idle"'
    modes = f"sum by (mode) ({seconds % busy})"
    return dashboard(
        "node",
        "Nodes",
        "CPUs, memory, disks and services of nodes.",
        ["queue", "node"],
        [
            Row(
                "",
                [
                    number("Nodes", f"count(node_uname_info{{{NODES}}})", "none"),
                    number("CPUs", cpus, "none"),
                    number(
                        "CPU",
                        f"100 * sum({of('cpu_utilization:ratio')} * {of('cpus:count')}) / {cpus}",
                        "percent",
                        decimals=0,
                    ),
                    number("Memory", memory("Total"), "bytes", decimals=1),
                    number(
                        "Memory in use",
                        f"100 * (1 - {memory('Available')} / {memory('Total')})",
                        "percent",
                        decimals=0,
                        limits=percent,
                    ),
                    number(
                        "Fullest root disk",
                        f"100 * max({of('root_utilization:ratio')})",
                        "percent",
                        decimals=0,
                        limits=percent,
                    ),
                    number("Up for at least", f"min(time() - node_boot_time_seconds{{{NODES}}})", "s", decimals=1),
                    number(
                        "Failed services",
                        f'sum(node_systemd_unit_state{{{NODES}, state="failed"}})',
                        "none",
                        limits=[(1, RED)],
                        description="Of those that a cluster lives on: node_exporter_flags names them.",
                    ),
                ],
            ),
            Row(
                "CPU and memory",
                [
                    spread("CPU", of("cpu_utilization:ratio"), factor="100", unit="percent", max=100),
                    lines(
                        "CPU by mode",
                        Query(f"100 * {modes} / on () group_left () {cpus}", "{{mode}}"),
                        Query(f"100 * clamp_min(1 - sum({seconds % ''}) / {cpus}, 0)", "other"),
                        unit="percent",
                        stack=True,
                        description="Of all chosen nodes. iowait: CPUs had nothing to do but to wait for a disk. "
                        "other: interrupts, niced programs, and what the hypervisor took.",
                    ),
                    spread(
                        "Load for each CPU",
                        of("load1_per_cpu:ratio"),
                        unit="none",
                        limits=[(1.0, YELLOW)],
                        description="Above 1, processes wait for a CPU.",
                    ),
                    spread("Memory in use", of("memory_utilization:ratio"), factor="100", unit="percent", max=100),
                    lines(
                        "Memory by use",
                        Query(f"{memory('Total')} - {memory('Available')}", "in use"),
                        Query(f"{memory('Available')} - {memory('Free')}", "cache"),
                        Query(memory("Free"), "free"),
                        unit="bytes",
                        stack=True,
                    ),
                    kinds(
                        "Processes",
                        (f"node_procs_running{{{NODES}}}", "run"),
                        (f"node_procs_blocked{{{NODES}}}", "blocked"),
                        unit="none",
                        description="Blocked ones wait for a disk or a file system.",
                    ),
                ],
            ),
            Row(
                "Disks and network",
                [
                    kinds(
                        "Disks",
                        (of("disk_read_bytes:rate5m"), "read"),
                        (of("disk_written_bytes:rate5m"), "written"),
                        unit="Bps",
                        mirror="written$",
                    ),
                    spread(
                        "Disks at work",
                        of("disk_utilization:max"),
                        factor="100",
                        unit="percent",
                        description="The busiest disk of each node.",
                    ),
                    spread(
                        "Fullest file system",
                        of("filesystem_utilization:max"),
                        over="max",
                        factor="100",
                        unit="percent",
                        max=100,
                        limits=percent,
                    ),
                    kinds(
                        "TCP/IP",
                        (of("network_receive_bytes:rate5m"), "received"),
                        (of("network_transmit_bytes:rate5m"), "sent"),
                        unit="Bps",
                        mirror="sent$",
                    ),
                    kinds(
                        "Packets lost",
                        (of("network_receive_drops:rate5m"), "received"),
                        (of("network_transmit_drops:rate5m"), "sent"),
                        unit="pps",
                    ),
                    lines(
                        "TCP segments sent again",
                        Query(f"quantile(0.5, rate({resent}{R}))", "median"),
                        Query(f"rate({resent}{R}) and topk(10, rate({resent}{SHOWN}))", "{{pc_node}}"),
                        unit="pps",
                        description=HIGHEST,
                    ),
                ],
            ),
            Row(
                "Services and file systems",
                [
                    table(
                        "File systems",
                        "",
                        Column("Node", label="pc_node"),
                        Column("Mounted at", label="mountpoint"),
                        Column("Type", label="fstype"),
                        Column("Device", label="device"),
                        Column(
                            "Used",
                            f"topk(50, 100 * max by (pc_node, mountpoint, fstype, device) ({used}))",
                            unit="percent",
                            top=100,
                            limits=tuple(percent),
                        ),
                        width=12,
                        sort="Used",
                        description="The fifty fullest.",
                    ),
                    table(
                        "Services",
                        "",
                        Column("Node", label="pc_node"),
                        Column("Service", label="name"),
                        Column("State", label="state"),
                        Column(
                            "",
                            f"topk(50, 2 * max by (pc_node, name, state) ({units % '='}) "
                            f"or max by (pc_node, name, state) ({units % '!='}))",
                        ),
                        width=12,
                        sort="State",
                        description="At most fifty, those that failed first: choose a node to see all of its services.",
                    ),
                ],
            ),
        ],
    )


def slurm() -> Json:
    def of_partition(title: str, rule: str, unit: str = "none", stack: bool = True, description: str = "") -> Json:
        expr = f"sum by (partition) ({rule}{{{PARTITION}}})"
        return lines(title, Query(expr, "{{partition}}"), unit=unit, stack=stack, description=description)

    def share(title: str, what: str) -> Json:
        allocated, there = (
            f"sum by (partition) (partition:slurm_{what}{kind}:sum{{{PARTITION}}})" for kind in ("_allocated", "")
        )
        return lines(title, Query(f"100 * {allocated} / ({there} > 0)", "{{partition}}"), unit="percent", max=100)

    def either(exporter: str, native: str) -> str:
        """A number of the scheduler's, as the exporter or Slurm itself names it."""
        return f'{{__name__=~"{exporter}|{native}", {CLUSTER}}}'

    def jobs(what: str) -> Query:
        expr = f"round(sum(increase({either(f'slurm_scheduler_jobs_{what}', f'slurm_sdiag_jobs_{what}')}[10m])))"
        return Query(expr, "cancelled" if what == "canceled" else what)

    def nodes(title: str, *states: str, more: str = "", **options: Any) -> Json:
        return number(title, nodes_in(PARTITION, *states), "none", description=more + TWICE, **options)

    free = f"sum(partition:slurm_gpus:sum{{{PARTITION}}}) - sum(partition:slurm_gpus_allocated:sum{{{PARTITION}}})"
    twice = "A node that is in several of the chosen partitions counts in each."

    def load_of(kind: str, what: str, native: str = "") -> str:
        """Of slurm_exporter or, under Slurm's own names, of Slurm itself; a cluster has either."""
        own = "username" if kind == "user" else kind
        values = [f"slurm_{kind}_{what}{{{CLUSTER}}}"] + ([f"slurm_{kind}_{native}{{{CLUSTER}}}"] if native else [])
        either = " or ".join(values)
        return (
            f"sum by ({kind}) ("
            + (f'label_replace({either}, "{kind}", "$1", "{own}", "(.+)")' if own != kind else either)
            + ")"
        )

    fifty = f"topk(50, max by (node) (slurm_node_cpu_alloc{{{PARTITION}}}))"
    by_node = f"max by (node) (slurm_node_%s{{{PARTITION}}}) and {fifty}"
    broken = f'slurm_node_status{{{PARTITION}, status=~"{BROKEN}"}}'
    reasons = f"max by (node, since, reason) (slurm_node_drain_reason_info{{{CLUSTER}}})"
    return dashboard(
        "slurm",
        "Slurm",
        "Partitions, who waits for what, and the nodes as Slurm sees them.",
        ["partition"],
        [
            Row(
                "",
                [
                    number("Jobs running", f"sum(slurm_partition_jobs_running{{{PARTITION}}})", "none"),
                    number("Jobs waiting", f"sum(slurm_partition_jobs_pending{{{PARTITION}}})", "none"),
                    nodes("Nodes in use", "in_use", base=BLUE),
                    nodes("Nodes idle", "idle", more="Also those that are powered down. "),
                    nodes("Powering up", "powering_up", base=YELLOW),
                    nodes("Powered down", "powered_down", base=GREY),
                    nodes("Down or drained", "down", "drained", limits=[(1, RED)]),
                    number("GPUs free", free, "none", description=twice),
                ],
            ),
            Row(
                "Partitions",
                [
                    of_partition("Jobs that run", "slurm_partition_jobs_running"),
                    of_partition("Jobs that wait", "slurm_partition_jobs_pending"),
                    of_partition(
                        "Jobs that wait for nodes",
                        "partition:slurm_jobs_waiting:sum",
                        description="Without those that are held, or wait for another job or a time.",
                    ),
                    node_states(PARTITION),
                    share("CPUs given to jobs", "cpus"),
                    share("GPUs given to jobs", "gpus"),
                ],
            ),
            Row(
                "Users and accounts",
                [
                    table(
                        "Users",
                        "user",
                        Column("User", label="user"),
                        Column("Jobs running", load_of("user", "jobs_running"), unit="none"),
                        Column("Jobs waiting", load_of("user", "jobs_pending"), unit="none"),
                        Column("CPUs", load_of("user", "cpus_running", "jobs_cpus_alloc"), unit="none"),
                        Column("GPUs", load_of("user", "gpus_running", "jobs_gpus_alloc"), unit="none"),
                        width=8,
                        height=8,
                        description="GPUs only where Slurm counts them: AccountingStorageTRES=gres/gpu.",
                    ),
                    table(
                        "Accounts",
                        "account",
                        Column("Account", label="account"),
                        Column("Jobs running", load_of("account", "jobs_running"), unit="none"),
                        Column("Jobs waiting", load_of("account", "jobs_pending"), unit="none"),
                        Column("CPUs", load_of("account", "cpus_running", "jobs_cpus_alloc"), unit="none"),
                        Column("GPUs", load_of("account", "gpus_running", "jobs_gpus_alloc"), unit="none"),
                        width=8,
                        height=8,
                        description="GPUs only where Slurm counts them: AccountingStorageTRES=gres/gpu.",
                    ),
                    lines(
                        "Why jobs wait",
                        Query(f"sum by (reason) (slurm_queue_pending{{{PARTITION}}})", "{{reason}}"),
                        unit="none",
                        stack=True,
                    ),
                    table(
                        "Nodes",
                        "node",
                        Column("Node", label="node", link=to_node()),
                        Column("State", label="status"),
                        Column("", f"max by (node, status) (slurm_node_status{{{PARTITION}}}) and on (node) {fifty}"),
                        Column("CPUs given to jobs", by_node % "cpu_alloc", unit="none"),
                        Column("CPUs", by_node % "cpu_total", unit="none"),
                        Column("Memory given to jobs", by_node % "mem_alloc", unit="mbytes"),
                        Column("Memory", by_node % "mem_total", unit="mbytes"),
                        width=16,
                        description="The fifty that give most CPUs to jobs; `sinfo -N` lists all. "
                        "A ~ after the state: powered down; a * after it: does not answer.",
                    ),
                    table(
                        "Nodes that are down or drained",
                        "",
                        Column("Node", label="node"),
                        Column("Since", label="since"),
                        Column("Why", label="reason"),
                        Column("", f"topk(50, {reasons} and on (node) {broken} or on (node) max by (node) ({broken}))"),
                        width=8,
                        description="At most fifty; `sinfo --list-reasons` lists all.",
                    ),
                ],
            ),
            Row(
                "Scheduler",
                [
                    lines(
                        "Jobs in ten minutes",
                        *(jobs(what) for what in ("submitted", "started", "completed", "failed", "canceled")),
                    ),
                    lines(
                        "How long scheduling takes",
                        Query(
                            f"1e-6 * max({either('slurm_scheduler_last_cycle', 'slurm_schedule_cycle_last')})", "main"
                        ),
                        Query(
                            f"1e-6 * max({either('slurm_scheduler_backfill_last_cycle', 'slurm_bf_cycle_last')})",
                            "backfill",
                        ),
                        unit="s",
                        description="The last cycle of each.",
                    ),
                    lines(
                        "Slurm's controller",
                        Query(f"max({either('slurm_scheduler_threads', 'slurm_server_thread_cnt')})", "threads"),
                        Query(
                            f"max({either('slurm_scheduler_queue_size', 'slurm_agent_queue_size')})", "messages to send"
                        ),
                        unit="none",
                    ),
                ],
            ),
        ],
    )


def job() -> Json:
    gpus = f"DCGM_FI_%s{{{JOB}}}"
    held = f"pc_node:job_gpus:count{{{JOB}}}"

    def on_job(name: str) -> str:
        """Of what is recorded of nodes: those on which the job holds a GPU, for as long as it does."""
        return f"{name}{{{CLUSTER}}} and on (pc_node) {held}"

    def ten_on_job(name: str) -> str:
        whole = f"avg_over_time({name}{{{CLUSTER}}}{SHOWN}) and on (pc_node) last_over_time({held}{SHOWN})"
        return f"({on_job(name)} and topk(10, {whole}))"

    def of_nodes(title: str, name: str, factor: str = "", **options: Any) -> Json:
        options["description"] = told(options.get("description", ""), HIGHEST)
        return lines(
            title,
            Query(scaled(f"quantile(0.5, {on_job(name)})", factor), "median"),
            Query(scaled(ten_on_job(name), factor), "{{pc_node}}"),
            colors={"median": BLUE},
            **options,
        )

    def both(title: str, into: tuple[str, str], out: tuple[str, str], description: str = "") -> Json:
        queries = [Query(f"quantile(0.5, {on_job(metric)})", f"median {name}") for metric, name in (into, out)]
        queries += [Query(ten_on_job(metric), f"{{{{pc_node}}}} {name}") for metric, name in (into, out)]
        return lines(
            title,
            *queries,
            unit="Bps",
            mirror=f"{out[1]}$",
            description=told(description, HIGHEST),
        )

    def of_gpus(title: str, how: str, metric: str, factor: str = "", least: bool = False, **options: Any) -> Json:
        """What the job's own GPUs do, by node: those that stand out, and the median."""
        now = f"{how} by (pc_node) ({gpus % metric})"
        whole = f"{how} by (pc_node) (avg_over_time({gpus % metric}{SHOWN}))"
        pick = f"{'bottomk' if least else 'topk'}(10, {whole})"
        which = "The ten lowest of the time that is shown, and the median of all." if least else HIGHEST
        return lines(
            title,
            Query(scaled(f"quantile(0.5, {now})", factor), "median"),
            Query(scaled(f"({now} and {pick})", factor), "{{pc_node}}"),
            colors={"median": BLUE},
            description=told(options.pop("description", ""), which),
            **options,
        )

    idlest = f"bottomk(32, avg_over_time({gpus % 'DEV_GPU_UTIL'}{SHOWN}))"
    return dashboard(
        "job",
        "Slurm jobs",
        "One job that holds GPUs: its GPUs, its network and its nodes side by side.",
        ["job"],
        [
            Row(
                "",
                [
                    number("Nodes", f"count({held})", "none"),
                    number("GPUs", f"sum({held})", "none"),
                    number("GPU utilisation", f"avg({gpus % 'DEV_GPU_UTIL'})", "percent", decimals=0),
                    number(
                        "Idlest GPU",
                        f"min(avg_over_time({gpus % 'DEV_GPU_UTIL'}[5m]))",
                        "percent",
                        decimals=0,
                        description="Over five minutes. Far below the others, it holds them up, or has no work.",
                    ),
                    number("Tensor cores", f"100 * avg({gpus % 'PROF_PIPE_TENSOR_ACTIVE'})", "percent", decimals=0),
                    number("Power", f"sum({gpus % 'DEV_POWER_USAGE'})", "watt"),
                    number(
                        "Energy",
                        f"sum(increase({gpus % 'DEV_TOTAL_ENERGY_CONSUMPTION'}{SHOWN})) / 3.6e9",
                        "kwatth",
                        decimals=2,
                        description="Of its GPUs, in the time that is shown.",
                    ),
                    number(
                        "GPUs with an XID",
                        with_xid(JOB),
                        "none",
                        limits=[(1, RED)],
                        description="In the time that is shown.",
                    ),
                ],
            ),
            Row(
                "Is every GPU at work?",
                [
                    carpet(
                        "Utilisation of each GPU",
                        Query(f"{gpus % 'DEV_GPU_UTIL'} and {idlest}", "{{pc_node}} {{gpu}}"),
                        "percent",
                        100,
                        description="Of a job on more than 32 GPUs, the 32 that did least in the time that is shown.",
                    )
                ],
            ),
            Row(
                "GPUs · network · nodes",
                [
                    of_gpus("GPU utilisation", "avg", "DEV_GPU_UTIL", least=True, unit="percent", max=100),
                    both(
                        "EFA",
                        ("pc_node:efa_rx_bytes:rate5m", "received"),
                        ("pc_node:efa_tx_bytes:rate5m", "sent"),
                        "Between nodes. Other jobs on the same nodes count too.",
                    ),
                    of_nodes("CPU", "pc_node:cpu_utilization:ratio", "100", unit="percent", max=100),
                    of_gpus(
                        "Tensor cores", "avg", "PROF_PIPE_TENSOR_ACTIVE", "100", least=True, unit="percent", max=100
                    ),
                    both(
                        "NVLink",
                        ("pc_node:nvlink_rx_bytes:sum", "received"),
                        ("pc_node:nvlink_tx_bytes:sum", "sent"),
                        "Between the GPUs of one node, with those of other jobs on it.",
                    ),
                    of_nodes("Memory in use", "pc_node:memory_utilization:ratio", "100", unit="percent", max=100),
                    of_nodes(
                        "GPU memory in use",
                        "pc_node:gpu_memory_utilization:ratio",
                        "100",
                        unit="percent",
                        max=100,
                        description="Of all GPUs of a node.",
                    ),
                    of_nodes(
                        "EFA: sent again",
                        "pc_node:efa_retrans_pkts:rate5m",
                        unit="pps",
                        description="Packets. Many of them on one node explain a job that has become slow.",
                    ),
                    both(
                        "Local disks",
                        ("pc_node:disk_read_bytes:rate5m", "read"),
                        ("pc_node:disk_written_bytes:rate5m", "written"),
                    ),
                    of_gpus("GPU power", "sum", "DEV_POWER_USAGE", unit="watt"),
                    both(
                        "TCP/IP",
                        ("pc_node:network_receive_bytes:rate5m", "received"),
                        ("pc_node:network_transmit_bytes:rate5m", "sent"),
                        "Data loading and checkpoints: Lustre and NFS without EFA are here.",
                    ),
                    of_nodes("Processes that wait for a disk or a file system", "node_procs_blocked", unit="none"),
                    of_gpus("GPU temperature", "max", "DEV_GPU_TEMP", unit="celsius", limits=[(87.0, RED)]),
                    of_gpus("GPU clock", "min", "DEV_SM_CLOCK", "1e6", least=True, unit="hertz"),
                    of_nodes("Load for each CPU", "pc_node:load1_per_cpu:ratio", unit="none"),
                ],
            ),
        ],
    )


def fsx() -> Json:
    size, available = f"fsx:size_bytes:max{{{SHARED}}}", f"fsx:avail_bytes:min{{{SHARED}}}"
    files, free = f"fsx:files:max{{{SHARED}}}", f"fsx:files_free:min{{{SHARED}}}"
    used = f"fsx:used:ratio{{{SHARED}}}"
    which = "{{mountpoint}}"
    percent = [(80.0, YELLOW), (90.0, RED)]
    mounts = f"by (mountpoint, fstype, device) (node_filesystem_%s_bytes{{{SHARED}}})"
    return dashboard(
        "fsx",
        "FSx",
        "How full shared file systems are, when they will be, and which nodes have them.",
        ["mountpoint"],
        [
            Row(
                "",
                [
                    number("Fullest", f"100 * max({used})", "percent", width=4, decimals=0, limits=percent),
                    number("Size", f"sum({size})", "bytes", width=4, decimals=1),
                    number("Free", f"sum({available})", "bytes", width=4, decimals=1),
                    number(
                        "First one full in",
                        f"clamp_max(min({available} / clamp_min(-deriv({available}[6h]), 1)), 315360000)",
                        "s",
                        width=4,
                        decimals=0,
                        description="If it goes on as in the last six hours. Ten years stand for never.",
                    ),
                    number(
                        "Most files",
                        f"100 * max(1 - {free} / ({files} > 0))",
                        "percent",
                        width=4,
                        decimals=0,
                        limits=percent,
                        description="Of the files (inodes) that fit.",
                    ),
                    number(
                        "Nodes with errors",
                        f"count(count by (pc_node) (node_filesystem_device_error{{{SHARED}}} > 0)) or vector(0)",
                        "none",
                        width=4,
                        limits=[(1, RED)],
                        description="Nodes on which a file system does not answer.",
                    ),
                ],
            ),
            Row(
                "Space",
                [
                    lines("Used", Query(f"100 * {used}", which), unit="percent", width=12, max=100, limits=percent),
                    lines("Free", Query(available, which), unit="bytes", width=12),
                    lines(
                        "Written",
                        Query(f"clamp_min(-deriv({available}[30m]), 0)", which),
                        unit="Bps",
                        width=12,
                        description="How fast they fill up; less what is removed meanwhile.",
                    ),
                    lines("Files", Query(f"{files} - {free}", which), unit="short", width=12),
                ],
            ),
            Row(
                "Nodes",
                [
                    lines(
                        "Nodes that have it mounted",
                        Query(f"fsx:nodes:count{{{SHARED}}}", which),
                        unit="none",
                        width=12,
                    ),
                    lines(
                        "What nodes receive and send over TCP/IP",
                        Query(f"sum(pc_node:network_receive_bytes:rate5m{{{CLUSTER}}})", "received"),
                        Query(f"sum(pc_node:network_transmit_bytes:rate5m{{{CLUSTER}}})", "sent"),
                        unit="Bps",
                        width=12,
                        mirror="sent",
                        description="Lustre without EFA is most of it. FSx' own view is in CloudWatch.",
                    ),
                    table(
                        "What is mounted",
                        "device",
                        Column("Device", label="device"),
                        Column("Mounted at", label="mountpoint"),
                        Column("Type", label="fstype"),
                        Column("Nodes", f"count {mounts % 'size'}", unit="none"),
                        Column("Free", f"min by (device) (node_filesystem_avail_bytes{{{SHARED}}})", unit="bytes"),
                        description="On how many nodes. Two devices at one place: not all nodes have the same.",
                    ),
                ],
            ),
        ],
    )


DASHBOARDS: tuple[Callable[[], Json], ...] = (overview, gpu, nvlink, efa, node, slurm, job, fsx)


def text_of(made: Json) -> str:
    """A dashboard as it stands in its file."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail when a file is out of date")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    options = parser.parse_args(arguments)
    folder = options.root / FOLDER
    wanted = {
        folder / f"{made['uid'].removeprefix(f'{TAG}-')}.json": text_of(made)
        for made in (make() for make in DASHBOARDS)
    }
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
