#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for AWS Neuron's neuron-ls: the devices are those in /dev, with what the driver says of them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

# What the driver answers on /dev/neuron* (neuron_ioctl.h), to whoever may open it: sysfs is for root alone.
DRIVER = Path("/run/sandbox-hardware/ioctl")
GIB = 1 << 30
# GiB of memory of a device, by what the driver calls it (AWS' architecture pages).
MEMORY = {"Trainium1": 32, "Inferentia2": 32, "Trainium2": 96}


def device(path: Path) -> dict[str, Any]:
    number = int(path.name.removeprefix("neuron"))
    count = int((path / "core_count").read_text())
    near = re.findall(r"\d+", (path / "connected_devices").read_text())
    return {
        "neuron_device": number,
        "bdf": f"{16 + number:02x}:1c.0",
        "cpu_affinity": "0-127",
        "numa_node": "0",
        "connected_to": [int(word) for word in near] or None,
        "nc_count": count,
        "logical_neuroncore_config": 1,
        "memory_size": MEMORY[(path / "info/architecture/device_name").read_text().strip()] * GIB,
        "neuroncore_ids": list(range(number * count, (number + 1) * count)),
        "neuron_processes": [],
    }


def table(devices: list[dict[str, Any]]) -> str:
    rows = [["NEURON", "NEURON", "NEURON", "NEURON", "CONNECTED", "PCI"]]
    rows += [["DEVICE", "CORES", "CORE IDS", "MEMORY", "DEVICES", "BDF"]]
    for one in devices:
        ids, near = one["neuroncore_ids"], one["connected_to"] or []
        cells = [one["neuron_device"], one["nc_count"], f"{ids[0]}-{ids[-1]}", f"{one['memory_size'] // GIB} GB"]
        rows.append([str(cell) for cell in [*cells, ", ".join(map(str, near)), f"0000:{one['bdf']}"]])
    widths = [max(map(len, column)) for column in zip(*rows)]
    line = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    shown = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    return "\n".join([line, *shown[:2], line, *shown[2:], line])


def main() -> None:
    parser = argparse.ArgumentParser(prog="neuron-ls")
    for short, name in (("-w", "--wide"), ("-a", "--show-all-procs"), ("-t", "--topology"), ("-j", "--json-output")):
        parser.add_argument(short, name, action="store_true")
    options = parser.parse_args()
    paths = [path for path in DRIVER.glob("neuron[0-9]*") if (Path("/dev") / path.name).exists()]
    devices = sorted(map(device, paths), key=lambda one: int(one["neuron_device"]))
    if not devices:
        sys.exit("neuron-ls: no device found (the words are the stand-in's)")
    if options.json_output:
        print(json.dumps(devices, indent=4))
        return
    print(f"instance-type: {(DRIVER / 'neuron0/info/architecture/instance_type').read_text().strip()}")
    print(table(devices))


if __name__ == "__main__":
    main()
