# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run site on this very node, within a time, and say how it ended. bootstrap.sh calls it, with the bundle's own Python.

boot   what has to be there before slurmd, within a budget; what is left then goes on in pcluster-postboot.service
later  that service: all of it, once slurmd is up
check  all of it in check mode
bake   the playbook bake instead of site, while an image is made of this machine
baked  whether such an image has all of it: bake in check mode, which may find nothing to change
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import record as boot_record
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock as host_lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host import report as host_report
from ansible_collections.pcluster.postboot.plugins.module_utils._host import run as host_run
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible, visible_lines
from ansible_collections.pcluster.postboot.plugins.module_utils._node import facts, hyperpod, platforms
from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import holds

_ROOT = os.environ.get("PCLUSTER_POSTBOOT_ROOT", "")
LOG = _ROOT + "/var/log/pcluster-postboot/pull.log"
LOCK = os.path.join(host_lock.RUN_DIR, "bootstrap.lock")
PROGRESS = os.path.join(host_lock.RUN_DIR, "progress.json")
UNIT = "pcluster-postboot.service"
IN_PROCESS = "PCLUSTER_POSTBOOT_IN_PROCESS"  # plugin_utils/_site/in_process.py
CONFIG = "ansible_collections/pcluster/postboot/roles/pull/files/ansible.cfg"
SLURMD_SECONDS = 1800
# How long a run that has to end may take for it, before it is killed.
GRACE = 20.0
DONE, STOPPED, WAITS = 0, 1, 75
_WOULD_CHANGE = re.compile(r", (\d+) would change, ")  # of the last line of a run in check mode
_KEPT = re.compile(r"(AWS_\w+|(https?|no|all)_proxy|PCLUSTER_POSTBOOT_ROOT|PATH|HOME|LC_ALL)", re.IGNORECASE)


class Interrupted(Exception):
    """The run was asked to end."""


class Log:
    """Adds lines to the log, each with its time."""

    def __init__(self, path: str = LOG) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._stream = open(path, "a", encoding="utf-8", errors="replace", buffering=1)  # noqa: SIM115

    def write(self, text: str, who: str = "pull") -> None:
        """Add what was said. A full disk is no reason to end."""
        for line in visible_lines(text).splitlines():
            with contextlib.suppress(OSError):
                self._stream.write(f"{host_lock.utc(time.time())} {who}: {line}\n")

    def say(self, text: str) -> None:
        """Add it, and print it for the log of whoever has started this."""
        self.write(text)
        print(visible(f"pcluster-postboot: {text}"), flush=True)


class Ended(NamedTuple):
    code: int
    cut: bool  # it was stopped, because the time was up
    seconds: float
    last: str  # what it said last, or its last error


class Verdict(NamedTuple):
    code: int
    line: str
    left: bool = False  # a later run has something to finish
    undone: bool = False  # the boot should have finished some of it


def environment(home: str, check: bool) -> dict[str, str]:
    """Return Ansible's environment, whoever has started this."""
    kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
    settings = {"ANSIBLE_CONFIG": os.path.join(home, CONFIG), "PYTHONUNBUFFERED": "1", IN_PROCESS: "1"}
    return {**kept, **settings, **({} if check else {"PCLUSTER_POSTBOOT_PROGRESS": PROGRESS})}


def variables(phase: str, mode: str) -> dict[str, Any]:
    """Return the variables that this run decides; those of the bundle decide all else."""
    mine: dict[str, Any] = {"common_phase": phase, "ansible_become": False}
    return mine if mode == "auto" else {**mine, "common_mode": mode}


def ansible(home: str, phase: str, mode: str, check: bool, image: bool = False) -> list[str]:
    line = [os.path.join(home, "venv/bin/ansible-playbook"), f"pcluster.postboot.{'bake' if image else 'site'}"]
    line += ["--inventory", os.path.join(home, "inventory/image.yml")] if image else []
    line += ["--extra-vars", json.dumps(variables(phase, mode))]
    return [*line, "--check", "--diff"] if check else line


