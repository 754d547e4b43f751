# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""examples/cluster-configs: the variables render the file beside them, and ParallelCluster finds nothing wrong there.

The newest ParallelCluster looks with its schema and validators, the oldest with its schema; in `make soak` both make
their templates, too. No environment holds the versions between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples/cluster-configs"
EXAMPLES = sorted(file.name.removesuffix(".vars.yml") for file in FOLDER.glob("*.vars.yml"))
# What the oldest ParallelCluster lacks.
LACKING = {
    "p6-b200": "cluster_config_queues[gpu].instance_type is p6-b200.48xlarge, and cluster_config_version is {oldest}; "
    "needed: 3.14.0, the first that supports it",
}
Texts = dict[str, str]


@pytest.fixture(scope="module")
def rendered(
    check: Any, ansible: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Texts, Texts]]:
    """rendered(version) has each example's configuration, and each refusal."""

    @functools.cache
    def render(version: str) -> tuple[Texts, Texts]:
        folder = tmp_path_factory.mktemp("rendered")
        tasks = [task(name, folder, version) for name in EXAMPLES]
        python = {"ansible_python_interpreter": "{{ ansible_playbook_python }}"}
        play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": python, "tasks": tasks}
        (folder / "play.yml").write_text(yaml.safe_dump([play]))
        done = ansible("playbook", "-i", "localhost,", str(folder / "play.yml"), cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        kinds = ({file.stem: file.read_text() for file in folder.glob(f"*{end}")} for end in (".yaml", ".refused"))
        return next(kinds), next(kinds)

    return render


def task(name: str, folder: Path, version: str) -> dict[str, Any]:
    """Render one example with the role, as the playbook does, and keep a refusal."""
    variables = yaml.safe_load((FOLDER / f"{name}.vars.yml").read_text())
    own = {"cluster_config_version": version, "cluster_config_file": str(folder / f"{name}.yaml")}
    role = {"name": "pcluster.postboot.cluster_config", "rolespec_validate": False}
    refusal = {"content": "{{ ansible_failed_result.msg }}", "dest": str(folder / f"{name}.refused"), "mode": "0600"}
    return {
        "vars": {**variables, **own},
        "block": [{"ansible.builtin.include_role": role}],
        "rescue": [{"ansible.builtin.copy": refusal}],
    }


@pytest.fixture(scope="module")
def newest(check: Any) -> str:
    found: str = check.versions()[-1]
    return found


@pytest.fixture(scope="module")
def oldest(check: Any) -> str:
    found: str = check.versions()[0]
    return found


def test_there_is_an_example_for_each_file_and_a_row_for_each_example() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {
        "README.md",
        *(f"{name}{end}" for name in EXAMPLES for end in (".vars.yml", ".yaml")),
    }
    rows = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert sorted(row.partition("]")[0].removeprefix("| [") for row in rows) == EXAMPLES


def test_the_newest_is_what_the_role_renders_for_by_default(newest: str) -> None:
    defaults = yaml.safe_load((ROOT / "roles/cluster_config/defaults/main.yml").read_text())
    assert defaults["cluster_config_version"] == newest


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_variables_render_the_file(name: str, rendered: Any, newest: str) -> None:
    texts, refusals = rendered(newest)
    assert refusals.get(name) is None
    assert texts[name] == (FOLDER / f"{name}.yaml").read_text()


@pytest.fixture(scope="module", params=["validators", pytest.param("templates", marks=pytest.mark.long)])
def said(request: pytest.FixtureRequest, check: Any, newest: str) -> dict[str, list[str]]:
    texts = {name: (FOLDER / f"{name}.yaml").read_text() for name in EXAMPLES}
    found: dict[str, list[str]] = check.check(texts, newest, request.param)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_newest_finds_nothing(name: str, said: dict[str, list[str]]) -> None:
    assert said[name] == []


@pytest.mark.parametrize("depth", ["schema", pytest.param("templates", marks=pytest.mark.long)])
def test_the_oldest_finds_nothing_or_is_told_on_one_line_what_it_lacks(
    depth: str, check: Any, rendered: Any, oldest: str
) -> None:
    texts, refusals = rendered(oldest)
    assert refusals == {name: line.format(oldest=oldest) for name, line in LACKING.items()}
    assert set(texts) == set(EXAMPLES) - set(LACKING)
    assert check.check(texts, oldest, depth) == {name: [] for name in texts}
