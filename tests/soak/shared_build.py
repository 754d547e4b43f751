# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults for the shared build: builders that race, are killed with kill -9 anywhere, and lose their lock unknowingly.

    .venv/bin/python tests/soak/shared_build.py --rounds 100

A process of its own looks, all the time, that `current` names a release which is whole to the last byte, and that no
final name holds anything else. After each round a run must finish and leave no stage, and the one after it must change
nothing. Each builder is a fork of this process, so that a kill is a real one.
Standard library only: any Python from 3.9 on runs it.
"""

from __future__ import annotations

import argparse
import collections
import functools
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests"))

from children import Child  # noqa: E402
from programs import load_collection  # noqa: E402

# --- processes -----------------------------------------------------------------------------------------------------


CALLS = {
    *(
        "open",
        "close",
        "read",
        "write",
        "pwrite",
        "ftruncate",
        "fsync",
        "flock",
        "mkdir",
        "rename",
        "symlink",
        "unlink",
    ),
    *("rmdir", "listdir", "scandir", "stat", "lstat", "readlink", "fchmod", "select", "poll", "fork_exec", "dumps"),
}
PHASES = {
    "take": "lock",
    "_write_token": "lock",
    "_sweep": "sweep",
    "_build": "steps",
    "seal": "manifest",
    "set_aside": "set aside",
    "publish": "rename",
    "point": "current",
    "remove": "prune",
    "close": "end",
}


def phase_of(frame: types.FrameType | None) -> str:
    """Return in which part of its work a builder is; of phases within phases the innermost."""
    while frame:
        if "/_shared_build/" in frame.f_code.co_filename and frame.f_code.co_name in PHASES:
            return PHASES[frame.f_code.co_name]
        frame = frame.f_back
    return "look"


class Killer:
    """Ends this process before its n-th call of the system within a phase, as kill -9 would; counts them for n = 0."""

    def __init__(self, phase: str, at: int, notes: Path | None = None) -> None:
        self._phase, self._at, self._notes = phase, at, notes
        self.count: collections.Counter[str] = collections.Counter()

    def __call__(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event != "c_call" or getattr(arg, "__name__", "") not in CALLS:
            return
        if not any(part in frame.f_code.co_filename for part in ("/_shared_build/", "/shutil.py", "/subprocess.py")):
            return
        phase = phase_of(frame)
        self.count[phase] += 1
        if phase == self._phase and self.count[phase] == self._at:
            sys.setprofile(None)
            if self._notes:
                self._notes.write_text(phase)
            os.kill(os.getpid(), signal.SIGKILL)

    def __enter__(self) -> Killer:
        sys.setprofile(self)
        return self

    def __exit__(self, *_raised: object) -> None:
        sys.setprofile(None)


# --- a cluster -----------------------------------------------------------------------------------------------------

PARTS = 6
MARK = "broken-on-purpose"
KEY = "x86_64"


class Violation(AssertionError):
    """An invariant that did not hold."""


def demand(problems: list[str], when: str) -> None:
    if problems:
        raise Violation(f"{when}: {'; '.join(problems)}")


def release_name(version: int) -> str:
    return f"2.{version}-x86_64"


class Cluster:
    """Shared storage, a source for each version, and nodes that build there."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "fsx" / "nccl"
        self.scratch = base / "scratch"
        self.built = base / "built"  # a line for each build that began
        for folder in (self.root.parent, self.scratch):
            folder.mkdir(parents=True)

    def content(self, version: int, flavour: str) -> dict[str, bytes]:
        """Return what is in a release, but for its manifest."""
        files = {"include/nccl.h": f"{version} {flavour}\n".encode() * 20}
        for part in range(PARTS):
            files[f"lib/part{part}"] = hashlib.sha256(f"{version} {flavour} {part}".encode()).digest() * (300 + part)
        return files

    def source(self, version: int, flavour: str) -> Path:
        folder = self.base / f"source-{version}-{flavour}"
        if not folder.exists():
            for name, data in self.content(version, flavour).items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        return folder

    def request(self, version: int, flavour: str = "a", **more: Any) -> Any:
        """Return what a node asks for."""
        from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import build

        copy = 'for part in "$1"/lib/*; do cp "$part" "$2/lib/"; sleep "$3"; done'
        given: dict[str, Any] = {
            "name": "soak",
            "root": str(self.root),
            "release": release_name(version),
            "inputs": {"version": version, "flavour": flavour},
            "source": str(self.source(version, flavour)),
            "steps": (
                ("sh", "-c", 'echo "$0" >> "$1"', str(version), str(self.built)),
                ("sh", "-c", 'mkdir "$1/lib" "$1/include"; cp "$0/include/nccl.h" "$1/include"', "{source}", "{stage}"),
                ("sh", "-c", copy, "copy", "{source}", "{stage}", "0.002"),
            ),
            "provides": ("include/nccl.h", f"lib/part{PARTS - 1}"),
            "proof": ("cmp", "{source}/lib/part0", "{stage}/lib/part0"),
            "key": KEY,
            "wait": 60,
            "keep": 1,
            "busy": ("true",),
            **more,
        }
        return build.Request(**given)

    def run(self, node: str, version: int, flavour: str = "a", **more: Any) -> dict[str, Any]:
        """Be a node that asks for a version; return its result, with its error."""
        from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
        from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import build, steps
        from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import root as shared_build_root

        steps.SCRATCH_DIR, steps.LOG_DIR = str(self.scratch), str(self.base / "log")
        shared_build_root.LONGEST_PAUSE = shared_build_root.LONGEST_LOOK = 0.05
        shared_build_root.node_name = lambda: node
        try:
            return {**build.apply(self.request(version, flavour, **more))._asdict(), "error": "", "lost": False}
        except Problem as error:
            return {"error": str(error), "lost": isinstance(error, shared_build_root.LostError), **error.told}

    def start(self, node: str, version: int, phase: str = "", at: int = 0, **more: Any) -> Child:
        """Start a node that asks for a version and may die at a call within a phase."""

        def work() -> dict[str, Any]:
            with Killer(phase, at, self.base / f"killed-{node}") as killer:
                result = self.run(node, version, **more)
            return {**result, "calls": killer.count}

        return Child(work)

    def builds(self) -> int:
        return len(self.built.read_text().splitlines()) if self.built.exists() else 0

    def flaw(self, name: str) -> str:
        """Say what is wrong with a release, byte by byte; nothing if it is whole."""
        folder = self.root / name
        try:
            inputs = json.loads((folder / "manifest.json").read_text())["inputs"]
            wanted = self.content(inputs["version"], inputs["flavour"])
            found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
            wrong = found ^ {*wanted, "manifest.json"}
            wrong |= {path for path, data in wanted.items() if (folder / path).read_bytes() != data}
        except (OSError, ValueError, KeyError) as error:
            return f"{name}: {error!r}"
        return f"{name}: wrong are {', '.join(sorted(wrong))}" if wrong else ""

    def current(self, link: str = "current") -> str:
        try:
            return os.readlink(self.root / link)
        except FileNotFoundError:
            return ""

    def names(self, hidden: bool = False) -> list[str]:
        """Return what lies in the root: the releases, or what is hidden."""
        if not self.root.exists():
            return []
        names = sorted(os.listdir(self.root))
        return [name for name in names if name[0] == "."] if hidden else [name for name in names if name[0].isdigit()]

    def look(self, current: bool = True) -> list[str]:
        """Return what must not be, at any moment."""
        wrong = []
        target = self.current() if current else ""
        flaw = self.flaw(target) if target else ""
        if flaw and self.current() == target and (flaw := self.flaw(target)) and self.current() == target:
            wrong.append(f"current is not whole: {flaw}")
        for name in self.names():
            # A release that is removed meanwhile has no name any more.
            if not (self.root / name / MARK).exists() and self.flaw(name) and (self.root / name).exists():
                flaw = self.flaw(name)
                if flaw and (self.root / name).exists() and not (self.root / name / MARK).exists():
                    wrong.append(f"a final name is not whole: {flaw}")
        return wrong

    def watch(self, end: Path) -> list[str]:
        """Look until a file appears; from the first whole release on that `current` names, it must always name one."""
        seen = False
        while True:
            over = end.exists()
            seen = seen or bool(self.current() and not self.flaw(self.current()))
            wrong = self.look(current=seen)
            if seen and not self.current():
                wrong.append("current is gone")
            if wrong or over:
                return wrong

    def steal(self) -> None:
        """Let the lock file be another, which nobody holds: what an evicted client does not know."""
        other = self.root / ".lock.stolen"
        other.write_text(json.dumps({"node": "thief", "pid": 1, "token": "stolen", "since": "now"}))
        other.replace(self.root / ".lock")


