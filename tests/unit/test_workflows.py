# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The public repository's workflows: what they may do, what they run, and that each command is a target of make."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPO = Path(__file__).resolve().parents[2]
FILES = sorted((REPO / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
# What a workflow does itself: by the beginning of the command, the reason.
OWN = {
    "git diff --binary > ": "what `make pins` has changed becomes a file for the next job",
    'if [ -s "$RUNNER_TEMP/pins.patch" ]; then echo ': "likewise",
    "gh release create ": "the release itself, with the token of the job",
}


def workflow(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in workflow(path)["jobs"].values():
        yield from job.get("steps", ())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_commands_are_targets_of_make(path: Path) -> None:
    lines = [line for step in steps(path) for line in step.get("run", "").splitlines()]
    for line in lines:
        if not line.startswith(tuple(OWN)):
            words = shlex.split(line.partition(" | ")[0])
            assert words[0] == "make", line
            assert {word for word in words[1:] if "=" not in word} <= TARGETS, line


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rights_are_few_and_jobs_end(path: Path) -> None:
    found = workflow(path)
    assert found["permissions"] in ({}, {"contents": "read"})
    assert found["concurrency"]["group"]
    for name, job in found["jobs"].items():
        assert "uses" in job or job["timeout-minutes"] <= 120, name
    if "pull_request" in found["on"]:
        assert "secrets." not in path.read_text(encoding="utf-8")
    assert "pull_request_target" not in found["on"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_actions_are_pinned_by_their_commit(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if "uses: " in line and "uses: ./" not in line:
            assert re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"] == {"persist-credentials": False}


def test_every_action_has_one_commit() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in FILES)
    pinned = set(re.findall(r"uses: ([\w-]+/[\w-]+)@(\S+)", text))
    assert len(pinned) == len({name for name, _ in pinned})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_github_is_asked_for_pins_with_a_token_that_may_only_read(path: Path) -> None:
    """Without one GitHub's API answers 60 questions an hour, of all who share a runner's address."""
    found = workflow(path)
    for job in found["jobs"].values():
        for step in job.get("steps", ()):
            if re.match(r"make pins( |$)", step.get("run", "")):
                assert step["env"] == {"GITHUB_TOKEN": "${{ github.token }}"}
                assert job.get("permissions", found["permissions"]) == {"contents": "read"}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with a change of a pin as a patch, a remote, and a gh that notes how it was called."""
    run = {"check": True, "capture_output": True}
    subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "remote.git"], **run)
    work = tmp_path / "work"
    (work / "scripts").mkdir(parents=True)
    script = work / "scripts/pins_pull_request.sh"
    script.write_bytes((REPO / "scripts/pins_pull_request.sh").read_bytes())
    script.chmod(0o755)
    (work / "pin").write_text("old\n")
    git = ["git", "-C", str(work), "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "--quiet", "--initial-branch=main"], ["add", "."], ["commit", "--quiet", "-m", "first"]):
        subprocess.run([*git, *words], **run)
    (work / "pin").write_text("new\n")
    (tmp_path / "pins.patch").write_bytes(subprocess.run([*git, "diff", "--binary"], **run).stdout)
    subprocess.run([*git, "checkout", "--quiet", "pin"], **run)
    (tmp_path / "pins.txt").write_text("pin: new\n")
    gh = tmp_path / "bin/gh"
    gh.parent.mkdir()
    gh.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/gh.log\nif [ "$2" = list ]; then cat {tmp_path}/open; fi\n')
    gh.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(("number", "call"), [("0", "pr create --head pins --base main"), ("1", "pr edit pins")])
def test_pull_request_of_pins(clone: Path, number: str, call: str) -> None:
    (clone / "open").write_text(number)
    env = {
        **os.environ,
        "PATH": f"{clone}/bin:{os.environ['PATH']}",
        "GH_TOKEN": "t",
        "PINS_REMOTE": f"{clone}/remote.git",
    }
    line = [clone / "work/scripts/pins_pull_request.sh", clone / "pins.patch", clone / "pins.txt"]
    for _ in range(2):  # the second begins with the first's commit on the remote, as a week later
        subprocess.run(line, env=env, check=True, capture_output=True)
        subprocess.run(["git", "-C", clone / "work", "switch", "--quiet", "main"], check=True)
    show = ["git", "-C", clone / "remote.git", "show", "pins:pin"]
    assert subprocess.run(show, check=True, capture_output=True, text=True).stdout == "new\n"
    assert (clone / "gh.log").read_text().splitlines()[1].startswith(call)


def test_no_pull_request_without_changes(clone: Path) -> None:
    (clone / "pins.patch").write_text("")
    line = [clone / "work/scripts/pins_pull_request.sh", clone / "pins.patch", clone / "pins.txt"]
    done = subprocess.run(line, check=False, capture_output=True, text=True)
    assert (done.returncode, "needed: a file with the changes of make pins" in done.stderr) == (2, True)