def adopt_orphans() -> None:
    """Become the parent of whatever a process that ends has left behind, so that it can be ended too."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def descendants(pid: int) -> list[int]:
    """Return the processes that this one has started, and those that they have."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{name}/stat", "rb") as stream:
                parents.setdefault(int(stream.read().rpartition(b")")[2].split()[1]), []).append(int(name))
    found, todo = [], [pid]
    while todo:
        todo += parents.get(todo.pop(), [])
        found += [one for one in todo if one not in found]
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run with all that it has started: by a word first, and then by force."""
    for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 5.0)):
        until = time.monotonic() + seconds
        alive = [process.pid, *descendants(os.getpid())] if process.poll() is None else descendants(os.getpid())
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while time.monotonic() < until and (process.poll() is None or descendants(os.getpid())):
            for pid in set(descendants(os.getpid())) - {process.pid}:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)  # one that was adopted: nobody else waits for it
            time.sleep(0.05)


def run(
    command: Sequence[str],
    log: Log,
    env: Mapping[str, str],
    seconds: float | None = None,
    before: float = 0.0,
    show: bool = False,
) -> Ended:
    """Run Ansible, log what it says, and end it when the time is up or this process is asked to end."""
    start = time.monotonic()
    tail: deque[str] = deque(maxlen=1)
    error = ""
    first = True
    # What it prints is logged while it runs.
    process = subprocess.Popen(
        command, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    cut = False
    try:
        for line in _lines(process, start + seconds if seconds is not None else None):
            if line is None:
                cut = True
                break
            log.write(line, "site")
            if show:
                print(visible_lines(line), flush=True)
            if line.strip():
                tail.append(line.strip())
            if not error and line.startswith(("ERROR", "[ERROR]")):
                error = line.replace("[ERROR]:", "").replace("ERROR!", "").strip()
            if first and line.startswith("TASK ["):
                log.write(f"the first task begins after {before + time.monotonic() - start:.2f} s")
                first = False
    except BaseException:
        end(process)
        raise
    if cut:
        end(process)
    # One that not even force has ended, because it waits for a file system, must not hold the boot.
    code = process.poll() if cut else process.wait()
    return Ended(-signal.SIGKILL if code is None else code, cut, time.monotonic() - start, error or "".join(tail))


def _lines(process: subprocess.Popen[bytes], until: float | None) -> Iterator[str | None]:
    """Yield what a process prints line by line, and None when the time is up. It ends with the process itself.

    What it leaves behind may have its output open for longer.
    """
    if process.stdout is None:
        raise ValueError("the process was started without a pipe for its output")
    handle, rest = process.stdout.fileno(), b""
    os.set_blocking(handle, False)
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        while True:
            left = 0.5 if until is None else until - time.monotonic()
            if left <= 0:
                yield None
                return
            over = process.poll() is not None
            ready = selector.select(0 if over else min(0.5, left))
            data = b""
            if ready:
                data = os.read(handle, 65536)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
            if not data and (ready or over):
                break
    if rest:
        yield rest.decode("utf-8", "replace")
    while process.poll() is None:
        if until is not None and time.monotonic() > until:
            yield None
            return
        time.sleep(0.02)


# How it ended


def read(path: str) -> dict[str, Any]:
    """Read a JSON object; what is not there or no such thing is empty."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def finish(progress: Mapping[str, Any], now: float, why: str, outcome: str) -> dict[str, Any]:
    """Return the report of a run that was ended: what was running, and what had not had its turn, is deferred."""
    report = dict(progress.get("report") or {"components": []})
    entries = {entry["name"]: dict(entry) for entry in report["components"]}
    for name, plan in (progress.get("plans") or {}).items():
        if name == progress.get("component"):
            entries[name].update(status="deferred", why=why, seconds=round(now - float(progress["since"]), 1))
        elif name not in entries:
            status = "deferred" if plan.get("run") or plan.get("deferred") else "skipped"
            entry = {"name": name, "status": status, "changed": 0, "seconds": 0.0, "essential": plan.get("essential")}
            entries[name] = {**entry, "why": plan.get("reason") or why}
    started = min([float(progress.get("started") or now), now])
    report.update(components=list(entries.values()), finished=host_lock.utc(now), seconds=round(now - started, 1))
    stopped = {"component": progress.get("component"), "message": why} if outcome == "stopped" else None
    return {**report, "outcome": outcome, "stopped": stopped}


