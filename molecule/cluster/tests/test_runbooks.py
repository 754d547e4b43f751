# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every command of docs/runbooks/ is run, where the page says, and prints what the page says.

scenes/<page>.py brings about what a page is about, and leaves the sandbox as it was; a page without such a file is
followed on the sandbox as it is. A scene has

- `scene(stage)`, a context manager, which may tell the page's example values by `stage.names.learn`, and which nodes
  stand for the page's in `stage.nodes`;
- `LONG = True`, if only `make soak` is to run it;
- `CODES`, the exit codes of commands that do not end with 0, by how a command begins;
- `instead(stage, step)`, which does what a command would that is not run, where the page goes on from there.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from .bundles import SCENARIO, STATE
from .conftest import NODES, TOPOLOGY, host
from .helpers import Run
from .runbooks import WORKSTATION, Names, Problem, Step, pages, steps

CLUSTER, REGION = "main", TOPOLOGY["region"]
TIMEOUT = 300


def scene_of(page: Path) -> ModuleType | None:
    """The module that brings about what a page is about."""
    name = page.stem.replace("-", "_")
    if not (Path(__file__).parent / f"scenes/{name}.py").exists():
        return None
    return importlib.import_module(f".scenes.{name}", __package__)


class Stage:
    """Where a page is followed: somebody's workstation, and the nodes of the cluster `main`."""

    def __init__(self, home: Path, request: pytest.FixtureRequest) -> None:
        self.request = request
        self.names = Names({"my-cluster": CLUSTER, "my_cluster": CLUSTER, "us-east-2": REGION})
        self.nodes: dict[str, str] = {}
        self.folder = home / "cluster"
        self.folder.mkdir()
        for part in STATE.iterdir():  # the inventory, and the files beside it that its variables name
            (self.folder / part.name).symlink_to(part)
        self.environment = {**os.environ, "HOME": str(home), "PWD": str(self.folder), "PATH": self.path(home / "bin")}

    def path(self, programs: Path) -> str:
        """What people install on a workstation: Ansible, ParallelCluster's CLI, the AWS CLI and its plugin."""
        programs.mkdir()
        (aws,) = STATE.glob("cache/awscli-*/bin/aws")
        version = TOPOLOGY["clusters"][CLUSTER]["parallelcluster"]
        pcluster = STATE / f"cache/parallelcluster-{version}/bin/pcluster"
        for program in (aws, pcluster, SCENARIO / "standins/session-manager-plugin/session-manager-plugin"):
            (programs / program.name).symlink_to(program.resolve())
        return f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"

    def fixture(self, name: str) -> Any:
        """A fixture of the tests, for a scene."""
        return self.request.getfixturevalue(name)

    def run(self, step: Step) -> Run:
        """Run a command where the page says."""
        command = self.names.fill(step.command)
        environment: Mapping[Any, Any] = self.environment
        if step.node == WORKSTATION:
            line = ["bash", "-c", command]
        else:
            node = self.nodes.get(step.node, step.node)
            user = TOPOLOGY["clusters"][NODES[node]["cluster"] if node in NODES else CLUSTER]["user"]
            begin, environment = host(node).backend.entry()
            line = [*begin, "su", "-", user, "-c", command]
        return subprocess.run(
            line,
            cwd=self.folder,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT,
            check=False,
        )

    def follow(self, step: Step, code: int) -> None:
        """Run a command, again and again where the page says how long that may take, and compare what is printed."""
        end = time.monotonic() + step.patience
        while True:
            done = self.run(step)
            try:
                if done.returncode != code:
                    raise Problem(f"ends with {done.returncode}, and not with {code}; printed was:\n{done.stdout}")
                if step.printed:
                    self.names.compare(step.printed, done.stdout)
                return
            except Problem as problem:
                if time.monotonic() > end:
                    raise Problem(f"{step}\n{problem}") from problem
            time.sleep(2)


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Stage:
    return Stage(tmp_path, request)


def followed(page: Path) -> Any:
    """A page with its scene, as a parameter."""
    scene = scene_of(page)
    marks = [pytest.mark.long] if getattr(scene, "LONG", False) else []
    return pytest.param(page, scene, id=page.stem, marks=marks)


@pytest.mark.parametrize(("page", "scene"), [followed(page) for page in pages()])
def test_a_page_says_what_happens(page: Path, scene: ModuleType | None, stage: Stage) -> None:
    codes: dict[str, int] = getattr(scene, "CODES", {})
    instead: Callable[[Stage, Step], None] = getattr(scene, "instead", lambda *_: None)
    begun: set[str] = set()
    brought: AbstractContextManager[None] = scene.scene(stage) if scene else nullcontext()
    with brought:
        for step in steps(page.read_text()):
            if not step.run:
                instead(stage, step)
                continue
            known = {begin for begin in codes if step.command.startswith(begin)}
            begun |= known
            stage.follow(step, codes[max(known, key=len)] if known else 0)
    assert begun == set(codes), f"{set(codes) - begun} are in CODES, and no command of the page begins so"
