# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The benchmark of containers says in one line what a machine lacks for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[3] / "tests/bench/containers.py"


def test_programs_that_are_missing_are_named(tmp_path: Path) -> None:
    (tmp_path / "squashfuse").write_text("#!/bin/sh\n")
    (tmp_path / "squashfuse").chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(BENCH)], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "containers: mksquashfs, unsquashfs, mountpoint, umount, fincore not found; needed: squashfs-tools, squashfuse "
        "and util-linux\n"
    )
