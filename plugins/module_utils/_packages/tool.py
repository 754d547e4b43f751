# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Runs apt, dpkg, dnf and rpm: after others that are at work, within a time, and while this run shows that it lives."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence

from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import Said, run

SECONDS: float = 3600  # within which a program has to end, beside the time for which it waits for others
PAUSE = 5.0  # between two attempts while another program is at work
BEAT = 30.0
# needrestart would restart services, slurmd among them, under whatever runs in them.
_QUIET = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
_BUSY = re.compile(
    r"could not get lock|unable to (lock|acquire)|transaction lock|another process|is locked by", re.IGNORECASE
)
_STOPPED = (
    "it was killed; look whether the repositories answer, and in /var/log/apt/term.log or /var/log/dnf.rpm.log which "
    "package's script it waited for, and run this again, which finishes what is half installed"
)


@contextlib.contextmanager
def _heartbeat() -> Iterator[None]:
    """Show all the while that this run is alive: nothing else does while a program works."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT):
            lock.heartbeat()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def call(argv: Sequence[str], lock_timeout: int, *, merged: bool = False) -> Said:
    """Run one of them, again and again while another one is at work; `merged` as for run()."""
    deadline = time.monotonic() + lock_timeout
    if not shutil.which(argv[0]):
        raise Problem(f"the program {argv[0]} is not there: check 'manager' or 'format'")
    with _heartbeat():
        while True:
            said = run(argv, lock_timeout + SECONDS, environment=_QUIET, merged=merged, hint=_STOPPED)
            if not said.code or not _BUSY.search(said.err or said.out) or time.monotonic() >= deadline:
                return said
            time.sleep(PAUSE)
