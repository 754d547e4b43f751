# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""bob, a user without privileges, plants all that users can plant; every playbook and timer of root's still works.

docs/threat-model.md lists these attempts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from testinfra.host import Host

from .bundles import bucket, of_one_script
from .conftest import host
from .helpers import On, Play, Run, ok, variables
from .test_diagnose import Diagnose, diagnose

__all__ = ["diagnose"]  # a fixture, which pytest finds by its name here

USER = "bob"
NODES = ("head", "cpu-st-c5-1", "gpu-st-p5-1")
TOPS = ("/tmp", "/var/tmp", "/dev/shm", "/fsx/datasets", "/fsx/results", "/fsx/logs/slurm")
# What root's programs make there, with the tag of a process that has ended: names that a cleanup would take.
NAMES = (
    "postboot-build-00000000-1-1-{}",
    "postboot-pyxis-{}",
    "postboot-efa-{}",
    "pcluster-postboot-{}",
    ".{}.pcpb-tmp-00000000-1-1-00000000",
    ".{}.pcpb-old-00000000-1-1-00000000",
)
VICTIM = "/etc/pcluster-postboot-victim"
# One entry of each kind for each name. Deep: 1,500 levels are beyond the recursion limit of Python.
PLANT = """
import os, sys
tops, names, victim = sys.argv[1].split(), sys.argv[2].split(), sys.argv[3]
os.umask(0)
for top in filter(os.path.isdir, tops):
    for name in names:
        path = lambda kind: os.path.join(top, name.format(kind))
        os.mkfifo(path("fifo"))
        os.symlink(victim, path("link"))
        os.symlink("x" * 4000, path("far"))
        os.mkdir(path("wide"))
        for number in range(300):
            open(f"{path('wide')}/{number}", "w").close()
        os.mkdir(path("deep"))
        os.chdir(path("deep"))
        for _level in range(1500):
            os.mkdir("d")
            os.chdir("d")
        os.chdir("/")
"""
# Names that come and go while root lists them.
CHURN = """
import os, itertools, time
for number in itertools.count():
    time.sleep(0.002)
    for path in (f"/tmp/postboot-pyxis-c{number % 50}", f"/var/tmp/postboot-build-00000000-1-1-c{number % 50}"):
        os.mkdir(path)
        os.rmdir(path)
"""
# slurmctld logs the name of a partition that does not exist as the user wrote it, control characters and all.
ESCAPE = "\x1b[31mFORGED\x1b[0m"
HOSTILE = (
    f"fatal: {ESCAPE}",
    f"none\n[{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())}.000] fatal: {ESCAPE}",
    f"none\nslurmctld: fatal: {ESCAPE}",
    'password="' + "\\" * 62,
    "-----BEGIN PRIVATE KEY-----" + "A" * 20_000,
    "x" * 40_000,
)
# The journal shows such a line as the kernel's own would look, but for what journald itself notes of the sender.
LOGGED = (f"NVRM: Xid (PCI:0000:53:00): 79, {ESCAPE}", "Out of memory: Killed process 1 (slurmd)")


def as_bob(node: str, *words: str) -> Any:
    """Run a program as bob, given as words, so that no shell reads them."""
    line = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "env", f"HOME=/home/{USER}", *words]
    return host(node).run(" ".join(["%s"] * len(line)), *line)


@pytest.fixture(scope="module", autouse=True)
def _planted() -> Iterator[None]:
    tops = " ".join(TOPS)
    try:
        for node in NODES:
            on = host(node)
            on.check_output(f"mkdir {VICTIM} && echo kept > {VICTIM}/file")
            own = tops if node == "head" else "/tmp /var/tmp /dev/shm"
            planted = as_bob(node, "python3", "-c", PLANT, own, " ".join(NAMES), VICTIM)
            assert planted.rc == 0, planted.stderr
            on.check_output(f"systemd-run --quiet --unit=churn --uid={USER} python3 -c %s", CHURN)
        for text in HOSTILE:
            assert as_bob("head", "/opt/slurm/bin/srun", "-p", text, "true").rc != 0
            job = ("/opt/slurm/bin/sbatch", "-p", "cpu", "--output=/dev/null", f"--job-name={text}", "--wrap", "true")
            as_bob("head", *job, f"--comment={text}")
            as_bob("head", *job, f"--comment={text}", "--hold")
        for line in LOGGED:
            for node in NODES:
                as_bob(node, "logger", "-t", "kernel", line)
        yield
    finally:
        host("head").run(f"/opt/slurm/bin/scancel --user={USER}")
        for node in NODES:
            host(node).run("systemctl stop churn")
            host(node).run(f"find {tops} -xdev -user {USER} -depth -delete")
            host(node).run(f"rm -r {VICTIM}")


