# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/runbooks/instance-types.md: its tables are those of the collection, and EC2's as moto keeps them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._efa.devices import DEVICES
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.nccl_expected import (
    HARDWARE,
    Expectation,
    curve,
    limit,
    readable,
)
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import needs, versions
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.components import read
from ansible_collections.pcluster.postboot.tests import installed

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/runbooks/instance-types.md").read_text()
TYPES = json.loads(gzip.decompress((installed.package("moto") / "ec2/resources/instance_types.json.gz").read_bytes()))
SIZES = {"container_image_gb": 10.0, "prometheus_gb": 10.0, "nodes": 16.0}


def table(name: str) -> dict[str, list[str]]:
    """The rows of a table between two marks, by their first cell."""
    text = PAGE.partition(f"<!-- begin {name}")[2].partition(f"<!-- end {name}")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in cells[1:]}


NAMES = list(table("hardware"))


def test_the_tables_have_the_p_family() -> None:
    assert list(table("bandwidth")) == NAMES
    assert set(NAMES) == {name for name in DEVICES if name.startswith("p") and HARDWARE[name].gpus == 8}


@pytest.mark.parametrize("name", NAMES)
def test_what_an_instance_type_has(name: str) -> None:
    ec2: Any = TYPES[name]
    (gpu,) = ec2["GpuInfo"]["Gpus"]
    (disk,) = ec2["InstanceStorageInfo"]["Disks"]
    ours = HARDWARE[name]
    assert gpu["Count"] == ours.gpus
    assert ec2["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"] == DEVICES[name]
    assert table("hardware")[name] == [
        str(ec2["VCpuInfo"]["DefaultVCpus"]),
        f"{ec2['MemoryInfo']['SizeInMiB'] // 1024} GiB",
        f"{gpu['Count']} {gpu['Name']}",
        f"{gpu['MemoryInfo']['SizeInMiB'] // 1024} GiB",
        f"{ours.nvlink} GB/s",
        f"{disk['Count']} x {disk['SizeInGB']} GB",
        str(DEVICES[name]),
        f"{ours.gbps} Gbit/s, {ours.gbps // 8} GB/s",
    ]


def published(rows: tuple[Expectation, ...]) -> str:
    return f"{rows[-1].busbw:g} GB/s at {readable(rows[-1].size)}" if rows else "nothing"


@pytest.mark.parametrize("name", NAMES)
def test_what_to_expect_of_nccl(name: str) -> None:
    expected = []
    for nodes in (1, 2):
        most = limit(name, nodes, "all_reduce")
        assert most
        expected += [published(curve(name, nodes, "all_reduce")), f"{most.busbw:g} GB/s"]
    assert table("bandwidth")[name] == expected


def test_bus_bandwidth_and_the_wire() -> None:
    """For two nodes of eight GPUs the bus bandwidth is 1.875 times what crosses the wire."""
    busbw = curve("p5.48xlarge", 2, "all_reduce")[-1].busbw
    share = busbw / 1.875 / (HARDWARE["p5.48xlarge"].gbps / 8)
    assert f"{busbw:g} GB/s of bus bandwidth are {busbw / 1.875:.2f} GB/s of `algbw`" in PAGE
    assert f"once in each direction: {100 * share:.0f} % of the 400 GB/s of EFA." in PAGE


def test_root_volumes() -> None:
    components, image = read(ROOT), versions.ROOT_VOLUME
    sizes = {
        "head node": needs.disk(components, "head", False, image, SIZES),
        "login node": needs.disk(components, "login", False, image, SIZES),
        "compute node with NVMe disks of its own": needs.disk(components, "compute", True, image, SIZES),
        "compute node without": needs.disk(components, "compute", False, image, SIZES),
    }
    assert table("volumes") == {node: [f"{found.total} GiB"] for node, found in sizes.items()}
    assert f"has {image} GiB up to 3.16.1, and {versions.root_volume((3, 16, 2))} GiB from 3.16.2 on" in PAGE
