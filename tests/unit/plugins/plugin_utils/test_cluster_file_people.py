# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files of people: what ParallelCluster's schema takes, it takes with what we add, and nothing of the file is lost."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import base as users
from ansible_collections.pcluster.postboot.plugins.plugin_utils._cluster_config import render
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import custom_actions as actions
from ansible_collections.pcluster.postboot.tests.unit.plugins import cluster_config_sample as sample
from ansible_collections.pcluster.postboot.tests.unit.plugins import parallelcluster, people

RELEASE = actions.Release("s3://my-bucket/postboot", "0.1.0-0123456789ab", "0" * 64)
GIVEN: dict[str, Any] = {"region": "", "subnet_head": "", "queues": [], "components": []}
BUNDLE = {**sample.BUNDLE, "login_policy": sample.POLICY, "trusted_writers": []}
SEEDS = pytest.mark.parametrize("seeds", [range(21), pytest.param(range(21, 600), marks=pytest.mark.long)])


def rendered(text: str, folder: Path, version: str, **more: Any) -> dict[str, Any]:
    path = folder / "base.yaml"
    path.write_bytes(text.encode())
    base = users.read(str(path))
    before = copy.deepcopy(base)
    outcome = render.render(sample.given(**{**GIVEN, "version": version, **more}), base, sample.COMPONENTS)
    assert base == before
    if outcome.problems:
        raise Problem("; ".join(outcome.problems))
    written = yaml.safe_load(render.text(outcome, version))
    assert written == outcome.config
    return outcome.config


def published(text: str, folder: Path) -> dict[str, Any]:
    """Return a configuration with the parts in it that publish prints for it."""
    path = folder / "config.yaml"
    path.write_bytes(text.encode())
    found = actions.read(str(path))
    parts = yaml.safe_load(actions.render(RELEASE, actions.Wanted({}, [sample.POLICY]), found))
    nodes = [(found["HeadNode"], parts["HeadNode"])]
    for section, key in (("LoginNodes", "Pools"), ("Scheduling", "SlurmQueues")):
        nodes += zip(found.get(section, {}).get(key, []), parts.get(section, {}).get(key, []), strict=True)
    for node, part in nodes:
        node.update(part)
    return found


def lost(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yield what a configuration had, and has no longer. A script may have become one of a sequence."""
    if place.rpartition("/")[2].startswith("OnNode"):
        both = [found.get("Sequence", [found]) for found in (before, after)]
        yield from [f"{place}: {script}" for script in both[0] if script not in both[1]]
    elif isinstance(before, Mapping):
        for key, value in before.items():
            if key not in after:
                yield f"{place}/{key}"
            else:
                yield from lost(value, after[key], f"{place}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(after) >= len(before):
        for number, (one, other) in enumerate(zip(before, after)):
            yield from lost(one, other, f"{place}[{number}]")
    elif before != after or type(before) is not type(after):
        yield f"{place}: {before!r} is {after!r}"


WAYS = {
    "base": lambda text, folder, version: rendered(text, folder, version),
    "base with a bundle": lambda text, folder, version: rendered(text, folder, version, bundle=BUNDLE),
    "publish": lambda text, folder, version: published(text, folder),
}


@SEEDS
@pytest.mark.parametrize("version", parallelcluster.VERSIONS)
def test_what_is_valid_stays_valid_and_whole(version: str, seeds: range, tmp_path: Path) -> None:
    files = {seed: people.make(seed, version) for seed in seeds}
    before = dict(zip(files, parallelcluster.refusals([file.plain for file in files.values()], version)))
    valid = [seed for seed, refusal in before.items() if not refusal]
    assert len(seeds) / 2 < len(valid) < len(seeds) * 3 / 4
    found: dict[tuple[int, str], dict[str, Any]] = {}
    refused: dict[tuple[int, str], str] = {}
    for seed, file in files.items():
        for way, work in WAYS.items():
            try:
                found[seed, way] = work(file.text, tmp_path, version)
            except Problem as error:
                refused[seed, way] = str(error)
    texts = [yaml.safe_dump(config) for config in found.values()]
    after = dict(zip(found, parallelcluster.refusals(texts, version)))
    assert {key: line for key, line in refused.items() if not before[key[0]]} == {}
    assert {key: line for key, line in after.items() if bool(line) != bool(before[key[0]])} == {}
    gone = {key: list(lost(yaml.safe_load(files[key[0]].plain), config)) for key, config in found.items()}
    assert {key: lines for key, lines in gone.items() if lines} == {}
    assert all("needed: " in line for line in refused.values())


@pytest.mark.parametrize("seed", range(1, 43, 3))
def test_what_one_queue_is_given_leaves_the_others_as_they_were(seed: int, tmp_path: Path) -> None:
    version = "3.16.1"
    file = people.make(seed, version)
    before = yaml.safe_load(file.plain)["Scheduling"]["SlurmQueues"]
    has_role = before[0].get("Iam", {}).keys() & {"InstanceRole", "InstanceProfile"}
    asked = {
        "name": "cpu",
        "instance_type": "c5.large",
        "compute_resource": "new",
        "policies": [] if has_role else [f"{sample.POLICY}-own"],
        "tags": {"own": "yes"},
        "slurm_settings": {"OverTimeLimit": 5},
    }
    config = rendered(file.text, tmp_path, version, queues=[asked])
    first, *others = config["Scheduling"]["SlurmQueues"]
    assert has_role or {"Policy": f"{sample.POLICY}-own"} in first["Iam"]["AdditionalIamPolicies"]
    assert first["CustomSlurmSettings"]["OverTimeLimit"] == 5
    assert {"Key": "own", "Value": "yes"} in first["Tags"]
    assert others == before[1:]
