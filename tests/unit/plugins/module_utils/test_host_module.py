# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The options of a module are worked out of the request that they make."""

from __future__ import annotations

from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host.module import arguments


class Request(NamedTuple):
    name: str
    folders: tuple[str, ...]
    source: str | None = None
    words: tuple[str, ...] = ("a",)
    settings: dict[str, Any] = {}
    wait: float = 1.0
    mode: str = "auto"
    check: bool = False


def test_fields_become_options_but_for_check_mode() -> None:
    details: dict[str, Any] = {"folders": {"type": "list", "elements": "path"}, "mode": {"choices": ["auto", "never"]}}
    assert arguments(Request, paths=("source", "words"), **details) == {
        "name": {"type": "str", "required": True},
        "folders": {"type": "list", "elements": "path", "required": True},
        "source": {"type": "path"},
        "words": {"type": "list", "elements": "path", "default": ["a"]},
        "settings": {"type": "dict", "default": {}},
        "wait": {"type": "float", "default": 1.0},
        "mode": {"type": "str", "default": "auto", "choices": ["auto", "never"]},
    }


def test_a_field_can_be_left_out() -> None:
    assert "wait" not in arguments(Request, without=("wait",))


def test_no_module_shares_a_default_with_another_call() -> None:
    arguments(Request)["settings"]["default"]["left"] = True
    assert arguments(Request)["settings"]["default"] == {}
