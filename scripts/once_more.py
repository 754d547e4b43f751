# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs the tests that have failed once more, alone: beside the sandbox a test may fail for want of time.

    once_more.py STATUS CACHE [WORD...]

STATUS is that of the run that failed, CACHE its cache directory, WORD what pytest is given besides. A run that did not
get as far as its tests is not repeated: one that was ended, or one with files that could not be imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TESTS_FAILED = 1  # pytest.ExitCode


def main(arguments: list[str]) -> int:
    status, cache, *words = arguments
    told = Path(cache, "v/cache/lastfailed")
    failed = list(json.loads(told.read_text())) if told.exists() else []
    if int(status) != TESTS_FAILED or not failed or not all("::" in one for one in failed):
        print(f"ended with {status} before all tests were run: nothing is repeated")
        return int(status) or 1
    print(f"\nOnce more, alone: {len(failed)} that failed", flush=True)
    line = [sys.executable, "-m", "pytest", f"--override-ini=cache_dir={cache}", *words, *failed]
    done = subprocess.run(line, check=False)
    if not done.returncode:
        print("Failed beside other work, and passed alone:", *failed, sep="\n  ")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
