# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command line that slurm_exporter works out for its exporter."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

Arguments = Callable[..., list[str]]


@pytest.fixture
def arguments(work_out: Callable[..., Callable[[str], Any]]) -> Arguments:
    """arguments(accounting, **variables) returns the flags beyond those that are always there."""

    def make(accounting: bool = True, **variables: Any) -> list[str]:
        value = work_out("slurm_exporter", {}, __slurm_exporter_metrics={"accounting": accounting}, **variables)
        found = value("__slurm_exporter_arguments")
        always = ["--web.listen-address=127.0.0.1:9341", "--slurm.bin-path=/opt/slurm/bin", "--command.timeout=5s"]
        assert found[:3] == always
        return list(found[3:])

    return make


def test_collectors_that_can_only_fail_are_off(arguments: Arguments) -> None:
    assert arguments() == []
    assert arguments(accounting=False) == ["--no-collector.fairshare"]
    off = arguments(accounting=False, slurm_exporter_collectors_disabled=["gpus", "fairshare"])
    assert off == ["--no-collector.gpus", "--no-collector.fairshare"]


def test_users_can_be_left_out(arguments: Arguments) -> None:
    """Wherever the exporter tells them apart."""
    left = ["accounts", "users", "fairshare", "queue.user-label"]
    for value in (False, "false"):
        assert arguments(slurm_exporter_users=value) == [f"--no-collector.{name}" for name in left]
    assert arguments(slurm_exporter_users="true", slurm_exporter_flags=["--log.level=debug"]) == ["--log.level=debug"]


def test_a_stop_does_not_wait_for_an_exporter_that_ignores_sigterm(
    work_out: Callable[..., Callable[[str], Any]],
) -> None:
    """Version 1.8.4 does (SckyzO/slurm_exporter#139). Without the second line the unit would be left as failed."""
    text = work_out("slurm_exporter", {}, __slurm_exporter_metrics={"accounting": True})("slurm_exporter.service.j2")
    settings = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert (settings["KillSignal"], settings["SuccessExitStatus"]) == ("SIGKILL", "SIGKILL")
