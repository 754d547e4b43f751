# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Checks of a cluster by jobs that an ordinary user submits: what all stages share.

A stage is a module _verify_<stage>.py with a function run(Context) that yields one Check after another.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _run

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARK = "postboot-verify"
# By which a job asks for GPUs in its container where the image does not.
GPU_ENVIRONMENT = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
# What a node may be besides up; anything else keeps jobs from it, or says that it is about to go.
_HARMLESS = {"CLOUD", "COMPLETING", "DYNAMIC_NORM"}


class VerifyError(Exception):
    """Why nothing can be checked, on one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Check(NamedTuple):
    """What became of one check."""

    name: str
    subject: str  # the partition, or "cluster"
    status: str  # ok, failed or skipped
    message: str
    details: dict[str, Any] = {}


class Options(NamedTuple):
    """What is asked for; the module's documentation tells what each part means."""

    user: str
    image: str = ""
    images_dir: str = ""
    partitions: tuple[str, ...] = ()
    nodes: int = 2
    power_up: bool = False
    time_limit: int = 10
    wait: int = 120
    slurm: str = "/opt/slurm"


class Node(NamedTuple):
    """A node as Slurm sees it."""

    name: str
    state: str
    partitions: tuple[str, ...]
    gpus: int

    @property
    def is_up(self) -> bool:
        """Say whether a job could run there now or soon, without booting anything."""
        base, *flags = self.state.split("+")
        return base in ("IDLE", "MIXED", "ALLOCATED") and not set(flags) - _HARMLESS

    @property
    def is_powered_down(self) -> bool:
        """Say whether a job would boot it."""
        base, *flags = self.state.split("+")
        return base == "IDLE" and set(flags) - _HARMLESS in ({"POWERED_DOWN"}, {"POWERING_UP"})


class Output(NamedTuple):
    """What a job has printed."""

    code: int
    values: dict[str, dict[str, list[str]]]  # by node, then by key
    errors: list[str]


def gpus_of(gres: str) -> int:
    """Count the GPUs of a generic resource list such as gpu:h100:8(S:0-1),shard:8."""
    count = 0
    for part in re.sub(r"\([^()]*\)", "", gres).split(","):
        words = part.split(":")
        if words[0] == "gpu":
            count += int(words[-1]) if len(words) > 1 and words[-1].isdigit() else 1
    return count


def parse_nodes(text: str) -> list[Node]:
    """Return the nodes in the output of `scontrol -o show nodes`."""
    nodes = []
    for line in text.splitlines():
        fields: dict[str, str] = {}
        # The first of a kind counts: free text, such as a reason, stands at the end of the line.
        for key, value in re.findall(r"(?:^|\s)(NodeName|State|Partitions|Gres)=(\S*)", line):
            fields.setdefault(key, value)
        if fields.get("NodeName"):
            partitions = tuple(name for name in fields.get("Partitions", "").split(",") if name and name != "(null)")
            nodes.append(Node(fields["NodeName"], fields.get("State", ""), partitions, gpus_of(fields.get("Gres", ""))))
    return nodes


def telling(errors: str) -> list[str]:
    """Return the lines of a failed job that say why, without what stands before each of them."""
    lines = [re.sub(r"^(srun|slurmstepd)[^:]*: ", "", line.strip()) for line in errors.splitlines() if line.strip()]
    lines = [re.sub(r"^error: ", "", line) for line in lines]
    # What enroot has said, which Pyxis shows indented, is nearest to the cause.
    enroot = [line[len("pyxis:") :].strip() for line in lines if line.startswith("pyxis:   ")]
    why = [line for line in enroot if re.search(r"\[ERROR\]|curl: \(|[Ee]rror|not found|denied|failed", line)]
    why = why or [line for line in lines if re.search(r"pyxis: (?!import|creating|starting|printing)", line)]
    why = why or [line for line in lines if not re.search(r"queued and waiting|has been allocated|task \d", line)]
    return list(dict.fromkeys(why))[-3:]


