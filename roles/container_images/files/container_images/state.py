# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How far the images are, as the importer writes it and everybody reads it."""

from __future__ import annotations

import json
import os
import time
from typing import Any

STATE = ".images.json"
Entry = dict[str, Any]  # how far one image is


def size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5 or unit == "GB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.1f} {unit}"


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def read_state(directory: str) -> dict[str, Any]:
    """Return what an importer wrote last; nothing when there is none, or when it is no longer whole."""
    try:
        with open(os.path.join(directory, STATE), encoding="utf-8") as stream:
            state = json.load(stream)
        if _is_whole(state):
            return dict(state)
    except (OSError, ValueError, RecursionError):
        pass
    return {"images": {}, "seen": {}, "problems": []}


def _is_whole(state: Any) -> bool:
    """Say whether a state has what its readers need: others may write where images are shared."""
    if not isinstance(state, dict) or not isinstance(state.get("images"), dict):
        return False
    problems, entries = state.get("problems", []), state["images"].values()
    return (
        isinstance(state.get("seen", {}), dict)
        and isinstance(problems, list)
        and all(isinstance(problem, str) for problem in problems)
        and all(isinstance(one, dict) and isinstance(one.get("state"), str) for one in entries)
        and all("why" in one for one in entries if one["state"] == "failed")
    )


def is_settled(state: dict[str, Any]) -> bool:
    """Say whether nothing more is done before somebody asks, or much time has passed."""
    return all(entry["state"] in ("present", "failed") for entry in state["images"].values())


def failures_of(state: dict[str, Any]) -> list[str]:
    failed = [f"{name}: {entry['why']}" for name, entry in state["images"].items() if entry["state"] == "failed"]
    return [*state.get("problems", []), *sorted(failed)]
