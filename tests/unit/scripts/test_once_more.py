# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""once_more.py after real runs of pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.scripts import once_more

BROKEN = "def test_broken():\n    assert False\n"
# Fails the first time, and passes from then on.
SLOW = """import pathlib
def test_slow():
    seen = pathlib.Path(__file__).with_suffix(".seen")
    again = seen.exists()
    seen.touch()
    assert again
"""
# Cannot be imported the first time.
TORN = SLOW.replace("def test_slow():\n", "if True:\n") + "def test_torn():\n    pass\n"


def run(folder: Path, **files: str) -> tuple[int, int]:
    """Write files of tests and run them; return the status of that run, and of once_more.py after it."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    cache = f"--override-ini=cache_dir={folder}/cache"
    line = [sys.executable, "-m", "pytest", "-p", "no:xdist", "--rootdir", str(folder), cache, str(folder)]
    status = subprocess.run(line, capture_output=True, check=False).returncode
    return status, once_more.main([str(status), f"{folder}/cache", "--rootdir", str(folder)])


def test_what_fails_for_want_of_time_passes_alone_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, slow=SLOW, well="def test_well():\n    pass\n") == (1, 0)
    told = capfd.readouterr().out
    assert "1 passed" in told
    assert told.endswith("Failed beside other work, and passed alone:\n  test_slow.py::test_slow\n")


def test_what_is_broken_fails_alone_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, slow=SLOW, broken=BROKEN) == (1, 1)


@pytest.mark.parametrize("files", [{"torn": TORN, "broken": BROKEN}, {}], ids=["cannot be imported", "no tests"])
def test_a_run_that_did_not_reach_its_tests_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], files: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = run(tmp_path, **files)
    assert first == second != 0
    assert "before all tests were run: nothing is repeated" in capsys.readouterr().out


def test_a_run_with_a_file_that_one_process_could_not_import_is_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "v/cache").mkdir(parents=True)
    (tmp_path / "v/cache/lastfailed").write_text('{"test_a.py": true, "test_b.py::test_b": true}')
    assert once_more.main(["1", str(tmp_path)]) == 1
    assert "nothing is repeated" in capsys.readouterr().out
