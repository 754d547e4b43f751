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
GPUS = f'{NODES}, gpu=~"$gpu"'
JOB = f'{CLUSTER}, hpc_job="$job"'
# Interfaces that lead out of the node.
WIRE = 'device!~"lo|veth.*|docker.*|br-.*|cni.*"'
# Disks, and not their partitions nor what is layered on them.
DISK = 'device=~"nvme[0-9]+n[0-9]+|[svx]+d[a-z]+|md[0-9]+"'
SHARED = f'{CLUSTER}, mountpoint=~"$mountpoint"'
PARTITION = f'{CLUSTER}, partition=~"$partition"'
TWICE = "With Slurm's own metrics, a node that is in several partitions counts in each."


def busy(selection: str) -> str:
    """How busy the CPUs of each node are, in percent."""
    return f'100 * (1 - avg by (pc_node) (rate(node_cpu_seconds_total{{{selection}, mode="idle"}}{R})))'


def memory(selection: str) -> str:
    """How much of its memory each node has given away, in percent."""
    kinds = "node_memory_MemAvailable_bytes", "node_memory_MemTotal_bytes"
    free, total = (f"sum by (pc_node) ({kind}{{{selection}}})" for kind in kinds)
    return f"100 * (1 - {free} / {total})"


def rate(metric: str, selection: str, by: str = "pc_node") -> str:
    """How fast a counter grows, summed up by labels."""
    return f"sum by ({by}) (rate({metric}{{{selection}}}{R}))"


def on_job(expr: str) -> str:
    """Of what `expr` says of nodes: those on which the job holds a GPU, for as long as it does."""
    return f"({expr}) and on (pc_node) max by (pc_node) (DCGM_FI_DEV_GPU_UTIL{{{JOB}}})"


def gpu_memory(selection: str, by: str) -> str:
    """How much of their memory GPUs have in use, in percent."""
    used, free = (f"sum by ({by}) (DCGM_FI_DEV_FB_{kind}{{{selection}}})" for kind in ("USED", "FREE"))
    return f"100 * {used} / ({used} + {free})"


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
    both = f"sum(rate(node_amazonefa_%s_bytes{{{CLUSTER}}}{R}))"
    link = f"sum(DCGM_FI_PROF_NVLINK_%s_BYTES{{{CLUSTER}}})"
    wire = f"sum(rate(node_network_%s_bytes_total{{{CLUSTER}, {WIRE}}}{R}))"
    held, gpus = (f"count(DCGM_FI_DEV_GPU_UTIL{{{CLUSTER}{more}}})" for more in (', hpc_job!=""', ""))
    percent = ((80.0, YELLOW), (95.0, RED))
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
                    number("GPUs", f"count(DCGM_FI_DEV_GPU_UTIL{{{CLUSTER}}})", "none"),
                    number("GPUs in jobs", f"100 * ({held} or vector(0)) / {gpus}", "percent", decimals=0),
                    number("GPU utilisation", f"avg(DCGM_FI_DEV_GPU_UTIL{{{CLUSTER}}})", "percent", decimals=0),
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
                        Query(f"avg by (pc_queue) (DCGM_FI_DEV_GPU_UTIL{{{CLUSTER}}})", "{{pc_queue}}"),
                        unit="percent",
                        max=100,
                        description="The share of time in which a kernel ran, however small.",
                    ),
                    lines(
                        "GPU memory in use",
                        Query(gpu_memory(CLUSTER, "pc_queue"), "{{pc_queue}}"),
                        unit="percent",
                        max=100,
                    ),
                    lines(
                        "GPU power",
                        Query(f"sum by (pc_queue) (DCGM_FI_DEV_POWER_USAGE{{{CLUSTER}}})", "{{pc_queue}}"),
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
                        "NVLink", Query(link % "RX", "received"), Query(link % "TX", "sent"), unit="Bps", mirror="sent"
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
                        "Nodes",
                        "pc_node",
                        Column("Node", label="pc_node", link=to_node()),
                        Column("Kind", label="pc_node_type"),
                        Column("Queue", label="pc_queue"),
                        Column(
                            "Up for",
                            f"max by (pc_node, pc_node_type, pc_queue) (time() - node_boot_time_seconds{{{CLUSTER}}})",
                            unit="s",
                        ),
                        Column("CPU", busy(CLUSTER), unit="percent", top=100, limits=percent),
                        Column("Memory", memory(CLUSTER), unit="percent", top=100, limits=percent),
                        Column(
                            "GPU",
                            f"avg by (pc_node) (DCGM_FI_DEV_GPU_UTIL{{{CLUSTER}}})",
                            unit="percent",
                            top=100,
                        ),
                        Column("GPU memory", gpu_memory(CLUSTER, "pc_node"), unit="percent", top=100),
                        Column(
                            "Root disk",
                            "100 * max by (pc_node) (1 - "
                            f'node_filesystem_avail_bytes{{{CLUSTER}, mountpoint="/"}} / node_filesystem_size_bytes)',
                            unit="percent",
                            top=100,
                            limits=percent,
                        ),
                        description="Every node that is up in Slurm, the head node and the login nodes.",
                    )
                ],
            ),
        ],
    )


