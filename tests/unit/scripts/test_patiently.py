# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""scripts/patiently.sh: a command that prints nothing is seen to run, and nothing waits when it has ended."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

SCRIPT = Path(__file__).resolve().parents[3] / "scripts/patiently.sh"


def patiently(seconds: str, *command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PATIENCE": seconds}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([str(SCRIPT), "building", *command], env=environment, text=True, **pipes)


def test_a_silent_command_is_seen_to_run_and_its_exit_code_is_kept() -> None:
    with patiently("0.1", "sh", "-c", "read go; echo built; exit 3") as process:
        told = [process.stdout.readline() for _each in range(2)]
        rest, _errors = process.communicate("go\n", timeout=PATIENCE)
    assert (process.returncode, rest.splitlines()[-1]) == (3, "built")
    assert all(re.fullmatch(r"building: \d+ s\n", line) for line in told)


def test_a_short_command_says_nothing_and_its_pipe_ends_with_it() -> None:
    with patiently("200", "true") as process:  # longer than the test waits
        assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 0
