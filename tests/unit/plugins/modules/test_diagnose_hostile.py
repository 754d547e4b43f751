# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A head node whose users have filled its logs: diagnose ends in time, in little memory, and names what it has cut."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import collect, judge, node, redact
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import Evidence, Finding, finding
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.limit import Budget
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.tests.conftest import REPO
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

# slurmctld 24.11, _get_job_parts(): the name of a partition as the user gave it.
REJECTED = "[2026-11-23T11:00:00.000] _get_job_parts: invalid partition specified: {}\n"
FATAL = "[2026-11-23T11:02:00.000] fatal: Unable to determine this slurmd's NodeName\n"
FILLS = (
    'password="' + "\\" * 62,
    "password=Aa{count:08}b",
    "-----BEGIN PRIVATE KEY-----",
    "token: |",
    "A" * 64 + "\n" + "A" * 64,
    "Encountered exception when launching instances for nodes (x1) [",
    "pcluster-postboot: \N{GRINNING FACE}",
    "\t" * 500,
    "fatal: " * 50,
    "cannot be read: " * 30,
)
# What a user may have written into on a head node: lines of Slurm, of logger(1), and of jobs on their nodes.
LOGS = (
    *("slurmctld.log", "slurmd.log", "slurmdbd.log", "syslog", "messages", "cloud-init-output.log", "chef-client.log"),
    *("parallelcluster/clustermgtd", "parallelcluster/slurm_resume.log", "parallelcluster/compute_console_output.log"),
    *("parallelcluster/clusterstatusmgtd", "pcluster-postboot/pull.log"),
)
# Runs the work of the module in a process of its own, whose memory is that of the work.
PROGRAM = """
import json, resource, sys, time
sys.path[:0] = [sys.argv[1]]
import programs
programs.load_collection()
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import collect, node
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
root, lock.RUN_DIR, collect.PATH = sys.argv[2:5]
begin = time.monotonic()
result = node.gather(node.Request(name="head", hours=1e6, **json.loads(sys.argv[5])), root)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
print(json.dumps({**result._asdict(), "seconds": time.monotonic() - begin, "mb": peak}))
"""


def lines(size: int, fills: tuple[str, ...]) -> Iterator[str]:
    count = written = 0
    while written < size:
        line = REJECTED.format(fills[count % len(fills)].replace("{count:08}", f"{count:08}"))
        yield line
        count, written = count + 1, written + len(line)


