# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""inventory/ansible.cfg, which users copy, as ansible-config reads it."""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def settings(found: Any) -> Iterator[dict[str, Any]]:
    """Go through what `ansible-config dump` tells, by plugin or not."""
    if isinstance(found, dict) and "origin" in found:
        yield found
    elif isinstance(found, (dict, list)):
        for inner in found.values() if isinstance(found, dict) else found:
            yield from settings(inner)


def test_ansible_reads_every_line_of_it(
    repo: Path, ansible: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = repo / "inventory/ansible.cfg"
    for name in [name for name in os.environ if name.startswith("ANSIBLE_")]:
        monkeypatch.delenv(name)
    valid, dump = (
        ansible("config", *words, "--type", "all", ANSIBLE_CONFIG=str(config))
        for words in (("validate",), ("dump", "--only-changed", "--format", "json"))
    )
    assert (valid.returncode, dump.returncode) == (0, 0), valid.stderr + dump.stderr
    read = {}
    for one in settings(json.loads(dump.stdout)):
        if one["origin"] == str(config):
            read[one["name"].lower().removeprefix("default_").removeprefix("ansible_")] = one["value"]
    names = {"any_unparsed_is_failed": "inventory_any_unparsed_is_failed", "retries": "reconnection_retries"}
    names["callback_result_format"] = "result_format"
    parser = configparser.ConfigParser()
    parser.read(config)
    written = {names.get(key, key) for section in parser.sections() for key in parser[section]}
    assert written == set(read)
    told = {"forks": 50, "pipelining": True, "stdout_callback": "pcluster.postboot.grouped"}
    assert {key: read[key] for key in told} == told
    assert "ControlMaster=auto -o ControlPersist=" in read["ssh_args"]
