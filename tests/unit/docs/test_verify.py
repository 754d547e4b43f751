# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/verify.md: the words of bad lines are those that verify prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/verify.md").read_text()
SOURCE = "".join(path.read_text() for path in sorted((ROOT / "plugins/module_utils/_verify").glob("*.py")))
TABLE = PAGE.partition("<!-- bad lines -->")[2].partition("###")[0]
WORDS = [word for row in re.findall(r"^\| (`.*?) \| ", TABLE, re.M) for word in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize("words", WORDS)
def test_verify_prints_these_words(words: str) -> None:
    assert words in SOURCE


def test_the_table_has_words() -> None:
    assert len(WORDS) > 10


def test_the_figure_of_the_example_fails_below_what_the_page_says() -> None:
    example = re.search(r"busbw: (\d+)", PAGE.partition("verify_nccl_expected:")[2])
    assert example
    assert f"fails below {int(example[1]) * 0.9:.0f} GB/s" in PAGE
