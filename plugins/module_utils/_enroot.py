# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Sets up Enroot on a node: its configuration, its hooks, and what it needs from the kernel."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _docker_config as storage
from ansible_collections.pcluster.postboot.plugins.module_utils import _validated_files as validated

ETC = "/etc"
HOOKS, HOOKS_ON = "/usr/share/enroot/hooks.d", "enroot/hooks.d"
PROC_SYS = "/proc/sys"
TIMEOUT = 60  # seconds for Enroot to tell its version
APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
CONF, NO_GPU, SYSCTL = "enroot/enroot.conf", "enroot/environ.d/90-no-gpu.env", "sysctl.d/99-zz-enroot.conf"
_KEY = re.compile(r"(ENROOT_[A-Z_]+|(MELLANOX|NVIDIA)_\w+|SSL_CERT_(DIR|FILE)|(all|no|http|https)_proxy)[ \t=]")


class EnrootError(Exception):
    """What is wrong, on one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Request(NamedTuple):
    """What is asked for; the module's documentation tells what each part means."""

    config: str
    source: str = ""
    local: Mapping[str, str] = {}
    scratch: str | None = None
    shared: Mapping[str, str] = {}
    sysctls: Mapping[str, int] = {}
    hooks: tuple[str, ...] = ()
    gpus: bool = True
    version: str = ""
    origin: str = ""
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    changed: bool
    diff: list[dict[str, str]]
    summary: str


def _refuse_unknown_keys(request: Request) -> None:
    for line in request.config.splitlines():
        if line.strip() and not line.startswith("#") and not _KEY.match(line):
            raise EnrootError(
                f"{request.source}: Enroot would not read {line.split()[0]!r}; needed is ENROOT_…, NVIDIA_…, "
                "MELLANOX_…, SSL_CERT_DIR, SSL_CERT_FILE, or a proxy such as https_proxy"
            )


def _refuse_shared(request: Request) -> None:
    """Refuse a directory in which overlayfs would not work, also where links lead to one."""
    # What is set beside these variables outranks them.
    settings = re.findall(r"^(ENROOT_(?:RUNTIME|DATA|TEMP)_PATH)[ \t=]+([^$\s]+)", request.config, re.MULTILINE)
    named = {f"{request.source}: {key}": path for key, path in settings}
    for name, path in {**request.local, **named}.items():
        if not os.path.isabs(path):
            raise EnrootError(f"{name} is {path!r}; needed is an absolute path")
        clean = os.path.normpath(path)
        _refuse(clean, f"{name} is {path}", request)
        real = os.path.realpath(clean)
        if real != clean:
            _refuse(real, f"{name} is {path}, which leads to {real}", request)


def _refuse(path: str, subject: str, request: Request) -> None:
    point, kind = storage.file_system(path, dict(request.shared))
    if storage.is_shared(kind):
        raise EnrootError(
            f"{subject}, on {kind} (mounted at {point}), where containers cannot be unpacked or started; needed is a "
            f"disk of this node's own, for example below {request.scratch or '/var/lib'}"
        )


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return None


def _proc(key: str) -> str:
    return os.path.join(PROC_SYS, key.replace(".", "/"))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def kernel_settings(wanted: Mapping[str, int]) -> dict[str, int]:
    """Return what has to be set in the kernel: what it knows, and what is not enough without us.

    What an earlier run had to set stays set: afterwards one cannot see any more that it was needed.
    """
    ours = set(re.findall(r"^([\w.]+) *=", _read(os.path.join(ETC, SYSCTL)), re.MULTILINE))
    settings = {}
    for key, value in wanted.items():
        now = _number(_proc(key))
        if now is not None and (key in ours or not _enough(now, value)):
            settings[key] = value
    # A profile that lets Enroot's own helper make user namespaces is better than letting everybody do so.
    profile = os.path.exists(os.path.join(ETC, "apparmor.d/enroot"))
    if not profile and _number(_proc(APPARMOR)) is not None and (APPARMOR in ours or _number(_proc(APPARMOR))):
        settings[APPARMOR] = 0
    return settings


def _enough(now: int, value: int) -> bool:
    return now >= value if value else now == value


def _set_kernel(settings: Mapping[str, int], check: bool) -> list[dict[str, str]]:
    diff = []
    for key, value in settings.items():
        path = _proc(key)
        now = _number(path)
        if now is None or _enough(now, value):
            continue
        diff.append({"before_header": path, "after_header": path, "before": f"{now}\n", "after": f"{value}\n"})
        if not check:
            with open(path, "w", encoding="ascii") as stream:
                stream.write(str(value))
    return diff