def judge(ended: Ended, progress: Mapping[str, Any]) -> Verdict:
    """Say what came of a run that ended by itself."""
    report = progress.get("report") or {}
    components = report.get("components") or []
    if not progress.get("ended"):
        return Verdict(STOPPED, f"site ended with {ended.code}: {ended.last or 'no message'}")
    if ended.code:
        stopped = report.get("stopped") or {}
        lines = str(stopped.get("message") or report.get("ended_badly") or ended.last).splitlines() or [""]
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        cause = f"{stopped['component']} failed: " if stopped.get("component") else ""
        return Verdict(STOPPED, f"{cause}{lines[0]}{more}")
    named = {word: [one["name"] for one in components if one["status"] == word] for word in ("deferred", "failed")}
    line = f"{sum(one['status'] in ('changed', 'unchanged') for one in components)} components are as they should be"
    line += f", {report.get('changed', 0)} changes, {ended.seconds:.0f} s"
    for word, names in named.items():
        line += f"; {word}: {', '.join(names)}" if names else ""
    return Verdict(DONE, line, left=bool(named["deferred"] or named["failed"]))


def judge_cut(last: str, progress: Mapping[str, Any], report: Mapping[str, Any], args: argparse.Namespace) -> Verdict:
    """Say what came of a run that was stopped because the time was up."""
    line, undone = f"the budget of {args.budget:.0f} s is used up", True
    if running := progress.get("component"):
        entries = report["components"]
        left = [one["name"] for one in entries if one["status"] in ("deferred", "failed")]
        # What was meant to come later, and what only waits for another node, fails no boot.
        waiting = {name for name, plan in progress["plans"].items() if plan.get("deferred") or plan.get("started")}
        missing = {one["name"] for one in entries if one["status"] == "deferred" and one.get("essential")}
        undone = bool(missing - (waiting - {running}))
        seconds = {one["name"]: one["seconds"] for one in entries}
        most = max(seconds, key=lambda name: seconds[name])
        line += f" while {running} was running, for {seconds[running]:.0f} s"
        line += f"; {most} took most, {seconds[most]:.0f} s" if most != running else ""
        line += f"; not done yet: {', '.join(left)}"
    else:
        line += f", and no component has had its turn: {last}"
    if args.defer == "no":
        return Verdict(STOPPED, line)
    if undone and node_type() not in ("head", "login"):
        longer = "a longer DevSettings/Timeouts/ComputeNodeBootstrapTimeout, a larger --budget where one is given"
        needed = "a larger publish_budget" if on_hyperpod() else longer
        return Verdict(STOPPED, f"{line}; jobs would find the node unfinished; needed: {needed}, or common_deferred")
    return Verdict(DONE, line, left=True, undone=undone)


def give_back(report: Mapping[str, Any], log: Log) -> None:
    """Do for a run that was stopped what it would have done at its end; log what went wrong."""
    lock = host_lock.Lock()
    me = host_lock.Holder.of_process(os.getpid(), "pull")
    try:
        if not lock.take(me, 1800).taken:
            log.write("another run holds the node")
            return
        if report:
            host_report.save(dict(report))
        holds.Holds(_manager()).end()
    except (OSError, holds.HoldError) as error:
        log.write(f"the packages that it held are released by the next run: {error}")
    finally:
        with contextlib.suppress(OSError):
            lock.release(me.run_id)