class Context:
    """The cluster, and the user who submits to it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        try:
            self.account = pwd.getpwnam(options.user)
        except KeyError as error:
            raise VerifyError(
                f"verify_user: {options.user!r} is no user of this node; needed: an ordinary one"
            ) from error
        if self.account.pw_uid == 0:
            raise VerifyError("verify_user: found root; needed: an ordinary user, who may less")

    def _as_user(self, *argv: str) -> list[str]:
        own = [f"HOME={self.account.pw_dir}", f"USER={self.account.pw_name}", f"LOGNAME={self.account.pw_name}"]
        path = f"PATH={self.options.slurm}/bin:{PATH}"
        return ["runuser", "-u", self.account.pw_name, "--", "env", "-i", path, *own, "LC_ALL=C", *argv]

    def slurm(self, program: str, *argv: str) -> str:
        """Return what one of Slurm's programs prints."""
        command = self._as_user(os.path.join(self.options.slurm, "bin", program), *argv)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False, cwd="/tmp"
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise VerifyError(f"{program}: {error}") from error
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
            raise VerifyError(f"{program} {' '.join(argv)} ended with {done.returncode} and said: {said}")
        return done.stdout

    def selected(self) -> Iterator[tuple[str, list[Node], str]]:
        """Yield every partition with the nodes to look at; where there is none, with the reason."""
        nodes = parse_nodes(self.slurm("scontrol", "-a", "-o", "show", "nodes"))
        known = list(dict.fromkeys(name for node in nodes for name in node.partitions))
        wrong = [name for name in self.options.partitions if name not in known]
        if wrong:
            raise VerifyError(
                f"verify_partitions: found {', '.join(wrong)}; needed: some of {', '.join(known) or 'none'}"
            )
        for partition in self.options.partitions or sorted(known):
            own = [node for node in nodes if partition in node.partitions]
            usable = [node for node in own if node.is_up]
            if self.options.power_up:
                usable += [node for node in own if node.is_powered_down]
            chosen = usable[: self.options.nodes] if self.options.nodes else usable
            states = ", ".join(sorted({node.state for node in own}))
            advice = "" if self.options.power_up else "; verify_power_up: true boots one"
            yield partition, chosen, "" if chosen else f"no node of it is up ({states}){advice}"

    def srun(self, partition: str, nodes: Sequence[Node], script: str, *more: str) -> Output:
        """Run a shell script once on each of these nodes, and read what it prints with say()."""
        name = f"{MARK}-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        gpus = min(node.gpus for node in nodes)
        booting = any(node.is_powered_down for node in nodes)
        argv = [
            os.path.join(self.options.slurm, "bin", "srun"),
            f"--job-name={name}",
            f"--partition={partition}",
            f"--nodes={len(nodes)}",
            f"--ntasks={len(nodes)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(node.name for node in nodes)}",
            f"--time={self.options.time_limit}",
            "--chdir=/tmp",
            *([] if booting else [f"--immediate={self.options.wait}"]),
            *([f"--gres=gpu:{gpus}"] if gpus else []),
            *more,
            "sh",
            "-c",
            f'say() {{ printf "\\n{MARK}|%s|%s|%s\\n" "$SLURMD_NODENAME" "$1" "$2"; }}\n{script}',
        ]
        # A node that boots may take as long as ParallelCluster gives it.
        limit = 60 * self.options.time_limit + (2400 if booting else self.options.wait) + 30
        child = subprocess.Popen(
            self._as_user(*(GPU_ENVIRONMENT if gpus else ()), *argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd="/tmp",
            start_new_session=True,
        )
        begun = time.monotonic()
        while True:
            _run.heartbeat()
            try:
                out, err = child.communicate(timeout=30)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() - begun > limit:
                    out, err = self._end(child, name)
                    err += f"\nthe job did not end within {limit} s, and was cancelled"
                    break
        values: dict[str, dict[str, list[str]]] = {}
        for node, key, value in re.findall(rf"^{MARK}\|([^|\n]*)\|([^|\n]*)\|(.*)$", out, re.MULTILINE):
            values.setdefault(node, {}).setdefault(key, []).append(value)
        return Output(child.returncode, values, telling(err))

    def _end(self, child: subprocess.Popen[str], name: str) -> tuple[str, str]:
        subprocess.run(
            self._as_user(os.path.join(self.options.slurm, "bin", "scancel"), f"--name={name}"),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                return child.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, sign)
        return child.communicate()


def is_busy(output: Output) -> bool:
    """Say whether a job did not run because its nodes had no room for it."""
    return any(
        re.search(r"Unable to allocate resources: (Requested nodes are busy|Immediate)", e) for e in output.errors
    )


def report(checks: Sequence[tuple[str, Check]], begun: float, **more: Any) -> dict[str, Any]:
    """Return what programs read."""
    return {
        **more,
        "started": _run.utc(begun),
        "finished": _run.utc(time.time()),
        "ok": not complaints(checks),
        "checks": [{"stage": stage, **check._asdict()} for stage, check in checks],
    }


def table(checks: Sequence[tuple[str, Check]]) -> list[str]:
    """Return what people read."""
    rows = [("STAGE", "WHERE", "CHECK", "RESULT", "")]
    rows += [(stage, check.subject, check.name, check.status, check.message) for stage, check in checks]
    widths = [max(len(row[index]) for row in rows) for index in range(4)]
    return ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[4]]).rstrip() for row in rows]


def complaints(checks: Sequence[tuple[str, Check]]) -> list[str]:
    """Return one line for each check that failed, or one that says that no job ran on any partition."""
    failed = [f"{c.subject}: {c.name} ({stage}): {c.message}" for stage, c in checks if c.status == "failed"]
    if failed or any(check.status == "ok" and check.subject != "cluster" for _stage, check in checks):
        return failed
    skipped = [f"{check.subject}: {check.message}" for _stage, check in checks if check.status == "skipped"]
    return [f"nothing was checked: {'; '.join(skipped) or 'there is no partition'}"]


def write(path: str, result: dict[str, Any]) -> None:
    """Put the report in place."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    _run.write_atomically(path, json.dumps(result, indent=1, sort_keys=True) + "\n", 0o644)
