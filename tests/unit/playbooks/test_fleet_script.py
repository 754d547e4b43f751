# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""fleet.sh on a node below a folder of the test's: what it fetches, what it trusts, and what it answers."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import cloud_init
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import rollout
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

SCRIPT = Path(__file__).resolve().parents[3] / "roles/fleet/files/fleet.sh"
# What the real one does as far as fleet.sh sees it.
BOOTSTRAP = """#!/usr/bin/env bash
set -e
root=$PCLUSTER_POSTBOOT_ROOT
printf '%s\\n' "$@" > "$root/args"
opt=$root/opt/pcluster-postboot home=$opt/0.2.0-${4:0:12}
case $2 in /*) mkdir -p "$home" && tar -xzf "$2" -C "$home" && touch "$home/.complete" ;; esac
ln -sfn "${home##*/}" "$opt/current"
kept=$root/var/lib/pcluster-postboot
if [ -e "$root/report" ]; then mkdir -p "$kept" && cp -p "$root/report" "$kept/report.json"; fi
echo "pcluster-postboot: the bundle is here"
if [ -e "$root/fails" ]; then echo "pcluster-postboot: fsx failed; see the log" >&2 && exit 3; fi
echo "pcluster-postboot: all is well"
"""
AWS = """#!/bin/sh
echo "$@" >> "$PCLUSTER_POSTBOOT_ROOT/asked"
for last in "$@"; do from=$to to=$last; done
if [ ! -e "$PCLUSTER_POSTBOOT_ROOT/s3" ]; then
  echo "fatal error: An error occurred (403) when calling HeadObject: Forbidden" >&2
  exit 1
fi
cp "$PCLUSTER_POSTBOOT_ROOT/s3" "$to"
"""
REPORT = {"outcome": "ok", "stopped": None, "changed": 1, "seconds": 3.0, "components": []}


class Node:
    """A folder that stands for a node, and a bundle in S3."""

    def __init__(self, root: Path, shell: str) -> None:
        self.root, self.shell = root, shell
        self.opt = root / "opt/pcluster-postboot"
        lab.program(root / "bin/aws", AWS)
        self.bundle({"bootstrap.sh": BOOTSTRAP, "zeta": "more"})

    def bundle(self, members: dict[str, str]) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, text in members.items():
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(text.encode()), 0o755
                tar.addfile(info, io.BytesIO(text.encode()))
        self.s3(buffer.getvalue())

    def s3(self, content: bytes) -> None:
        (self.root / "s3").write_bytes(content)
        self.sha256 = hashlib.sha256(content).hexdigest()

    def run(self, *arguments: str, code: int = 0, sha256: str = "", timeout: int = 600) -> rollout.Told:
        request = rollout.Request("s3://bucket/p/0.2.0-x", sha256 or self.sha256, arguments, timeout=timeout)
        path = self.root / "script.sh"
        path.write_text(rollout.script(request, SCRIPT.read_text()))
        environment = {"PCLUSTER_POSTBOOT_ROOT": str(self.root), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [self.shell, str(path)], env=environment, text=True, capture_output=True, timeout=PATIENCE, check=False
        )
        assert (done.returncode, done.stderr) == (code, "")
        assert not list(self.opt.glob(".fleet.*")), "nothing is left behind"
        return rollout.read(done.stdout)

    @property
    def arguments(self) -> list[str]:
        return (self.root / "args").read_text().splitlines()

    @property
    def asked(self) -> int:
        return len(lab.lines(self.root / "asked"))


@pytest.fixture(params=["sh", "bash"])
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Node:
    shell = shutil.which("dash") if request.param == "sh" else "bash"
    return Node(tmp_path / "a node", shell or "sh")


def test_a_node_that_boots_is_waited_for(node: Node) -> None:
    boots = node.root / "run/cloud-init"
    boots.mkdir(parents=True)
    told = node.run(code=1, timeout=62)
    assert re.fullmatch(rf"the node still boots after \d s: there is no {re.escape(str(boots))}/result.json", told.last)
    assert node.asked == 0
    threading.Timer(2, (boots / "result.json").touch).start()
    assert node.run().after == f"0.2.0-{node.sha256[:12]}"