def clean(done: Run) -> Run:
    """The same run, which has succeeded and has printed nothing that a terminal obeys."""
    printed = ok(done).stdout + done.stderr
    assert printed.replace("\n", "").replace("\t", "").isprintable(), ascii(printed)[-3000:]
    return done


def entries(node: Host) -> int:
    """The number of bob's entries, without those that come and go."""
    return int(node.check_output(f"find {' '.join(TOPS)} -xdev -user {USER} -not -name '*-c[0-9]*' | wc -l"))


@pytest.fixture(autouse=True)
def _nothing_is_lost(on: On) -> Iterator[None]:
    """No run removes or changes an entry of bob's, or follows a link of his."""
    before = {node: entries(on(node)) for node in NODES}
    yield
    assert {node: entries(on(node)) for node in NODES} == before
    for node in NODES:
        assert on(node).check_output(f"cat {VICTIM}/file; ls {VICTIM}; stat -c %U:%a {VICTIM}/file") == (
            "kept\nfile\nroot:644"
        )


def test_site(play: Play) -> None:
    clean(play("--limit", ",".join(NODES), timeout=600))


def test_diagnose(diagnose: Diagnose) -> None:
    page = diagnose(",".join(NODES), diagnose_aws=False)
    clean(page.run)
    assert "FORGED" not in page.run.stdout, "no text of bob's is a finding"
    for name in ("summary.txt", "index.html"):
        assert page.texts[name].replace("\n", "").isprintable(), name
    assert {kind for kind, _node in page.found}.isdisjoint({"slurm-fatal", "xid-79", "oom"})


def test_verify(play: Play) -> None:
    options = variables(verify_stages=["containers"], verify_report="")
    clean(play("--limit", "head", *options, name="verify", timeout=300))


def test_status(play: Play) -> None:
    clean(play("--limit", "head", *variables(status_wait=False), name="status", timeout=120))


def test_fleet(play: Play) -> None:
    with bucket("sandbox-hostile") as found:
        bundle = of_one_script(found, "#!/usr/bin/env bash\necho 'pcluster-postboot: all is well'\n")
        clean(play("--limit", ",".join(NODES), *variables(**bundle), name="fleet", timeout=300))


def test_timers(on: On) -> None:
    timers = "systemctl list-units --plain --no-legend --type=timer 'pcluster-*' | cut -d. -f1"
    for node in NODES:
        for unit in on(node).check_output(timers).split():
            on(node).check_output(f"timeout 60 systemctl start {unit}.service")
            assert on(node).check_output(f"systemctl show --property=Result --value {unit}.service") == "success"


# 1.4 GB in lines as Slurm writes them of rejected jobs, and one line of 0.6 GB.
FILL = """
import sys
line = "[2026-11-27T11:48:13.162] _get_job_parts: invalid partition specified: password=\\"" + "\\\\" * 62 + " x" * 40
for _million in range(7):
    sys.stdout.write(f"{line}\\n" * 1_000_000)
for _part in range(6):
    sys.stdout.write("a:1:2 " * 16_000_000)
"""


@pytest.mark.long
def test_diagnose_reads_large_logs_within_its_limits(on: On, diagnose: Diagnose) -> None:
    head, log = on("head"), "/var/log/parallelcluster/hostile.log"
    memory = "ps -e -o rss=,comm= | grep python | sort -n | tail -n 1"  # of ParallelCluster's daemons, too
    try:
        head.check_output(f"python3 -c %s > {log}", FILL)
        assert head.file(log).size > 1_900_000_000
        begun, peak = time.monotonic(), 0
        with ThreadPoolExecutor() as pool:
            run = pool.submit(diagnose, "head", diagnose_aws=False)
            while not run.done():
                peak = max(peak, int(head.check_output(memory).split()[0]))
                time.sleep(0.1)
        left = json.loads(run.result().texts["nodes/head/gathered.json"])["left"]
        assert [line for line in left if line.startswith(f"{log}: ")], left
        assert f"{log}: " in run.result().summary, "the page names what was cut"
        assert time.monotonic() - begun < 180
        assert peak < 300_000, "kB"
    finally:
        head.check_output(f"rm -f {log}")
