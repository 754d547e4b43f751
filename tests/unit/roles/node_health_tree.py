# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A p5.48xlarge as node-health sees one: its /proc and /sys, its kernel log, and the page of its dcgm-exporter."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from ansible_collections.pcluster.postboot.plugins.plugin_utils._node_health.settings import settings
from ansible_collections.pcluster.postboot.roles.node_health.files.node_health import main
from ansible_collections.pcluster.postboot.tests.programs import REPO
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE


def standin(name: str) -> ModuleType:
    """Return a program of the sandbox's DCGM, with the version that its package would write into it."""
    module = ModuleType(f"standin_{name}")
    sys.modules[module.__name__] = module
    text = (REPO / f"molecule/cluster/standins/dcgm/{name}.py").read_text().replace("@VERSION@", "4.8.2")
    exec(text, module.__dict__)
    return module


exporter, engine = standin("dcgm_exporter"), standin("nv_hostengine")

GPUS, EFAS = 8, 32
SLURMD = 4242
NOW = 1795410000.0
# The mounts of such a node: source, mount point, type, options of the mount, options of the file system.
MOUNTS = (
    ("/dev/root", "/", "ext4", "rw,relatime", "rw,discard"),
    ("proc", "/proc", "proc", "rw,nosuid", "rw"),
    ("tmpfs", "/run", "tmpfs", "rw,nosuid", "rw,size=1000k"),
    ("10.0.0.10:/home", "/home", "nfs4", "rw,relatime", "rw,vers=4.2,hard"),
    ("10.0.0.10:/opt/slurm", "/opt/slurm", "nfs4", "rw,relatime", "rw,vers=4.2,hard"),
    ("10.0.1.20@tcp:/abcdefgh", "/fsx", "lustre", "rw,noatime", "rw,flock,lazystatfs"),
    ("/dev/mapper/vg.01-lv_ephemeral", "/scratch", "ext4", "rw,noatime", "rw"),
)
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max locked memory         {0:<20} {0:<20} bytes
Max file locks            unlimited            unlimited            locks
"""


def address(gpu: int) -> str:
    return f"0000:{16 + 4 * gpu:02x}:00.0"


def facts() -> dict[str, Any]:
    return {
        "instance_type": "p5.48xlarge",
        "instance_id": "i-0123456789abcdef0",
        "node_name": "gpu-st-p5-1",
        "node_type": "compute",
        "gpus": {"count": GPUS, "devices": [{"address": address(gpu), "id": "10de:2330"} for gpu in range(GPUS)]},
        "nvswitch": {"count": 4},
        "efa": {"count": EFAS, "pci_count": EFAS},
        "slurm": {"prefix": "/opt/slurm", "version": "24.11.5"},
        "mounts": {"wanted": [{"path": path} for path in ("/fsx", "/home", "/opt/slurm")]},
    }


class Node:
    """A node below a folder. Its parts are files that a test changes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now, self.ahead = NOW, 0.0  # seconds by which the clock was set
        self.settings = settings(facts())
        self.settings.update(
            page="http://127.0.0.1:1/metrics", textfiles="/textfiles", state="/state", interval=30, slow_interval=600,
            patience=PATIENCE, disk_full=101, clock_skew=0.5, memlock=16,
        )  # fmt: skip
        self.values: list[dict[str, Any]] = [{} for _ in range(GPUS)]
        self.lost: set[int] = set()
        self.kmsg = root / "kmsg"
        self.sequence = 900
        self.wait = 0.0  # seconds that the exporter takes
        for folder in ("textfiles", "state"):
            (root / folder).mkdir(parents=True)
        self.write("opt/slurm/bin/scontrol", "#!/bin/sh\n")
        self.write("proc/sys/kernel/random/boot_id", "f0000000-0000-4000-8000-000000000001\n")
        self.write("kmsg", "6,1,0,-;Linux version 6.8.0-1040-aws\n SUBSYSTEM=none\n")
        self._hardware()
        self.mounts(*MOUNTS)
        self.slurmd()

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def _hardware(self) -> None:
        for driver in ("nvidia", "efa"):
            (self.root / "sys/bus/pci/drivers" / driver).mkdir(parents=True)
        for gpu in range(GPUS):
            self.write(f"sys/bus/pci/devices/{address(gpu)}/vendor", "0x10de\n")
            (self.root / f"sys/bus/pci/devices/{address(gpu)}/driver").symlink_to("../../drivers/nvidia")
            self.write(f"proc/driver/nvidia/gpus/{address(gpu)}/information", "Model: NVIDIA H100 80GB HBM3\n")
        self.write(
            "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.112.07\n"
        )
        self.write("sys/module/nvidia/version", "595.112.07\n")
        self.write("sys/module/gdrdrv/version", "2.5.2\n")
        for efa in range(EFAS):
            name = f"rdmap{64 + efa}s0"
            self.write(f"sys/class/infiniband/{name}/ports/1/state", "4: ACTIVE\n")
            pci = self.root / f"sys/bus/pci/devices/0000:{64 + efa:02x}:02.0"
            pci.mkdir()
            (pci / "driver").symlink_to("../../drivers/efa")
            (self.root / f"sys/class/infiniband/{name}/device").symlink_to(pci)

    def mounts(self, *mounts: tuple[str, str, str, str, str]) -> None:
        """Write a mountinfo; each file system has a device of its own."""
        lines = [
            f"{30 + place} 1 0:{40 + place} / {path} {options} shared:{place} - {kind} {source} {system}\n"
            for place, (source, path, kind, options, system) in enumerate(mounts)
        ]
        self.write("proc/1/mountinfo", "".join(lines))
        for _source, path, *_rest in mounts:
            (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def slurmd(self, memlock: str = "unlimited", name: str = "slurmd") -> None:
        self.write("sys/fs/cgroup/system.slice/slurmd.service/cgroup.procs", f"{SLURMD}\n")
        self.write("sys/fs/cgroup/system.slice/nvidia-fabricmanager.service/cgroup.procs", "4243\n")
        self.write(f"proc/{SLURMD}/comm", f"{name}\n")
        self.write(f"proc/{SLURMD}/limits", LIMITS.format(memlock))

    def log(self, *texts: str) -> None:
        """Add records to the kernel's log, each with a line of details, as drivers' messages have."""
        with self.kmsg.open("a") as stream:
            for text in texts:
                self.sequence += 1
                stamp = int((time.clock_gettime(time.CLOCK_MONOTONIC) - 5) * 1e6)
                stream.write(f"4,{self.sequence},{stamp},-;{text}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:10:00.0\n")

    def page(self) -> str:
        """The page of the exporter, made by the sandbox's stand-in with the counters of the role."""
        defaults = yaml.safe_load((REPO / "roles/dcgm_exporter/defaults/main.yml").read_text())
        counters = [
            exporter.Counter(one["name"], one["type"], one["help"]) for one in defaults["dcgm_exporter_counters"]
        ]
        gpus = []
        for gpu in sorted(set(range(GPUS)) - self.lost):
            values = {**engine.made_up(gpu, 81559, True), "DCGM_FI_DRIVER_VERSION": "595.112.07", "xids": []}
            gpus.append(
                {
                    "index": str(gpu),
                    "uuid": f"GPU-0a7a51b0-0000-4000-8000-00000000000{gpu}",
                    "pci.bus_id": f"0000{address(gpu)}".upper(),
                    "name": "NVIDIA H100 80GB HBM3",
                    "values": {**values, **self.values[gpu]},
                }
            )
        return str(exporter.render(counters, gpus, "", ""))

    @contextmanager
    def exporter(self) -> Iterator[None]:
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                time.sleep(node.wait)
                text = node.page().encode()
                self.send_response(200 if text else 503)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *words: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.settings["page"] = f"http://127.0.0.1:{server.server_address[1]}/metrics"
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()

    def look(self, later: float = 30, forget: bool = False) -> dict[str, Any]:
        """Look at the node, so many seconds after the last look; return the state."""
        self.now += later
        clocks = (lambda: self.now + self.ahead, lambda: self.now)
        return main.run(self.settings, str(self.root), str(self.kmsg), forget, *clocks)

    def found(self, later: float = 30, forget: bool = False) -> dict[tuple[str, str], str]:
        """Look at the node; return the class of each finding by its name and subject."""
        return {(one["finding"], one["subject"]): one["class"] for one in self.look(later, forget)["findings"]}
