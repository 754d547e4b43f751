# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Processes of a soak test or a benchmark, which may be killed with kill -9 like a node's own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any


class Child:
    """A fork of this process that does something and sends its answer, unless it is killed."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._out, inward = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(inward)
            return
        status = 1
        try:
            os.close(self._out)
            answer = json.dumps(work())
            with os.fdopen(inward, "w") as pipe:
                pipe.write(answer)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def ended(self) -> bool:
        """Say whether it has answered or is gone."""
        return bool(select.select([self._out], [], [], 0)[0])

    def kill(self) -> None:
        """Be kill -9; it is no error that it ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def join(self) -> Any:
        """Return its answer; None when it was killed."""
        with os.fdopen(self._out) as pipe:
            text = pipe.read()
        status = os.waitpid(self.pid, 0)[1]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            return None
        if status:
            raise AssertionError(f"a child ended with status {status}")
        return json.loads(text)
