# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the role has set, and the logins for registries."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .errors import ImageError
from .names import parse

PATIENCE = 60  # seconds for a program that only looks something up


class Settings(NamedTuple):
    """What the role has set; its documentation tells what each part means."""

    directory: str
    images: list[str] = []
    file: str = ""
    mount: str = ""
    log: str = ""
    logs: str = ""
    work: str = "/var/cache/pcluster-postboot/container-images"
    credentials: str = ""
    http_registries: list[str] = []
    parallel: int = 2
    retries: int = 5
    retry_wait: float = 30
    retry_interval: float = 3600
    timeout: float = 7200
    environment: dict[str, str] = {}
    user: str = ""


def read_settings(path: str) -> Settings:
    try:
        with open(path, encoding="utf-8") as stream:
            settings = Settings(**json.load(stream))
    except (OSError, ValueError, TypeError) as error:
        raise ImageError(f"{path}: {error}") from error
    for image in settings.images:
        try:
            parse(image)
        except ImageError as error:
            raise ImageError(f"container_images_list: {error}") from error
    for name, value in settings.environment.items():
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) or not isinstance(value, str) or "\0" in value:
            raise ImageError(f"container_images_environment: found {name}: {value!r}; needed: a name and a string")
    return settings


class Login(NamedTuple):
    user: str
    password: str


def read_credentials(path: str) -> dict[str, Login]:
    """Return the logins of a file that only root can read: enroot's own format, or nothing but an NGC API key."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ImageError(f"container_images_credentials_file: {path} cannot be read: {error.strerror}") from error
    with open(descriptor, encoding="utf-8", errors="replace") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise ImageError(
                f"container_images_credentials_file: {path} has mode {stat.S_IMODE(status.st_mode):04o} and owner "
                f"{status.st_uid}, so it is not used; needed: a file that only root can read (chown root, chmod 600)"
            )
        text = stream.read(65536)
    words = text.split()
    if len(words) == 1 and re.fullmatch(r"[A-Za-z0-9_=+/.-]+", words[0]):
        login = Login("$oauthtoken", words[0])
        return {"nvcr.io": login, "authn.nvidia.com": login}
    logins = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split(maxsplit=5)
        if not fields or fields[0].startswith("#"):
            continue
        if len(fields) < 6 or fields[0::2][:3] != ["machine", "login", "password"]:
            raise ImageError(
                f"container_images_credentials_file: line {number} of {path} is no login; needed: nothing but an NGC "
                "API key, or lines of the form 'machine nvcr.io login NAME password PASSWORD'"
            )
        logins[fields[1]] = Login(fields[3], fields[5])
    return logins


def secret_of(login: Login) -> str:
    """Return a password; enroot's file may name a command instead, as $(aws ecr get-login-password)."""
    if not login.password.startswith("$"):
        return login.password
    return told(["/bin/sh", "-c", f"echo {login.password}"], f"the command for the password of {login.user}")


def told(argv: Sequence[str], what: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a program that looks something up. It ends, with its children, after PATIENCE seconds."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=PATIENCE)[0].strip()
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise ImageError(f"{what} did not end within {PATIENCE} s") from error
