# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""node_exporter on every node, and the counters of EFA devices among its metrics."""

from __future__ import annotations

import re

from testinfra.host import Host

from .helpers import Nodes, On, exposure

NODE = "gpu-st-p5-1"
SYSFS = "/sys/class/infiniband"
UNIT = "amazon-efa-metrics"


def samples(host: Host, node: str = NODE) -> dict[tuple[str, str, str], int]:
    """The value of each counter of EFA devices, by its name, device and port."""
    text = host.check_output(f"curl -sf http://{node}:9100/metrics")
    found = re.findall(r'^node_amazonefa_(\w+)\{device="(\w+)",port="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {(name, device, port): int(float(value)) for name, device, port, value in found}


def read(host: Host) -> dict[tuple[str, str, str], int]:
    """The same as the kernel has them."""
    lines = host.check_output(f"cd {SYSFS} && grep -H . */hw_counters/* */ports/1/hw_counters/*").splitlines()
    found = [re.fullmatch(r"(\w+)/(?:ports/1/)?hw_counters/(\w+):(\d+)", line) for line in lines]
    return {(one[2], one[1], "1"): int(one[3]) for one in found if one}


def test_only_what_somebody_asks_for_is_told(on: On) -> None:
    text = on("head").check_output(f"curl -sf http://localhost:9100/metrics; curl -sf http://{NODE}:9100/metrics")
    for metric in ("node_cpu_seconds_total", "node_network_receive_bytes_total"):
        assert f"\n{metric}{{" in text, metric
    for metric in ("node_softnet_", "node_schedstat_", "node_cpu_guest_", "node_network_up", "node_network_info"):
        assert f"\n{metric}" not in text, metric
    # Neither does the exporter tell of its own process.
    for metric in ("node_infiniband_", "node_nfs_", "go_", "process_", "promhttp_"):
        assert f"\n{metric}" not in text, metric
    assert re.search(r'node_systemd_unit_state\{name="supervisord\.service",state="active",\S* 1\n', text)


def test_every_counter_of_every_efa_device_is_told(gpu: Host, on: On, nodes: Nodes) -> None:
    before = read(gpu)
    gpu.check_output(f"systemctl start {UNIT}")
    after = read(gpu)
    told = samples(on("head"))
    assert len({device for _name, device, _port in told}) == nodes[NODE]["efa"]
    assert set(told) == set(before)
    assert len({name for name, _device, _port in told}) > 30
    assert all(before[key] <= value <= after[key] for key, value in told.items())


def test_they_are_read_again_and_again(gpu: Host) -> None:
    assert gpu.service(f"{UNIT}.timer").is_running
    assert gpu.service(f"{UNIT}.timer").is_enabled
    next_one = gpu.check_output(f"systemctl list-timers --no-legend {UNIT}.timer")
    assert re.search(r"\b([1-2]?\d|30)s left", next_one), next_one


def test_a_device_that_vanishes_is_no_error(gpu: Host) -> None:
    hardware = "/run/sandbox-hardware/class/infiniband"
    gone = gpu.check_output(f"ls {hardware} | head -n 1")
    gpu.check_output(f"mv {hardware}/{gone} /run/sandbox-hardware/gone")
    try:
        gpu.check_output(f"systemctl start {UNIT}")
        devices = {device for _name, device, _port in samples(gpu, "localhost")}
    finally:
        gpu.check_output(f"mv /run/sandbox-hardware/gone {hardware}/{gone}; systemctl start {UNIT}")
    assert gone not in devices
    assert len(devices) == int(gpu.check_output(f"ls {hardware} | wc -l")) - 1


def test_nodes_without_efa_have_none_of_it(on: On, nodes: Nodes) -> None:
    for name, node in nodes.items():
        if not node.get("efa"):
            assert not samples(on(name), "localhost"), name
            assert not on(name).file(f"/etc/systemd/system/{UNIT}.timer").exists, name


def test_who_reads_them_may_do_little(gpu: Host) -> None:
    assert gpu.file("/run/amazon-efa-metrics/amazon_efa.prom").user == UNIT
    assert gpu.file("/run/amazon-efa-metrics").mode == 0o755
    for unit, most in ((UNIT, 1.1), ("node_exporter", 2.4)):
        assert exposure(gpu, unit) <= most
