# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A task that takes long is named with its seconds; a short one, and one that speaks for itself, is not."""

from __future__ import annotations

import re
import threading
import time

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site.patience import Patience
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE


def test_a_task_is_named_for_as_long_as_it_runs() -> None:
    told: list[str] = []
    twice = threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            twice.set()

    watch = Patience(tell, first=0.05, longest=0.1)
    watch.begin("Fetch every file")
    assert twice.wait(PATIENCE)
    watch.begin("")
    seen = len(told)
    time.sleep(0.3)
    assert len(told) == seen
    assert all(re.fullmatch(r"Fetch every file: \d+ s", line) for line in told)


def test_short_tasks_are_not_named() -> None:
    told: list[str] = []
    watch = Patience(told.append, first=2, longest=2)
    for number in range(4):
        watch.begin(f"task {number}")
        time.sleep(0.02)
    watch.begin("")
    time.sleep(2.2)
    assert told == []
