# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs AWS's installer of the EFA software, where it is due, and only what its publisher has signed.

The installer names its version in a file before it is done with the kernel module. So what tells a finished run from
one that was killed is a record of our own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import IO, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import signature
from ansible_collections.pcluster.postboot.plugins.module_utils._efa import devices
from ansible_collections.pcluster.postboot.plugins.module_utils._efa.devices import Record
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock as host_lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds, openpgp, records

INSTALLED = "/opt/amazon/efa_installed_packages"
UNKNOWN = "unknown"
SCRIPT = "efa_installer.sh"
TREE = "/var/cache/pcluster-postboot/efa-installer"
LOG = "/var/log/pcluster-postboot/efa-installer.log"
PROC = "/proc"
# Held by whoever installs packages with more than one command; its descriptor is the installer's too, so that the next
# run waits for an installer whose own run was killed.
PACKAGE_LOCK = "packages.lock"  # below _run.RUN_DIR
PAUSE = 1.0
LINES = 40

_VERSION = re.compile(r"\d+(\.\d+)+")
_REBOOT = re.compile(r"reboot is needed|please reboot", re.IGNORECASE)
_STALE = re.compile(r"unable to locate|unable to fetch|no installation candidate|404", re.IGNORECASE)
# Lines of apt, dpkg, dkms and dnf that name the cause of a failure.
_UNMET = r"nothing provides|none of the providers|conflicts with|No match for argument"
_OTHERS = (r"^E: ", r"^dpkg(-deb)?: error", r"^Error! ", _UNMET)
_TELLS = re.compile(r"error|fail|unsupported|cannot|could not|not supported|no space left", re.IGNORECASE)
# The installer asks dnf for kernel-devel of the installed kernels, and dnf finds no package that is held.
_HEADERS = ("kernel*-devel*", "kernel*-headers*")

WORDS = signature.Words(
    whose="EFA's",
    fingerprints="efa_key_fingerprints",
    hashes="efa_%s_sha256",
    place="the installer",
    instead="set efa_verify_signature to false, which leaves the sha256 alone",
    compare="Compare efa_version and efa_sha256 with what AWS publishes",
    upstream="common_upstream",
)


class Request(NamedTuple):
    """The module's options."""

    version: str
    manager: str
    upgrade: bool = False
    options: tuple[str, ...] = ()
    source: str | None = None
    verify: bool = True
    trust: signature.Trust = signature.Trust(words=WORDS)
    busy: tuple[str, ...] = ()
    lock_timeout: int = 600
    timeout: int = 1800
    state: str = "present"
    check: bool = False


class Outcome(NamedTuple):
    """The module's result."""

    changed: bool
    due: bool
    why: str
    pending: str
    version: str
    origin: str
    reboot: bool
    summary: str
    warnings: list[str]
    diff: dict[str, str]


class _Plan(NamedTuple):
    due: bool
    why: str
    have: str  # the version that is there; empty without one
    origin: str  # found: somebody else's; installed: ours


def number(version: str) -> list[int]:
    """Return a version as what can be compared."""
    return [int(part) for part in re.findall(r"\d+", version)]


def installed_version() -> str:
    """Return the version that the installer has noted, `unknown` for an EFA that it did not bring, or nothing."""
    try:
        with open(INSTALLED, encoding="utf-8", errors="replace") as stream:
            match = re.search(r"EFA installer version:\s*(\d[\w.]*)", stream.read())
        return match[1] if match else UNKNOWN
    except (FileNotFoundError, NotADirectoryError):
        return UNKNOWN if os.path.exists(devices.FI_INFO) else ""


def plan(request: Request, have: str, record: Record | None) -> _Plan:
    """Decide whether the installer has to be run. It never goes back to an older version."""
    wanted = request.version
    newer = have != UNKNOWN and number(have) > number(wanted)
    if record and not record.done and not newer:
        return _Plan(True, f"the installation of EFA {record.version} was interrupted", have, "installed")
    if not have:
        return _Plan(True, "EFA's software is not installed", have, "installed")
    ours = bool(record and record.version == have)
    origin = "installed" if ours else "found"
    if have == UNKNOWN or number(have) < number(wanted):
        if request.upgrade or ours:
            return _Plan(True, f"EFA {have} is installed, wanted is {wanted}", have, origin)
    elif ours and record and have == wanted and record.options != list(request.options):
        return _Plan(True, f"EFA {have} was installed with other options", have, origin)
    return _Plan(False, f"EFA {have} is installed", have, origin)


def _slurmd_runs() -> bool:
    for name in os.listdir(PROC):
        if name.isdigit():
            with contextlib.suppress(OSError), open(os.path.join(PROC, name, "comm"), "rb") as stream:
                if stream.read().strip() == b"slurmd":  # a process gives itself a name of any bytes
                    return True
    return False


