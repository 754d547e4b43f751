# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The program that reads the counters of EFA devices, on trees as their driver makes them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

efa = load("roles/node_exporter/files/amazon_efa_metrics.py")


class Node:
    """A node's /sys/class/infiniband."""

    def __init__(self, top: Path) -> None:
        self.sysfs, self.output = top / "class/infiniband", top / "run/efa.prom"
        self.output.parent.mkdir()
        self.sysfs.mkdir(parents=True)

    def device(self, name: str, driver: str = "efa", own: dict[str, object] | None = None, **port: object) -> Path:
        device = self.sysfs.parents[1] / "devices" / name
        (self.sysfs.parents[1] / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        device.mkdir(parents=True)
        (device / "driver").symlink_to(self.sysfs.parents[1] / "drivers" / driver)
        folder = self.sysfs / name
        for path, values in ((folder / "hw_counters", own or {}), (folder / "ports/1/hw_counters", port)):
            path.mkdir(parents=True)
            for counter, value in values.items():
                (path / counter).write_text(f"{value}\n")
        (folder / "device").symlink_to(device)
        return folder

    def run(self) -> str:
        assert efa.main([f"--sysfs={self.sysfs}", f"--output={self.output}"]) == 0
        return self.output.read_text()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_names_and_labels_are_those_of_aws(node: Node) -> None:
    node.device("rdmap16s27", own={"submitted_cmds": 12, "lifespan": 10}, rx_bytes=3, retrans_pkts=0, lifespan=10)
    node.device("rdmap32s27", rx_bytes=2**63 + 1)
    assert node.run() == (
        "# HELP node_amazonefa_info An EFA device; the value is always 1\n"
        "# TYPE node_amazonefa_info gauge\n"
        'node_amazonefa_info{device="rdmap16s27"} 1\n'
        'node_amazonefa_info{device="rdmap32s27"} 1\n'
        "# HELP node_amazonefa_retrans_pkts Packets sent again\n"
        "# TYPE node_amazonefa_retrans_pkts counter\n"
        'node_amazonefa_retrans_pkts{device="rdmap16s27",port="1"} 0\n'
        "# HELP node_amazonefa_rx_bytes Bytes received\n"
        "# TYPE node_amazonefa_rx_bytes counter\n"
        'node_amazonefa_rx_bytes{device="rdmap16s27",port="1"} 3\n'
        'node_amazonefa_rx_bytes{device="rdmap32s27",port="1"} 9223372036854775809\n'
        "# HELP node_amazonefa_submitted_cmds Admin commands submitted\n"
        "# TYPE node_amazonefa_submitted_cmds counter\n"
        'node_amazonefa_submitted_cmds{device="rdmap16s27",port="1"} 12\n'
    )
    assert node.output.stat().st_mode & 0o777 == 0o644
    assert os.listdir(node.output.parent) == ["efa.prom"]


def test_every_sample_is_there_once(node: Node) -> None:
    """Older drivers have a device's own counters at its port."""
    node.device("rdmap16s27", own={"cmds_err": 1}, cmds_err=2)
    samples = [line for line in node.run().splitlines() if line.startswith("node_amazonefa_cmds_err")]
    assert samples == ['node_amazonefa_cmds_err{device="rdmap16s27",port="1"} 2']


def test_other_cards_are_left_out(node: Node) -> None:
    node.device("mlx5_0", driver="mlx5_core", tx_bytes=1)
    (node.sysfs / "strange").mkdir()
    assert node.run() == ""
    node.device("rdmap16s27", tx_bytes=1)
    assert set(re.findall('device="([^"]+)"', node.run())) == {"rdmap16s27"}


def test_a_new_counter_is_told_as_it_is(node: Node) -> None:
    node.device("rdmap16s27", brand_new_total=7, **{"Not-A-Name": 1})
    text = node.run()
    assert "# HELP node_amazonefa_brand_new_total The counter brand_new_total of an EFA device\n" in text
    assert "Not-A-Name" not in text


def test_what_a_device_does_not_tell_is_left_out(node: Node) -> None:
    folder = node.device("rdmap16s27", tx_bytes=1, rx_bytes="N/A (no PMA)", rx_pkts="")
    (folder / "ports/1/hw_counters/directory").mkdir()
    assert re.findall(r"^node_amazonefa_(\w+)", node.run(), re.MULTILINE) == ["info", "tx_bytes"]


@pytest.mark.parametrize("gone", ["class/infiniband", "devices/rdmap16s27", "class/infiniband/rdmap16s27"])
def test_a_missing_device_is_no_error(node: Node, gone: str) -> None:
    node.device("rdmap16s27", tx_bytes=1)
    assert "tx_bytes" in node.run()
    (node.sysfs.parents[1] / gone).rename(node.sysfs.parents[1] / "gone")
    assert node.run() == ""


def test_a_device_that_vanishes_while_it_is_read_is_no_error(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.device("rdmap16s27", tx_bytes=1)
    node.device("rdmap32s27", tx_bytes=2)
    listed: Callable[[str], list[str]] = os.listdir

    def listdir(path: str) -> list[str]:
        found = listed(path)
        if str(path).endswith("rdmap16s27/ports/1/hw_counters"):
            for name in found:
                os.unlink(os.path.join(path, name))
        return found

    monkeypatch.setattr(efa.os, "listdir", listdir)
    assert 'tx_bytes{device="rdmap32s27",port="1"} 2' in node.run()


def test_what_cannot_be_written_is_one_line(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node.output.parent.rmdir()
    assert efa.main([f"--sysfs={node.sysfs}", f"--output={node.output}"]) == 1
    assert re.fullmatch(r"no counters of EFA devices: \[Errno 2\] .*\n", capsys.readouterr().err)


def test_a_reader_never_finds_half_a_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.device("rdmap16s27", tx_bytes=1)
    before = node.run()

    def rename(_old: str, _new: str) -> None:
        assert node.output.read_text() == before

    monkeypatch.setattr(efa.os, "rename", rename)
    (node.sysfs / "rdmap16s27/ports/1/hw_counters/tx_bytes").write_text("2\n")
    assert node.run() == before


def test_every_counter_of_the_driver_is_explained() -> None:
    """The names in efa_verbs.c of amzn-drivers, driver 3.1."""
    device = "submitted_cmds completed_cmds cmds_err no_completion_cmds keep_alive_rcvd alloc_pd_err create_qp_err "
    device += "create_cq_err reg_mr_err alloc_ucontext_err create_ah_err mmap_err"
    port = "tx_bytes tx_pkts rx_bytes rx_pkts rx_drops send_bytes send_wrs recv_bytes recv_wrs rdma_read_wrs "
    port += "rdma_read_bytes rdma_read_wr_err rdma_read_resp_bytes rdma_write_wrs rdma_write_bytes rdma_write_wr_err "
    port += "rdma_write_recv_bytes retrans_bytes retrans_pkts retrans_timeout_events unresponsive_remote_events "
    port += "impaired_remote_conn_events"
    assert not {*device.split(), *port.split()} - set(efa.HELP)


@pytest.mark.parametrize(
    ("count", "pci", "given", "wanted"),
    [
        (32, 32, None, True),
        (0, 0, None, False),
        (32, 32, "false", False),
        # Devices come late on some instance types, or with the driver that the same run installs.
        (0, 16, None, True),
        (16, 0, None, True),
    ],
)
def test_which_node_has_them(
    work_out: Callable[..., Callable[[str], Any]], count: int, pci: int, given: object, wanted: bool
) -> None:
    """And its node_exporter reads where they are, which otherwise is an error to it."""
    more = {} if given is None else {"node_exporter_efa": given}
    value = work_out("node_exporter", {"efa": {"count": count, "pci_count": pci}}, **more)
    flag = "--collector.textfile.directory=/run/amazon-efa-metrics"
    assert (flag in value("__node_exporter_arguments")) is wanted
    assert any("/run/amazon-efa-metrics" in line for line in value("__node_exporter_tmpfiles")) is wanted
    assert len(value("__node_exporter_sysusers")) == 1 + wanted
