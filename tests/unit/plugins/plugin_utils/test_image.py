# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The component that bakes a bundle, against what AWSTOE and Image Builder take, and its commands, run for real.

AWSTOE itself is nowhere but at AWS. What it takes is as the user guide of Image Builder has it (toe-use-documents).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.session
import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import image
from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish.custom_actions import Release
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

SCRIPT = Path(__file__).resolve().parents[4] / "roles/bake/files/bake.sh"
RELEASE = Release("s3://my-bucket/post/boot", "0.2.0-e12345678901", "1e" + "2" * 62, "210987654321", "aws-cn")
COMPONENT = image.Component(RELEASE, "cn-north-1")
STEP = {"name", "action", "timeoutSeconds", "onFailure", "maxAttempts", "inputs"}


def pattern(shape: str, member: str) -> str:
    """What Image Builder's API says that a member of one of its shapes has to be."""
    model = botocore.session.get_session().get_service_model("imagebuilder")
    return str(model.shape_for(shape).members[member].metadata["pattern"])


def steps(text: str) -> dict[str, str]:
    """Return the commands of each phase, of a document that breaks none of AWSTOE's rules."""
    document = yaml.safe_load(text)
    assert set(document) <= {"name", "description", "schemaVersion", "parameters", "constants", "phases"}
    assert str(document["schemaVersion"]) == "1.0"
    assert "{{" not in text  # which AWSTOE replaces
    found = {}
    for phase in document["phases"]:
        assert set(phase) == {"name", "steps"}
        (step,) = phase["steps"]
        assert set(step) <= STEP
        assert (step["action"], step["onFailure"], set(step["inputs"])) == ("ExecuteBash", "Abort", {"commands"})
        assert step["timeoutSeconds"] > 0
        (found[phase["name"]],) = step["inputs"]["commands"]
    assert len(found) == len(document["phases"])
    return found


def test_the_document_bakes_then_looks_and_looks_again_on_a_machine_of_the_image() -> None:
    text = image.document(COMPONENT, SCRIPT.read_text())
    assert len(text) <= image.MAX_CHARACTERS
    found = steps(text)
    assert list(found) == ["build", "validate", "test"]
    shebang, exports, *rest = found["build"].splitlines(keepends=True)
    assert (shebang, "".join([shebang, *rest])) == ("#!/usr/bin/env bash\n", SCRIPT.read_text())
    assert exports.startswith("export BUNDLE=s3://my-bucket/post/boot/0.2.0-e12345678901/")
    assert (
        found["validate"]
        == found["test"]
        == ("/opt/pcluster-postboot/current/bootstrap.sh --installed --bake --check\n")
    )
    assert text == image.document(COMPONENT, SCRIPT.read_text())


def test_a_document_that_image_builder_would_refuse_is_one_line() -> None:
    for script in ("echo {{ x }}", "#" * 16000):
        with pytest.raises(Problem, match=r"needed: at most 16000, and no \{\{"):
            image.document(COMPONENT, script)


@pytest.mark.parametrize("name", ["0.2.0-e12345678901", "0.2.0-dev.1-e12345678901"])
def test_names_are_what_image_builder_takes(name: str) -> None:
    component = image.Component(RELEASE._replace(name=name), "cn-north-1")
    assert re.fullmatch(pattern("CreateComponentRequest", "name"), component.name)
    assert re.fullmatch(pattern("CreateComponentRequest", "semanticVersion"), component.version)
    assert re.fullmatch(pattern("ComponentConfiguration", "componentArn"), component.arn)
    assert component.arn == (
        "arn:aws-cn:imagebuilder:cn-north-1:210987654321:component/pcluster-postboot-e12345678901/0.2.0"
    )


