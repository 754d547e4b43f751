# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What `make release-check` says of a tag."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

release = load("scripts/release.py")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "changelogs/fragments").mkdir(parents=True)
    (tmp_path / "galaxy.yml").write_text("version: 1.2.0\n")
    (tmp_path / "changelogs/changelog.yaml").write_text("releases: {1.1.0: {}, 1.2.0: {}}\n")
    return tmp_path


def said(checkout: Path, tag: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = release.main(["--root", str(checkout), tag])
    return code, capsys.readouterr().out


def test_a_release(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(checkout, "1.2.0", capsys) == (0, "")


def test_another_tag(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "TAG is '1.2.1'; needed: 1.2.0, the version of galaxy.yml\n"
    assert said(checkout, "1.2.1", capsys) == (1, told)


def test_changelog_without_the_release(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkout / "galaxy.yml").write_text("version: 1.3.0\n")
    (checkout / "changelogs/fragments/mine.yml").write_text("bugfixes: [x]\n")
    code, out = said(checkout, "1.3.0", capsys)
    assert code == 1
    assert "changelog.yaml has no release 1.3.0; needed: make changelog" in out
    assert "fragments still has mine.yml, 1 in all; needed: make changelog" in out