def fill(path: Path, size: int, fills: tuple[str, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    block = "".join(lines(min(size, 4_000_000), fills))
    with path.open("w") as stream:
        for _time in range(max(1, size // len(block))):
            stream.write(block)
        stream.write(FATAL)


@pytest.fixture
def head(node_tree: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    root = node_tree("head-ubuntu2404")
    monkeypatch.setattr(lock, "RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(collect, "PATH", f"{tmp_path}/bin")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for name in ("systemctl", "nvidia-smi", "ps", "ip", "ss", "free", "lsmod", "dpkg-query", "rpm"):
        lab.program(tmp_path / "bin" / name, "#!/bin/sh\nexit 0\n")
    lab.program(tmp_path / "bin/journalctl", f"#!/bin/sh\nexec /usr/bin/cat {root}/journal\n")
    (root / "journal").write_text("-- No entries --\n")
    return root


def gather(root: Path, tmp_path: Path, **limits: float) -> tuple[dict[str, Any], dict[str, str]]:
    argv = [str(REPO / "tests"), str(root), f"{tmp_path}/run", f"{tmp_path}/bin", json.dumps(limits)]
    said = subprocess.run([sys.executable, "-c", PROGRAM, *argv], check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(said.stdout)
    texts = {}
    with tarfile.open(result["path"]) as archive:
        for member in archive:
            stream = archive.extractfile(member)
            assert stream
            texts[member.name] = stream.read().decode()
    return result, texts


def hostile(root: Path, size: int) -> None:
    """Fill the logs: `size` bytes in all, and a line of a third of it."""
    each = size * 2 // 3 // (len(LOGS) + 1)
    for index, name in enumerate(LOGS):
        fills = (FILLS[index % len(FILLS)],) if index % 2 else FILLS
        fill(root / "var/log" / name, each, fills)
    fill(root / "journal", each, FILLS)
    with (root / "var/log/slurmctld.log").open("a") as stream:
        stream.write("[2026-11-23T11:03:00.000] error: ")
        for _time in range(size // 3 // 100_000):
            stream.write("password=x'" + "\\" * 99_989)
        stream.write("\n" + FATAL)


def judged(result: dict[str, Any], texts: dict[str, str]) -> None:
    """What the administrator needs is there, and what is not is named."""
    kinds = {one["kind"]: one for one in result["findings"]}
    assert kinds["slurm-fatal"]["line"] == FATAL.strip()
    assert not [kind for kind in kinds if kind.startswith("finder-")]
    assert texts["var/log/slurmctld.log"].endswith(FATAL)
    assert "password=Aa" not in "".join(texts.values())
    (cut,) = [line for line in result["left"] if line.startswith("/var/log/slurmctld.log: ")]
    assert re.search(r": 1 lines of more than [\d.]+ MB were cut$|: a line of some [\d.]+ MB or more was left out", cut)
    assert [line for line in result["left"] if re.match(r"journalctl .* MB the last were kept$", line)] != []


def test_work_that_takes_too_long_is_given_up_and_named(
    head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = re.compile("(?:a|aa)+b")  # as the pattern of named values was

    class Slow(redact.Redactor):
        def clean(self, text: str) -> tuple[str, Counter[str]]:
            endless.search(text)
            return super().clean(text)

    def slow(evidence: Evidence) -> Iterator[Finding]:
        for name in filter(endless.search, evidence.texts):
            yield finding("x", "note", "x", "x", name, "x", "logs")

    fill(head / "var/log/slurmctld.log", 1000, ("a" * 60,))
    fill(head / "var/log/slurmd.log", 1000, ("b",))
    monkeypatch.setattr(node, "Redactor", Slow)
    monkeypatch.setattr(node, "_CLEANING", (0.2, 60.0))
    result = node.gather(node.Request(hours=1e6), str(head))
    why = "left out, because its secrets were not found in time: it took more than 0.2 s"
    assert [line for line in result.left if line.startswith("/var/log/")] == [f"/var/log/slurmctld.log: {why}"]
    with tarfile.open(result.path) as archive:
        assert "var/log/slurmctld.log" not in archive.getnames()
        assert "var/log/slurmd.log" in archive.getnames()
    evidence = Evidence("head", "head", {"a" * 60: ""})
    (found,) = judge.judge(evidence, [slow], Budget(0.2, 60.0))
    assert (found.kind, found.line) == ("finder-slow", "slow: TimeUp: it took more than 0.2 s")
    (found,) = judge.judge(evidence, [slow], Budget(0.2, 0.0))
    assert found.line == "slow: TimeUp: the time was up"


def test_memory_and_time_do_not_grow_with_the_logs(head: Path, tmp_path: Path) -> None:
    found = []
    for size in (6_000_000, 48_000_000):
        hostile(head, size)
        found.append(gather(head, tmp_path, file_mb=0.2, node_mb=2.0))
        judged(*found[-1])
    (small, _texts), (large, _more) = found
    assert large["mb"] < small["mb"] + 20
    assert large["seconds"] < 3 * small["seconds"] + 1


@pytest.mark.long
def test_two_gigabytes_of_hostile_logs(head: Path, tmp_path: Path) -> None:
    hostile(head, 2_000_000_000)
    result, texts = gather(head, tmp_path)
    judged(result, texts)
    assert result["mb"] < 300
    assert result["seconds"] < 180
