# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From an earlier version to this one, on nodes that run: pushed, pulled, and what the cluster shares.

docs/compatibility.md says which version that is, and what an upgrade promises.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from testinfra.host import Host

from .bundles import DIR, SANDBOX, STATE, Bundle, config, printed, queue_of, update
from .helpers import On, Play, Run, joined, ok, system, variables
from .test_pull import OPT, act, report, settle
from .upgrades import ROOT, install, revision, variables_of

pytestmark = pytest.mark.long

PUSHED, PULLED, GPU = "burst-dy-c5-3", "burst-dy-c5-4", "gpu-st-p5-1"
SHARED = "/fsx/test-upgrade"
HERE = {"nccl_dir": f"{SHARED}/nccl", "nccl_tests_dir": f"{SHARED}/nccl-tests"}
BUILDS = ("--tags", "nccl,nccl_tests")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the earlier version is installed."""
    return install(revision(), tmp_path_factory.mktemp("earlier"))


@pytest.fixture(scope="module")
def unknown(earlier: Path) -> list[str]:
    """This version's variables that the earlier one does not have, and would call misspelt."""
    return sorted(variables_of(ROOT) - variables_of(earlier / "ansible_collections/pcluster/postboot"))


@pytest.fixture(scope="module")
def old(earlier: Path, unknown: list[str]) -> Iterator[Play]:
    """A function that runs a playbook of the earlier version, on an inventory from before there were types of nodes."""
    inventory = STATE / "inventory-earlier"  # whose parent the sandbox's variables ask for
    shutil.copytree(STATE / "inventory", inventory, dirs_exist_ok=True)
    file = inventory / "sandbox.pcluster.yml"
    options = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({key: value for key, value in options.items() if key != "node_types"}))

    def run(*arguments: str, name: str = "site", timeout: int = 300) -> Run:
        line = [str(Path(sys.executable).parent / "ansible-playbook"), "--inventory", str(inventory)]
        line += [f"pcluster.postboot.{name}", *arguments, *variables(common_foreign_variables=unknown)]
        environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(earlier)}
        return subprocess.run(line, text=True, capture_output=True, timeout=timeout, check=False, env=environment)

    yield run
    shutil.rmtree(inventory)


def queue(folder: Path, actions: dict[str, Any]) -> None:
    """Update the cluster, so that nodes of the queue `burst` boot with these custom actions from now on."""
    done = update("main", folder, {"Scheduling": {"SlurmQueues": [{"Name": "burst", **actions}]}} if actions else {})
    assert done.stdout.endswith("main: UPDATE_COMPLETE\n"), done.stdout + done.stderr


def changes(host: Host) -> dict[str, list[str]]:
    """What the last run has changed on a node, by component."""
    found = report(host)
    assert found["outcome"] == "ok", found
    return {one["name"]: one["changes"] for one in found["components"] if one.get("changed")}


def running(host: Host) -> str:
    """The processes whose end would end jobs."""
    return host.check_output("systemctl show --property=MainPID --value docker.service slurmd.service")


def test_a_pushed_node_is_brought_to_this_version_once(
    on: On, bundle: Bundle, publish: Callable[[str], dict[str, Any]], old: Play, play: Play, tmp_path: Path
) -> None:
    assert bundle.name
    queue(tmp_path, {})
    try:
        with joined(PUSHED):
            spare = on(PUSHED)
            ok(old("--limit", PUSHED))
            assert changes(spare), "the earlier version has changed nothing on a new node"
            before = running(spare)
            ok(play("--limit", PUSHED))
            print("changed by this version:", json.dumps(changes(spare), indent=1))
            assert running(spare) == before
            again = ok(play("--limit", PUSHED))
            assert changes(spare) == {}, again.stdout[-3000:]
    finally:
        queue(tmp_path, queue_of(publish("main"), "burst"))


