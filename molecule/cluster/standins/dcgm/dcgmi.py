#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for NVIDIA's dcgmi, for the sandbox: it lists the host engine's GPUs."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from typing import Any

VERSION = "@VERSION@"
NOT_CONNECTED = 235  # what -21 is as an exit status


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


def main() -> int:
    if sys.argv[1:] in (["--version"], ["-v"]):
        print(f"\ndcgmi  version: {VERSION}")
        return 0
    parser = argparse.ArgumentParser(prog="dcgmi", allow_abbrev=False)
    command = parser.add_subparsers(required=True).add_parser("discovery", allow_abbrev=False)
    command.add_argument("-l", "--list", action="store_true", required=True)
    command.add_argument("--host", default="localhost")
    options = parser.parse_args()
    try:
        discovery(options.host)
    except OSError:
        print(f"Error: unable to establish a connection to the specified host: {options.host}")
        print("Error: Unable to connect to host engine. Host engine connection invalid/disconnected.")
        return NOT_CONNECTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
