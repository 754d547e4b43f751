# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The state of the container images, as their importer writes it."""

from __future__ import annotations

import hashlib
import os
import time
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

STATE = ".images.json"
_SHAPE = {
    "images": {document.ANY: {"state": str, "why": str}},
    "seen": {"settings": str},
    "problems": [str],
    "updated": float,
}
SILENT = 180  # seconds without a sign of life after which the importer counts as gone


class Outlook(NamedTuple):
    """The state of the images."""

    current: bool  # the importer has read the settings that are in place now
    ready: list[str]
    busy: list[str]
    failed: dict[str, str]
    problems: list[str]
    updated: float

    @property
    def settled(self) -> bool:
        """Say whether the importer has tried all images."""
        return self.current and not self.busy

    @property
    def summary(self) -> str:
        """Return the state of the images in a short phrase."""
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
        """Return the problems on one line; empty for none."""
        return "; ".join([*self.problems, *(f"{name}: {why}" for name, why in self.failed.items())])


def look(directory: str, settings: str) -> Outlook:
    """Read the importer's state file."""
    try:
        state = document.fitted(document.read(os.path.join(directory, STATE)), _SHAPE)
        with open(settings, "rb") as stream:
            current = state["seen"].get("settings") == hashlib.sha256(stream.read()).hexdigest()
        images = state["images"].items()
        return Outlook(
            current,
            sorted(name for name, entry in images if entry["state"] == "present"),
            sorted(name for name, entry in images if entry["state"] not in ("present", "failed")),
            {name: entry["why"] for name, entry in sorted(images) if entry["state"] == "failed"},
            state.get("problems", []),
            float(state["updated"]),
        )
    except (OSError, ValueError, KeyError):
        return Outlook(False, [], [], {}, [], 0.0)


def wait(directory: str, settings: str, seconds: float, pause: float = 1.0) -> Outlook:
    """Wait until the importer has tried all images, or until the seconds are over."""
    begun = shown = time.monotonic()
    updated = 0.0
    while True:
        lock.heartbeat()
        outlook = look(directory, settings)
        now = time.monotonic()
        if outlook.updated != updated:
            updated, shown = outlook.updated, now
        if outlook.settled or now - begun > seconds:
            return outlook
        if outlook.current and now - shown > SILENT:
            raise Problem(
                f"the importer of {directory} has said nothing for {SILENT} s; see 'journalctl -u container-images'",
                settled=True,
            )
        time.sleep(pause)