@pytest.fixture(scope="module")
def old_bundle(s3: Any, old: Play, unknown: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The queue `burst` with the custom actions that publish of the earlier version prints."""
    folder = tmp_path_factory.mktemp("old") / "group_vars"
    subprocess.run([sys.executable, SANDBOX, "variables", folder], check=True)
    with (folder / "pcluster.yml").open("a") as file:
        file.write(yaml.safe_dump({"common_foreign_variables": unknown}))
    options = {
        "publish_s3": f"s3://{s3.name}/bundles",
        "publish_dir": str(DIR),
        "publish_group_vars": str(folder),
        "publish_config": str(config("main")),
        "publish_pythons": ["3.13"],
        "publish_architectures": ["x86_64"],
    }
    return queue_of(printed(old(*variables(**options), name="publish")), "burst")


def test_a_node_that_booted_with_an_earlier_bundle_takes_this_one(
    on: On,
    bundle: Bundle,
    old_bundle: dict[str, Any],
    publish: Callable[[str], dict[str, Any]],
    tmp_path: Path,
) -> None:
    first = Bundle.of(old_bundle["CustomActions"]["OnNodeConfigured"])
    assert first.name != bundle.name
    queue(tmp_path, old_bundle)
    try:
        with joined(PULLED):
            spare = on(PULLED)
            settle(spare)
            assert spare.file(f"{OPT}/current").linked_to == f"{OPT}/{first.name}"
            before = running(spare)
            for wanted in (bundle, first, bundle):  # there, back, and there again
                done = act(spare, wanted.action())
                assert done.rc == 0, done.stdout
                settle(spare)
                assert spare.file(f"{OPT}/current").linked_to == f"{OPT}/{wanted.name}"
                print(f"changed by {wanted.name}:", json.dumps(changes(spare), indent=1))
            assert running(spare) == before
            assert act(spare, bundle.action()).rc == 0
            settle(spare)
            assert changes(spare) == {}
    finally:
        queue(tmp_path, queue_of(publish("main"), "burst"))


def releases(host: Host) -> str:
    """The published releases with their inodes and times, and the links by which nodes follow them."""
    return host.check_output(f"find {SHARED}/*/ -maxdepth 1 -name '[0-9c]*' -printf '%p %i %T@ %l\\n' | sort")


# Loads NCCL as a user's program does, and prints which files were loaded.
PROBE = "import ctypes; ctypes.CDLL('libnccl.so.2'); print(open('/proc/self/maps').read())"


def test_what_the_cluster_shares_is_found_and_not_built_again(on: On, old: Play, play: Play) -> None:
    """Also while only the head node has this version."""
    head, gpu = on("head"), on(GPU)
    with_dirs = (*BUILDS, *variables(**HERE))
    head.check_output(f"mkdir {SHARED}")
    try:
        ok(old("--limit", f"head,{GPU}", *with_dirs))
        before = releases(head)
        assert before.count("current-cuda13") == 2, before
        head.check_output(f"cp {SHARED}/nccl/setup-nccl-env.sh {SHARED}/kept-by-a-user.sh")
        head.check_output(f"printf %%s %s > {SHARED}/probe.py", PROBE)
        for names in ("head", GPU):
            ok(play("--limit", names, *with_dirs))
            # Nothing was built: what is compiled has one more link, whose name tells for which C library.
            assert set(before.splitlines()) <= set(releases(head).splitlines())
            fresh = sorted(set(releases(head).splitlines()) - set(before.splitlines()))
            (link,) = [line.split() for line in fresh]
            assert link[0] == f"{SHARED}/nccl-tests/current-cuda13-{os.uname().machine}-{system(head)}"
            assert link[-1] == head.check_output(f"readlink {SHARED}/nccl-tests/current")
            for script in ("kept-by-a-user.sh", "nccl/setup-nccl-env.sh"):
                found = gpu.check_output(f". {SHARED}/{script} && python3 {SHARED}/probe.py")
                assert f"{SHARED}/nccl/" in found, (names, script)
        ok(play("--limit", f"head,{GPU}", *with_dirs))
        assert (changes(head), changes(gpu)) == ({}, {})
    finally:
        ok(play("--limit", f"head,{GPU}", *BUILDS))
        head.check_output(f"rm -rf {SHARED}")
