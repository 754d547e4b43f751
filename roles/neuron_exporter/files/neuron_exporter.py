# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run AWS Neuron's exporter: neuron-monitor, and neuron-monitor-prometheus.py with what the former prints.

A pipe of a shell would do, but for three things: AWS' program needs Prometheus' Python client, which it does not bring;
it listens on every address; and where neuron-monitor has ended, it goes on with the last numbers for ever. Here both
end together, so that systemd starts both anew.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import runpy
import subprocess
import sys
import threading
from typing import Any


# A copy of visible() of module_utils/_host/text.py, which is not there where this runs; a unit test compares both.
def visible(line: str) -> str:
    """Return one line with each character that a terminal or browser obeys written out, as in \\x1b[2J or \\u202e.

    These are control characters (C0, DEL and C1, so line breaks too), separators of lines and paragraphs, overrides of
    the writing direction and other characters of no width.
    """
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def say(line: str) -> None:
    print(visible(line), file=sys.stderr, flush=True)


def end_with(monitor: subprocess.Popen[str]) -> None:
    """Wait for neuron-monitor to end, and end this process then, wherever it is."""
    say(f"neuron-monitor ended with {monitor.wait()}")
    os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen-address", default=":8000", help="ADDRESS:PORT, or :PORT for every address")
    parser.add_argument("--client", help="the wheel of prometheus_client; by default the system's Python has it")
    parser.add_argument("--tools", default="/opt/aws/neuron/bin", help="where AWS Neuron's tools are")
    options = parser.parse_args()
    host, _colon, port = options.listen_address.rpartition(":")
    monitor, script = (f"{options.tools}/{name}" for name in ("neuron-monitor", "neuron-monitor-prometheus.py"))
    for path in (monitor, script):
        if not os.path.exists(path):
            sys.exit(f"{path} is not there; needed is aws-neuronx-tools, which role neuron installs")
    if options.client:
        sys.path.insert(0, options.client)
    client: Any = importlib.import_module("prometheus_client")
    client.start_http_server = functools.partial(client.start_http_server, addr=host.strip("[]") or "0.0.0.0")
    process = subprocess.Popen([monitor], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    sys.stdin = process.stdout
    threading.Thread(target=end_with, args=(process,), daemon=True).start()
    sys.argv = [script, "--port", port]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
