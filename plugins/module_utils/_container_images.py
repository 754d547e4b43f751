# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What became of the container images, as their importer has written it."""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _run

STATE = ".images.json"
SILENT = 180  # seconds without a sign of life after which the importer counts as gone


class WaitError(Exception):
    """Why it is not worth waiting, on one line."""


class Outlook(NamedTuple):
    """How far the images are."""

    current: bool  # the importer has read the settings that are in place now
    ready: list[str]
    busy: list[str]
    failed: dict[str, str]
    problems: list[str]
    updated: float

    @property
    def settled(self) -> bool:
        """Say whether the importer has tried everything that it was told to."""
        return self.current and not self.busy

    @property
    def summary(self) -> str:
        """Say it in a short phrase."""
        if not self.current:
            return "images are being looked for"
        total = len(self.ready) + len(self.busy) + len(self.failed)
        if not total:
            return "no image is listed"
        parts = [f"{len(self.ready)} of {total} images there"]
        parts += [f"{len(self.busy)} on the way"] if self.busy else []
        parts += [f"failed: {', '.join(self.failed)}"] if self.failed else []
        return "; ".join(parts)

    @property
    def complaint(self) -> str:
        """Say what is wrong, on one line; nothing if nothing is."""
        return "; ".join([*self.problems, *(f"{name}: {why}" for name, why in self.failed.items())])


def look(directory: str, settings: str) -> Outlook:
    """Read what the importer has written last."""
    try:
        with open(os.path.join(directory, STATE), encoding="utf-8") as stream:
            state = json.load(stream)
        with open(settings, "rb") as stream:
            current = state["seen"].get("settings") == hashlib.sha256(stream.read()).hexdigest()
        images = state["images"].items()
        return Outlook(
            current,
            sorted(name for name, entry in images if entry["state"] == "present"),
            sorted(name for name, entry in images if entry["state"] not in ("present", "failed")),
            {name: str(entry["why"]) for name, entry in sorted(images) if entry["state"] == "failed"},
            [str(problem) for problem in state.get("problems", [])],
            float(state["updated"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Outlook(False, [], [], {}, [], 0.0)


def wait(directory: str, settings: str, seconds: float, pause: float = 1.0) -> Outlook:
    """Wait until the importer has tried everything, or for so long."""
    begun = time.time()
    while True:
        _run.heartbeat()
        outlook = look(directory, settings)
        now = time.time()
        if outlook.settled or now - begun > seconds:
            return outlook
        if outlook.current and now - outlook.updated > SILENT:
            raise WaitError(
                f"the importer of {directory} has said nothing for {SILENT} s; see 'journalctl -u container-images'"
            )
        time.sleep(pause)