def gpu() -> Json:
    per = "{{pc_node}} {{gpu}}"

    def each(metric: str, factor: str = "") -> Query:
        # A series of its own begins with each job on a GPU, and the GPU is still the same.
        return Query(f"max by (pc_node, gpu) ({metric}{{{GPUS}}}){factor}", per)

    def active(title: str, kind: str, description: str) -> Json:
        return lines(
            title,
            Query(f"100 * avg by (pc_node) (DCGM_FI_PROF_{kind}_ACTIVE{{{GPUS}}})", "{{pc_node}}"),
            unit="percent",
            max=100,
            description=description,
        )

    return dashboard(
        "gpu",
        "GPUs",
        "How hard GPUs work, how they are, and what is wrong with them.",
        ["queue", "node", "gpu"],
        [
            Row(
                "",
                [
                    number("GPUs", f"count(DCGM_FI_DEV_GPU_UTIL{{{GPUS}}})", "none"),
                    number("Utilisation", f"avg(DCGM_FI_DEV_GPU_UTIL{{{GPUS}}})", "percent", decimals=0),
                    number("Memory in use", f"sum(DCGM_FI_DEV_FB_USED{{{GPUS}}})", "mbytes", decimals=1),
                    number("Power", f"sum(DCGM_FI_DEV_POWER_USAGE{{{GPUS}}})", "watt"),
                    number(
                        "Hottest", f"max(DCGM_FI_DEV_GPU_TEMP{{{GPUS}}})", "celsius", limits=[(80, YELLOW), (87, RED)]
                    ),
                    number(
                        "With an XID",
                        with_xid(GPUS),
                        "none",
                        limits=[(1, RED)],
                        description="GPUs that had one in the time that is shown, a program's own included.",
                    ),
                    number(
                        "ECC errors",
                        f"sum(DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{GPUS}}})",
                        "none",
                        limits=[(1, RED)],
                        description="Those that could not be corrected, since the driver was loaded.",
                    ),
                    number(
                        "Slowed down",
                        f"count(increase(DCGM_FI_DEV_THERMAL_VIOLATION{{{GPUS}}}{R}) + "
                        f"increase(DCGM_FI_DEV_POWER_VIOLATION{{{GPUS}}}{R}) > 0) or vector(0)",
                        "none",
                        limits=[(1, ORANGE)],
                        description="GPUs whose clock heat or power has lowered just now.",
                    ),
                ],
            ),
            Row(
                "Work",
                [
                    carpet(
                        "Utilisation of each GPU",
                        each("DCGM_FI_DEV_GPU_UTIL"),
                        "percent",
                        100,
                        description="The share of time in which a kernel ran. A GPU that waits for others stands out.",
                    ),
                    active(
                        "Graphics engine",
                        "GR_ENGINE",
                        "The share of time in which any engine worked.",
                    ),
                    lines(
                        "Streaming multiprocessors",
                        Query(f"100 * avg by (pc_node) (DCGM_FI_PROF_SM_ACTIVE{{{GPUS}}})", "{{pc_node}} active"),
                        Query(f"100 * avg by (pc_node) (DCGM_FI_PROF_SM_OCCUPANCY{{{GPUS}}})", "{{pc_node}} occupied"),
                        unit="percent",
                        max=100,
                        description="How many of them had a warp, and how many warps of those that fit they had.",
                    ),
                    active(
                        "Tensor cores",
                        "PIPE_TENSOR",
                        "The share of cycles in which tensor cores worked: what training pays for.",
                    ),
                    active("Memory interface", "DRAM", "The share of cycles in which the memory moved data."),
                    lines("Memory in use", each("DCGM_FI_DEV_FB_USED"), unit="mbytes"),
                    lines(
                        "PCIe",
                        Query(f"sum by (pc_node) (DCGM_FI_PROF_PCIE_RX_BYTES{{{GPUS}}})", "{{pc_node}} received"),
                        Query(f"sum by (pc_node) (DCGM_FI_PROF_PCIE_TX_BYTES{{{GPUS}}})", "{{pc_node}} sent"),
                        unit="Bps",
                        mirror="sent$",
                    ),
                ],
            ),
            Row(
                "Health",
                [
                    lines("Power", each("DCGM_FI_DEV_POWER_USAGE"), unit="watt"),
                    lines("Temperature", each("DCGM_FI_DEV_GPU_TEMP"), unit="celsius", limits=[(87.0, RED)]),
                    lines(
                        "Temperature of the memory",
                        each("DCGM_FI_DEV_MEMORY_TEMP"),
                        unit="celsius",
                        limits=[(95.0, RED)],
                    ),
                    lines("Clock of the multiprocessors", each("DCGM_FI_DEV_SM_CLOCK", " * 1e6"), unit="hertz"),
                    lines(
                        "Slowed down",
                        Query(
                            f"1e-9 * sum by (pc_node) (rate(DCGM_FI_DEV_THERMAL_VIOLATION{{{GPUS}}}{R}))",
                            "{{pc_node}} by heat",
                        ),
                        Query(
                            f"1e-9 * sum by (pc_node) (rate(DCGM_FI_DEV_POWER_VIOLATION{{{GPUS}}}{R}))",
                            "{{pc_node}} by power",
                        ),
                        unit="percentunit",
                        description="The share of time in which the clock was lowered, summed over the GPUs of a node.",
                    ),
                    lines(
                        "ECC errors",
                        Query(f"sum by (pc_node) (DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{{{GPUS}}})", "{{pc_node}} corrected"),
                        Query(f"sum by (pc_node) (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{GPUS}}})", "{{pc_node}} uncorrected"),
                        unit="none",
                    ),
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
                            f"max by (UUID, pc_node, gpu, modelName, hpc_job) (DCGM_FI_DEV_XID_ERRORS{{{GPUS}}})",
                            unit="none",
                            limits=((1.0, RED),),
                        ),
                        Column(
                            "Uncorrected ECC",
                            f"max by (UUID) (DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{GPUS}}})",
                            unit="none",
                            limits=((1.0, RED),),
                        ),
                        Column(
                            "Rows remapped",
                            f"max by (UUID) (DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{GPUS}}})",
                            unit="none",
                            limits=((1.0, ORANGE),),
                        ),
                        Column(
                            "Remapping failed",
                            f"max by (UUID) (DCGM_FI_DEV_ROW_REMAP_FAILURE{{{GPUS}}})",
                            unit="none",
                            limits=((1.0, RED),),
                        ),
                        Column(
                            "Temperature",
                            f"max by (UUID) (DCGM_FI_DEV_GPU_TEMP{{{GPUS}}})",
                            unit="celsius",
                            limits=((87.0, RED),),
                        ),
                        Column("Power", f"max by (UUID) (DCGM_FI_DEV_POWER_USAGE{{{GPUS}}})", unit="watt"),
                    ),
                ],
            ),
        ],
    )