def _manager() -> holds.AptHolds | holds.DnfHolds:
    with open(_ROOT + "/etc/os-release", encoding="utf-8") as stream:
        family = facts.parse_os_release(stream.read())["family"]
    return holds.AptHolds() if family == "debian" else holds.DnfHolds()


# The node


def node_type() -> str:
    """Return head, login or compute; empty where nothing tells."""
    return platforms.identify(Tree(_ROOT or "/")).facts.get("node_type") or ""


def on_hyperpod() -> bool:
    return platforms.identify(Tree(_ROOT or "/")).platform == hyperpod.PLATFORM


def program(*line: str, seconds: float = 30) -> tuple[int, str]:
    """Run a small program; return its exit code and the line that states why it failed."""
    try:
        said = host_run.run(line, seconds, merged=True)
    except host_run.NotRun as problem:
        return 127, str(problem)
    return said.code, said.reason if said.lines else ""


def wait_for_slurm(log: Log, daemon: str) -> None:
    """Wait until Slurm's daemon is up, and not for ever: a node without it needs the rest all the same."""
    until = time.monotonic() + SLURMD_SECONDS
    while program("systemctl", "is-active", "--quiet", f"{daemon}.service")[0]:
        if time.monotonic() > until:
            log.say(f"{daemon} is not up after {SLURMD_SECONDS} s; the run begins without it")
            return
        time.sleep(1)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait for a bootstrap.sh that is at work."""
    with open(LOCK, "a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


# What bootstrap.sh asks for


def site(args: argparse.Namespace, log: Log, phase: str, seconds: float | None) -> Verdict:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(PROGRESS)
    check, image = args.what in ("check", "baked"), args.what in ("bake", "baked")
    bundle, python = os.path.basename(args.home), sys.version.split()[0]
    log.write(f"{'bake' if image else 'site'} begins: phase {phase}, mode {args.mode}, {bundle}, {python}")
    try:
        line, env = ansible(args.home, phase, args.mode, check, image), environment(args.home, check)
        ended = run(line, log, env, seconds, args.elapsed / 100, check)
    except Interrupted:
        progress = read(PROGRESS)
        log.write(f"asked to end while {progress.get('component') or 'nothing'} was running")
        give_back(finish(progress, time.time(), "the run was asked to end", "stopped") if progress else {}, log)
        raise
    if check:
        return Verdict(ended.code, f"check mode, nothing was changed: {ended.last}")
    progress = read(PROGRESS)
    if ended.cut and progress.get("ended"):  # all was done, and only Ansible itself was not
        report = progress.get("report") or {}
        ended = ended._replace(cut=False, code=int(bool(report.get("stopped") or report.get("ended_badly"))))
    if not ended.cut:
        return judge(ended, progress)
    report = finish(progress, time.time(), "the budget was used up", "unfinished") if progress else {}
    verdict = judge_cut(ended.last, progress, report, args)
    if verdict.code and report:
        report.update(outcome="stopped", stopped={"component": progress.get("component"), "message": verdict.line})
    give_back(report, log)
    return verdict


def start_service() -> tuple[int, str]:
    program("systemctl", "reset-failed", UNIT)  # how often it was started before does not count
    return program("systemctl", "start", "--no-block", UNIT)


def boot(args: argparse.Namespace, log: Log) -> Verdict:
    """Do what has to be there before jobs are, and let the service do the rest."""
    phase = "boot" if args.defer == "yes" else "all"
    verdict = site(args, log, phase, max(1.0, args.budget - args.elapsed / 100))
    if verdict.code or not verdict.left or args.defer == "no":
        return verdict
    code, told = start_service()
    line = f"{verdict.line}; {UNIT} " + (f"cannot be started: {told}" if code else "goes on")
    return verdict._replace(code=STOPPED if code and verdict.undone else DONE, line=line)


def at_once(args: argparse.Namespace, log: Log) -> Verdict:
    """Do all of it, or look at all of it, without a limit of time."""
    return site(args, log, "all", None)


def baked(args: argparse.Namespace, log: Log) -> Verdict:
    verdict = at_once(args, log)
    found = _WOULD_CHANGE.search(verdict.line)
    if verdict.code or (found and found[1] == "0"):
        return verdict
    return Verdict(STOPPED, f"the image is not what bake makes of it: {verdict.line}")


def later(args: argparse.Namespace, log: Log) -> Verdict:
    """Do all of it. What other nodes have not published yet is looked for again when systemd starts this anew."""
    kind = node_type()
    if kind == "compute":
        wait_for_slurm(log, "slurmd")
    elif kind == "head" and on_hyperpod():  # whose hook may come before slurmctld
        wait_for_slurm(log, "slurmctld")
    with alone():
        verdict = site(args, log, "later", None)
    waits = [
        one["name"] for one in read(PROGRESS).get("report", {}).get("components", []) if one["status"] == "deferred"
    ]
    return verdict._replace(code=verdict.code or (WAITS if waits else DONE))


def told(args: argparse.Namespace, log: Log) -> Verdict:
    """Do it, and tell whoever watches the cluster boot how far it is."""
    runs = {"boot": boot, "later": later, "check": at_once, "bake": at_once, "baked": baked}
    if args.what not in ("boot", "later"):
        return runs[args.what](args, log)
    deadline = time.time() + args.budget - args.elapsed / 100 if args.what == "boot" else 0.0
    stage = "site" if args.what == "boot" else "later"
    teller = boot_record.Teller(stage, deadline, lambda: read(PROGRESS), head=node_type() == "head")
    teller.start()
    try:
        verdict = runs[args.what](args, log)
    except BaseException as error:
        teller.end("failed", why=f"ended by {error}" if isinstance(error, Interrupted) else str(error))
        raise
    if verdict.code == WAITS:
        teller.end("waits", why=verdict.line)
    elif verdict.code:
        progress = read(PROGRESS)
        stopped = (progress.get("report") or {}).get("stopped") or {}
        teller.end("failed", str(stopped.get("component") or progress.get("component") or ""), verdict.line)
    else:
        teller.end("later" if args.what == "boot" and verdict.left and args.defer == "yes" else "done")
    return verdict


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise Interrupted(signal.Signals(number).name)


def main(words: Sequence[str] | None = None) -> int:
    """Return the exit code, and print why a run failed on one line, to standard output and to standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["boot", "later", "check", "bake", "baked"])
    parser.add_argument("--home", default="")
    parser.add_argument("--mode", choices=["auto", "gpu", "cpu"], default="auto")
    parser.add_argument("--defer", choices=["yes", "no"], default="yes")
    parser.add_argument(
        "--stopped", choices=["yes", "no"], default="no", help="whether bootstrap.sh stopped the service"
    )
    parser.add_argument("--budget", type=float, default=0.0)
    parser.add_argument("--elapsed", type=float, default=0.0)
    args = parser.parse_args(words)
    log = Log()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        adopt_orphans()
        verdict = told(args, log)
    except Interrupted as error:
        verdict = Verdict(128 + signal.Signals[str(error)].value, f"ended by {error}")
    except Exception as error:
        log.write(traceback.format_exc())
        verdict = Verdict(STOPPED, f"{type(error).__name__}: {error}")
    if args.stopped == "yes" and (verdict.code or (verdict.left and args.defer == "no")):
        start_service()  # this run has not done the work that it took from the service
    if verdict.code in (DONE, WAITS):
        log.say(verdict.line)
    else:
        log.write(f"failed: {verdict.line}")
        line = f"pcluster-postboot: {verdict.line}; see {LOG}"
        print(visible(line), file=sys.stderr, flush=True)
        # ParallelCluster's logs take standard output alone. In other logs both are one.
        if not os.path.samestat(os.fstat(1), os.fstat(2)):
            print(visible(line), flush=True)
    return verdict.code


if __name__ == "__main__":
    sys.exit(main())
