# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What dcgm-exporter says of each GPU, so that nothing here has to do with the GPUs itself.

A line of its page is `NAME{gpu="0",UUID="GPU-…",pci_bus_id="00000000:53:00.0",…} 1` (dcgm-exporter 4.5.3-4.8.2,
internal/pkg/rendermetrics/render_metrics.go).
"""

from __future__ import annotations

import re
import socket
import time
from typing import Any

from .look import Hangs

# DCGM's numbers for what it does not know (dcgm_structs.h: DCGM_INT64_BLANK and those above it).
BLANK = 0x7FFFFFFFFFFFFFF0
MOST = 64 * 2**20  # bytes of a page
HEALTH, XIDS = "DCGM_EXP_GPU_HEALTH_STATUS", "DCGM_EXP_XID_ERRORS_COUNT"
_LABELS = re.compile(r'gpu="([^"]*)",UUID="([^"]*)",pci_bus_id="([^"]*)"')
_NVLINK = re.compile(r'health_error_code="([^"]*)"(?:(?!health_error_code=).)*health_watch="NVLINK"')
_XID = re.compile(r'\bxid="([0-9]{1,9})"')


class Gpu:
    """What the page says of one GPU."""

    def __init__(self, index: str, uuid: str, pci: str) -> None:
        self.index, self.uuid, self.pci = index, uuid, pci
        self.values: dict[str, float] = {}
        self.xids: list[int] = []
        self.nvlink = ""  # what DCGM's health watch says of NVLink


def fetch(url: str, patience: float) -> str:
    """Return a page of this machine. OSError says why there is none, Hangs that none came in time."""
    place, _mark, path = url.partition("://")[2].partition("/")
    host, _mark, port = place.rpartition(":")
    end, parts, size = time.monotonic() + patience, [], 0
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=patience) as connection:
            connection.sendall(f"GET /{path} HTTP/1.0\r\nHost: {place}\r\n\r\n".encode())
            while size < MOST:
                connection.settimeout(max(0.01, end - time.monotonic()))
                part = connection.recv(2**16)
                if not part:
                    break
                parts.append(part)
                size += len(part)
    except (TimeoutError, socket.timeout) as error:  # one and the same from Python 3.10 on
        raise Hangs(f"{url} gave no page within {patience:g} s") from error
    head, _blank, body = b"".join(parts).partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode("ascii", "replace")
    if status.split(" ")[1:2] != ["200"]:
        raise OSError(0, f"{url} answers {status or 'nothing'}")
    return body.decode("utf-8", "replace")


def parse(page: str) -> dict[str, Gpu]:
    """Return the GPUs of a page by their UUIDs."""
    gpus: dict[str, Gpu] = {}
    for line in page.split("\n"):
        if not line.startswith("DCGM_"):
            continue
        name, _mark, rest = line.partition("{")
        labels, _mark, number = rest.rpartition("} ")
        match = _LABELS.match(labels)
        if not match:
            continue
        index, uuid, pci = match.groups()
        gpu = gpus.get(uuid) or gpus.setdefault(uuid, Gpu(index, uuid, pci))
        try:
            value = float(number)
        except ValueError:
            continue
        if not -BLANK < value < BLANK:  # NaN is not either
            continue
        if name == XIDS:
            found = _XID.search(labels)
            if found and value:
                gpu.xids.append(int(found[1]))
        elif name == HEALTH:
            found = _NVLINK.search(labels)
            if found:
                gpu.nvlink = found[1]
        else:
            # A GPU that jobs share has a line for each of them, and the same value on all.
            gpu.values[name] = value
    return gpus


def known(gpus: dict[str, Gpu]) -> dict[str, Any]:
    """Return what is remembered of GPUs, also of those that are gone later."""
    return {uuid: {"index": gpu.index, "pci": gpu.pci} for uuid, gpu in gpus.items()}
