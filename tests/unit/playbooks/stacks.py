# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Playbooks that are run here, what they have said, and the templates of the stacks that they deploy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
Play = Callable[..., list[str]]


def template(role: str) -> dict[str, Any]:
    """Return the template of a role, with the long forms of CloudFormation's functions."""
    from cfnlint.decode.cfn_yaml import loads

    found: dict[str, Any] = loads((ROOT / f"roles/{role}/files/{role}.template").read_text())
    return found


def run(
    ansible: Callable[..., Any],
    folder: Path,
    playbook: str,
    common: dict[str, Any],
    runs: tuple[dict[str, Any], ...],
    check: bool = False,
    code: int = 0,
) -> list[str]:
    """Run a playbook in a folder once for each of the variables, in one start of Ansible: what each run has said."""
    plays = [{"import_playbook": f"pcluster.postboot.{playbook}", "vars": {**common, **more}} for more in runs]
    (folder / "play.yml").write_text(yaml.safe_dump(plays))
    options = ("--check", "--diff") if check else ()
    done = ansible("playbook", "-i", "localhost,", "play.yml", *options, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return (done.stdout + done.stderr).split("\nPLAY [")[1:]


def changed(said: str) -> bool:
    """Tell whether a run has changed something."""
    return "\nchanged: " in said


def stack(client: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return what CloudFormation tells of a stack."""
    found: dict[str, Any] = client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
    return found
