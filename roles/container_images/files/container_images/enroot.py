# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Enroot: how it is run, and what it says."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from .errors import Trouble
from .files import private, put
from .names import Image
from .reason import reason
from .registry import trouble_of
from .settings import Login, Settings, told

FOLDERS = ("config", "cache", "temp", "data", "runtime")  # of enroot, in the working folder


def environment(settings: Settings) -> dict[str, str]:
    """Return what enroot sees: its own folders, and nothing of a user's."""
    path, work = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", settings.work
    folders = {f"ENROOT_{kind.upper()}_PATH": os.path.join(work, kind) for kind in FOLDERS}
    own = {"PATH": path, "HOME": work, "TMPDIR": folders["ENROOT_TEMP_PATH"], "LC_ALL": "C"}
    return {**own, **settings.environment, **folders}


def program(settings: Settings) -> str:
    return shutil.which("enroot", path=environment(settings)["PATH"]) or ""


class Enroot:
    def __init__(self, settings: Settings, logins: dict[str, Login]) -> None:
        self.settings, self.logins = settings, logins

    def prepare(self) -> str:
        """Make enroot's folders, and the file with the logins; return the folder of the layers."""
        work = private(self.settings.work)
        config, cache, *_rest = [private(os.path.join(work, kind)) for kind in FOLDERS]
        lines = (f"machine {host} login {one.user} password {one.password}\n" for host, one in self.logins.items())
        put(os.path.join(config, ".credentials"), "".join(lines), 0o600)  # other imports may read it just now
        return cache

    def run(self, image: Image, digest: str, part: str, log: int, goes_on: Callable[[], bool]) -> tuple[str, int]:
        """Import what has this digest into a file, for as long as `goes_on`; return what enroot said and its status."""
        settings = {
            **environment(self.settings),
            "ENROOT_MAX_PROCESSORS": str(max(1, (os.cpu_count() or 1) // self.settings.parallel)),
            # curl does as a registry says with Retry-After.
            "ENROOT_TRANSFER_RETRIES": "2",
        }
        if image.host in self.settings.http_registries:
            settings["ENROOT_ALLOW_HTTP"] = "y"
        # Before 4.0, enroot knows a digest only in the place of a tag.
        version = told([program(self.settings), "version"], "'enroot version'", environment(self.settings))
        uri = f"docker://{image.host}#{image.repository}{':' if version.startswith('3.') else '@'}{digest}"
        secrets = [login.password for login in self.logins.values()]
        with (
            open(log, "w", encoding="utf-8") as stream,
            subprocess.Popen(
                ["enroot", "import", "--output", part, uri],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=settings,
                cwd=self.settings.work,
                start_new_session=True,
            ) as child,
        ):
            said: list[str] = []
            reader = threading.Thread(target=_copy, args=(child.stdout, stream, secrets, said), daemon=True)
            reader.start()
            while child.poll() is None:
                if not goes_on():
                    _end(child)
                    break
            code = child.wait()
            reader.join(10)
        return "".join(said), code


def _copy(source: Any, target: Any, secrets: list[str], said: list[str]) -> None:
    """Copy what a program says, without what nobody may read, and keep its end."""
    for raw in source:
        line = raw.decode("utf-8", "replace")
        for secret in secrets:
            line = line.replace(secret, "***") if secret else line
        with contextlib.suppress(OSError):
            target.write(line)
            target.flush()
        said.append(line)
        del said[:-200]


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a program and whatever it has started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
            return


def trouble_in(output: str, code: int, image: Image, known: bool) -> Trouble:
    """Find in what enroot has said why it failed."""
    if "No space left" in output:
        return Trouble("the disk is full: enroot said 'No space left on device'")
    mismatch = re.search(r"Checksum mismatch: (\w+)", output)
    if mismatch:
        return Trouble(f"layer sha256:{mismatch[1][:12]} was cut off or altered on the way", again=True)
    if "curl: (18)" in output:
        return Trouble("a layer was cut off on the way", again=True)
    refusal = re.search(r"returned error(?: code)?: (\d{3})", output)
    if refusal:
        return trouble_of(int(refusal[1]), image, known)
    return Trouble(f"enroot ended with {code} and said: {reason(output)[:300] or 'nothing'}", again=True)
