# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the playbooks of jobs refuse before they do anything, each by the same check."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._bundle import s3_release
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import roles
from ansible_collections.pcluster.postboot.tests import templating

pytestmark = pytest.mark.once

REPO = Path(__file__).resolve().parents[3]
JOBS = sorted({path.name for path in (REPO / "roles").iterdir()} - set(roles.for_nodes()))


@pytest.fixture
def refused(ansible: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    """refused(job, **variables) returns the one message with which a job's playbook fails."""

    def run(job: str, **variables: Any) -> str:
        own = json.dumps({"ansible_become": False, "ansible_python_interpreter": sys.executable, **variables})
        where = ("-i", "localhost,", "-c", "local", "--check")
        done = ansible("playbook", *where, f"pcluster.postboot.{job}", "-e", own, cwd=tmp_path)
        assert done.returncode == 2, done.stdout + done.stderr
        (result,) = re.findall(r"^fatal: \[localhost\]: FAILED! => (.*)$", done.stdout, re.MULTILINE)
        return str(json.loads(result)["msg"])

    return run


def test_every_playbook_with_options_is_a_job() -> None:
    known = "bake cloudwatch cluster_config dashboards diagnose fleet infrastructure mirror monitoring observability "
    known += "publish status verify"
    assert known.split() == JOBS


@pytest.mark.parametrize("job", JOBS)
def test_a_misspelt_option_is_refused_and_a_foreign_one_is_not(refused: Callable[..., str], job: str) -> None:
    given = {f"{job}_xyzzy": 1, f"{job}_team": 2, "common_foreign_variables": [f"{job}_te*"], "xyzzy": 3}
    said = refused(job, **given)
    start = f"{job}_xyzzy is no variable of role {job}: "
    assert said == start + (
        "see the role's README, or add the name to common_foreign_variables if it belongs to something else"
    )


def test_a_wrong_value_and_a_slip_are_one_line_each(refused: Callable[..., str]) -> None:
    said = refused("mirror", mirror_architectures="arm64", mirror_component=["docker"], miror_dir="/srv")
    *slips, wrong = said.split("\n")
    assert slips == [
        "miror_dir is no variable of this collection: did you mean mirror_dir?",
        "mirror_component is no variable of role mirror: did you mean mirror_components?",
    ]
    assert wrong.startswith('mirror_architectures is "arm64"; needed: a list of one of x86_64, aarch64')


def test_an_option_that_is_gone_is_one_line_that_says_what_to_do(refused: Callable[..., str]) -> None:
    said = refused("publish", publish_hold=False)
    assert re.fullmatch(r"publish_hold is gone since 0\.2\.0, because .*; take it out, .*Timeout[^\n]*", said)


BAD = ["s3://b/p", "s3://bucket", "s3://bucket/", "s3://Bucket/p", "s3://bucket/a b", "s3://bucket/a/p?", ""]


@pytest.mark.parametrize(
    ("place", "good"), [("s3://bucket/a/p", True), ("s3://my.bucket-1/p//", True), *((place, False) for place in BAD)]
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_built(place: str, good: bool) -> None:
    tasks = yaml.safe_load((REPO / "roles/publish/tasks/check.yml").read_text())
    (task,) = [task["ansible.builtin.assert"] for task in tasks if "ansible.builtin.assert" in task]
    expression = f"{{{{ {task['that']} }}}}"
    assert templating.work_out("publish", {}, publish_s3=place)(expression) is good
    try:  # what the upload would say
        s3_release.parse(place.rstrip("/"))
    except Problem:
        assert not good
    else:
        assert good


def publish_twice(ansible: Callable[..., Any], folder: Path, **environment: str) -> tuple[str, str]:
    """Return why publish refuses to build, and what it says with --check, where it goes on."""
    own = json.dumps({"publish_s3": "s3://bucket/a", "ansible_python_interpreter": sys.executable})
    where = ("-i", "localhost,", "pcluster.postboot.publish", "-e", own)
    done = ansible("playbook", *where, cwd=folder, **environment)
    (result,) = re.findall(r"^fatal: \[localhost\]: FAILED! => (.*)$", done.stdout, re.MULTILINE)
    assert list(folder.iterdir()) == []
    checked = ansible("playbook", *where, "--check", cwd=folder, **environment)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    return json.loads(result)["msg"], checked.stdout + checked.stderr


def test_publish_looks_for_credentials_before_it_builds(
    ansible: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/x", "AWS_CONFIG_FILE": "/x"}
    nobody |= {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    why, checked = publish_twice(ansible, tmp_path, **nobody)
    assert why.startswith("s3://bucket/a: no AWS credentials were found")
    assert "no AWS credentials were found" in checked
    assert "its name, and so its CustomActions, are known once a run without --check" in checked
    assert f" in {tmp_path}/postboot-bundles and upload it below s3://bucket/a" in checked


def test_publish_asks_whether_the_credentials_are_accepted_before_it_builds(
    ansible: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: str
) -> None:
    deleted = {"AWS_ENDPOINT_URL": strict, "AWS_ACCESS_KEY_ID": "AKIADELETED", "AWS_SECRET_ACCESS_KEY": "b"}
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    why, checked = publish_twice(ansible, tmp_path, **deleted)
    assert why.startswith("s3://bucket/a: the AWS credentials are refused (InvalidAccessKeyId: ")
    assert "the AWS credentials are refused (InvalidAccessKeyId: " in checked
