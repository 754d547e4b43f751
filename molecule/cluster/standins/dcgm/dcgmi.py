#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for NVIDIA's dcgmi, for the sandbox: it lists the host engine's GPUs, and diagnoses them."""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from typing import Any

VERSION = "@VERSION@"
NOT_CONNECTED = 235  # what -21 is as an exit status
NVVS_ERROR, NVVS_ISOLATE_ERROR = 226, 205  # -30 and -51
ISOLATE, TRIAGE, RESET, HARDWARE_MEMORY = 2, 4, 6, 10
# Which test of which category is of which level.
TESTS = (
    ("software", "Deployment", 1),
    ("memory", "Hardware", 2),
    ("pcie", "Integration", 2),
    ("diagnostic", "Hardware", 3),
    ("memory_bandwidth", "Stress", 3),
    ("targeted_stress", "Stress", 3),
    ("targeted_power", "Stress", 3),
    ("memtest", "Stress", 4),
    ("pulse_test", "Hardware", 4),
)
ROW_REMAP = "Page Retirement/Row Remap: GPU {} "
FAILED = (
    "had uncorrectable memory errors and row remapping failed. Row remapping failure indicates unrecoverable memory "
    "hardware damage. Reset the GPU or reboot the node immediately."
)
MANY = "exceeded uncorrectable row remap limit with {} remapped rows Run a field diagnostic on the GPU."
PENDING = (
    "had memory errors and row remappings are pending Check DCGM and system logs for errors. Reset GPU. Restart DCGM. "
    "Rerun diagnostics."
)
LIMIT = 512  # DCGM_LIMIT_MAX_ROW_REMAP_UNCORRECTABLE


def ask(host: str, question: str) -> Any:
    address, _, port = host.partition(":")
    with socket.create_connection((address, int(port or 5555)), timeout=5) as connection:
        connection.sendall(json.dumps({"ask": question}).encode() + b"\n")
        return json.loads(connection.makefile().readline())


def discovery(host: str) -> None:
    gpus = ask(host, "gpus")
    # From 4.6 on it says that these are the active ones.
    active = " (Active)" if [int(part) for part in VERSION.split(".")] >= [4, 6] else ""
    print(f"{len(gpus)} GPU{'' if len(gpus) == 1 else 's'} found{active}.")
    line = f"+{'-' * 8}+{'-' * 70}+"
    print(line, f"| {'GPU ID':<6} | {'Device Information':<68} |", line, sep="\n")
    for gpu in gpus:
        print(f"| {gpu['index']:<6} | {'Name: ' + gpu['name']:<68} |")
        print(f"| {'':<6} | {'PCI Bus ID: ' + gpu['pci.bus_id']:<68} |")
        print(f"| {'':<6} | {'Device UUID: ' + gpu['uuid']:<68} |", line, sep="\n")
    print("0 NvSwitches found.", "0 CPUs found.", sep="\n")


def row_remap(gpu: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the test of the software says of a GPU's memory."""
    values, words = gpu["values"], ROW_REMAP.format(gpu["index"])
    rows = values["DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"]
    if values["DCGM_FI_DEV_ROW_REMAP_FAILURE"]:
        found = (80, RESET, words + FAILED)
    elif rows >= LIMIT:
        found = (132, TRIAGE, words + MANY.format(rows))
    elif values["DCGM_FI_DEV_ROW_REMAP_PENDING"]:
        found = (85, RESET, words + PENDING)
    else:
        return []
    code, severity, message = found
    return [
        {"error_category": HARDWARE_MEMORY, "error_id": code, "error_severity": severity, "warning": message},
    ]


def diag(host: str, level: int) -> int:
    gpus = ask(host, "values")
    time.sleep(0.2 * level)
    categories: dict[str, list[dict[str, Any]]] = {}
    errors: list[dict[str, Any]] = []
    for name, category, first in TESTS:
        if first > level:
            continue
        results, of_all = [], []
        for gpu in gpus:
            own = row_remap(gpu) if name == "software" else []
            result = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": int(gpu["index"])}
            results.append({**result, "status": "Fail" if own else "Pass", **({"warnings": own} if own else {})})
            of_all += own
        summary = {"status": "Fail" if of_all else "Pass", **({"warnings": of_all} if of_all else {})}
        categories.setdefault(category, []).append({"name": name, "results": results, "test_summary": summary})
        errors += of_all
    entities = [{"device_id": "2330", "entity_id": int(gpu["index"]), "serial_num": gpu["uuid"]} for gpu in gpus]
    output = {
        "DCGM Diagnostic": {
            "test_categories": [{"category": category, "tests": tests} for category, tests in categories.items()]
        },
        "entity_groups": [{"entities": entities, "entity_group": "GPU", "entity_group_id": 1}],
        "metadata": {"Driver Version Detected": gpus[0]["driver_version"] if gpus else "", "version": VERSION},
    }
    print(json.dumps(output, indent=1, separators=(",", " : ")))
    if any(error["error_severity"] == ISOLATE for error in errors):
        return NVVS_ISOLATE_ERROR
    return NVVS_ERROR if errors else 0


def main() -> int:
    if sys.argv[1:] in (["--version"], ["-v"]):
        print(f"\ndcgmi  version: {VERSION}")
        return 0
    parser = argparse.ArgumentParser(prog="dcgmi", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, dest="command")
    command = commands.add_parser("discovery", allow_abbrev=False)
    command.add_argument("-l", "--list", action="store_true", required=True)
    command.add_argument("--host", default="localhost")
    # What DCGM 3 prints has another form.
    if not VERSION.startswith("3."):
        command = commands.add_parser("diag", allow_abbrev=False)
        command.add_argument("-r", "--run", type=int, default=1, choices=(1, 2, 3, 4))
        command.add_argument("-j", "--json", action="store_true", required=True)
        command.add_argument("-t", "--timeout", type=int, default=0)
        command.add_argument("--enable-heartbeat", action="store_true")
        command.add_argument("--host", default="localhost")
    options = parser.parse_args()
    try:
        if options.command == "diag":
            return diag(options.host, options.run)
        discovery(options.host)
    except OSError:
        print(f"Error: unable to establish a connection to the specified host: {options.host}")
        print("Error: Unable to connect to host engine. Host engine connection invalid/disconnected.")
        return NOT_CONNECTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
