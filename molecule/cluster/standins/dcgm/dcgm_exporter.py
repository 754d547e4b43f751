#!/usr/bin/python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for NVIDIA's dcgm-exporter, for the sandbox: the metrics of the host engine's GPUs, with their jobs."""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, NoReturn

VERSION = "@VERSION@"
FIELDS = "/usr/share/dcgm-exporter/fields.txt"
FOLDERS = (f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64")
# Before 4.8.2 everybody may ask for Go's profiles (CVE-2026-47483); from then on only where a flag says so.
ALWAYS_PPROF = [int(part) for part in VERSION.split(".")] < [4, 8, 2]
TYPES = ("gauge", "counter", "histogram", "summary", "label")
EXPORTERS_OWN = ("DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_GPU_HEALTH_STATUS")
XIDS = {0: "No Error", 48: "Double Bit ECC Error", 63: "Row remapping", 74: "NVLINK Error", 79: "GPU off the bus"}


class Counter(NamedTuple):
    """One line of the counters file."""

    name: str
    kind: str
    help: str


class Failure(Exception):
    """What ends the program, or one scrape."""


def log(level: str, message: str) -> None:
    print(f'level={level} msg="{message}"', file=sys.stderr, flush=True)


def die(message: str) -> NoReturn:
    """End the whole program, from a scrape too."""
    log("ERROR", message)
    os._exit(1)


class HostEngine:
    """A connection to nv-hostengine."""

    def __init__(self, address: str) -> None:
        self.lock = threading.Lock()
        host, _, port = address.partition(":")
        try:
            self.connection = socket.create_connection((host, int(port or 5555)), timeout=5)
        except OSError as error:
            die(f"Failed to connect to remote hostengine address={address} error={error}")
        self.lines = self.connection.makefile("r", encoding="utf-8")

    def ask(self, question: str) -> Any:
        with self.lock:
            try:
                self.connection.sendall(json.dumps({"ask": question}).encode() + b"\n")
                line = self.lines.readline()
            except OSError:
                line = ""
        if not line:
            # The real exporter ends here, too, and leaves the restart to its service.
            die("Could not retrieve metrics: Host engine connection invalid/disconnected")
        return json.loads(line)


def records(text: str) -> list[list[str]]:
    """Read CSV as Go's reader does, which is stricter than Python's."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        fields, rest = [], line + ","
        while rest:
            quoted = re.match(r'"((?:[^"]|"")*)",', rest)
            plain = re.match(r"([^,]*),", rest)
            if quoted:
                fields.append(quoted[1].replace('""', '"'))
            elif plain and '"' in plain[1]:
                raise Failure(f'parse error on line {number}: bare " in non-quoted-field')
            fields += [] if quoted else [plain[1] if plain else rest]
            rest = rest[(quoted or plain).end() :] if quoted or plain else ""
        if found and len(fields) != len(found[0]):
            raise Failure(f"record on line {number}: wrong number of fields")
        found.append([field.strip(" ") for field in fields])
    return found


def counters(path: str, profiling: bool) -> list[Counter]:
    """Return the counters of a file; refuse what the real one refuses, and leave out what it leaves out."""
    with open(FIELDS, encoding="ascii") as stream:
        known = set(stream.read().split())
    found = []
    try:
        with open(path, encoding="utf-8") as stream:
            lines = records(stream.read())
    except (OSError, Failure) as error:
        raise Failure(f"Could not read metrics file '{path}'; err: {error}") from error
    for number, line in enumerate(lines):
        if len(line) != 3:
            raise Failure(f"malformed CSV record; err: failed to parse line {number} (`{line}`), expected 3 fields")
        counter = Counter(*line)
        if counter.name not in known and counter.name not in EXPORTERS_OWN:
            raise Failure(f"could not find DCGM field; err: unknown ExporterCounter field '{counter.name}'")
        if counter.name.startswith("DCGM_FI_PROF_") and not profiling:
            log("WARN", f"Skipping line {number} ('{counter.name}'): metric not enabled")
            continue
        if counter.name in known and counter.kind not in TYPES:
            raise Failure(f"could not find Prometheus metric type '{counter.kind}'")
        found.append(counter)
    return found


def jobs(folder: str) -> dict[str, list[str]]:
    """Return the jobs of each GPU. A file that cannot be read fails the scrape, as with the real one."""
    if not folder or not os.path.isdir(folder):
        return {}
    entries = [entry for entry in os.scandir(folder) if not entry.is_dir(follow_symlinks=False)]
    names = [entry.name for entry in entries if re.fullmatch(r"\d+(\.\d+)?", entry.name)]
    found = {}
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8") as stream:
            found[name] = stream.read().splitlines()
    return found


def number(value: Any) -> str:
    return f"{value:f}" if isinstance(value, float) else str(value)


def render(wanted: list[Counter], gpus: list[dict[str, Any]], folder: str, hostname: str) -> str:
    """Write the metrics as the real one's templates do."""
    mapping = jobs(folder)
    text = ""
    for counter in wanted:
        samples = []
        for gpu in gpus:
            values = gpu["values"]
            labels = {one.name: values.get(one.name) for one in wanted if one.kind == "label"}
            own: list[tuple[dict[str, Any], Any]] = [({}, values.get(counter.name))]
            if counter.name == "DCGM_FI_DEV_XID_ERRORS":
                code = values[counter.name]
                own = [({"err_code": code, "err_msg": XIDS.get(code, "Unknown Error")}, code)]
            if counter.name == "DCGM_EXP_XID_ERRORS_COUNT":
                window = {"window_size_in_ms": 300000}
                codes = values["xids"]
                own = [({**window, "xid": code}, codes.count(code)) for code in sorted(set(codes))] or [(window, 0)]
            for more, value in own:
                # A field of which nothing is known is left out, and so is all that is no metric.
                if value is None or counter.kind == "label":
                    continue
                for job in mapping.get(gpu["index"]) or [""]:
                    extra = {**more, **({"hpc_job": job} if job else {})}
                    words = [
                        f'gpu="{gpu["index"]}",UUID="{gpu["uuid"]}",pci_bus_id="{gpu["pci.bus_id"]}"',
                        f'device="nvidia{gpu["index"]}",modelName="{gpu["name"]}"',
                        *([f'Hostname="{hostname}"'] if hostname else []),
                        *(f'{key}="{labels[key]}"' for key in sorted(labels)),
                        *(f'{key}="{extra[key]}"' for key in sorted(extra)),
                    ]
                    samples.append(f"{counter.name}{{{','.join(words)}}} {number(value)}")
        if samples:
            head = [f"# HELP {counter.name} {counter.help}", f"# TYPE {counter.name} {counter.kind}"]
            text += "\n".join([*head, *samples]) + "\n"
    return text


def arguments() -> argparse.Namespace:
    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            flag = message.rpartition(" ")[2]
            print(f"Incorrect Usage: flag provided but not defined: {flag}\n\nNAME:\n   DCGM Exporter", flush=True)
            raise SystemExit(1)

    parser = Parser(prog="dcgm-exporter", allow_abbrev=False)
    parser.add_argument("-v", "--version", action="version", version=f"DCGM Exporter version 4.5.3-{VERSION}")
    parser.add_argument("-f", "--collectors", default="/etc/dcgm-exporter/default-counters.csv")
    parser.add_argument("-a", "--address", default=":9400")
    parser.add_argument("-c", "--collect-interval", type=int, default=30000)
    parser.add_argument("-r", "--remote-hostengine-info", default="")
    parser.add_argument("-n", "--no-hostname", action="store_true")
    parser.add_argument("--hpc-job-mapping-dir", default="")
    if not ALWAYS_PPROF:
        parser.add_argument("--enable-pprof", action="store_true")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    log("INFO", f"Starting dcgm-exporter Version=4.5.3-{VERSION}")
    if not any(os.path.exists(f"{folder}/libdcgm.so.4") for folder in FOLDERS):
        log("ERROR", "the libdcgm.so.4 library was not found. Install Data Center GPU Manager (DCGM).")
        return 1
    if not options.remote_hostengine_info:
        log("ERROR", "the stand-in has no embedded host engine")
        return 1
    engine = HostEngine(options.remote_hostengine_info)
    log("INFO", "DCGM successfully initialized!")
    profiling = engine.ask("about")["profiling"]
    if not profiling:
        log("INFO", "Not collecting DCP metrics: This request is serviced by a module of DCGM that is not loaded")
    try:
        wanted = counters(options.collectors, profiling)
    except Failure as failure:
        log("ERROR", str(failure))
        return 1
    hostname = "" if options.no_hostname else options.remote_hostengine_info.partition(":")[0]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = 200, "OK"
            if self.path == "/metrics":
                try:
                    text = render(wanted, engine.ask("values"), options.hpc_job_mapping_dir, hostname)
                except OSError as error:
                    log("ERROR", f"Failed to apply transformations on metrics error={error}")
                    code, text = 500, "internal server error\n"
            elif self.path == "/debug/pprof/cmdline" and (ALWAYS_PPROF or options.enable_pprof):
                text = "\0".join(sys.argv)
            elif self.path not in ("/", "/health"):
                code, text = 404, "404 page not found\n"
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *words: Any) -> None:
            pass

    address, _, port = options.address.rpartition(":")
    try:
        server = ThreadingHTTPServer((address, int(port)), Handler)
    except OSError as error:
        log("ERROR", f"Failed to Listen and Server HTTP server. error=listen tcp {options.address}: {error}")
        return 1
    log("INFO", "Starting webserver")
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
