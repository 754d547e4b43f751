# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write the counters of a node's EFA devices into a file that node_exporter picks up.

Names and labels are those of AWS's own exporter. A device that is not there, or vanishes while it is read, is no error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from typing import NamedTuple

DRIVER = "efa"
PREFIX = "node_amazonefa_"
# EFA has one port. What a device counts for itself is told of that port, as older drivers do themselves.
PORT = "1"
NAME = re.compile(r"[a-z][a-z0-9_]*")
# How long the kernel keeps what it has read, which is among the counters and is none.
IGNORED = ("lifespan",)
HELP = {
    "info": "An EFA device; the value is always 1",
    "alloc_mr_err": "Memory regions that could not be allocated",
    "alloc_pd_err": "Protection domains that could not be allocated",
    "alloc_ucontext_err": "User contexts that could not be allocated",
    "cmds_err": "Admin commands that failed",
    "completed_cmds": "Admin commands completed",
    "create_ah_err": "Address handles that could not be created",
    "create_cq_err": "Completion queues that could not be created",
    "create_qp_err": "Queue pairs that could not be created",
    "get_dma_mr_err": "DMA memory regions that could not be had",
    "impaired_remote_conn_events": "Times that a connection to a remote was impaired and slowed down",
    "keep_alive_rcvd": "Signs of life received from the device",
    "mmap_err": "Memory that could not be mapped",
    "no_completion_cmds": "Admin commands that were never completed",
    "rdma_read_bytes": "Bytes read from remotes by RDMA",
    "rdma_read_resp_bytes": "Bytes that remotes read by RDMA",
    "rdma_read_wr_err": "RDMA reads that failed",
    "rdma_read_wrs": "RDMA reads completed",
    "rdma_write_bytes": "Bytes written to remotes by RDMA",
    "rdma_write_recv_bytes": "Bytes that remotes wrote by RDMA",
    "rdma_write_wr_err": "RDMA writes that failed",
    "rdma_write_wrs": "RDMA writes completed",
    "recv_bytes": "Bytes received by receive requests",
    "recv_wrs": "Receive requests completed",
    "reg_mr_err": "Memory regions that could not be registered",
    "retrans_bytes": "Bytes sent again",
    "retrans_pkts": "Packets sent again",
    "retrans_timeout_events": "Times that another path was taken because no answer came",
    "rx_bytes": "Bytes received",
    "rx_drops": "Packets received and dropped",
    "rx_pkts": "Packets received",
    "send_bytes": "Bytes sent by send requests",
    "send_wrs": "Send requests completed",
    "submitted_cmds": "Admin commands submitted",
    "tx_bytes": "Bytes sent",
    "tx_pkts": "Packets sent",
    "unresponsive_remote_events": "Times that a remote did not answer",
}


class Sample(NamedTuple):
    device: str
    port: str
    value: int


def names(folder: str) -> list[str]:
    """Return what is in a folder; nothing where it is gone."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def devices(sysfs: str) -> list[str]:
    """Return the devices that EFA's driver has made, and no other's, such as those of InfiniBand cards."""
    found = []
    for name in names(sysfs):
        with contextlib.suppress(OSError):
            if os.path.basename(os.readlink(os.path.join(sysfs, name, "device", "driver"))) == DRIVER:
                found.append(name)
    return found


def counters(folder: str) -> dict[str, int]:
    """Return the counters of a folder. What the device does not tell is left out."""
    found = {}
    for name in names(folder):
        if name in IGNORED or not NAME.fullmatch(name):
            continue
        with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, name), encoding="ascii") as stream:
            found[name] = int(stream.read(64))
    return found


def read(sysfs: str) -> dict[str, list[Sample]]:
    samples: dict[str, list[Sample]] = {}
    for device in devices(sysfs):
        path = os.path.join(sysfs, device)
        values = {(PORT, name): value for name, value in counters(os.path.join(path, "hw_counters")).items()}
        for port in names(os.path.join(path, "ports")):
            own = counters(os.path.join(path, "ports", port, "hw_counters"))
            values.update({(port, name): value for name, value in own.items()})
        for (port, name), value in values.items():
            samples.setdefault(name, []).append(Sample(device, port, value))
        samples.setdefault("info", []).append(Sample(device, "", 1))
    return samples


def render(samples: dict[str, list[Sample]]) -> str:
    lines = []
    for name in sorted(samples):
        metric = PREFIX + name
        lines += [f"# HELP {metric} {HELP.get(name, f'The counter {name} of an EFA device')}"]
        lines += [f"# TYPE {metric} {'gauge' if name == 'info' else 'counter'}"]
        for one in samples[name]:
            port = f',port="{one.port}"' if one.port else ""
            lines.append(f'{metric}{{device="{one.device}"{port}}} {one.value}')
    return "".join(f"{line}\n" for line in lines)


def put(path: str, text: str) -> None:
    """Put a file in place whole: a scrape finds the old one or the new one."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(descriptor, "w", encoding="ascii") as stream:
        stream.write(text)
        os.fchmod(descriptor, 0o644)
    os.rename(temporary, path)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The counters of EFA devices, for node_exporter.")
    parser.add_argument("--sysfs", default="/sys/class/infiniband", help="where the devices are (default: %(default)s)")
    parser.add_argument("--output", required=True, help="the file to write")
    options = parser.parse_args(words)
    try:
        put(options.output, render(read(options.sysfs)))
    except OSError as error:
        print(f"no counters of EFA devices: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
