# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Long modules run in the background of a node and are followed to their end; the last line of their log is told."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from botocore.exceptions import ClientError

from ansible_collections.pcluster.postboot.plugins.action import efa_installer, shared_build
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import progress

JOB = {"ansible_job_id": "j1", "started": 1, "finished": 0, "changed": True}
RUNNING, DONE = {"finished": 0}, {"finished": 1, "changed": True, "summary": "EFA 1.50.0"}


class Action(efa_installer.ActionModule):
    """The action, in front of a node that gives the answers of the test; a clock that only moves when it sleeps."""

    def __init__(self, answers: list[Any], log: str = "Building\r 40%\r 41%\n\n", seconds: int = 3000) -> None:
        self._task = SimpleNamespace(async_val=seconds, poll=0, args={"version": "1.50.0"})
        self._connection = SimpleNamespace(reset=lambda: self.asked.append("reset"))
        self.answers, self.log = answers, log
        self.asked: list[str] = []
        self.commands: list[str] = []

    def _status(self, job: dict[str, Any], mode: str, variables: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(mode)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def _low_level_execute_command(self, cmd: str, **_more: Any) -> dict[str, Any]:
        self.commands.append(cmd)
        return {"stdout": self.log}

    def follow(self) -> dict[str, Any]:
        return self._follow(dict(JOB), {"inventory_hostname": "gpu-1"})


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(progress, "time", clock)
    monkeypatch.setattr(progress.terminal.display, "display", lines.append)
    return lines


def test_a_short_one_tells_nothing(told: list[str]) -> None:
    action = Action([RUNNING, RUNNING, DONE])
    assert action.follow() == DONE
    assert action.asked == ["status"] * 3 + ["cleanup"]
    assert told == []


def test_a_long_one_tells_less_and_less_often(told: list[str]) -> None:
    assert Action([RUNNING] * 300 + [DONE]).follow() == DONE
    assert told[0] == "The installer of EFA 1.50.0 on gpu-1, 0 min 15 s: 41%"
    minutes = [int(line.split(", ")[1].split()[0]) for line in told]
    assert minutes[:6] == [0, 0, 1, 2, 5, 10]
    assert all(later - earlier == 10 for earlier, later in zip(minutes[6:], minutes[7:]))
    assert len(told) < 10


def test_a_connection_that_is_lost_for_a_while_is_no_end(told: list[str]) -> None:
    action = Action([RUNNING, AnsibleConnectionFailure("gone"), DONE])
    assert action.follow() == DONE
    assert action.asked.count("reset") == 1


def test_nor_is_one_that_raises_botocore_s_errors_and_does_so_again_when_it_is_reset(told: list[str]) -> None:
    gone = ClientError({"Error": {"Code": "TargetNotConnected", "Message": "i-1 is not connected."}}, "StartSession")
    action = Action([RUNNING, gone, BrokenPipeError(), DONE])

    def reset() -> None:
        action.asked.append("reset")
        raise gone

    action._connection = SimpleNamespace(reset=reset)
    assert action.follow() == DONE
    assert action.asked.count("reset") == 2


def test_one_that_was_killed_is_told_in_one_line(told: list[str]) -> None:
    """As Ansible's wrapper says it."""
    trace = 'Traceback (most recent call last):\n  File "x"\nValueError: No start of json char found\n'
    killed = {"finished": 1, "failed": True, "cmd": "x", "data": "", "stderr": "", "msg": trace}
    assert Action([RUNNING, killed]).follow()["msg"] == (
        "The installer of EFA 1.50.0 ended without a result, as if it was killed; look at "
        "/var/log/pcluster-postboot/efa-installer.log on the node"
    )
    assert (
        " (No space left on device); look"
        in Action([{**killed, "stderr": "No space left on device\n"}]).follow()["msg"]
    )
    assert Action([{"finished": 1, "failed": True, "msg": "no device"}]).follow()["msg"] == "no device"


def test_one_that_does_not_end_is_named_with_its_log(told: list[str]) -> None:
    action = Action([RUNNING], seconds=90, log="")
    result = action.follow()
    assert result["failed"]
    assert len(action.asked) < 20
    assert result["msg"] == (
        "The installer of EFA 1.50.0 did not end within 1 min 30 s; look at "
        "/var/log/pcluster-postboot/efa-installer.log on the node"
    )
    assert told[0].endswith(": its log is still empty")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("one\n\x1b[32mtwo\x1b[0m\n  \n", "two"),
        ("10%\r20%\r", "20%"),
        ("x" * 200, "x" * 99 + "…"),
    ],
)
def test_the_last_line_is_what_a_terminal_shows(text: str, said: str) -> None:
    assert progress.last_line(text) == said


def test_hours_are_told_as_hours() -> None:
    assert (progress.duration(150), progress.duration(3900)) == ("2 min 30 s", "1 h 05 min")


def test_a_build_has_its_log_where_all_see_it_or_on_its_node() -> None:
    action = shared_build.ActionModule.__new__(shared_build.ActionModule)
    action._task = SimpleNamespace(args={"name": "NCCL", "root": "/fsx/nccl", "release": "2-x"})
    assert action.logs() == ["/fsx/nccl/logs/2-x.log", "/var/log/pcluster-postboot/2-x.log"]
    assert action.what() == "NCCL 2-x"


PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - pcluster.postboot.shared_build:
        name: X
        root: "{{ root }}"
        release: "{{ inventory_hostname }}"
        inputs: {}
        source: /
        steps: [[sh, -c, "echo begun; sleep 0.2; [ {{ inventory_hostname }} = good ] && touch {stage}/x"]]
      async: 60
      poll: 0
      register: built
      ignore_errors: true
    - ansible.builtin.debug: {msg: "{{ built }}"}
"""


def test_ansible_gets_what_the_module_says(tmp_path: Path, ansible: Callable[..., Any]) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    variables = json.dumps({"root": str(tmp_path / "x"), "ansible_python_interpreter": sys.executable})
    line = ("-c", "local", "-i", "good,bad", str(tmp_path / "play.yml"), "-e", variables)
    done = ansible("playbook", *line, ANSIBLE_ASYNC_DIR=str(tmp_path / "jobs"))
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"^ok: \[(\w+)\] => (\{\n.*?^\})", done.stdout, re.MULTILINE | re.DOTALL)
    said = {host: json.loads(result)["msg"] for host, result in told}
    good, bad = said["good"], said["bad"]
    assert (good["changed"], good["failed"], good["published"]) == (True, False, True)
    assert good["summary"].startswith("X good, built by ")
    assert bad["failed"]
    assert "ended with 1" in bad["msg"]
    assert "ASYNC" not in done.stdout
    assert not list((tmp_path / "jobs").iterdir())
