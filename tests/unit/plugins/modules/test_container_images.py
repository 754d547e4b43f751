# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a run says of images that are imported in the background."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _container_images
from ansible_collections.pcluster.postboot.plugins.modules import container_images

Run = Callable[..., dict[str, Any]]
READY, BUSY = {"state": "present"}, {"state": "importing"}
FAILED = {"state": "failed", "why": "registry answered 401 Unauthorized"}


class Images:
    def __init__(self, root: Path) -> None:
        self.root, self.settings = root, root / "settings.json"
        self.settings.write_text("{}")
        self.arguments = {"path": str(root), "settings": str(self.settings)}

    def are(self, seen: str = "", problems: tuple[str, ...] = (), age: float = 0, **images: dict[str, str]) -> None:
        seen = seen or hashlib.sha256(self.settings.read_bytes()).hexdigest()
        state = {"images": images, "seen": {"settings": seen}, "problems": problems, "updated": time.time() - age}
        (self.root / _container_images.STATE).write_text(json.dumps(state))


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path)


@pytest.mark.parametrize(
    ("found", "summary"),
    [
        ({}, "no image is listed"),
        ({"a": READY}, "1 of 1 images there"),
        ({"a": READY, "b": BUSY, "c": FAILED}, "1 of 3 images there; 1 on the way; failed: c"),
        ({"a": {"state": "retrying"}, "b": {"state": "queued"}}, "0 of 2 images there; 2 on the way"),
    ],
)
def test_a_summary(images: Images, run_module: Run, found: Any, summary: str) -> None:
    images.are(**found)
    result = run_module(container_images, images.arguments)
    assert (result["summary"], result["changed"]) == (summary, False)


@pytest.mark.parametrize("broken", ["", "[]", '{"images": []}', '{"images": {"a": {}}, "seen": {}, "updated": 1}'])
def test_nothing_is_known_yet(images: Images, run_module: Run, broken: str) -> None:
    if broken:
        (images.root / _container_images.STATE).write_text(broken)
    assert run_module(container_images, images.arguments)["summary"] == "images are being looked for"


def test_what_was_written_before_the_settings_does_not_count(images: Images, run_module: Run) -> None:
    images.are(seen="others", a=READY)
    assert run_module(container_images, images.arguments)["summary"] == "images are being looked for"


def test_waiting_for_the_last_one(images: Images, run_module: Run) -> None:
    images.are(a=READY, b=BUSY)
    threading.Timer(0.5, images.are, kwargs={"a": READY, "b": READY}).start()
    result = run_module(container_images, {**images.arguments, "wait": True})
    assert result["changed"]
    assert result["summary"] == "2 of 2 images there"
    assert not run_module(container_images, {**images.arguments, "wait": True})["changed"]


def test_waiting_shows_what_failed(images: Images, run_module: Run) -> None:
    images.are(problems=("containers.txt, line 1: 'x y' names no image",), a=READY, b=FAILED)
    result = run_module(container_images, {**images.arguments, "wait": True})
    assert result["msg"] == "containers.txt, line 1: 'x y' names no image; b: registry answered 401 Unauthorized"
    assert result["summary"] == "1 of 2 images there; failed: b"


def test_waiting_has_an_end(images: Images, run_module: Run) -> None:
    images.are(a=BUSY)
    result = run_module(container_images, {**images.arguments, "wait": True, "timeout": 0})
    assert (result["settled"], result["msg"]) == (
        False,
        "0 of 1 images there; 1 on the way; the import goes on, but container_images_wait_timeout is over",
    )


def test_an_importer_that_is_gone(images: Images, run_module: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_container_images, "SILENT", 0)
    images.are(age=500, a=BUSY)
    result = run_module(container_images, {**images.arguments, "wait": True})
    assert result["msg"].endswith("has said nothing for 0 s; see 'journalctl -u container-images'")


def test_a_check_does_not_wait(images: Images, run_module: Run) -> None:
    images.are(a=BUSY, b=FAILED)
    result = run_module(container_images, {**images.arguments, "wait": True}, check=True)
    assert result["summary"] == "0 of 2 images there; 1 on the way; failed: b"