def nvlink() -> Json:
    per = "{{pc_node}} {{gpu}}"
    both = f"DCGM_FI_PROF_NVLINK_RX_BYTES{{{GPUS}}} + DCGM_FI_PROF_NVLINK_TX_BYTES{{{GPUS}}}"

    # NVLink 5 (B200 and newer) counts its errors in fields of its own; a GPU has either these or those.
    def of_either(metric: str, newer: str = "", over: str = "") -> str:
        names = [f"{metric}_ERROR_COUNT_TOTAL"] + ([f"COUNT_{newer}"] if newer else [])
        values = (f"DCGM_FI_DEV_NVLINK_{name}{{{GPUS}}}" for name in names)
        return " or ".join(f"sum by (pc_node, gpu) (increase({value}{over}))" if over else value for value in values)

    def errors(title: str, metric: str, newer: str, description: str) -> Json:
        return lines(title, Query(of_either(metric, newer, R), per), unit="none", width=6, description=description)

    return dashboard(
        "nvlink",
        "NVLink",
        "What GPUs of one node say to each other, and what is lost on the way.",
        ["queue", "node", "gpu"],
        [
            Row(
                "",
                [
                    number("Received", f"sum(DCGM_FI_PROF_NVLINK_RX_BYTES{{{GPUS}}})", "Bps", width=6),
                    number("Sent", f"sum(DCGM_FI_PROF_NVLINK_TX_BYTES{{{GPUS}}})", "Bps", width=6),
                    number(
                        "Busiest GPU",
                        f"max({both})",
                        "Bps",
                        width=6,
                        description="An H100 or H200 can do 900 GB/s, both directions together; a B200 1800 GB/s.",
                    ),
                    number(
                        "Links that had to recover",
                        f"sum({of_either('RECOVERY', 'LINK_RECOVERY_EVENTS')})",
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
                    lines(
                        "Traffic of nodes",
                        Query(f"sum by (pc_node) (DCGM_FI_PROF_NVLINK_RX_BYTES{{{GPUS}}})", "{{pc_node}} received"),
                        Query(f"sum by (pc_node) (DCGM_FI_PROF_NVLINK_TX_BYTES{{{GPUS}}})", "{{pc_node}} sent"),
                        unit="Bps",
                        width=12,
                        mirror="sent$",
                    ),
                    lines(
                        "Traffic of GPUs",
                        Query(
                            f"max by (pc_node, gpu) ({both})",
                            per,
                        ),
                        unit="Bps",
                        width=12,
                        description="Both directions. In a job that is well balanced all of a node's GPUs are alike.",
                    ),
                ],
            ),
            Row(
                "Errors",
                [
                    errors(
                        "Flits with errors",
                        "CRC_FLIT",
                        "RX_ERRORS",
                        "Corrected by sending again. Many of them make a link slow. Of NVLink 5, packets.",
                    ),
                    errors(
                        "Data with errors",
                        "CRC_DATA",
                        "EFFECTIVE_ERRORS",
                        "Corrected by sending again. Of NVLink 5, what was not corrected.",
                    ),
                    errors(
                        "Sent again",
                        "REPLAY",
                        "",
                        "Each costs time. A link that goes on doing so is about to fail. NVLink 5 has no such count.",
                    ),
                    errors(
                        "Recoveries",
                        "RECOVERY",
                        "LINK_RECOVERY_EVENTS",
                        "The link was trained anew; a job may not survive that.",
                    ),
                ],
            ),
        ],
    )


def efa() -> Json:
    def both(kind: str, title: str, into: str, out: str, description: str = "") -> Json:
        return lines(
            title,
            Query(rate(f"node_amazonefa_{into}_bytes", NODES), "{{pc_node}} " + kind.split()[0]),
            Query(rate(f"node_amazonefa_{out}_bytes", NODES), "{{pc_node}} " + kind.split()[1]),
            unit="Bps",
            mirror=f"{kind.split()[1]}$",
            description=description,
        )

    def events(title: str, *metrics: tuple[str, str], unit: str = "cps", description: str = "") -> Json:
        queries = [Query(rate(f"node_amazonefa_{metric}", NODES), "{{pc_node}} " + name) for metric, name in metrics]
        return lines(title, *queries, unit=unit, description=description)

    again, sent = (f"sum(rate(node_amazonefa_{kind}_pkts{{{NODES}}}{R}))" for kind in ("retrans", "tx"))
    lost = f"({again} / ({sent} > 0)) or vector(0)"
    return dashboard(
        "efa",
        "EFA",
        "What nodes say to each other over the Elastic Fabric Adapter, and what is lost on the way.",
        ["queue", "node"],
        [
            Row(
                "",
                [
                    number(
                        "Nodes with EFA",
                        f"count(count by (pc_node) (node_amazonefa_tx_bytes{{{NODES}}}))",
                        "none",
                        width=4,
                    ),
                    number("Devices", f"count(node_amazonefa_tx_bytes{{{NODES}}})", "none", width=4),
                    number("Received", f"sum(rate(node_amazonefa_rx_bytes{{{NODES}}}{R}))", "Bps", width=4),
                    number("Sent", f"sum(rate(node_amazonefa_tx_bytes{{{NODES}}}{R}))", "Bps", width=4),
                    number(
                        "Sent again",
                        lost,
                        "percentunit",
                        width=4,
                        limits=[(0.001, YELLOW), (0.01, RED)],
                        description="Packets that had to be sent again, of all that were sent.",
                    ),
                    number(
                        "Silent peers",
                        f"sum(increase(node_amazonefa_unresponsive_remote_events{{{NODES}}}{R}))",
                        "none",
                        width=4,
                        limits=[(1, RED)],
                        description="How often another node did not answer any more.",
                    ),
                ],
            ),
            Row(
                "Traffic",
                [
                    both(
                        "received sent",
                        "Traffic",
                        "rx",
                        "tx",
                        "All of a node's devices together: a p5.48xlarge can do 400 GB/s each way.",
                    ),
                    both(
                        "read served",
                        "RDMA reads",
                        "rdma_read",
                        "rdma_read_resp",
                        "What a node read from others, and what others read from it.",
                    ),
                    both(
                        "written-by-others written",
                        "RDMA writes",
                        "rdma_write_recv",
                        "rdma_write",
                        "What others wrote to a node, and what it wrote to them.",
                    ),
                    both("received sent", "Messages", "recv", "send", "Sends and receives, without RDMA."),
                    lines(
                        "Packets",
                        Query(rate("node_amazonefa_rx_pkts", NODES), "{{pc_node}} received"),
                        Query(rate("node_amazonefa_tx_pkts", NODES), "{{pc_node}} sent"),
                        unit="pps",
                        mirror="sent$",
                    ),
                    lines(
                        "Traffic of devices",
                        Query(
                            f"topk(10, {rate('node_amazonefa_rx_bytes', NODES, 'pc_node, device')} + "
                            f"{rate('node_amazonefa_tx_bytes', NODES, 'pc_node, device')})",
                            "{{pc_node}} {{device}}",
                        ),
                        unit="Bps",
                        description="The ten busiest, both directions. A node's devices should be alike.",
                    ),
                ],
            ),
            Row(
                "Losses",
                [
                    events(
                        "Sent again",
                        ("retrans_pkts", "packets"),
                        unit="pps",
                        description="Some are usual under load. Many on one node point to that node's path.",
                    ),
                    events(
                        "Peers in trouble",
                        ("retrans_timeout_events", "timeouts"),
                        ("unresponsive_remote_events", "silent"),
                        ("impaired_remote_conn_events", "impaired"),
                    ),
                    events("Dropped on receipt", ("rx_drops", "packets"), unit="pps"),
                    events(
                        "RDMA errors",
                        ("rdma_read_wr_err", "reads"),
                        ("rdma_write_wr_err", "writes"),
                    ),
                    lines(
                        "Commands to the device",
                        Query(rate("node_amazonefa_submitted_cmds", NODES), "{{pc_node}} submitted"),
                        Query(rate("node_amazonefa_cmds_err", NODES), "{{pc_node}} failed"),
                        unit="cps",
                    ),
                    lines(
                        "Bytes sent again",
                        Query(rate("node_amazonefa_retrans_bytes", NODES), "{{pc_node}}"),
                        unit="Bps",
                    ),
                ],
            ),
        ],
    )


def node() -> Json:
    who = "{{pc_node}}"
    percent = [(80.0, YELLOW), (95.0, RED)]
    kept = f'{NODES}, fstype!~"tmpfs|ramfs|overlay|squashfs|autofs"'
    used = f"1 - node_filesystem_avail_bytes{{{kept}}} / node_filesystem_size_bytes"
    root = f'node_filesystem_avail_bytes{{{NODES}, mountpoint="/"}}'
    free, total = (f"sum(node_memory_Mem{kind}_bytes{{{NODES}}})" for kind in ("Available", "Total"))
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
                    number("CPUs", f'count(node_cpu_seconds_total{{{NODES}, mode="idle"}})', "none"),
                    number(
                        "CPU",
                        f'100 * (1 - avg(rate(node_cpu_seconds_total{{{NODES}, mode="idle"}}{R})))',
                        "percent",
                        decimals=0,
                    ),
                    number("Memory", f"sum(node_memory_MemTotal_bytes{{{NODES}}})", "bytes", decimals=1),
                    number(
                        "Memory in use",
                        f"100 * (1 - {free} / {total})",
                        "percent",
                        decimals=0,
                        limits=percent,
                    ),
                    number(
                        "Fullest root disk",
                        f"100 * max(1 - {root} / node_filesystem_size_bytes)",
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
                    lines("CPU", Query(busy(NODES), who), unit="percent", max=100),
                    lines(
                        "CPU by mode",
                        Query(
                            f'100 * avg by (mode) (rate(node_cpu_seconds_total{{{NODES}, mode!~"idle|guest.*"}}{R}))',
                            "{{mode}}",
                        ),
                        unit="percent",
                        stack=True,
                        description="Of all chosen nodes. iowait: CPUs had nothing to do but to wait for a disk.",
                    ),
                    lines(
                        "Load for each CPU",
                        Query(
                            f"sum by (pc_node) (node_load1{{{NODES}}}) / "
                            f'count by (pc_node) (node_cpu_seconds_total{{{NODES}, mode="idle"}})',
                            who,
                        ),
                        unit="none",
                        limits=[(1.0, YELLOW)],
                        description="Above 1, processes wait for a CPU.",
                    ),
                    lines("Memory in use", Query(memory(NODES), who), unit="percent", max=100),
                    lines(
                        "Memory by use",
                        Query(f"sum(node_memory_MemTotal_bytes{{{NODES}}} - node_memory_MemAvailable_bytes)", "in use"),
                        Query(f"sum(node_memory_MemAvailable_bytes{{{NODES}}} - node_memory_MemFree_bytes)", "cache"),
                        Query(f"sum(node_memory_MemFree_bytes{{{NODES}}})", "free"),
                        unit="bytes",
                        stack=True,
                    ),
                    lines(
                        "Processes",
                        Query(f"sum by (pc_node) (node_procs_running{{{NODES}}})", "{{pc_node}} run"),
                        Query(f"sum by (pc_node) (node_procs_blocked{{{NODES}}})", "{{pc_node}} blocked"),
                        unit="none",
                        description="Blocked ones wait for a disk or a file system.",
                    ),
                ],
            ),
            Row(
                "Disks and network",
                [
                    lines(
                        "Disks",
                        Query(rate("node_disk_read_bytes_total", f"{NODES}, {DISK}"), "{{pc_node}} read"),
                        Query(rate("node_disk_written_bytes_total", f"{NODES}, {DISK}"), "{{pc_node}} written"),
                        unit="Bps",
                        mirror="written$",
                    ),
                    lines(
                        "Disks at work",
                        Query(
                            f"100 * max by (pc_node) (rate(node_disk_io_time_seconds_total{{{NODES}, {DISK}}}{R}))", who
                        ),
                        unit="percent",
                        description="The busiest disk of each node.",
                    ),
                    lines(
                        "Fullest file system",
                        Query(f"100 * max by (pc_node) ({used})", who),
                        unit="percent",
                        max=100,
                        limits=percent,
                    ),
                    lines(
                        "TCP/IP",
                        Query(rate("node_network_receive_bytes_total", f"{NODES}, {WIRE}"), "{{pc_node}} received"),
                        Query(rate("node_network_transmit_bytes_total", f"{NODES}, {WIRE}"), "{{pc_node}} sent"),
                        unit="Bps",
                        mirror="sent$",
                    ),
                    lines(
                        "Packets lost",
                        Query(rate("node_network_receive_drop_total", f"{NODES}, {WIRE}"), "{{pc_node}} received"),
                        Query(rate("node_network_transmit_drop_total", f"{NODES}, {WIRE}"), "{{pc_node}} sent"),
                        unit="pps",
                    ),
                    lines(
                        "TCP segments sent again",
                        Query(rate("node_netstat_Tcp_RetransSegs", NODES), who),
                        unit="pps",
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
                            f"100 * max by (pc_node, mountpoint, fstype, device) ({used})",
                            unit="percent",
                            top=100,
                            limits=tuple(percent),
                        ),
                        width=12,
                        sort="Used",
                    ),
                    table(
                        "Services",
                        "",
                        Column("Node", label="pc_node"),
                        Column("Service", label="name"),
                        Column("State", label="state"),
                        Column(
                            "",
                            f'max by (pc_node, name, state) (node_systemd_unit_state{{{NODES}, type!="oneshot"}} == 1)',
                        ),
                        width=12,
                        sort="State",
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

    by_node = f"max by (node) (slurm_node_%s{{{PARTITION}}})"
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
                        Column("", f"max by (node, status) (slurm_node_status{{{PARTITION}}})"),
                        Column("CPUs given to jobs", by_node % "cpu_alloc", unit="none"),
                        Column("CPUs", by_node % "cpu_total", unit="none"),
                        Column("Memory given to jobs", by_node % "mem_alloc", unit="mbytes"),
                        Column("Memory", by_node % "mem_total", unit="mbytes"),
                        width=16,
                        description="A ~ after the state: powered down; a * after it: does not answer.",
                    ),
                    table(
                        "Nodes that are down or drained",
                        "",
                        Column("Node", label="node"),
                        Column("Since", label="since"),
                        Column("Why", label="reason"),
                        Column("", f"{reasons} and on (node) {broken} or on (node) max by (node) ({broken})"),
                        width=8,
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
    per_gpu, who = "{{pc_node}} {{gpu}}", "{{pc_node}}"
    gpus = f"DCGM_FI_%s{{{JOB}}}"

    def both(title: str, unit: str, into: tuple[str, str], out: tuple[str, str], description: str = "") -> Json:
        queries = [Query(on_job(expr), f"{{{{pc_node}}}} {name}") for expr, name in (into, out)]
        return lines(title, *queries, unit=unit, mirror=f"{out[1]}$", description=description)

    return dashboard(
        "job",
        "Slurm jobs",
        "One job that holds GPUs: its GPUs, its network and its nodes side by side.",
        ["job"],
        [
            Row(
                "",
                [
                    number("Nodes", f"count(count by (pc_node) ({gpus % 'DEV_GPU_UTIL'}))", "none"),
                    number("GPUs", f"count({gpus % 'DEV_GPU_UTIL'})", "none"),
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
                        f"sum(increase({gpus % 'DEV_TOTAL_ENERGY_CONSUMPTION'}[$__range])) / 3.6e9",
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
                [carpet("Utilisation of each GPU", Query(gpus % "DEV_GPU_UTIL", per_gpu), "percent", 100)],
            ),
            Row(
                "GPUs · network · nodes",
                [
                    lines(
                        "GPU utilisation",
                        Query(f"avg by (pc_node) ({gpus % 'DEV_GPU_UTIL'})", who),
                        unit="percent",
                        max=100,
                    ),
                    both(
                        "EFA",
                        "Bps",
                        (rate("node_amazonefa_rx_bytes", CLUSTER), "received"),
                        (rate("node_amazonefa_tx_bytes", CLUSTER), "sent"),
                        "Between nodes. Other jobs on the same nodes count too.",
                    ),
                    lines("CPU", Query(on_job(busy(CLUSTER)), who), unit="percent", max=100),
                    lines(
                        "Tensor cores",
                        Query(f"100 * avg by (pc_node) ({gpus % 'PROF_PIPE_TENSOR_ACTIVE'})", who),
                        unit="percent",
                        max=100,
                    ),
                    lines(
                        "NVLink",
                        Query(f"sum by (pc_node) ({gpus % 'PROF_NVLINK_RX_BYTES'})", "{{pc_node}} received"),
                        Query(f"sum by (pc_node) ({gpus % 'PROF_NVLINK_TX_BYTES'})", "{{pc_node}} sent"),
                        unit="Bps",
                        mirror="sent$",
                        description="Between the GPUs of one node.",
                    ),
                    lines("Memory in use", Query(on_job(memory(CLUSTER)), who), unit="percent", max=100),
                    lines("GPU memory in use", Query(gpu_memory(JOB, "pc_node"), who), unit="percent", max=100),
                    lines(
                        "EFA: sent again",
                        Query(on_job(rate("node_amazonefa_retrans_pkts", CLUSTER)), who),
                        unit="pps",
                        description="Packets. Many of them on one node explain a job that has become slow.",
                    ),
                    both(
                        "Local disks",
                        "Bps",
                        (rate("node_disk_read_bytes_total", f"{CLUSTER}, {DISK}"), "read"),
                        (rate("node_disk_written_bytes_total", f"{CLUSTER}, {DISK}"), "written"),
                    ),
                    lines("GPU power", Query(f"sum by (pc_node) ({gpus % 'DEV_POWER_USAGE'})", who), unit="watt"),
                    both(
                        "TCP/IP",
                        "Bps",
                        (rate("node_network_receive_bytes_total", f"{CLUSTER}, {WIRE}"), "received"),
                        (rate("node_network_transmit_bytes_total", f"{CLUSTER}, {WIRE}"), "sent"),
                        "Data loading and checkpoints: Lustre and NFS without EFA are here.",
                    ),
                    lines(
                        "Processes that wait for a disk or a file system",
                        Query(on_job(f"sum by (pc_node) (node_procs_blocked{{{CLUSTER}}})"), who),
                        unit="none",
                    ),
                    lines(
                        "GPU temperature",
                        Query(f"max by (pc_node) ({gpus % 'DEV_GPU_TEMP'})", who),
                        unit="celsius",
                        limits=[(87.0, RED)],
                    ),
                    lines("GPU clock", Query(f"1e6 * min by (pc_node) ({gpus % 'DEV_SM_CLOCK'})", who), unit="hertz"),
                    lines(
                        "Load for each CPU",
                        Query(
                            on_job(
                                f"sum by (pc_node) (node_load1{{{CLUSTER}}}) / "
                                f'count by (pc_node) (node_cpu_seconds_total{{{CLUSTER}, mode="idle"}})'
                            ),
                            who,
                        ),
                        unit="none",
                    ),
                ],
            ),
        ],
    )


def fsx() -> Json:
    size, available = (f"max by (mountpoint) (node_filesystem_{kind}_bytes{{{SHARED}}})" for kind in ("size", "avail"))
    files, free = (f"max by (mountpoint) (node_filesystem_{kind}{{{SHARED}}})" for kind in ("files", "files_free"))
    growth = f"deriv(node_filesystem_avail_bytes{{{SHARED}}}[6h])"
    which = "{{mountpoint}}"
    percent = [(80.0, YELLOW), (90.0, RED)]
    return dashboard(
        "fsx",
        "FSx",
        "How full shared file systems are, when they will be, and which nodes have them.",
        ["mountpoint"],
        [
            Row(
                "",
                [
                    number(
                        "Fullest",
                        f"100 * max(1 - {available} / {size})",
                        "percent",
                        width=4,
                        decimals=0,
                        limits=percent,
                    ),
                    number("Size", f"sum({size})", "bytes", width=4, decimals=1),
                    number("Free", f"sum({available})", "bytes", width=4, decimals=1),
                    number(
                        "First one full in",
                        f"clamp_max(min({available} / clamp_min(-max by (mountpoint) ({growth}), 1)), 315360000)",
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
                    lines(
                        "Used",
                        Query(f"100 * (1 - {available} / {size})", which),
                        unit="percent",
                        width=12,
                        max=100,
                        limits=percent,
                    ),
                    lines("Free", Query(available, which), unit="bytes", width=12),
                    lines(
                        "Written",
                        Query(
                            f"clamp_min(-max by (mountpoint) (deriv(node_filesystem_avail_bytes{{{SHARED}}}[30m])), 0)",
                            which,
                        ),
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
                        Query(f"count by (mountpoint) (node_filesystem_size_bytes{{{SHARED}}})", which),
                        unit="none",
                        width=12,
                    ),
                    lines(
                        "What nodes receive and send over TCP/IP",
                        Query(f"sum(rate(node_network_receive_bytes_total{{{CLUSTER}, {WIRE}}}{R}))", "received"),
                        Query(f"sum(rate(node_network_transmit_bytes_total{{{CLUSTER}, {WIRE}}}{R}))", "sent"),
                        unit="Bps",
                        width=12,
                        mirror="sent",
                        description="Lustre without EFA is most of it. FSx' own view is in CloudWatch.",
                    ),
                    table(
                        "Where it is mounted",
                        "",
                        Column("Node", label="pc_node", link=to_node()),
                        Column("Mounted at", label="mountpoint"),
                        Column("Type", label="fstype"),
                        Column("Device", label="device"),
                        Column(
                            "Free",
                            f"min by (pc_node, mountpoint, fstype, device) (node_filesystem_avail_bytes{{{SHARED}}})",
                            unit="bytes",
                        ),
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
