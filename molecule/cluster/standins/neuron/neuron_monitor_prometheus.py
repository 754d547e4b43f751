#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for AWS Neuron's neuron-monitor-prometheus.py: reports come in, metrics go out."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Callable

from prometheus_client import Counter, Gauge, Info, start_http_server

MEMORY = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
ECC = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_corrected", "sram_ecc_uncorrected")
Labels = dict[str, Any]


class Metrics:
    """The metrics that there are already; one comes with the first report that has a value for it."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    def of(self, kind: Callable[..., Any], name: str, text: str, labels: Labels) -> Any:
        if name not in self.known:
            self.known[name] = kind(name, text, list(labels))
        return self.known[name].labels(**labels)

    def gauge(self, name: str, text: str, value: float, **labels: Any) -> None:
        self.of(Gauge, name, text, labels).set(value)

    def counter(self, name: str, text: str, value: float, **labels: Any) -> None:
        self.of(Counter, name, text, labels).inc(value)

    def info(self, name: str, text: str, values: dict[str, str]) -> None:
        if name not in self.known:
            self.known[name] = Info(name, text)
            self.known[name].info(values)

    def clear(self) -> None:
        """Forget the samples of all gauges and counters, as the real one does where no process uses a device."""
        for metric in self.known.values():
            if not isinstance(metric, Info):
                metric.clear()


def runtime(metrics: Metrics, report: dict[str, Any], labels: Labels) -> None:
    """What a process does that uses devices. A group with an error is left out."""
    groups = {name: group for name, group in report.items() if group["error"] == ""}
    if "neuroncore_counters" in groups:
        for core, one in groups["neuroncore_counters"]["neuroncores_in_use"].items():
            ratio = one["neuroncore_utilization"] / 100
            metrics.gauge(
                "neuroncore_utilization_ratio", "NeuronCore utilization ratio", ratio, **labels, neuroncore=int(core)
            )
    if "neuron_runtime_vcpu_usage" in groups:
        for kind in ("user", "system"):
            ratio = groups["neuron_runtime_vcpu_usage"]["vcpu_usage"][kind] / 100
            name, text = "neuron_runtime_vcpu_usage_ratio", "Runtime vCPU utilization ratio"
            metrics.gauge(name, text, ratio, **labels, usage_type=kind)
    if "memory_used" in groups:
        used = groups["memory_used"]["neuron_runtime_used_bytes"]
        for place in ("host", "neuron_device"):
            name, text = "neuron_runtime_memory_used_bytes", "Runtime memory used bytes"
            metrics.gauge(name, text, used[place], **labels, memory_location=place)
        for kind in MEMORY:
            for core, one in used["usage_breakdown"]["neuroncore_memory_usage"].items():
                name, text = f"neuroncore_memory_usage_{kind}", f"NeuronCore memory utilization for {kind}"
                metrics.gauge(name, text, one[kind], **labels, memory_location=None, neuroncore=int(core))
    if "execution_stats" in groups:
        stats = groups["execution_stats"]
        for kind, value in stats["error_summary"].items():
            metrics.counter("execution_errors_total", "Execution errors total", value, **labels, error_type=kind)
        for kind, value in stats["execution_summary"].items():
            metrics.counter("execution_status_total", "Execution status total", value, **labels, status_type=kind)
        for percentile, value in (stats["latency_stats"]["total_latency"] or {}).items():
            name, text = "execution_latency_seconds", "Execution latency in seconds"
            metrics.gauge(name, text, value, **labels, percentile=percentile)


def system(metrics: Metrics, data: dict[str, Any], labels: Labels) -> None:
    """What the node does."""
    groups = {name: group for name, group in data.items() if group["error"] == ""}
    for kind in ("memory", "swap") if "memory_info" in groups else ():
        for what in ("total_bytes", "used_bytes"):
            value = groups["memory_info"][f"{kind}_{what}"]
            metrics.gauge(f"system_{kind}_{what}", f"System {kind} {what} bytes", value, **labels)
    for device in groups.get("neuron_hw_counters", {}).get("neuron_devices", []):
        for kind in ECC:
            name, more = "hardware_ecc_events_total", {"event_type": kind}
            more["neuron_device_index"] = device["neuron_device_index"]
            metrics.counter(name, "Hardware ecc events total", device[kind], **labels, **more)
    if "vcpu_usage" in groups:
        usage = groups["vcpu_usage"]
        metrics.gauge("system_vcpu_count", "System vCPU count", len(usage["usage_data"]), **labels)
        for kind, parts in (("user", ("user", "nice")), ("system", ("system", "io_wait", "irq", "soft_irq"))):
            ratio = min(sum(usage["average_usage"][part] for part in parts), 100) / 100
            metrics.gauge("system_vcpu_usage_ratio", "System CPU utilization ratio", ratio, **labels, usage_type=kind)


def show(metrics: Metrics, report: dict[str, Any], labels: Labels) -> None:
    for one in report["neuron_runtime_data"]:
        if one["error"] == "":
            runtime(metrics, one["report"], {**labels, "runtime_tag": one["neuron_runtime_tag"]})
    if not report["neuron_runtime_data"]:
        metrics.clear()
    system(metrics, report["system_data"], labels)
    metrics.info("instance", "EC2 instance information", labels)
    hardware = report["neuron_hardware_info"]
    counts = {name: str(hardware[name]) for name in ("neuron_device_count", "neuroncore_per_device_count")}
    metrics.info("neuron_hardware", "Neuron Hardware Information", {**counts, **labels})


def main() -> None:
    parser = argparse.ArgumentParser(prog="neuron-monitor-prometheus.py")
    parser.add_argument("-p", "--port", default=8000, type=int)
    start_http_server(port=parser.parse_args().port)
    metrics, labels = Metrics(), {}
    while True:
        line = sys.stdin.readline()
        if not line:
            continue  # as the real one, which asks for one more line for ever
        report = json.loads(line)
        if not labels:
            of = report["instance_info"]
            labels = {name: of[name] for name in ("instance_name", "instance_id", "instance_type", "subnet_id")}
            labels |= {"availability_zone": of["instance_availability_zone"], "region": of["instance_region"]}
        show(metrics, report, labels)


if __name__ == "__main__":
    main()
