#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What ParallelCluster itself says of configurations: schema, validators, templates, and cfn-lint over these.

`check.py [--parallelcluster VERSION] [--depth DEPTH] FILE...` prints one line for each finding, or `nothing to say` for
a file without findings, and ends with 1 if any file has one. ParallelCluster asks a simulated AWS account, which has
what each file names (estate.py).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from synthesize import HERE, TEMPLATE, ask

DEPTHS = ("schema", "validators", "templates")  # each with all before it
# Warnings that are a choice, not a mistake: the validator, and why its warning may stand. Every other one is a finding.
ACCEPTED = {
    "DetailedMonitoringValidator": "costs money, and is asked for by name",
    "EfaValidator": "nodes without EFA, where the instance type has it: a request of inference stays on one node",
    "KeyPairValidator": "no key pair: people come in by SSM",
}
LOCKS = HERE.parents[2] / "requirements"


def versions() -> list[str]:
    """The versions of ParallelCluster that requirements/ has a lock file for, oldest first."""
    found = [
        re.search(r"^aws-parallelcluster==([\d.]+)", lock.read_text(), re.MULTILINE)
        for lock in LOCKS.glob("parallelcluster-*.txt")
    ]
    return sorted((each[1] for each in found if each), key=lambda each: [int(part) for part in each.split(".")])


def check(configs: Mapping[str, str], version: str, depth: str = DEPTHS[-1]) -> dict[str, list[str]]:
    """The findings of one ParallelCluster for each configuration, one line each."""
    requests = [{"cluster": "example", "config": text, "depth": depth} for text in configs.values()]
    found = {}
    templates: dict[str, dict[str, dict[str, str]]] = {}  # by region, and then by configuration
    for (name, text), answer in zip(configs.items(), answers(requests, version)):
        config = yaml.safe_load(text)
        found[name] = list(findings(answer, config))
        if not found[name] and "objects" in answer:
            templates.setdefault(config["Region"], {})[name] = answer["objects"]
    for region, of_region in templates.items():
        found.update(lint(of_region, region))
    return found


def updates(previous: str, configs: Mapping[str, str], version: str) -> dict[str, str]:
    """Why a cluster that runs with `previous` may not be updated to each configuration; nothing where it may."""
    request = {"cluster": "example", "depth": DEPTHS[-1], "previous": previous}
    found = answers([{**request, "config": text} for text in configs.values()], version)
    return {name: answer.get("refused", "") for name, answer in zip(configs, found)}


def answers(requests: list[dict[str, str]], version: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        found: list[dict[str, Any]] = ask("judge.py", requests, version, Path(folder))
    return found


def findings(answer: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    if "refused" in answer:
        yield answer["refused"]
    for warning in answer.get("warnings", []):
        validator = warning.partition(":")[0]
        if validator not in ACCEPTED and not (
            validator == "EfaPlacementGroupValidator" and efa_without_group_is_reserved(config)
        ):
            yield warning


def efa_without_group_is_reserved(config: Mapping[str, Any]) -> bool:
    """Whether all nodes with EFA and without a placement group are in a capacity reservation.

    The reservation decides where such nodes are. ParallelCluster warns of them whether they have a group or none.
    """
    for queue in config["Scheduling"]["SlurmQueues"]:
        for resource in queue["ComputeResources"]:
            places = [(each.get("Networking") or {}).get("PlacementGroup") for each in (resource, queue)]
            group = next((each for each in places if each), {})
            without_group = (resource.get("Efa") or {}).get("Enabled") and not group.get("Enabled")
            if without_group and not any(each.get("CapacityReservationTarget") for each in (resource, queue)):
                return False
    return True


def lint(templates: Mapping[str, Mapping[str, str]], region: str) -> dict[str, list[str]]:
    """What cfn-lint refuses in the templates of each configuration.

    cfn-lint takes seconds to start, so it is started once for all. Its warnings are left out: they are about how
    ParallelCluster writes templates, not about the configuration.
    """
    with tempfile.TemporaryDirectory() as folder:
        places = {name: Path(folder) / str(number) for number, name in enumerate(templates)}
        for name, place in places.items():
            place.mkdir()
            for key, text in templates[name].items():
                if key == TEMPLATE or key.startswith("assets/"):
                    (place / Path(key).name).write_text(text)
        files = sorted(str(each) for each in Path(folder).glob("*/*"))
        line = [Path(sys.executable).parent / "cfn-lint", "--ignore-checks", "W", "--format", "parseable"]
        done = subprocess.run([*line, "--regions", region, "--", *files], capture_output=True, text=True, check=False)
        said = done.stdout.splitlines()
        found = {
            name: [each.removeprefix(f"{place}/") for each in said if each.startswith(f"{place}/")]
            for name, place in places.items()
        }
    if done.returncode and not any(found.values()):
        why = done.stderr.strip() or f"cfn-lint ended with {done.returncode}: {done.stdout}"
        return {name: [why] for name in templates}
    return found


def main() -> int:
    known = versions()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parallelcluster", choices=known, default=known[-1], metavar="VERSION", help=", ".join(known))
    parser.add_argument("--depth", choices=DEPTHS, default=DEPTHS[-1], help="how far to go")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    options = parser.parse_args()
    configs = {str(file): file.read_text() for file in options.files}
    found = check(configs, options.parallelcluster, options.depth)
    for name, lines in found.items():
        for each in lines or ["nothing to say"]:
            print(f"{name}: ParallelCluster {options.parallelcluster}: {each}")
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