# --- rounds --------------------------------------------------------------------------------------------------------

STARTS = ("fresh", "fresh", "older", "older", "broken", "current broken", "other inputs")


class Soak:
    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.rng = root, random.Random(seed)
        self.numbers = itertools.count()
        self.killed: collections.Counter[str] = collections.Counter()
        self.stolen = self.lost = 0
        self._calls: dict[str, int] = {}

    def cluster(self, start: str) -> Cluster:
        """Return a cluster in the state in which a round starts."""
        cluster = Cluster(self.root / f"round-{next(self.numbers)}")
        # What they build is written here: the builders would write it at the same time.
        for version, flavour in itertools.product((1, 2, 3), ("a", "b")):
            cluster.source(version, flavour)
        for version in (0, 1) if start in ("older", "current broken") else ():
            Child(functools.partial(cluster.run, "early", version)).join()
        if start == "other inputs":
            Child(lambda: cluster.run("early", 2, "b")).join()
        if start in ("broken", "current broken"):
            broken = cluster.root / release_name(2)
            broken.mkdir(parents=True)
            for name in (MARK, "lib"):
                (broken / name).write_text("")
        if start == "current broken":
            (cluster.root / "current").unlink()
            (cluster.root / "current").symlink_to(release_name(2))
        cluster.built.unlink(missing_ok=True)
        return cluster

    def calls(self) -> dict[str, int]:
        """Return how many calls each phase of a build has; of one that does everything."""
        if not self._calls:
            for start in ("older", "broken"):
                cluster = self.cluster(start)
                stage = cluster.root / ".stage-old"
                stage.mkdir()
                answer = cluster.start("head", 2).join()
                demand([answer["error"]] if answer["error"] else [], "a run without a fault")
                for phase, count in answer["calls"].items():
                    self._calls[phase] = max(count, self._calls.get(phase, 0))
                shutil.rmtree(cluster.base)
            demand([phase for phase in {*PHASES.values()} if phase not in self._calls], "phases without a call")
        return self._calls

    def victim(self, cluster: Cluster, node: str, version: int) -> Child:
        """Start a builder that will be killed, if it comes that far."""
        phase = self.rng.choice(sorted(self.calls()))
        return cluster.start(node, version, phase, self.rng.randint(1, self.calls()[phase]))

    def round(self) -> None:
        """Let some builders race, with faults; see that all is well at any moment, and done at the end."""
        start = self.rng.choice(STARTS)
        cluster = self.cluster(start)
        theft = self.rng.random() < 0.4
        versions = self.rng.choice(((2,), (2,), (2, 3)))
        calm = not theft and self.rng.random() < 0.2
        end = cluster.base / "end"
        watcher = Child(lambda: cluster.watch(end))
        builders = []
        for number in range(self.rng.randint(2, 5)):
            what = (f"node{number}", self.rng.choice(versions))
            spared = calm or self.rng.random() < 0.4
            builders.append(cluster.start(*what) if spared else self.victim(cluster, *what))
        if theft:
            builders += self._steal(cluster, builders, versions)
        elif not calm and self.rng.random() < 0.5:
            time.sleep(self.rng.random() * 0.15)  # any moment will do
            self.rng.choice(builders).kill()
        answers = [builder.join() for builder in builders]
        killed = answers.count(None)
        self._count(cluster, killed)
        failed = [
            answer["error"] for answer in answers if answer and answer["error"] and not (theft and answer["lost"])
        ]
        self.lost += sum(bool(answer and answer["lost"]) for answer in answers)
        told = f"round with {start}, {versions}, {'theft, ' if theft else ''}{killed} of {len(answers)} killed"
        demand(failed, told)
        most = len(versions) + (killed + theft) * len(versions) + 2 * (len(versions) - 1) * len(answers)
        demand([f"{cluster.builds()} builds"] if cluster.builds() > most else [], f"{told}: built once")
        self._converge(cluster, 2, told)
        end.touch()
        demand(watcher.join(), told)
        shutil.rmtree(cluster.base)

    def _steal(self, cluster: Cluster, builders: list[Child], versions: tuple[int, ...]) -> list[Child]:
        """Replace the lock while somebody holds it, at any moment of that, and start another builder or two."""
        from ansible_collections.pcluster.postboot.plugins.module_utils._shared_build import root as shared_build_root

        root = str(cluster.root)
        while not (os.path.isdir(root) and shared_build_root.holder_now(root)):
            if all(builder.ended() for builder in builders):
                return []
        time.sleep(self.rng.random() * 0.06)  # any moment will do
        cluster.steal()
        self.stolen += 1
        late = [cluster.start("late0", self.rng.choice(versions))]
        if self.rng.random() < 0.3:
            late.append(self.victim(cluster, "late1", self.rng.choice(versions)))
        return late

    def _count(self, cluster: Cluster, killed: int) -> None:
        told = [path.read_text() for path in cluster.base.glob("killed-*")]
        self.killed.update(told)
        self.killed["any moment"] += max(0, killed - len(told))

    def _converge(self, cluster: Cluster, version: int, what: str) -> None:
        """Run until done; then nothing is to do, and nothing is left."""
        last = Child(lambda: cluster.run("last", version)).join()
        demand([last["error"]] if last["error"] else [], f"{what}: the last run failed")
        name = os.path.basename(last["path"])
        for link in ("current", f"current-{KEY}"):
            named = cluster.current(link)
            demand([] if named == name else [f"{link} names {named}"], f"{what}: the last run")
        demand(cluster.look(), f"{what}: the last run")
        left = [one for one in cluster.names(hidden=True) if one.startswith(".stage-")] + os.listdir(cluster.scratch)
        demand(left, f"{what}: the last run left")
        others = [one for one in cluster.names() if one != name]
        demand([f"there are {others}"] if len(others) > 1 else [], f"{what}: the last run removed old releases")
        again = Child(lambda: cluster.run("last", version)).join()
        wrong = [f"{key} is {again.get(key)!r}" for key in ("error", "changed", "due", "warnings") if again.get(key)]
        demand(wrong, f"{what}: the run after the last one was not idle")