def in_use(request: Request) -> str:
    """Return why the installer may not be run now, or nothing. Without slurmd there is no job on a node yet."""
    if not request.busy or not _slurmd_runs():
        return ""
    held = f"EFA {request.version} is not installed now"
    try:
        jobs = run(request.busy, 20).output().split()
    except Problem as error:
        return f"{held}: whether a job runs here could not be told ({error}); the next run does it"
    if not jobs:
        return ""
    more = f" and {len(jobs) - 5} more" if len(jobs) > 5 else ""
    return f"{held}: jobs run here ({', '.join(jobs[:5])}{more}), which may use it; a run while the node idles does it"


class _Job(NamedTuple):
    """What every command of an installation shares."""

    request: Request
    log: IO[bytes]
    lock: int
    environment: dict[str, str]
    deadline: float  # by which all of them must have ended

    def follow(self, argv: list[str], folder: str = "/") -> tuple[int, list[str]]:
        """Run a command to its end, and say meanwhile that this run is alive; return its last lines too."""
        start = os.fstat(self.log.fileno()).st_size
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            pass_fds=(self.lock,),
            start_new_session=True,
            cwd=folder,
            env=self.environment,
        )
        while True:
            try:
                return process.wait(timeout=PAUSE), self.said(start)[-LINES:]
            except subprocess.TimeoutExpired:
                host_lock.heartbeat()
            if time.monotonic() >= self.deadline:
                self._stop(process)
                lines = self.said(start)[-LINES:]
                raise Problem(
                    f"{os.path.basename(argv[0])} had not ended after {self.request.timeout} s (efa_timeout) and was "
                    f"stopped; its last line is {(lines or [''])[-1].strip()!r}, its log {LOG}; the next run goes on",
                    log=lines,
                )

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def said(self, start: int) -> list[str]:
        """Return the lines of the log from a place in it on."""
        with open(LOG, "rb") as stream:
            stream.seek(start)
            text = stream.read().decode("utf-8", "replace")
        return [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()]


@contextlib.contextmanager
def _package_lock(request: Request) -> Iterator[int]:
    """Hold this collection's lock on the packages of the node."""
    os.makedirs(host_lock.RUN_DIR, mode=0o755, exist_ok=True)
    path = os.path.join(host_lock.RUN_DIR, PACKAGE_LOCK)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + request.lock_timeout
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(handle, 100, 0).decode("ascii", "replace").strip() or "an unknown process"
                    raise Problem(
                        f"{path} is held for {request.lock_timeout} s (efa_lock_timeout) by {holder}, or by what it "
                        "has started: an installation is under way; run again when it has ended"
                    ) from None
            host_lock.heartbeat()
            time.sleep(PAUSE)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()}\n".encode(), 0)
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _headers_released(request: Request) -> Iterator[None]:
    """Release the kernel headers that this run holds while the installer runs: dnf does not see held packages."""
    names: list[str] = []
    if request.manager == "dnf":
        held, _original = holds.Holds(holds.DnfHolds()).recorded()
        names = holds.matching(held, _HEADERS)
    holds.DnfHolds().release(names)
    try:
        yield
    finally:
        holds.DnfHolds().hold(names)


