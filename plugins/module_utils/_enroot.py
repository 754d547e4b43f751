# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Enroot on a node: its configuration, its hooks and its kernel settings."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _validated_files as validated
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage

ETC = "/etc"
HOOKS, HOOKS_ON = "/usr/share/enroot/hooks.d", "enroot/hooks.d"
ADDRESS_HOOK = f"{HOOKS_ON}/51-slurm-address.sh"  # after 50-slurm-pytorch.sh, whose MASTER_ADDR it reads
PROC_SYS = "/proc/sys"
# Where a service, such as slurmd, finds programs unless its unit says otherwise (systemd.exec, "$PATH").
SERVICE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCONTROL = "/usr/local/bin/scontrol"
TIMEOUT = 60  # seconds for Enroot to tell its version
APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
CONF, NO_GPU, SYSCTL = "enroot/enroot.conf", "enroot/environ.d/90-no-gpu.env", "sysctl.d/99-zz-enroot.conf"
SQUASHFS, SQUASH = "mksquashfs", "ENROOT_SQUASH_OPTIONS"
_KEY = re.compile(r"(ENROOT_[A-Z_]+|(MELLANOX|NVIDIA)_\w+|SSL_CERT_(DIR|FILE)|(all|no|http|https)_proxy)[ \t=]")


class Request(NamedTuple):
    """The module's options."""

    config: str
    source: str = "enroot.conf"
    local: Mapping[str, str] = {}
    scratch: str | None = None
    shared: Mapping[str, str] = {}
    sysctls: Mapping[str, int | str] = {}
    hooks: tuple[str, ...] = ()
    address_hook: str = ""
    scontrol: str = ""
    gpus: bool = True
    version: str = ""
    origin: str = "installed"
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    changed: bool
    diff: list[dict[str, str]]
    summary: str


def _refuse_unknown_keys(request: Request) -> None:
    for line in request.config.splitlines():
        if line.strip() and not line.startswith("#") and not _KEY.match(line):
            raise Problem(
                f"{request.source}: Enroot would not read {line.split()[0]!r}; needed is ENROOT_…, NVIDIA_…, "
                "MELLANOX_…, SSL_CERT_DIR, SSL_CERT_FILE, or a proxy such as https_proxy"
            )


def _refuse_shared(request: Request) -> None:
    """Refuse a directory on a shared file system, where overlayfs would not work; links are followed."""
    # enroot.conf outranks the directories in request.local, so the paths that it sets are checked too.
    settings = re.findall(r"^(ENROOT_(?:RUNTIME|DATA|TEMP)_PATH)[ \t=]+([^$\s\0]+)", request.config, re.MULTILINE)
    named = {f"{request.source}: {key}": path for key, path in settings}
    for name, path in {**request.local, **named}.items():
        if not os.path.isabs(path):
            raise Problem(f"{name} is {path!r}; needed is an absolute path")
        clean = os.path.normpath(path)
        _refuse(clean, f"{name} is {path}", request)
        real = os.path.realpath(clean)
        if real != clean:
            _refuse(real, f"{name} is {path}, which leads to {real}", request)


def _refuse(path: str, subject: str, request: Request) -> None:
    point, kind = storage.file_system(path, dict(request.shared))
    if storage.is_network(kind):
        raise Problem(
            f"{subject}, on {kind} (mounted at {point}), where containers cannot be unpacked or started; needed is a "
            f"disk of this node's own, for example below {request.scratch or '/var/lib'}"
        )


def compressors() -> list[str]:
    """Return the compressors that mksquashfs has, by its answer to one that it lacks; empty where it does not tell."""
    if shutil.which(SQUASHFS) is None:
        return []
    with files.folder("postboot-squashfs-") as folder:
        argv = [SQUASHFS, folder, os.path.join(folder, "image"), "-comp", "none-such"]
        said = run(argv, TIMEOUT, merged=True, hint="see what it waits for")
    listed = said.out.partition("Compressors available:")[2]
    return re.findall(r"^\s+(\w+)(?: \(default\))?$", listed, re.MULTILINE)


def with_compressor(config: str, source: str) -> str:
    """Return enroot.conf with a compressor that mksquashfs has. RHEL 9's lacks Enroot's default, lzo (enroot#276)."""
    known = compressors()
    options = re.search(rf"^{SQUASH}[ \t=]+(.*)", config, re.MULTILINE)
    chosen = re.search(r"(?:^|[ \t\"'])-comp[ \t]+(\w+)", options[1]) if options else None
    if chosen and known and chosen[1] not in known:
        raise Problem(
            f"{source}: {SQUASH} has -comp {chosen[1]}, which this node's {SQUASHFS} does not support; needed is one "
            f"of {', '.join(known)}"
        )
    if options or not known or "lzo" in known:
        return config
    return f"{config.rstrip()}\n{SQUASH} {'-comp zstd ' if 'zstd' in known else ''}-noD\n"


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as stream:
            return int(stream.read())
    except (OSError, ValueError):
        return None


def _proc(key: str) -> str:
    return os.path.join(PROC_SYS, key.replace(".", "/"))


