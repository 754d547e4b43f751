# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How much CPU a look at a node's health takes, on a p5.48xlarge: 8 GPUs, 32 EFA devices, its page of dcgm-exporter.

    python tests/bench/node_health.py [--json FILE]

The program runs as its unit starts it, by the distribution's Python, and the CPU is that of the program and of all that
it starts. The kernel's log is this machine's where it may be read: each of its records costs a read.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import conftest  # noqa: E402,F401  # makes this checkout importable as a collection
from figures import Figure, run  # noqa: E402

from ansible_collections.pcluster.postboot.tests.unit.roles.node_health_tree import Node  # noqa: E402

PROGRAM = Path(__file__).resolve().parents[2] / "roles/node_health/files/node-health"
LOOKS = 40
# A look every 30 seconds may take 0.2 % of a core.
MOST_MS = 60


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def records(path: str) -> int:
    """Return how many records a kernel log has."""
    descriptor, count = os.open(path, os.O_RDONLY | os.O_NONBLOCK), 0
    try:
        while True:
            os.read(descriptor, 8192)
            count += 1
    except BlockingIOError:
        return count
    finally:
        os.close(descriptor)


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="bench-node-health-") as folder:
        node = Node(Path(folder))
        node.settings.update(slow_interval=10**9, patience=5)
        kmsg = "/dev/kmsg" if os.access("/dev/kmsg", os.R_OK) else str(node.kmsg)
        with node.exporter():
            page = node.page()
            settings = node.write("settings.json", json.dumps(node.settings))
            line = ["/usr/bin/python3", "-I", "-S", "-X", f"pycache_prefix={folder}/bytecode", str(PROGRAM)]
            line += [f"--config={settings}", f"--root={folder}", f"--kmsg={kmsg}"]

            def look() -> float:
                before = cpu()
                subprocess.run(line, check=True)
                return 1000 * (cpu() - before)

            first = look()
            times = sorted(look() for _ in range(LOOKS))
            state = json.loads((node.root / "state/state.json").read_text())
        bare = ["/usr/bin/python3", "-I", "-S", "-c", "import json, re, socket, signal, select"]
        before = cpu()
        for _ in range(LOOKS):
            subprocess.run(bare, check=True)
        python = 1000 * (cpu() - before) / LOOKS
    if state["findings"] or len(state["gpus"]) != 8:
        raise SystemExit(f"found {state}; needed: a node that is well, with 8 GPUs")
    return [
        Figure("dcgm-exporter's page", len(page.encode()) / 1024, "KiB"),
        Figure("records of the kernel's log", records(kmsg) if kmsg == "/dev/kmsg" else 1),
        Figure("CPU of a look, median", times[LOOKS // 2], "ms", at_most=MOST_MS),
        Figure("CPU of a look, nine of ten", times[LOOKS * 9 // 10], "ms"),
        Figure("CPU of Python and its library alone", python, "ms"),
        Figure("CPU of the first look, which compiles the program", first, "ms"),
    ]


if __name__ == "__main__":
    sys.exit(run("A look at a node's health", measure))
