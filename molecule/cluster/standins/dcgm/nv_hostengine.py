#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for NVIDIA's nv-hostengine, for the sandbox. A request and its answer are one line of JSON each."""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import socketserver
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VERSION = "@VERSION@"
SAID = Path("/run/sandbox-dcgm")  # what a test says of a GPU
# Where the packages put it: Debian's, and the rpm packages'.
FOLDERS = (f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64")
QUERY = ("index", "name", "pci.bus_id", "uuid", "driver_version", "memory.total", "compute_cap")
BEGUN = time.time()
NONE_YET = """
SYNC_BOOST_VIOLATION BOARD_LIMIT_VIOLATION RELIABILITY_VIOLATION POWER_VIOLATION THERMAL_VIOLATION XID_ERRORS
ECC_SBE_VOL_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL ECC_DBE_AGG_TOTAL CORRECTABLE_REMAPPED_ROWS
UNCORRECTABLE_REMAPPED_ROWS ROW_REMAP_PENDING ROW_REMAP_FAILURE PCIE_REPLAY_COUNTER RETIRED_SBE RETIRED_DBE
RETIRED_PENDING NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL NVLINK_CRC_DATA_ERROR_COUNT_TOTAL NVLINK_REPLAY_ERROR_COUNT_TOTAL
NVLINK_RECOVERY_ERROR_COUNT_TOTAL CLOCKS_EVENT_REASONS CLOCK_THROTTLE_REASONS ENC_UTIL DEC_UTIL
"""
xids: dict[int, list[tuple[float, int]]] = {}


def gpus() -> list[dict[str, str]]:
    """Return the GPUs; none without a driver, as the real one finds then."""
    try:
        line = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
        done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    except FileNotFoundError:
        return []
    if done.returncode:
        return []
    return [dict(zip(QUERY, row.split(", "))) for row in done.stdout.splitlines()]


def made_up(gpu: int, total: float, profiled: bool) -> dict[str, Any]:
    """Return the fields of a GPU that is busy, more or less, by the clock."""
    now = time.time()
    busy = 0.6 + 0.3 * math.sin(now / 120 + gpu)
    used = int(total * busy * 0.9)
    fields: dict[str, Any] = {
        "GPU_UTIL": int(100 * busy),
        "MEM_COPY_UTIL": int(60 * busy),
        "FB_TOTAL": int(total),
        "FB_RESERVED": 500,
        "FB_USED": used,
        "FB_FREE": int(total) - used - 500,
        "FB_USED_PERCENT": used / (total - 500),
        "GPU_TEMP": int(35 + 35 * busy),
        "MEMORY_TEMP": int(40 + 40 * busy),
        "SLOWDOWN_TEMP": 87,
        "POWER_USAGE": 120 + 500 * busy,
        "ENFORCED_POWER_LIMIT": 700.0,
        "POWER_MGMT_LIMIT": 700.0,
        "TOTAL_ENERGY_CONSUMPTION": int((now - BEGUN) * 450_000),
        "SM_CLOCK": 1980,
        "MEM_CLOCK": 2619,
        "NVLINK_BANDWIDTH_TOTAL": int(300_000 * busy),
        "PERSISTENCE_MODE": 1,
        "FABRIC_MANAGER_STATUS": 3,
        **dict.fromkeys(NONE_YET.split(), 0),
    }
    profiling = {
        "GR_ENGINE_ACTIVE": busy,
        "SM_ACTIVE": busy * 0.9,
        "SM_OCCUPANCY": busy * 0.4,
        "PIPE_TENSOR_ACTIVE": busy * 0.5,
        "PIPE_FP64_ACTIVE": 0.0,
        "PIPE_FP32_ACTIVE": busy * 0.1,
        "PIPE_FP16_ACTIVE": busy * 0.05,
        "DRAM_ACTIVE": busy * 0.6,
        "PCIE_TX_BYTES": int(2e9 * busy),
        "PCIE_RX_BYTES": int(3e9 * busy),
        "NVLINK_TX_BYTES": int(1.5e11 * busy),
        "NVLINK_RX_BYTES": int(1.5e11 * busy),
    }
    return {
        **{f"DCGM_FI_DEV_{name}": value for name, value in fields.items()},
        **({f"DCGM_FI_PROF_{name}": value for name, value in profiling.items()} if profiled else {}),
    }


@functools.cache
def has_module() -> bool:
    """Tell whether the profiling module could be loaded. A host engine tries once, and keeps what came of it."""
    return any(os.path.exists(f"{folder}/libdcgmmoduleprofiling.so.4") for folder in FOLDERS)


def is_profiled(gpu: dict[str, str]) -> bool:
    """Tell whether a GPU has profiling fields: from Hopper on the driver has them, older ones need the module."""
    return float(gpu["compute_cap"]) >= 9.0 or has_module()


def values(gpu: dict[str, str]) -> dict[str, Any]:
    """Return every field of a GPU that it knows. What a test says comes last."""
    number = int(gpu["index"])
    found = made_up(number, float(gpu["memory.total"]), is_profiled(gpu))
    found["DCGM_FI_DRIVER_VERSION"] = gpu["driver_version"]
    folder = SAID / str(number)
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        text = path.read_text().strip()
        found[path.name] = float(text) if "." in text else int(text)
    seen, xid = xids.setdefault(number, []), found["DCGM_FI_DEV_XID_ERRORS"]
    if xid and (not seen or seen[-1][1] != xid):
        seen.append((time.time(), xid))
    found["xids"] = [code for when, code in seen if time.time() - when < 300]
    return found


def answer(question: dict[str, Any]) -> Any:
    if question["ask"] == "gpus":
        return gpus()
    if question["ask"] == "values":
        return [{**gpu, "values": values(gpu)} for gpu in gpus()]
    # The exporter asks for the first GPU's groups of profiling metrics.
    return {"version": VERSION, "profiling": any(is_profiled(gpu) for gpu in gpus()[:1])}


class Handler(socketserver.StreamRequestHandler):
    """One client, until it leaves."""

    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(json.dumps(answer(json.loads(line))).encode() + b"\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


def main() -> int:
    parser = argparse.ArgumentParser(prog="nv-hostengine", allow_abbrev=False)
    parser.add_argument("-v", "--version", action="version", version=f"version {VERSION}")
    parser.add_argument("-n", action="store_true", help="do not daemonize")
    parser.add_argument("-p", "--port", type=int, default=5555)
    parser.add_argument("-b", "--bind-interface", default="127.0.0.1")
    parser.add_argument("--service-account", default="")
    options = parser.parse_args()
    if not options.n:
        print("the stand-in does not daemonize")
        return 1
    try:
        server = Server((options.bind_interface, options.port), Handler)
    except OSError:
        print("Err: Failed to start DCGM Server: -7")
        return 255
    print(f"Started host engine version {VERSION} using port number: {options.port}", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
