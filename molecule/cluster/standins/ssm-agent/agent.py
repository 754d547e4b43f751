#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for amazon-ssm-agent: runs what Run Command has for this instance, as root and one at a time; and starts
a worker (session_worker.py) for each session of Session Manager.

README.md beside it names what it has from the agent's source, and what is otherwise.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, os.environ.get("SSM_AGENT_LIBRARY", "/usr/lib/amazon-ssm-agent"))

from channel import ALIVE, FAILED, START, Channel, connect

API = os.environ.get("SSM_AGENT_API", "http://aws:5000/sandbox/ssm-agent")
ID = Path(os.environ.get("SSM_AGENT_INSTANCE_ID", "/var/lib/cloud/data/instance-id"))
ROOT = Path(os.environ.get("SSM_AGENT_ROOT", "/var/lib/amazon/ssm"))
WORKER = os.environ.get("SSM_AGENT_WORKER", "/usr/bin/ssm-session-worker")
SILENCE = float(os.environ.get("SSM_AGENT_SILENCE", "15"))  # seconds; a service silent for longer is asked anew
HOST = API.partition("/sandbox/")[0] + "/"
CRASHED = (
    "document process failed unexpectedly: ipc messaging received timeout signal , "
    "check [ssm-document-worker]/[ssm-session-worker] log for crash reason"
)
KILLED = 137


def ask(instance: str, said: dict[str, Any] | None = None) -> dict[str, Any]:
    """Wait for a command, or say how one ended."""
    data = None if said is None else json.dumps(said).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{API}?instance={instance}", data), timeout=90) as answer:
        return json.loads(answer.read() or b"{}")


def run(instance: str, command: dict[str, Any]) -> dict[str, Any]:
    folder = ROOT / instance / "document/orchestration" / command["id"] / "awsrunShellScript/0.awsrunShellScript"
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    script = folder / "_script.sh"
    script.write_text(command["script"])
    script.chmod(0o700)
    process = subprocess.Popen(
        ["sh", "-c", str(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "SSM_COMMAND_ID": command["id"], "AWS_SSM_INSTANCE_ID": instance},
        start_new_session=True,
    )
    try:
        # Until both are closed: by all that has them, and not only by the script.
        out, err = process.communicate(timeout=command["seconds"])
        code = process.returncode if process.returncode >= 0 else -1
    except subprocess.TimeoutExpired as expired:
        out, err = expired.stdout or b"", expired.stderr or b""
        code = stop(process)
    (folder / "stdout").write_bytes(out)
    (folder / "stderr").write_bytes(err)
    told = {"stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}
    return {"id": command["id"], "code": code, "late": code == KILLED, **told}


def stop(process: subprocess.Popen[bytes]) -> int:
    """Kill the script's process group; return the code with which it counts as ended."""
    process.poll()  # a script that has ended is no member of it any more
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return 1
    process.wait()
    return KILLED


def sessions(instance: str) -> None:
    """Hold a control channel to the service, and start a worker for each session that comes by it."""
    while True:
        try:
            channel = connect(f"{HOST}v1/control-channel/{instance}?role=subscribe")
            channel.connection.settimeout(SILENCE)
            threading.Thread(target=show_life, args=(channel,), daemon=True).start()
            while frame := channel.receive():
                if frame[0] == START:
                    threading.Thread(target=work, args=(channel, frame[1].decode()), daemon=True).start()
        except OSError as error:
            print(f"{HOST}: {error}", file=sys.stderr, flush=True)
        time.sleep(2)


def show_life(channel: Channel) -> None:
    while channel.send(ALIVE):
        time.sleep(5)


def work(channel: Channel, session: str) -> None:
    """Run a session's worker, which outlives this program; tell where it has not ended by itself."""
    environment = {**os.environ, "SSM_AGENT_SESSION": session}
    code = subprocess.run([WORKER, HOST], env=environment, stdin=subprocess.DEVNULL, check=False).returncode
    if code:
        channel.send(FAILED, json.dumps({"id": json.loads(session)["id"], "output": CRASHED}).encode())


def main() -> None:
    instance = ID.read_text().strip()
    threading.Thread(target=sessions, args=(instance,), daemon=True).start()
    while True:
        try:
            command = ask(instance)
            if command:
                ask(instance, run(instance, command))
        except (urllib.error.URLError, OSError, ValueError) as error:
            print(f"{API}: {error}", file=sys.stderr, flush=True)
            time.sleep(5)


if __name__ == "__main__":
    main()