def main() -> int:
    """Run the rounds; return 1 when an invariant did not hold."""
    parser = argparse.ArgumentParser(description="Faults for the shared build.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", action="store_true", help="leave the directories of failed rounds")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    parser.add_argument("--dir", default=memory, help="where to work; memory by default, as a kill needs no disk")
    options = parser.parse_args()
    load_collection()
    started = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="shared-build-soak-", dir=options.dir))
    soak = Soak(root, options.seed)
    failed = 0
    print(f"seed {options.seed}, {options.rounds} rounds in {root}", flush=True)
    try:
        for number in range(1, options.rounds + 1):
            try:
                soak.round()
            except Violation as error:
                failed += 1
                print(f"VIOLATION in round {number}: {error}", flush=True)
            if number % 20 == 0:
                print(f"{number} rounds, {failed} violations, {time.monotonic() - started:.0f} s", flush=True)
    finally:
        if not (failed and options.keep):
            shutil.rmtree(root, ignore_errors=True)
    kills = ", ".join(f"{count} in {phase}" for phase, count in sorted(soak.killed.items()) if count)
    print(
        f"{options.rounds} rounds, {sum(soak.killed.values())} kills ({kills or 'none'}), {soak.stolen} locks stolen, "
        f"{soak.lost} builders lost theirs, {failed} violations, {time.monotonic() - started:.0f} s, "
        f"Python {sys.version.split()[0]}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