def _environment(request: Request, folder: str, key: bytes) -> dict[str, str]:
    """Return what makes the installer's package manager wait for others, ask nothing and restart nothing."""
    conf, armored = os.path.join(folder, "apt.conf"), os.path.join(folder, "aws-efa-installer.key")
    with open(conf, "w", encoding="ascii") as stream:
        stream.write(f'DPkg::Lock::Timeout "{request.lock_timeout}";\n')
        stream.write('Dpkg::Options { "--force-confdef"; "--force-confold"; };\n')
    path = os.environ.get("PATH", os.defpath)
    environment = {
        "APT_CONFIG": conf,
        "DEBIAN_FRONTEND": "noninteractive",
        "HOME": os.environ.get("HOME", "/root"),
        "LC_ALL": "C",
        "NEEDRESTART_SUSPEND": "1",
        "PATH": ":".join([path, *(more for more in ("/usr/sbin", "/sbin") if more not in path.split(":"))]),
    }
    environment.update({name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")})
    if key:
        with open(armored, "w", encoding="ascii") as stream:
            stream.write(openpgp.armor(key))
        environment["EFA_INSTALLER_KEY"] = armored
    return environment


def _unpack(job: _Job, source: str) -> str:
    """Unpack the installer where only root gets; return the folder with its script."""
    shutil.rmtree(TREE, ignore_errors=True)
    os.makedirs(TREE, mode=0o700)
    code, lines = job.follow(["tar", "--extract", "--no-same-owner", "--file", source, "--directory", TREE])
    if code:
        raise Problem(f"{source} cannot be unpacked in {TREE}: {(lines or ['tar said nothing'])[0]}", log=lines)
    for folder in (TREE, *(os.path.join(TREE, name) for name in sorted(os.listdir(TREE)))):
        if os.path.isfile(os.path.join(folder, SCRIPT)):
            return folder
    raise Problem(f"{source} holds no {SCRIPT}; needed is AWS's installer of EFA {job.request.version}")


def _why(lines: list[str]) -> str:
    """Return the line that says most of why the installer failed."""
    for pattern in _OTHERS:
        found = next((line.strip(" -") for line in lines if re.search(pattern, line)), "")
        if found:
            return found
    telling = [line for line in lines if _TELLS.search(line)] or lines or ["it said nothing"]
    return telling[-1].strip()


def _run_installer(job: _Job, folder: str) -> list[str]:
    """Run the installer; return what it said. Package lists that are too old are read anew, once."""
    request, apt = job.request, job.request.manager == "apt"
    argv = [f"./{SCRIPT}", "-y", *request.options]
    with _headers_released(request):
        start = os.fstat(job.log.fileno()).st_size
        code, lines = job.follow(argv, folder)
        if code and apt and _STALE.search("\n".join(lines)):
            job.follow(["apt-get", "-q", "update"])
            code, lines = job.follow(argv, folder)
    if code:
        raise Problem(f"{SCRIPT} ended with {code}: {_why(lines)}; its log is {LOG}", log=lines)
    have = installed_version()
    if have != request.version:
        raise Problem(
            f"{SCRIPT} reports success, but {INSTALLED} names version {have or 'none'}, needed is {request.version}; "
            f"does efa_sha256 belong to efa_version? Its log is {LOG}",
            log=lines,
        )
    if "--minimal" not in request.options and not os.path.exists(devices.FI_INFO):
        raise Problem(f"{SCRIPT} reports success, but {devices.FI_INFO} is not there; its log is {LOG}", log=lines)
    return job.said(start)


def _install(request: Request, interrupted: bool) -> tuple[bool, list[str]]:
    """Verify, unpack and run the installer; return whether it asks for a reboot, and warnings."""
    source = request.source or ""
    if not os.path.isfile(source):
        raise Problem(f"source: {source or 'nothing'} is not there; download it first")
    keyed = request.verify or "--check-signatures" in request.options
    key, warnings = b"", []
    if keyed:
        proofs = signature.Proofs(request.trust)
        key = openpgp.dearmor(proofs.verify(source)[0] if request.verify else proofs.key())
        warnings = proofs.warnings
    os.makedirs(os.path.dirname(LOG), mode=0o755, exist_ok=True)
    options = list(request.options)
    with files.folder("postboot-efa-") as work, _package_lock(request) as lock:
        # What apt runs as another user reads its configuration too.
        os.chmod(work, 0o755)
        with open(LOG, "ab", buffering=0) as log:
            job = _Job(request, log, lock, _environment(request, work, key), time.monotonic() + request.timeout)
            folder = _unpack(job, source)
            log.write(f"=== {host_lock.utc(time.time())} {SCRIPT} {request.version} {' '.join(options)}\n".encode())
            devices.write_record(Record(request.version, False, options))
            if request.manager == "apt" and (interrupted or records.dpkg_unfiled()):
                # Not judged by its exit status: what it cannot finish, the installer replaces or names.
                job.follow(["dpkg", "--force-confdef", "--force-confold", "--configure", "--pending"])
            reboot = any(_REBOOT.search(line) for line in _run_installer(job, folder))
        # Both are large, and of no more use.
        shutil.rmtree(TREE, ignore_errors=True)
        os.unlink(source)
        devices.write_record(Record(request.version, True, options, devices.boot_id() if reboot else ""))
    return reboot, warnings


def _summary(version: str, origin: str, request: Request) -> str:
    if not version:
        return ""
    if origin == "installed":
        return f"EFA {version}, installed by this collection"
    older = version != UNKNOWN and number(version) < number(request.version)
    return f"EFA {version}, the AMI's own" + (f" (efa_upgrade brings {request.version})" if older else "")


def apply(request: Request) -> Outcome:
    """Look, and with state `present` act, unless a job that may use EFA runs on this node."""
    if not _VERSION.fullmatch(request.version):
        raise Problem(f"efa_version is {request.version!r}; needed is a whole version such as 1.50.0")
    record = devices.read_record()
    found = plan(request, installed_version(), record)
    pending = in_use(request) if found.due else ""
    result = Outcome(
        changed=False,
        due=found.due,
        why=found.why,
        pending=pending,
        version=found.have,
        origin=found.origin,
        reboot=False,
        summary="" if found.due and not pending else _summary(found.have, found.origin, request),
        warnings=[pending] if pending else [],
        diff={},
    )
    if not found.due or pending or request.state == "planned":
        return result
    reboot, warnings = False, list(result.warnings)
    if not request.check:
        reboot, warnings = _install(request, bool(record and not record.done))
    before = f"EFA {found.have}\n" if found.have else ""
    return result._replace(
        changed=True,
        version=request.version,
        origin="installed",
        reboot=reboot,
        summary=_summary(request.version, "installed", request),
        warnings=warnings,
        diff=files.diff(INSTALLED, before, f"EFA {request.version}\n"),
    )
