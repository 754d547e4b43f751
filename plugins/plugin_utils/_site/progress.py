# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Shows how far a long module is: it runs in the background of its node, and the last line of its log is told."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from typing import Any

from ansible.playbook.task import Task

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.in_process import InProcess
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.reach import LOST

FIRST, LONGEST = 10.0, 600.0  # seconds before the first line, and at most between two
LONGEST_PAUSE = 10.0
LATE = 30  # seconds after its limit until a module that Ansible has ended counts as lost
_TOLD = 100  # characters of a line


def last_line(text: str) -> str:
    """Return the last line that says something, as a terminal would show it in the end."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    lines = [re.split(r"\r+(?=.)", line)[-1].strip() for line in plain.splitlines()]
    found = next((line for line in reversed(lines) if line), "")
    return found if len(found) <= _TOLD else f"{found[: _TOLD - 1]}…"


def duration(seconds: float) -> str:
    """Return 1 h 05 min, or 2 min 30 s."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min {rest:02} s"


class LongAction(InProcess):
    """A module that is followed to its end where its task has `async` and `poll: 0`."""

    _supports_async = True
    _supports_check_mode = True
    _supports_diff = True

    def what(self) -> str:
        raise NotImplementedError

    def logs(self) -> list[str]:
        """Return where its log may be; the first one that is there counts."""
        raise NotImplementedError

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        variables = task_vars or {}
        result: dict[str, Any] = super().run(tmp, variables)
        result.update(self._execute_module(task_vars=variables, wrap_async=bool(self._task.async_val)))
        if self._task.async_val and not self._task.poll and not result.get("failed"):
            return self._follow(result, variables)
        return result

    def _follow(self, job: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        begun, pause = time.monotonic(), 1.0
        told, until_next = begun, FIRST
        while True:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            now = time.monotonic()
            try:
                seen = self._status(job, "status", variables)
                if seen.get("finished"):
                    self._status(job, "cleanup", variables)
                    return self._explained(seen)
                if now - told >= until_next:
                    told, until_next = now, min(2 * until_next, LONGEST)
                    self._tell(variables, now - begun)
            except LOST as error:  # the node may be reachable again a moment later
                terminal.whisper(f"{variables.get('inventory_hostname')}: {error}")
                with contextlib.suppress(*LOST):  # aws_ssm starts the next session here
                    self._connection.reset()
            if now - begun > self._task.async_val + LATE:
                return {"failed": True, "msg": self._said(f"did not end within {duration(self._task.async_val)}")}

    def _said(self, what: str) -> str:
        return f"{self.what()} {what}; look at {' or '.join(self.logs())} on the node"

    def _explained(self, seen: dict[str, Any]) -> dict[str, Any]:
        """Say of a module that was killed what happened: Ansible has a traceback of its own for it."""
        if not (seen.get("failed") and "data" in seen):
            return seen
        last = last_line(str(seen.get("stderr") or ""))
        return {**seen, "msg": self._said(f"ended without a result, as if it was killed{f' ({last})' if last else ''}")}

    def _status(self, job: dict[str, Any], mode: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Ask as Ansible itself does of a task with `poll`."""
        args = {"jid": job.get("ansible_job_id"), "mode": mode}
        task = Task.load({"async_status": args, "check_mode": False, "environment": self._task.environment})
        handler = self._shared_loader_obj.action_loader.get(
            "ansible.legacy.async_status",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        try:
            answer: dict[str, Any] = handler.run(task_vars=variables)
        finally:
            handler.cleanup(force=True)
        return answer

    def _tell(self, variables: dict[str, Any], seconds: float) -> None:
        if terminal.quiet():
            return
        files = " ".join(shlex.quote(path) for path in self.logs())
        line = f'for log in {files}; do if [ -s "$log" ]; then exec tail -c 2000 "$log"; fi; done'
        said = last_line(str(self._low_level_execute_command(line).get("stdout") or ""))
        host = variables.get("inventory_hostname")
        terminal.say(f"{self.what()} on {host}, {duration(seconds)}: {said or 'its log is still empty'}")
