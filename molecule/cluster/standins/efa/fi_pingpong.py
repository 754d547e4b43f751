#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for libfabric's fi_pingpong, for the sandbox: its messages go over the control connection."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path

DEVICES = Path("/sys/class/infiniband")
DEAD = Path("/run/sandbox-efa-dead")  # a test puts the name of a device here that loses what is sent
PORT = 47592
NO_DATA = 61
SIZES = ((64, "64"), (256, "256"), (1024, "1k"), (4096, "4k"), (65536, "64k"), (1048576, "1m"))


def connect(options: argparse.Namespace) -> socket.socket:
    if options.server:
        return socket.create_connection((options.server, options.P or PORT))
    with socket.create_server(("", options.B or PORT)) as server:
        return server.accept()[0]


def is_known(domain: str) -> bool:
    """Tell whether libfabric's provider efa has the domain, which is a device's name and the kind of its endpoints."""
    driver = DEVICES / domain.removesuffix("-rdm") / "device/driver"
    return domain.endswith("-rdm") and driver.exists() and driver.resolve().name == "efa"


def main() -> int:
    parser = argparse.ArgumentParser(prog="fi_pingpong", allow_abbrev=False)
    parser.add_argument("-e", choices=("rdm",), required=True)
    parser.add_argument("-p", choices=("efa",), required=True)
    parser.add_argument("-d", required=True)
    parser.add_argument("-B", type=int)
    parser.add_argument("-P", type=int)
    parser.add_argument("server", nargs="?")
    options = parser.parse_args()
    try:
        connection = connect(options)
    except OSError as error:
        print(f"[error] util/pingpong.c:411 : failed to connect: {os.strerror(error.errno or 0)}", file=sys.stderr)
        return error.errno or 1
    with connection:
        if not is_known(options.d):
            print("fi_getinfo(): util/pingpong.c:1434, ret=-61 (No data available)", file=sys.stderr)
            return NO_DATA
        while (DEAD / options.d.removesuffix("-rdm")).exists():
            time.sleep(0.5)  # it has no time limit
        heads = f"{'bytes':<8}{'#sent':<8}{'#ack':<9}{'total':<8}{'time':>8} {'MB/sec':>10}"
        print(f"{heads}{'usec/xfer':>13}{'Mxfers/sec':>13}")
        for size, words in SIZES:
            begun = time.monotonic()
            for _turn in range(10):
                connection.sendall(b"x")
                connection.recv(1)
            took = max(time.monotonic() - begun, 1e-6)
            rate, each = 20 * size / took / 1e6, took / 20 * 1e6
            total = f"{20 * size / 1024:.0f}k" if size < 1048576 else f"{20 * size // 1048576}m"
            print(f"{words:<8}{10:<8}={10:<8}{total:<8}{took:8.2f}s{rate:10.2f}{each:11.2f}{1 / each:11.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