def _missing_hooks(wanted: Sequence[str]) -> list[str]:
    """Return the hooks that have to be linked: a hook that Enroot brings switched on has no link."""
    return [name for name in wanted if not os.path.exists(os.path.join(ETC, HOOKS_ON, name))]


def _refuse_unknown_hooks(request: Request) -> None:
    if request.check and not os.path.isdir(HOOKS):
        return  # a task before this one would have brought them
    for name in _missing_hooks(request.hooks):
        if not os.path.exists(os.path.join(HOOKS, name)):
            there = ", ".join(sorted(os.listdir(HOOKS))) if os.path.isdir(HOOKS) else "nothing"
            raise EnrootError(f"enroot_hooks has {name}, which is not in {HOOKS}; there is {there}")


def _link_hooks(wanted: Sequence[str], check: bool) -> list[dict[str, str]]:
    """Link the hooks that are asked for, and take away links of ours that are not. Those that come switched on stay."""
    folder = os.path.join(ETC, HOOKS_ON)
    diff = []
    for name in _missing_hooks(wanted):
        place, source = os.path.join(folder, name), os.path.join(HOOKS, name)
        diff.append({"before_header": place, "after_header": place, "before": "", "after": f"-> {source}\n"})
        if not check:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            temporary = os.path.join(folder, f".{name}.postboot")
            if os.path.lexists(temporary):
                os.unlink(temporary)
            os.symlink(source, temporary)
            os.rename(temporary, place)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        place = os.path.join(folder, name)
        if name not in wanted and os.path.islink(place) and os.path.dirname(os.readlink(place)) == HOOKS:
            diff.append(
                {"before_header": place, "after_header": place, "before": f"-> {os.readlink(place)}\n", "after": ""}
            )
            if not check:
                os.unlink(place)
    return diff


def _files(request: Request, settings: Mapping[str, int]) -> validated.Request:
    files = [validated.Wanted(CONF, request.config, source=request.source)]
    if not request.gpus:
        # Images of NVIDIA ask for all GPUs, and without any the hook that would bring them fails.
        files.append(validated.Wanted(NO_GPU, "NVIDIA_VISIBLE_DEVICES=void\n"))
    if settings:
        text = "".join(f"{key} = {value}\n" for key, value in settings.items())
        files.append(validated.Wanted(SYSCTL, f"# For Enroot, whose containers are user namespaces.\n{text}"))
    # Enroot itself reads its configuration so.
    bash = ("bash", "-n", f"%s/{CONF}")
    return validated.Request(ETC, tuple(files), purge=(NO_GPU, SYSCTL), validate=bash, check=request.check)


def version() -> str:
    """Ask Enroot for its version, with nothing of its own made for root. Empty where it is not there."""
    program = shutil.which("enroot")
    if program is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="postboot-enroot-") as folder:
        paths = {f"ENROOT_{name}_PATH": folder for name in ("RUNTIME", "CACHE", "DATA", "TEMP")}
        with subprocess.Popen(
            [program, "version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C", **paths},
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=TIMEOUT)
            except subprocess.TimeoutExpired as error:
                os.killpg(process.pid, signal.SIGKILL)  # with the programs that its configuration has started
                raise EnrootError(
                    f"'enroot version' did not end within {TIMEOUT} s; see what {ETC}/{CONF} and {ETC}/{CONF}.d have "
                    "it run"
                ) from error
    if process.returncode:
        said = (err.strip() or out.strip() or "it said nothing").splitlines()[-1]
        raise EnrootError(
            f"'enroot version' ended with {process.returncode}: {said}; see {ETC}/{CONF} and {ETC}/{CONF}.d"
        )
    return out.strip()


def apply(request: Request) -> Outcome:
    """Do it."""
    _refuse_unknown_keys(request)
    _refuse_shared(request)
    _refuse_unknown_hooks(request)
    settings = kernel_settings(request.sysctls)
    files = validated.apply(_files(request, settings))
    diff = [*files.diff, *_set_kernel(settings, request.check), *_link_hooks(request.hooks, request.check)]
    # Asked after its configuration is in place, which it reads.
    own = version() or request.version
    origin = ", the AMI's own" if request.origin == "found" else ""
    return Outcome(bool(diff), diff, f"Enroot {own}{origin}".strip())
