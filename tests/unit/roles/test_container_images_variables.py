# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What container_images works out from the facts of a node, and where its program is put."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Variables = Callable[..., Callable[[str], Any]]


@pytest.fixture
def variables(work_out: Variables) -> Variables:
    """variables(scratch, **more) returns a function that works out a variable, or a template."""

    def make(scratch: str | None = None, **more: Any) -> Callable[[str], Any]:
        return work_out("common container_images", {"scratch": scratch}, **more)

    return make


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"container_images_list": ["a:1", "-b"]}, "container_images_list: found -b; needed: an image such as nvcr.io"),
        ({"container_images_dir": "images"}, "container_images_dir: found images; needed: an absolute path"),
        ({"container_images_retries": 0}, "container_images_retries: found 0; needed: at least 1"),
        ({"common_shared_dir": "/mnt"}, "common_shared_dir: found /mnt, which is on the disk of this node itself"),
    ],
)
def test_a_mistake_in_the_variables_is_one_line(variables: Variables, given: dict[str, Any], says: str) -> None:
    assert variables()("__container_images_problems") == []
    (line,) = variables(**given)("__container_images_problems")
    assert line.startswith(says)


def test_the_program_and_each_of_its_modules_are_installed(repo: Path, tmp_path: Path, variables: Variables) -> None:
    """Beside each other, where what a user puts there is no part of Python's own library."""
    value = variables(role_path=str(repo / "roles/container_images"))
    for file in [*value("__container_images_beside"), *value("__container_images_own_files[:1]")]:
        path = tmp_path / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["content"])
    modules = {path.name for path in (repo / "roles/container_images/files/container_images").glob("*.py")}
    for name in ("__container_images_program", "__container_images_shared_program"):
        folder = (tmp_path / value(name)[1:]).parent
        assert {path.name for path in (folder / "container_images").iterdir()} == modules
    program = tmp_path / value("__container_images_program")[1:]
    (program.parent / "json.py").write_text("raise SystemExit('a user has put this here')")
    line = [sys.executable, "-I", str(program), "list", "--directory", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"There is no image in {tmp_path} yet\n", "")


def test_nothing_is_imported_until_somebody_names_it(variables: Variables) -> None:
    value = variables()
    assert value("container_images_list") == []
    assert all(line.startswith("#") for line in value("containers.txt.j2").splitlines())


@pytest.mark.parametrize(("scratch", "waits"), [("/scratch", True), ("/scr", False), (None, False)])
def test_the_service_waits_for_the_disk_that_has_its_layers(
    variables: Variables, scratch: str | None, waits: bool
) -> None:
    unit = variables(scratch, container_images_work_dir="/scratch/container-images")("container-images.service.j2")
    assert ("\nAfter=setup-ephemeral.service dlami-nvme.service\nRequiresMountsFor=/scratch/" in unit) is waits
    assert ("\n[Service]\nExecStartPre=/bin/sh -c 'mountpoint -q /scratch || {" in unit) is waits