def kernel_settings(wanted: Mapping[str, int | str]) -> dict[str, int]:
    """Return the kernel settings to write: those of `wanted` that are too low, and AppArmor's where it stops Enroot.

    A setting that an earlier run wrote is returned again: since then the kernel's value no longer shows the need.
    """
    ours = set(re.findall(r"^([\w.]+) *=", files.read(os.path.join(ETC, SYSCTL)) or "", re.MULTILINE))
    settings = {}
    try:
        numbers = {key: int(value) for key, value in wanted.items()}
    except ValueError as error:
        raise Problem(f"sysctls: {error}; needed are whole numbers") from error
    for key, value in numbers.items():
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
        diff.append(files.diff(path, f"{now}\n", f"{value}\n"))
        if not check:
            with open(path, "w", encoding="ascii") as stream:
                stream.write(str(value))
    return diff


def _missing_hooks(wanted: Sequence[str]) -> list[str]:
    """Return the wanted hooks that are not in /etc/enroot/hooks.d, neither as a link nor as a packaged file."""
    return [name for name in wanted if not os.path.exists(os.path.join(ETC, HOOKS_ON, name))]


def _refuse_unknown_hooks(request: Request) -> None:
    if request.check and not os.path.isdir(HOOKS):
        return  # a task before this one would have brought them
    for name in _missing_hooks(request.hooks):
        if not os.path.exists(os.path.join(HOOKS, name)):
            there = ", ".join(sorted(os.listdir(HOOKS))) if os.path.isdir(HOOKS) else "nothing"
            raise Problem(f"enroot_hooks has {name}, which is not in {HOOKS}; there is {there}")


def _link(place: str, source: str) -> None:
    folder, name = os.path.split(place)
    os.makedirs(folder, mode=0o755, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.postboot")
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.symlink(source, temporary)
    os.rename(temporary, place)


def _link_scontrol(source: str, check: bool) -> list[dict[str, str]]:
    """Link Slurm's scontrol into the PATH that hooks get from slurmd, unless there is a scontrol in that PATH."""
    if not source or shutil.which("scontrol", path=SERVICE_PATH):
        return []
    if not check:
        _link(SCONTROL, source)
    return [files.diff(SCONTROL, "", f"-> {source}\n")]


def _link_hooks(wanted: Sequence[str], check: bool) -> list[dict[str, str]]:
    """Link the wanted hooks, and remove links to other hooks. Hooks that Enroot ships switched on stay."""
    folder = os.path.join(ETC, HOOKS_ON)
    diff = []
    for name in _missing_hooks(wanted):
        place, source = os.path.join(folder, name), os.path.join(HOOKS, name)
        diff.append(files.diff(place, "", f"-> {source}\n"))
        if not check:
            _link(place, source)
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        place = os.path.join(folder, name)
        if name not in wanted and os.path.islink(place) and os.path.dirname(os.readlink(place)) == HOOKS:
            diff.append(files.diff(place, f"-> {os.readlink(place)}\n", ""))
            if not check:
                os.unlink(place)
    return diff


def _files(request: Request, settings: Mapping[str, int]) -> validated.Request:
    wanted = [validated.Wanted(CONF, request.config, source=request.source)]
    if not request.gpus:
        # NVIDIA's images ask for all GPUs. Where there are none, the hook 98-nvidia.sh fails and the job with it.
        wanted.append(validated.Wanted(NO_GPU, "NVIDIA_VISIBLE_DEVICES=void\n"))
    if settings:
        text = "".join(f"{key} = {value}\n" for key, value in settings.items())
        wanted.append(validated.Wanted(SYSCTL, f"# For Enroot, whose containers are user namespaces.\n{text}"))
    if request.address_hook:
        wanted.append(validated.Wanted(ADDRESS_HOOK, request.address_hook, mode="0755"))
    # Enroot itself reads its configuration so.
    bash = ("bash", "-n", f"%s/{CONF}")
    return validated.Request(
        ETC, tuple(wanted), purge=(NO_GPU, SYSCTL, ADDRESS_HOOK), validate=bash, check=request.check
    )


def version() -> str:
    """Ask Enroot for its version, with temporary directories; empty if Enroot is not installed."""
    if shutil.which("enroot") is None:
        return ""
    with files.folder("postboot-enroot-") as folder:
        paths = {f"ENROOT_{name}_PATH": folder for name in ("RUNTIME", "CACHE", "DATA", "TEMP")}
        hint = f"see what {ETC}/{CONF} and {ETC}/{CONF}.d have it run"
        said = run(["enroot", "version"], TIMEOUT, environment=paths, hint=hint)
    if said.code:
        why = said.reason if said.lines else "it said nothing"
        raise Problem(f"'{said.command}' ended with {said.code}: {why}; see {ETC}/{CONF} and {ETC}/{CONF}.d")
    return said.out.strip()


def apply(request: Request) -> Outcome:
    """Write the configuration, the kernel settings and the links of hooks."""
    _refuse_unknown_keys(request)
    _refuse_shared(request)
    _refuse_unknown_hooks(request)
    request = request._replace(config=with_compressor(request.config, request.source))
    settings = kernel_settings(request.sysctls)
    written = validated.apply(_files(request, settings))
    diff = [*written.diff, *_set_kernel(settings, request.check)]
    # scontrol first: a job may start while this runs, and a hook that does not find the program ends the job.
    diff += _link_scontrol(request.scontrol if request.hooks else "", request.check)
    diff += _link_hooks(request.hooks, request.check)
    # After the files, because Enroot reads its configuration for this.
    own = version() or request.version
    origin = ", the AMI's own" if request.origin == "found" else ""
    return Outcome(bool(diff), diff, f"Enroot {own}{origin}".strip())
