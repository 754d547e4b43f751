# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""scripts/record_demo.py: what a terminal shows is drawn as it is, and the middle of long outputs is left out."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

record_demo = load("scripts/record_demo.py")
SITE = r"""
printf '\n$ ansible-playbook pcluster.postboot.site\n'
for number in $(seq 100); do echo task $number; done
printf '                    head\nfsx                 unchanged\ncloudwatch_agent    \033[32mchanged\033[0m\n'
printf 'one\ntwo\npcluster.postboot: 1 node, 1 changed\n'
printf '\n$ ls\n40%%\r41%%\n'
"""


def drawn(path: Path) -> list[str]:
    """The lines of a picture that say something, in their order."""
    rows: dict[float, str] = {}
    for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text"):
        y = float(text.attrib["y"])
        rows[y] = rows.get(y, "") + (text.text or "")
    lines = [rows[y].replace("\xa0", " ").rstrip() for y in sorted(rows)]
    return [line for line in lines if line]


def test_a_run_is_recorded_and_drawn_and_drawn_again_from_the_recording(tmp_path: Path) -> None:
    cast, first, second = tmp_path / "demo.cast", tmp_path / "first.svg", tmp_path / "second.svg"
    assert record_demo.main(["--cast", str(cast), "--out", str(first), "--", "bash", "-ec", SITE]) == 0
    assert drawn(first) == [
        "$ ansible-playbook pcluster.postboot.site",
        "… 100 lines …",
        "                    head",
        "fsx                 unchanged",
        "cloudwatch_agent    changed",
        "… 2 lines …",
        "pcluster.postboot: 1 node, 1 changed",
        "$ ls",
        "41%",
    ]
    assert json.loads(cast.read_text().splitlines()[0])["version"] == 2
    assert record_demo.main(["--from", str(cast), "--out", str(second)]) == 0
    assert second.read_text() == first.read_text()
    assert "http" not in re.sub(r'xmlns="[^"]+"', "", first.read_text())


def test_nothing_is_drawn_of_a_run_that_failed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^bash -c exit 3 ended with 3: nothing is drawn$"):
        record_demo.main(["--out", str(tmp_path / "demo.svg"), "--", "bash", "-c", "exit 3"])
    assert not (tmp_path / "demo.svg").exists()