@pytest.mark.parametrize("there", [None, [], ["result.json"], ["disabled"], ["status.json"]])
def test_it_waits_as_a_pushed_run_does(node: Node, monkeypatch: pytest.MonkeyPatch, there: list[str] | None) -> None:
    boots = node.root / "run/cloud-init"
    for name in there or []:
        boots.mkdir(parents=True, exist_ok=True)
        (boots / name).touch()
    if there == []:
        boots.mkdir(parents=True)
    monkeypatch.setattr(cloud_init, "ROOT", str(node.root))
    code = 1 if cloud_init.booting() else 0
    told = node.run(code=code, timeout=62)
    assert ("still boots" in told.last) is bool(code)


def test_a_node_without_the_bundle(node: Node) -> None:
    told = node.run()
    assert told == rollout.Told("", f"0.2.0-{node.sha256[:12]}", None, "all is well")
    bundle, sha256, budget = node.arguments[1::2][:3]
    assert node.arguments[::2] == ["--bundle", "--sha256", "--budget", "--defer"]
    assert bundle.startswith(f"{node.opt}/.fleet."), "what was verified is not fetched again"
    assert sha256 == node.sha256
    assert 535 <= int(budget) <= 540, "SSM's kill comes later"


def test_a_node_that_has_it_fetches_nothing(node: Node) -> None:
    node.run()
    told = node.run()
    assert told.before == told.after == f"0.2.0-{node.sha256[:12]}"
    assert node.asked == 1
    assert node.arguments[1] == "s3://bucket/p/0.2.0-x/pcluster-postboot.tar.gz"


def test_what_a_crash_has_left_is_fetched_again(node: Node) -> None:
    home = node.opt / f"0.2.0-{node.sha256[:12]}"
    home.mkdir(parents=True)
    (home / "bootstrap.sh").touch()  # a script that does nothing, and is content with it
    assert node.run().last == "all is well"
    assert node.asked == 1


def test_the_way_back_fetches_nothing(node: Node) -> None:
    first = node.sha256
    node.run()
    node.bundle({"bootstrap.sh": BOOTSTRAP + "# a newer one\n"})
    assert node.run().before == f"0.2.0-{first[:12]}"
    assert node.run(sha256=first).after == f"0.2.0-{first[:12]}"
    assert node.asked == 2


def test_further_arguments_come_last(node: Node) -> None:
    node.run("--mode", "gpu", "--python", "/opt/a b/python", "--defer", "yes")
    assert node.arguments[6:] == ["--defer", "no", "--mode", "gpu", "--python", "/opt/a b/python", "--defer", "yes"]


@pytest.mark.parametrize(
    ("recorded", "given", "wanted"),
    [
        ("gpu\n", (), ["--mode", "gpu"]),
        ("cpu\n", ("--mode", "auto"), ["--mode", "cpu", "--mode", "auto"]),
        ("else\n", (), []),
        ("", (), []),
    ],
)
def test_the_mode_of_the_node_stays(node: Node, recorded: str, given: tuple[str, ...], wanted: list[str]) -> None:
    node.opt.mkdir(parents=True)
    (node.opt / "mode").write_text(recorded)
    node.run(*given)
    arguments = list(zip(node.arguments[::2], node.arguments[1::2]))
    assert [word for name, value in arguments if name == "--mode" for word in (name, value)] == wanted


@pytest.mark.parametrize("step", [0, -6 * 3600])
def test_the_report_of_this_run_comes_along(node: Node, step: float) -> None:
    """Also where the clock was set back meanwhile."""
    (node.root / "report").write_text(json.dumps(REPORT))
    os.utime(node.root / "report", (time.time() + step,) * 2)
    assert node.run().report == REPORT


def test_an_older_report_does_not(node: Node) -> None:
    report = node.root / "var/lib/pcluster-postboot/report.json"
    report.parent.mkdir(parents=True)
    report.write_text(json.dumps(REPORT))
    os.utime(report, (time.time() - 5,) * 2)
    assert node.run().report is None


