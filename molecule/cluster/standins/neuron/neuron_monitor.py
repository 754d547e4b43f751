#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for AWS Neuron's neuron-monitor: one report as JSON on a line, every five seconds.

/run/sandbox-neuron/runtimes.json, a list, is `neuron_runtime_data`: what the processes do that use the devices.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

SYSFS = Path("/sys/devices/virtual/neuron_device")
RUNTIMES = Path("/run/sandbox-neuron/runtimes.json")
METADATA = "http://169.254.169.254/latest"
PERIOD = 5.0


def ask(path: str, token: str) -> str:
    headers = {"X-aws-ec2-metadata-token": token}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{METADATA}/{path}", headers=headers), timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def instance_info() -> dict[str, str]:
    wanted = urllib.request.Request(
        f"{METADATA}/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    )
    try:
        with urllib.request.urlopen(wanted, timeout=5) as answer:
            token = answer.read().decode()
    except OSError:
        token = ""
    names = {
        "instance_id": "instance-id",
        "instance_type": "instance-type",
        "instance_availability_zone": "placement/availability-zone",
        "instance_region": "placement/region",
        "ami_id": "ami-id",
    }
    found = {name: ask(f"meta-data/{path}", token) for name, path in names.items()}
    return {"instance_name": "", **found, "instance_availability_zone_id": "", "subnet_id": "", "error": ""}


def count(path: Path) -> int:
    return int(path.read_text()) if path.exists() else 0


def hardware(devices: list[Path]) -> dict[str, Any]:
    # Where there is no driver, `error` has words of the real one's, which no document tells.
    if not devices:
        return {"neuron_device_count": 0, "neuroncore_per_device_count": 0, "error": "no driver (the stand-in's words)"}
    return {
        "neuron_device_type": "trainium",
        "neuroncore_version": "v2",
        "neuron_device_count": len(devices),
        "neuron_device_memory_size": 32 << 30,
        "neuroncore_per_device_count": count(devices[0] / "core_count"),
        "logical_neuroncore_config": 1,
        "error": "",
    }


def counters(devices: list[Path]) -> dict[str, Any]:
    found = []
    for path in devices:
        ecc = {
            name: count(path / f"stats/hardware/{name}/total")
            for name in ("mem_ecc_uncorrected", "sram_ecc_uncorrected")
        }
        number = int(path.name.removeprefix("neuron"))
        found.append({"neuron_device_index": number, "mem_ecc_corrected": 0, "sram_ecc_corrected": 0, **ecc})
    return {"period": PERIOD, "neuron_devices": found, "error": ""}


def processors() -> dict[str, Any]:
    idle = {"user": 0, "nice": 0, "system": 0, "idle": 100, "io_wait": 0, "irq": 0, "soft_irq": 0}
    usage = {str(number): idle for number in range(os.cpu_count() or 1)}
    return {"period": PERIOD, "average_usage": idle, "usage_data": usage, "context_switch_count": 0, "error": ""}


def memory() -> dict[str, Any]:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    used = {"memory_total_bytes": total, "memory_used_bytes": 0, "swap_total_bytes": 0, "swap_used_bytes": 0}
    return {"period": PERIOD, **used, "error": ""}


def main() -> None:
    parser = argparse.ArgumentParser(prog="neuron-monitor")
    parser.add_argument("--verbose", type=int, default=0)
    parser.add_argument("-c", "--config-file")
    parser.parse_args()
    instance = instance_info()
    while True:
        devices = sorted(SYSFS.glob("neuron[0-9]*"), key=lambda path: int(path.name.removeprefix("neuron")))
        report = {
            "neuron_runtime_data": json.loads(RUNTIMES.read_text()) if RUNTIMES.exists() else [],
            "system_data": {
                "memory_info": memory(),
                "neuron_hw_counters": counters(devices),
                "vcpu_usage": processors(),
            },
            "instance_info": instance,
            "neuron_hardware_info": hardware(devices),
        }
        print(json.dumps(report), flush=True)
        time.sleep(PERIOD)


if __name__ == "__main__":
    main()
