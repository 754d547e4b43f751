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


def patiently(seconds: str, *command: str) -> subprocess.CompletedProcess[str]:
    line = [str(SCRIPT), "building", *command]
    environment = {**os.environ, "PATIENCE": seconds}
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_a_silent_command_is_seen_to_run_and_its_exit_code_is_kept() -> None:
    done = patiently("0.1", "sh", "-c", "sleep 2; echo built; exit 3")
    *told, last = done.stdout.splitlines()
    assert (done.returncode, last) == (3, "built")
    assert len(told) > 1
    assert all(re.fullmatch(r"building: \d+ s", line) for line in told)


def test_a_short_command_says_nothing_and_its_pipe_ends_with_it() -> None:
    done = patiently("200", "true")  # longer than the test waits
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