def test_a_failure_is_told_with_the_report(node: Node) -> None:
    (node.root / "report").write_text(json.dumps({**REPORT, "outcome": "failed"}))
    (node.root / "fails").touch()
    told = node.run(code=3)
    assert told.last == "fsx failed; see the log"
    assert told.report
    assert told.report["outcome"] == "failed"


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00"])
def test_what_is_no_archive_is_refused(node: Node, content: bytes) -> None:
    node.s3(content)
    assert re.match(r"s3://\S+/pcluster-postboot.tar.gz holds no bootstrap.sh: \S.*", node.run(code=1).last)
    assert not (node.root / "args").exists()


def test_an_archive_without_it_is_refused(node: Node) -> None:
    node.bundle({"other": "file"})
    assert node.run(code=1).last.endswith("holds no bootstrap.sh: tar: bootstrap.sh: Not found in archive")


def test_other_bytes_are_refused(node: Node) -> None:
    wanted = "0" * 64
    told = node.run(code=1, sha256=wanted)
    url = "s3://bucket/p/0.2.0-x/pcluster-postboot.tar.gz"
    assert told.last == f"{url} has the sha256 {node.sha256}; needed: {wanted} (fleet_sha256)"
    assert not (node.root / "args").exists(), "nothing of it was run"


def test_what_cannot_be_read_is_told(node: Node) -> None:
    (node.root / "s3").unlink()
    assert node.run(code=1).last == (
        "s3://bucket/p/0.2.0-x/pcluster-postboot.tar.gz cannot be read: "
        "fatal error: An error occurred (403) when calling HeadObject: Forbidden"
    )


def test_what_a_killed_run_left_goes(node: Node) -> None:
    node.opt.mkdir(parents=True)
    old, new = node.opt / ".fleet.oldone", node.opt / "0.1.0-keeps"
    for path in (old, new):
        path.mkdir()
        os.utime(path, (time.time() - 200000,) * 2)
    node.run()
    assert not old.exists()
    assert new.exists()


def test_a_proxy_is_used(node: Node) -> None:
    profile = node.root / "etc/profile.d/proxy.sh"
    profile.parent.mkdir(parents=True)
    profile.write_text("export https_proxy=http://proxy:3128\n")
    (node.root / "bin/aws").write_text('#!/bin/sh\necho "$https_proxy" > "$PCLUSTER_POSTBOOT_ROOT/proxy"\nexit 1\n')
    node.run(code=1)
    assert (node.root / "proxy").read_text() == "http://proxy:3128\n"


def test_the_clusters_region_is_asked(node: Node) -> None:
    (node.root / "etc/parallelcluster").mkdir(parents=True)
    (node.root / "etc/parallelcluster/cfnconfig").write_text("stack_name=x\ncfn_region=cn-north-1\n")
    (node.root / "bin/aws").write_text(AWS.replace('echo "$@"', 'echo "$AWS_DEFAULT_REGION"'))
    node.run()
    assert (node.root / "asked").read_text() == "cn-north-1\n"


def test_the_region_of_hyperpod_is_asked(node: Node) -> None:
    (node.root / "opt/ml/config").mkdir(parents=True)
    arn = "arn:aws:sagemaker:eu-north-1:123456789012:cluster/ab12cd34ef56"
    told = {"ClusterConfig": {"ClusterName": "hp", "ClusterArn": arn}}
    (node.root / "opt/ml/config/resource_config.json").write_text(json.dumps(told, indent=2))
    (node.root / "bin/aws").write_text(AWS.replace('echo "$@"', 'echo "$AWS_DEFAULT_REGION"'))
    node.run()
    assert (node.root / "asked").read_text() == "eu-north-1\n"


def test_ssm_finds_no_parameters_of_its_own_in_it() -> None:
    text: Any = rollout.script(rollout.Request("s3://b/c", "a" * 64), SCRIPT.read_text())
    assert "{{" not in text
    assert text.startswith("#!/bin/sh\nurl=")
