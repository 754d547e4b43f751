#!/usr/bin/env python3
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for amazon-ssm-agent: runs what Run Command has for this instance, as root and one at a time.

As with the real one, a script is a file that `sh -c` is given, without HOME or a terminal; what takes too long is
killed with all that it has started in its process group, and then ends with 137.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

API = os.environ.get("SSM_AGENT_API", "http://aws:5000/sandbox/ssm-agent")
ID = Path(os.environ.get("SSM_AGENT_INSTANCE_ID", "/var/lib/cloud/data/instance-id"))
ROOT = Path(os.environ.get("SSM_AGENT_ROOT", "/var/lib/amazon/ssm"))
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
    late = False
    with (folder / "stdout").open("w+b") as out, (folder / "stderr").open("w+b") as err:
        line = ["sh", "-c", str(script)]
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        try:
            code = process.wait(command["seconds"])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code, late = KILLED, True
    told = {name: (folder / name).read_text(errors="replace") for name in ("stdout", "stderr")}
    return {"id": command["id"], "code": code if code >= 0 else 128 - code, "late": late, **told}


def main() -> None:
    instance = ID.read_text().strip()
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
