#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for AWS Neuron's nccom-test: the table of an all-reduce whose times are made up.

/run/sandbox-neuron/nccom-slow is how many times slower the cores are; with /run/sandbox-neuron/nccom-fails the
benchmark fails.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

# What the driver answers on /dev/neuron* (neuron_ioctl.h), to whoever may open it: sysfs is for root alone.
DRIVER = Path("/run/sandbox-hardware/ioctl")
SAID = Path("/run/sandbox-neuron")
ELEMENTS = {"uint8": 1, "fp16": 2, "bf16": 2, "fp32": 4}
UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
LATENCY, BANDWIDTH = 58.0, 53e3  # µs, and bytes in one of them: the two ranks of AWS' example


def size(text: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([KMG]?B?)", text.upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text} is no size")
    unit = match[2] if match[2].endswith("B") or not match[2] else f"{match[2]}B"
    return int(match[1]) * UNITS[unit]


def main() -> None:
    parser = argparse.ArgumentParser(prog="nccom-test")
    parser.add_argument("operation", choices=["all_reduce", "allr"])
    parser.add_argument("-r", "--nworkers", type=int, required=True)
    parser.add_argument("-b", "--minbytes", type=size, default=32 << 20)
    parser.add_argument("-e", "--maxbytes", type=size, default=32 << 20)
    parser.add_argument("-f", "--stepfactor", type=size)
    parser.add_argument("-n", "--iters", type=int, default=20)
    parser.add_argument("-d", "--datatype", choices=ELEMENTS, default="uint8")
    parser.add_argument("-c", "--check", nargs="?", const="random", choices=["random", "all_ones"])
    parser.add_argument("--non-interactive", action="store_true")
    options = parser.parse_args()
    cores = sum(int((path / "core_count").read_text()) for path in DRIVER.glob("neuron[0-9]*"))
    if not cores:
        sys.exit(
            "Neuron DKMS Driver is not running! Read the troubleshooting guide at: https://awsdocs-neuron."
            "readthedocs-hosted.com/en/latest/neuron-runtime/nrt-troubleshoot.html#neuron-driver-installation-fails"
        )
    if options.nworkers > cores:
        sys.exit(f"{options.nworkers} workers, {cores} cores (the words are the stand-in's)")
    print("       size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)")
    slow = float((SAID / "nccom-slow").read_text()) if (SAID / "nccom-slow").exists() else 1.0
    factor, found = 2 * (options.nworkers - 1) / options.nworkers, []
    bytes_ = options.minbytes
    while bytes_ <= options.maxbytes:
        if (SAID / "nccom-fails").exists():
            print(f"{bytes_:>14}    Failure running neuron-bench - log file /tmp/nccom_test_log_7pqpdfjf.log")
            print("1 errors found - test failed")
            sys.exit(1)
        time = slow * (LATENCY + bytes_ / BANDWIDTH)
        speed = bytes_ / time / 1000
        found.append(speed * factor)
        count = bytes_ // ELEMENTS[options.datatype]
        cells = f"{options.datatype:>8}{time:>16.2f}{speed:>15.2f}{speed * factor:>15.2f}"
        print(f"{bytes_:>14}{count:>16}{cells}", flush=True)
        if not options.stepfactor:
            break
        bytes_ *= options.stepfactor
    print(f"Avg bus bandwidth:\t{sum(found) / len(found):.4f}GB/s")


if __name__ == "__main__":
    main()
