# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Scratch files, two names exchanged, errors in words, and what the module's arguments mean."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import files, model
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files

SOAK = Path(__file__).resolve().parents[4] / "tests" / "soak" / "artifact.py"


def test_names_are_exchanged_in_one_step_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_text("file")
    if files.exchange(str(tmp_path / "a"), str(tmp_path / "b")):
        assert (tmp_path / "b").is_dir()
        assert (tmp_path / "a").read_text() == "file"
    assert not files.exchange(str(tmp_path / "a"), str(tmp_path / "none"))
    assert files._libc("no_such_function") == -1


@pytest.mark.parametrize("anonymous", [True, False])
def test_scratch_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anonymous: bool) -> None:
    if not anonymous:
        real = os.open

        def refuse(path: str, flags: int, *rest: int) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(95, "Operation not supported")
            return real(path, flags, *rest)

        monkeypatch.setattr(os, "open", refuse)
    with files.scratch(str(tmp_path / "new")) as file:
        file.write(b"x")
        assert list((tmp_path / "new").iterdir()) == []


def test_errors_name_final_paths_and_advise_on_a_full_disk() -> None:
    temporary = host_files.temp_name("/opt/tool")
    assert files.explain(OSError(28, "No space left on device"), "/x") == "/x: No space left on device"
    assert files.explain(OSError(13, "Permission denied", temporary), "/x") == "/opt/tool: Permission denied"
    assert files.explain(OSError(21, "Is a directory", temporary, None, "/opt/dir"), "/x") == "/opt/dir: Is a directory"
    assert files.advise(OSError(28, "Full"), "/x") == "/x: Full: free some space, then run again"
    assert files.advise(OSError(13, "Denied"), "/x") == "/x: Denied"


@pytest.mark.parametrize(
    ("mirror", "url", "place"),
    [
        ("https://m/base/", "https://h.org:8443/a/b%20c?x=1", "https://m/base/h.org/a/b%20c"),
        ("s3://bucket/prefix", "https://h.org/a/b%2Bc", "s3://bucket/prefix/h.org/a/b+c"),
        ("/fsx/mirror", "https://h.org/a/b%20c", "/fsx/mirror/h.org/a/b c"),
        ("file:///fsx/mirror", "https://h.org/a/b%20c", "file:///fsx/mirror/h.org/a/b%20c"),
        ("https://u:p@m", "s3://bucket/key", "https://u:p@m/bucket/key"),
    ],
)
def test_where_a_mirror_keeps_what(mirror: str, url: str, place: str) -> None:
    assert model.mirrored(mirror, url) == place


def test_secrets_are_found_but_not_words_that_would_black_out_others() -> None:
    assert model.secrets("https://h/x?1") == set()
    assert model.secrets("https://u:longpass@h/x") == {"u:longpass", "longpass"}
    assert model.secrets("http://[bad") == set()
    assert model.public("https://u:p@h:1/x?y#z") == "https://h:1/x"


def test_members_get_destinations() -> None:
    raw = {"name": "x", "url": "https://h/x", "sha256": "0" * 64, "dest": "/usr/local//bin/"}
    members = [
        {"src": "./*/tool"},
        {"src": "*/x*"},
        {"src": "a", "dest": "/etc/b"},
        {"src": "b", "dest": "c/"},
        {"src": "c", "dest": "../d", "mode": 0o755},
    ]
    found = model.parse({**raw, "members": members}).members
    assert [(member.src, member.dest, member.mode) for member in found] == [
        ("*/tool", "/usr/local/bin/tool", None),
        ("*/x*", "/usr/local/bin/", None),
        ("a", "/etc/b", None),
        ("b", "/usr/local/bin/c/", None),
        ("c", "/usr/local/d", 0o755),
    ]


def test_everything_works_on_the_oldest_python() -> None:
    python = next((path for path in sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python"))), None)
    if python is None:
        pytest.skip("no Python 3.9 here")
    done = subprocess.run(
        [str(python), str(SOAK), "--rounds", "3", "--only", "server", "--seed", "5"],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert sys.version_info >= (3, 9)
