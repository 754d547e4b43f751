# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The file by which others see how far a node is in its own run."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._boot import record
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    slurm = tmp_path / "slurm"
    folder = slurm / "pcluster-postboot/boots"
    told = {"node": "gpu-st-p5-1", "instance": "i-1", "stage": "failed", "why": "two\nlines", "component": "efa"}
    record.write(told, str(folder))
    assert not slurm.exists()  # nothing is made where no Slurm is shared
    slurm.mkdir()
    record.write(told, str(folder))
    assert [path.name for path in folder.iterdir()] == ["gpu-st-p5-1"]
    found = record.parse((folder / "gpu-st-p5-1").read_text() + "colour a newer version's\n")
    assert found == {**told, "why": "two lines"}
    assert (folder / "gpu-st-p5-1").stat().st_mode & 0o777 == 0o644


def test_only_what_is_old_goes(tmp_path: Path) -> None:
    for name, days in (("gone", 8), (".cut", 8), ("here", 6)):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (0, time.time() - days * 86400))
    record.tidy(time.time(), str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_component_is_counted_among_those_that_run() -> None:
    plans = {"pull": {"run": True}, "fsx": {"run": False}, "efa": {"run": True}, "nccl": {"run": False}}
    found = record.position({"plans": plans, "component": "efa", "since": 1700000000.7})
    assert found == {"component": "efa", "number": "2", "of": "2", "since": "1700000000"}
    assert record.position({"plans": plans, "component": ""}) == {}
    assert record.position({}) == {}


def test_few_writes_are_made_and_the_last_word_is_always_among_them() -> None:
    told: list[dict[str, Any]] = []
    progress: dict[str, Any] = {}

    def put(one: Mapping[str, Any]) -> None:
        told.append(dict(one))

    teller = record.Teller("site", time.time() + 60, lambda: progress, put, every=0.05)
    start = time.monotonic()
    teller.start()
    for name in [f"component_{number}" for number in range(200)]:
        progress.update(component=name, plans={name: {"run": True}})
        time.sleep(0.001)
    teller.end("failed", "component_199", "it failed")
    assert len(told) < 10 + (time.monotonic() - start) / 0.05
    assert (told[0]["stage"], told[-1]["stage"], told[-1]["why"]) == ("site", "failed", "it failed")


def test_nobody_waits_for_storage_that_hangs(monkeypatch: Any) -> None:
    monkeypatch.setattr(record, "PATIENCE", 0.2)
    hangs = threading.Event()
    teller = record.Teller("site", 0, dict, lambda one: hangs.wait(600), every=0.05)
    teller.start()
    start = time.monotonic()
    teller.end("done")
    assert time.monotonic() - start < PATIENCE
    assert teller.daemon
    hangs.set()


def test_storage_that_fails_ends_nothing() -> None:
    calls = []

    def put(one: Mapping[str, Any]) -> None:
        calls.append(one)
        raise OSError("stale file handle")

    teller = record.Teller("site", 0, dict, put, every=0.01)
    teller.start()
    teller.end("done")
    assert calls[-1]["stage"] == "done"