def test_what_is_printed_makes_the_component_and_the_policy_that_the_part_names() -> None:
    text = image.render(COMPONENT, "/home/me/my images/component.yaml")
    assert yaml.safe_load(text) == image.part(COMPONENT)
    commands = [shlex.split(line[line.index(": aws ") + 2 :]) for line in text.splitlines() if ": aws " in line]
    (component, policy) = [dict(zip(words[3::2], words[4::2])) for words in commands]
    assert component == {
        "--name": "pcluster-postboot-e12345678901",
        "--semantic-version": "0.2.0",
        "--platform": "Linux",
        "--data": "file:///home/me/my images/component.yaml",
    }
    build = yaml.safe_load(text)["Build"]
    assert build["Components"] == [{"Type": "arn", "Value": COMPONENT.arn}]
    (reads,) = build["Iam"]["AdditionalIamPolicies"]
    assert reads["Policy"].endswith(f":policy/{policy['--policy-name']}")
    assert json.loads(policy["--policy-document"])["Statement"] == [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws-cn:s3:::my-bucket/post/boot/*"}
    ]


def test_a_policy_of_the_users_own_is_named_and_none_is_made() -> None:
    mine = "arn:aws:iam::210987654321:policy/mine"
    text = image.render(COMPONENT, "/component.yaml", mine)
    assert yaml.safe_load(text)["Build"]["Iam"] == {"AdditionalIamPolicies": [{"Policy": mine}]}
    assert "create-policy" not in text


# The commands, with programs of the build instance that are small fakes

AWS = """#!/bin/sh
echo "$AWS_DEFAULT_REGION $@" >> "$NOTES/aws.log"
[ ! -e "$NOTES/aws.fails" ] || { echo 'fatal error: An error occurred (403)' >&2; exit 1; }
for last; do :; done
cp "$NOTES/s3.tar.gz" "$last"
"""
# The metadata service, version 2.
CURL = """#!/bin/sh
case "$*" in
  *"--request PUT"*"169.254.169.254/latest/api/token") echo secret ;;
  *"X-aws-ec2-metadata-token: secret http://169.254.169.254/latest/meta-data/placement/region") echo eu-west-1 ;;
  *) exit 22 ;;
esac
"""
BOOTSTRAP = """#!/bin/bash
echo "$@" > "$NOTES/bootstrap.log"
sha256sum "$2" > "$NOTES/verified"
exit $(cat "$NOTES/code" 2> /dev/null || echo 0)
"""


class Machine:
    """A build instance, and the bundle in S3."""

    def __init__(self, root: Path) -> None:
        self.root = root
        lab.program(root / "bin/aws", AWS)
        lab.program(root / "bin/curl", CURL)
        with tarfile.open(root / "s3.tar.gz", "w:gz") as archive:
            entry = tarfile.TarInfo("bootstrap.sh")
            entry.size = len(BOOTSTRAP)
            archive.addfile(entry, io.BytesIO(BOOTSTRAP.encode()))
        self.sha256 = hashlib.sha256((root / "s3.tar.gz").read_bytes()).hexdigest()

    def build(self, sha256: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the commands of the phase `build` as AWSTOE does, in a bash of their own."""
        release = RELEASE._replace(sha256=sha256 or self.sha256)
        commands = steps(image.document(image.Component(release), SCRIPT.read_text()))["build"]
        path = f"{self.root}/bin:/usr/bin:/bin"
        return subprocess.run(
            ["bash", "-c", commands],
            env={"PATH": path, "NOTES": str(self.root), **environment},
            cwd="/",
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def lines(self, name: str) -> list[str]:
        return lab.lines(self.root / name)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_verified_bundle_bakes_itself_and_nothing_else_of_it_is_left(machine: Machine) -> None:
    before = set(os.listdir("/var/tmp"))
    done = machine.build()
    assert (done.returncode, done.stderr) == (0, "")
    (fetched,) = machine.lines("aws.log")
    region, *words, url, archive = fetched.split()
    assert (region, words) == ("eu-west-1", ["s3", "cp", "--only-show-errors"])
    assert url == "s3://my-bucket/post/boot/0.2.0-e12345678901/pcluster-postboot.tar.gz"
    assert machine.lines("bootstrap.log") == [f"--bundle {archive} --sha256 {machine.sha256} --bake"]
    assert machine.lines("verified") == [f"{machine.sha256}  {archive}"]
    assert not {name for name in set(os.listdir("/var/tmp")) - before if name.startswith("pcluster-postboot.")}


def test_a_bundle_that_is_another_one_runs_nothing(machine: Machine) -> None:
    done = machine.build(sha256="0" * 64)
    assert done.returncode not in (0, 194)  # with 194 AWSTOE restarts the machine
    assert "did NOT match" in done.stderr
    assert machine.lines("bootstrap.log") == []


def test_a_bundle_that_cannot_be_read_and_a_bake_that_fails_fail_the_build(machine: Machine) -> None:
    (machine.root / "code").write_text("1")
    assert machine.build().returncode == 1
    (machine.root / "aws.fails").touch()
    done = machine.build()
    assert done.returncode == 1
    assert "(403)" in done.stderr


def test_a_region_that_is_given_is_used(machine: Machine) -> None:
    (machine.root / "bin/curl").unlink()
    assert machine.build(AWS_DEFAULT_REGION="us-gov-east-1").returncode == 0
    assert machine.lines("aws.log")[0].startswith("us-gov-east-1 s3 cp ")


def test_without_its_two_variables_the_script_says_so() -> None:
    done = subprocess.run(["bash", SCRIPT], env={"BUNDLE": "s3://b/p"}, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("BUNDLE is 's3://b/p' and SHA256 is ''; needed: ")


# The action

Play = Callable[..., Any]


@pytest.fixture
def play(ansible: Callable[..., Any], tmp_path: Path) -> Play:
    """play(*options, **arguments) runs the action in a play, and returns how it ended."""

    def run(*options: str, **given: str) -> Any:
        arguments = {"dest": str(tmp_path / "component.yaml"), "script": str(SCRIPT), "base": RELEASE.base, **given}
        tasks = [{"name": "Write", "pcluster.postboot.image_component": arguments}]
        (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
        return ansible("playbook", "-i", "localhost,", "-c", "local", "play.yml", *options, cwd=tmp_path)

    return run


def test_the_file_is_written_once_and_not_in_check_mode(play: Play, tmp_path: Path) -> None:
    bundle = {"id": RELEASE.name, "sha256": RELEASE.sha256, "account": RELEASE.account, "region": "us-east-2"}
    file = tmp_path / "component.yaml"
    check = play("--check", "--diff", **bundle)
    assert check.returncode == 0, check.stdout + check.stderr
    assert ("changed=1" in check.stdout, "+schemaVersion: 1.0" in check.stdout, file.exists()) == (True, True, False)
    first = play(**bundle)
    assert "changed=1" in first.stdout
    assert f"--data file://{file}" in first.stdout
    assert "Value: arn:aws:imagebuilder:us-east-2:210987654321:component/" in first.stdout
    assert list(steps(file.read_text())) == ["build", "validate", "test"]
    assert "changed=0" in play(**bundle).stdout


@pytest.mark.parametrize(("dest", "found"), [("", "a directory"), ("nowhere/x.yaml", "in {}/nowhere, which is no")])
def test_a_place_that_cannot_be_is_one_line_before_anything_is_built(
    play: Play, tmp_path: Path, dest: str, found: str
) -> None:
    done = play(dest=str(tmp_path / dest))
    assert done.returncode == 2
    assert f"publish_image_component is {tmp_path / dest}, {found.format(tmp_path)}" in done.stdout


def test_packers_example_runs_the_same_script_and_looks_before_parallelcluster_cleans_up() -> None:
    example = SCRIPT.parents[3] / "examples/packer/parallelcluster.pkr.hcl"
    text = example.read_text()
    (script,) = re.findall(r'script += "\$\{path\.root\}/(.+)"', text)
    assert (example.parent / script).resolve() == SCRIPT
    assert '["BUNDLE=${var.bundle}", "SHA256=${var.sha256}"]' in text
    check = steps(image.document(COMPONENT, SCRIPT.read_text()))["validate"].strip()
    assert re.search(rf'"sudo {re.escape(check)}",\s+"sudo /usr/local/sbin/ami_cleanup\.sh",\s+\]', text)
