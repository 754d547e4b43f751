# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A command on a node, by a session of Session Manager: begun by StartSession, joined by the session-manager-plugin."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, one_line

# It runs one command without a terminal and without standard input, and prints what the command has printed.
DOCUMENT = "AWS-StartNonInteractiveCommand"
LONGEST_COMMAND = 65535  # characters of a parameter of StartSession (botocore 1.44.5)
PROGRAM = "session-manager-plugin"
# Since 1.2.536.0 (its RELEASENOTES.md) it takes the answer of StartSession, whose token is a secret, from a variable.
OLDEST = (1, 2, 536, 0)
RESPONSE = "AWS_SSM_START_SESSION_RESPONSE"
AT_ONCE = 10  # sessions at the same time, which is also what a client has connections for
PER_SECOND = 2.0  # sessions; an account may start 3 a second, and people want some, too
SECONDS = 60.0  # that a session may take
_FRAME = ("Starting session with SessionId:", "Exiting session with sessionId:")


class Said(NamedTuple):
    session_id: str
    text: str

    @property
    def last(self) -> str:
        """The last line of what a command, or the plugin itself, has printed."""
        lines = [line for line in map(one_line, self.text.splitlines()) if line and not line.startswith(_FRAME)]
        return lines[-1][:300] if lines else ""


class Sessions:
    """Runs commands, each in a session of its own. Any thread may run one."""

    def __init__(self, profile: str = "") -> None:
        self._profile = profile
        self._lock, self._next = threading.Lock(), 0.0

    def need_plugin(self) -> None:
        what = f"nodes of HyperPod are reached by the {PROGRAM}"
        needed = f"needed: {'.'.join(map(str, OLDEST))} or newer on this machine"
        try:
            done = subprocess.run([PROGRAM, "--version"], text=True, capture_output=True, timeout=30, check=False)
        except FileNotFoundError as error:
            raise Problem(f"{what}; found no such program; {needed}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Problem(f"{what}; found {one_line(error)}; {needed}") from error
        try:
            found = tuple(int(part) for part in done.stdout.strip().split("."))
        except ValueError:
            found = ()
        if found < OLDEST:
            told = one_line(done.stdout + done.stderr) or f"the exit status {done.returncode}"
            raise Problem(f"{what}; found {told}; {needed}")

    def run(self, client: Any, target: str, command: str) -> Said:
        """Return what a command has printed; less than that where its session broke."""
        self._wait()
        response = client.start_session(Target=target, DocumentName=DOCUMENT, Parameters={"command": [command]})
        told = {key: response[key] for key in ("SessionId", "TokenValue", "StreamUrl")}
        line = [PROGRAM, RESPONSE, client.meta.region_name, "StartSession", self._profile]
        line += [json.dumps({"Target": target}), client.meta.endpoint_url]
        process = subprocess.Popen(
            line,
            env={**os.environ, RESPONSE: json.dumps(told)},
            # It ends when its standard input does, so that this one stays open, and no session outlives this program.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a signal for this program is none for the command on the node
        )
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(SECONDS, end)
        timer.start()
        try:
            text = process.stdout.read() if process.stdout else b""
        finally:
            timer.cancel()
            if process.stdin:
                process.stdin.close()
            process.wait()
        if late.is_set():
            self._terminate(client, told["SessionId"])
        return Said(told["SessionId"], text.decode(errors="replace"))

    def _terminate(self, client: Any, session_id: str) -> None:
        try:
            client.terminate_session(SessionId=session_id)
        except AwsErrors:
            pass  # Session Manager ends a session in which nothing is said for 20 minutes

    def _wait(self) -> None:
        """Wait for this thread's turn."""
        with self._lock:
            turn = max(time.monotonic(), self._next)
            self._next = turn + 1 / PER_SECOND
        time.sleep(max(0.0, turn - time.monotonic()))
