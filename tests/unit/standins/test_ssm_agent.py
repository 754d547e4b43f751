# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The SSM agent's stand-in runs a script as the agent's source says; its README names the files."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.process import process_started
from ansible_collections.pcluster.postboot.tests.programs import REPO, load
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

INSTANCE, COMMAND = "i-0123456789abcdef0", "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("SSM_AGENT_ROOT", str(tmp_path))
    monkeypatch.setenv("SSM_AGENT_LIBRARY", str(REPO / "molecule/cluster/aws"))
    return load("molecule/cluster/standins/ssm-agent/agent.py")


def run(agent: ModuleType, script: str, seconds: float = PATIENCE) -> dict[str, Any]:
    told: dict[str, Any] = agent.run(INSTANCE, {"id": COMMAND, "script": script, "seconds": seconds})
    assert told.pop("id") == COMMAND
    return told


def test_a_script_is_run_and_kept(agent: ModuleType, tmp_path: Path) -> None:
    told = run(
        agent, '#!/bin/bash\necho "${BASH_VERSION:+bash} $SSM_COMMAND_ID $AWS_SSM_INSTANCE_ID"; echo no >&2; exit 3'
    )
    assert told == {"code": 3, "late": False, "stdout": f"bash {COMMAND} {INSTANCE}\n", "stderr": "no\n"}
    folder = tmp_path / INSTANCE / "document/orchestration" / COMMAND / "awsrunShellScript/0.awsrunShellScript"
    assert sorted(os.listdir(folder)) == ["_script.sh", "stderr", "stdout"]
    assert (folder / "_script.sh").stat().st_mode & 0o777 == 0o700


def test_one_that_takes_too_long_is_killed_with_what_it_has_started(agent: ModuleType, tmp_path: Path) -> None:
    told = run(agent, f"echo begun; sleep 600 & echo $! > {tmp_path}/pid; wait", 2)
    assert told == {"code": 137, "late": True, "stdout": "begun\n", "stderr": ""}
    until(lambda: not process_started(int((tmp_path / "pid").read_text())))


def test_the_code_of_a_program_that_was_killed_counts_as_a_timeout(agent: ModuleType) -> None:
    assert run(agent, "sh -c 'kill -KILL $$'; exit $?")["late"] is True
    told = run(agent, "sh -c 'kill -TERM $$'; exit $?")
    assert (told["code"], told["late"]) == (143, False)


def test_a_shell_that_is_killed_itself_has_no_code(agent: ModuleType) -> None:
    told = run(agent, "kill -TERM 0")
    assert (told["code"], told["late"]) == (-1, False)


def test_whatever_holds_its_output_is_waited_for(agent: ModuleType) -> None:
    began = time.monotonic()
    assert run(agent, "sleep 1 & echo done")["code"] == 0
    assert time.monotonic() - began >= 1
    assert run(agent, "sleep 600 & echo done", 2) == {"code": 137, "late": True, "stdout": "done\n", "stderr": ""}
    # Out of its group it is not killed, and the agent gives up.
    told = run(agent, "setsid sleep 20 & echo done", 2)
    assert (told["code"], told["late"]) == (1, False)
    told = run(agent, "sleep 60 > /dev/null 2>&1 & echo $!")
    os.kill(int(told["stdout"]), signal.SIGKILL)  # it still runs
    assert told["code"] == 0
