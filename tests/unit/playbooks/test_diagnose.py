# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""diagnose.yml as it is, with real Ansible: this machine is the node, and a second one does not answer."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SECRET = "Hunter2-correcthorse"
Diagnose = Callable[..., Any]


@pytest.fixture
def diagnose(ansible: Callable[..., Any], tmp_path: Path) -> Diagnose:
    """diagnose(…, variables) runs the playbook in a directory of its own."""
    known = {"ansible_become": False, "ansible_python_interpreter": sys.executable, "common_node_overrides": {}}
    nobody = "nobody ansible_host=127.0.0.1 ansible_port=1 pcluster_cluster=alpha pcluster_region=us-east-2"
    (tmp_path / "inventory").write_text(
        f"localhost ansible_connection=local pcluster_slurm_node=cpu-st-c5-9\n{nobody}\n"
    )
    log = tmp_path / "root/var/log/pcluster-postboot/pull.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"a line with {SECRET} in it\n")

    def run(*options: str, **variables: Any) -> Any:
        words = ("-i", "inventory", "-e", json.dumps({**known, "diagnose_aws": False, **variables}), *options)
        root = str(tmp_path / "root")
        return ansible("playbook", *words, "pcluster.postboot.diagnose", cwd=tmp_path, PCLUSTER_POSTBOOT_ROOT=root)

    return run


def archives(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar.gz"))


def test_one_archive_comes_home_and_silence_is_no_failure(diagnose: Diagnose, tmp_path: Path) -> None:
    done = diagnose(my_token=SECRET, other_token="{{ nowhere }}", diagnose_gone=["gpu-st-p5-1"])
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = archives(tmp_path)
    top = path.name.removesuffix(".tar.gz")
    with tarfile.open(path) as archive:
        names = archive.getnames()
        texts = {name: archive.extractfile(name).read().decode() for name in names}  # type: ignore[union-attr]
    assert names[:2] == [f"{top}/summary.txt", f"{top}/index.html"]
    assert f"{top}/nodes/localhost/gathered.json" in names
    summary = texts[f"{top}/summary.txt"]
    assert "1 of 3 nodes answered" in summary
    assert "nobody: the node does not answer" in summary
    assert "gpu-st-p5-1: nothing is known of it" in summary
    assert "AWS was not asked (diagnose_aws)" in summary
    # Only the controller knows that this is a secret.
    assert texts[f"{top}/nodes/localhost/var/log/pcluster-postboot/pull.log"] == "a line with [redacted] in it\n"
    assert SECRET not in "".join(texts.values())
    assert "fault: nobody: the node does not answer" in done.stdout
    assert f"{path} (" in done.stdout


def test_check_mode_says_what_would_be_gathered_and_writes_nothing(diagnose: Diagnose, tmp_path: Path) -> None:
    done = diagnose("--check", diagnose_archive="a.tar.gz", diagnose_gone=["gpu-st-p5-1"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"would write {tmp_path}/a.tar.gz\n" in done.stdout
    assert "nobody: does not answer: " in done.stdout
    assert "gpu-st-p5-1: the logs of its cluster's head node, CloudWatch, its console\n" in done.stdout
    assert archives(tmp_path) == []


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"diagnose_gone": ["GPU"]}, "diagnose_gone: found GPU; needed: names of compute nodes in Slurm"),
        ({"diagnose_nodes": ["x"]}, "diagnose_nodes: found x; needed: nodes of the inventory"),
        ({"diagnose_hours": 0}, "diagnose_hours: found 0; needed: more than 0"),
        ({"diagnose_archive": "x.zip"}, "diagnose_archive: found x.zip; needed: a name that ends with .tar.gz"),
        ({"diagnose_archive": "/no/x.tar.gz"}, "diagnose_archive: /no is no directory that can be written to"),
    ],
)
def test_bad_input_is_one_line_before_any_node_is_asked(
    diagnose: Diagnose, tmp_path: Path, variables: dict[str, Any], line: str
) -> None:
    done = diagnose("--limit", "localhost", **variables)
    assert done.returncode == 2
    assert line in done.stdout
    assert "Gather logs" not in done.stdout
    assert archives(tmp_path) == []


def test_nodes_are_chosen_by_name(diagnose: Diagnose, tmp_path: Path) -> None:
    done = diagnose(diagnose_nodes=["cpu-st-c5-9"], diagnose_archive="one.tar.gz")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "UNREACHABLE" not in done.stdout
    assert archives(tmp_path) == [tmp_path / "one.tar.gz"]
