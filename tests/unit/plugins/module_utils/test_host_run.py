# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How programs are run: they end in time, and what goes wrong is one line."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host import run as host_run
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.process import process_started
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

Program = Callable[[str], str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    def make(body: str) -> str:
        path = tmp_path / "program"
        lab.program(path, f"#!/bin/bash\n{body}\n")
        return str(path)

    return make


def test_a_program_says_what_it_wrote_and_how_it_ended(program: Program) -> None:
    said = run([program('read -r line; echo "got $line in $LC_ALL"; echo oops >&2; exit 3')], 10, text="words\n")
    assert (said.code, said.out, said.err) == (3, "got words in C\n", "oops\n")
    with pytest.raises(Problem, match=r"^'.*/program' ended with 3: oops$"):
        said.output()


def test_without_text_there_is_nothing_to_read(program: Program) -> None:
    assert run([program("cat; echo done")], 10).output() == "done\n"


def test_what_a_program_said_is_its_errors_or_else_its_output(program: Program) -> None:
    assert run([program("echo one; echo; echo two")], 10).lines == ["one", "two"]
    said = run([program("echo one; echo ' two'>&2; echo three >&2")], 10)
    assert (said.first, said.reason) == ("two", "two")
    silent = run([program("exit 4")], 10)
    assert (silent.first, silent.reason) == ("it ended with 4 and said nothing",) * 2
    with pytest.raises(Problem, match="ended with 4: it said nothing"):
        silent.output()


@pytest.mark.parametrize("merged", [False, True])
def test_the_end_of_long_output_is_kept(program: Program, merged: bool) -> None:
    """As of `journalctl -u slurmd`, into which jobs write: what is kept is bounded, also while it is read."""
    many = program("cat; yes 0123456789abcde | head -c 30000000; printf 'last\\r\\n'; echo error >&2")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = run([many], PATIENCE, text="first\n", merged=merged, most=1000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 5000  # KiB
    assert said.out.endswith("abcde\nlast\nerror\n" if merged else "abcde\nlast\n")
    assert 990 < len(said.out) <= 1000
    assert said.err == ("" if merged else "error\n")
    assert said.dropped == 30_000_000 + 6 + 6 + (6 if merged else 0) - 1000
    short = run([program("cat; exit 3")], 10, text="x" * 300_000, most=400_000)
    assert (len(short.out), short.code, short.dropped) == (300_000, 3, 0)
    assert run([program("exit 0")], 10, text="x" * 300_000, most=9).out == ""


def test_long_output_has_its_time(program: Program) -> None:
    begin = time.monotonic()
    with pytest.raises(NotRun, match="did not end within 1 s"):
        run([program("yes")], 1, most=1000)
    with pytest.raises(NotRun, match="did not end within 1 s"):
        run([program("exec >&- 2>&-; sleep 600")], 1, most=1000)
    assert time.monotonic() - begin < PATIENCE


def test_merged_output_keeps_its_order(program: Program) -> None:
    said = run([program("echo one; echo two >&2; echo three")], 10, merged=True)
    assert (said.out, said.err) == ("one\ntwo\nthree\n", "")


def test_variables_are_added_or_are_the_only_ones(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "here")
    path = program('echo "$FROM_OUTSIDE $MINE $LC_ALL"')
    assert run([path], 10, environment={"MINE": "too", "LC_ALL": "C.UTF-8"}).out == "here too C.UTF-8\n"
    assert run([path], 10, environment={"MINE": "too"}, only=True).out == " too C\n"


def test_settings_of_the_caller_change_nothing_of_what_programs_print(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SINFO_PARTITION", "SLURM_CLUSTERS", "GIT_DIR", "DOCKER_HOST", "SYSTEMD_COLORS", "TAR_OPTIONS"):
        monkeypatch.setenv(name, "foreign")
    monkeypatch.setenv("SLURM_CONF", "/opt/slurm/etc/slurm.conf")
    assert "foreign" not in run([program("env")], 10).out
    assert "SLURM_CONF=/opt/slurm/etc/slurm.conf" in run([program("env")], 10).out
    assert "SLURM_CLUSTERS=a" in run([program("env")], 10, environment={"SLURM_CLUSTERS": "a"}).out


def test_bytes_that_are_no_text_do_not_end_it(program: Program) -> None:
    assert run([program(r"printf 'a\xffb'")], 10).out == "a\ufffdb"


@pytest.mark.parametrize("session", ["", "setsid "])
def test_a_program_that_hangs_is_killed_with_what_it_started(program: Program, tmp_path: Path, session: str) -> None:
    """Also with what has a session of its own, as dpkg has that apt-get runs."""
    pid = tmp_path / "pid"
    start = time.monotonic()
    # The grandchild keeps the pipes open, and outlives its parent.
    path = program(f"{session}sleep 600 & echo $! > {pid}; wait")
    with pytest.raises(NotRun, match=r"^'.*/program now' did not end within 2 s; see what it waits for$"):
        run([path, "now"], 2, hint="see what it waits for")
    assert time.monotonic() - start < PATIENCE
    until(lambda: not process_started(int(pid.read_text())))


def test_a_program_that_is_not_there_or_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotRun, match=r"^the program no-such-program is not there$"):
        run(["no-such-program"], 10)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(NotRun, match=f"^{file} cannot be run: Permission denied: {file}$"):
        run([str(file)], 10)
    with pytest.raises(NotRun, match=f"^true cannot be run: No such file or directory: {tmp_path}/gone$"):
        run(["true"], 10, cwd=f"{tmp_path}/gone")


def test_a_problem_is_one_line_and_has_what_is_told_beside_it() -> None:
    problem = Problem("two\n  lines", log=["a"])
    assert (str(problem), problem.told) == ("two lines", {"log": ["a"]})


def test_a_program_that_cannot_be_killed_is_left_behind(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in uninterruptible sleep, on a dead mount or with a lost GPU; here nobody kills it."""
    left: list[int] = []
    monkeypatch.setattr(host_run, "_kill", left.append)
    monkeypatch.setattr(host_run, "GOING", 0.2)
    begin = time.monotonic()
    try:
        with pytest.raises(NotRun, match=r"did not end within 0\.2 s"):
            run([program("sleep 600")], 0.2)
        assert time.monotonic() - begin < PATIENCE
        assert process_started(left[0])
    finally:
        os.killpg(left[0], signal.SIGKILL)
        os.waitpid(left[0], 0)
