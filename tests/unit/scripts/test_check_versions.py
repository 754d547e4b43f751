# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Versions that do not agree are found: the collection's own, what was deprecated, and what is supported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.programs import load

REPO = Path(__file__).resolve().parents[3]
check_versions = load("scripts/check_versions.py")
FILES = (
    *("README.md", "galaxy.yml", "changelogs/changelog.yaml", "meta/runtime.yml", "meta/supported.yml"),
    *("meta/deprecations.yml", "requirements/node.in", "plugins/module_utils/_bundle/wheels.py"),
    *("molecule/cluster/topology.yml", "molecule/cluster/README.md", "docs/status.md", "docs/runbooks/upgrade.md"),
    *("roles/publish/defaults/main.yml", "roles/cluster_config/defaults/main.yml", "roles/common/defaults/main.yml"),
    *("roles/pull/files/bootstrap.sh", "roles/cluster_config/meta/argument_specs.yml", "Makefile"),
    "examples/cluster-configs/README.md",
)
Problems = Callable[..., list[str]]


@pytest.fixture
def problems(tmp_path: Path) -> Problems:
    """A function that changes a file of a checkout, each time anew, and returns what is found then."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "changelogs/fragments").mkdir()

    def found(name: str = "", before: str = "", after: str = "", fragment: str = "minor_changes: [new]") -> list[str]:
        for file in FILES:
            shutil.copy(REPO / file, tmp_path / file)
        # The version that follows the checkout's last release, whatever it is.
        own = yaml.safe_load((REPO / "galaxy.yml").read_text())["version"]
        log = tmp_path / "changelogs/changelog.yaml"
        log.write_text(yaml.safe_dump({"releases": {"0.1.0": {}}}))
        for file in ("galaxy.yml", "docs/runbooks/upgrade.md"):
            path = tmp_path / file
            path.write_text(path.read_text().replace(own, "0.2.0"))
        (tmp_path / "changelogs/fragments/one.yml").write_text(fragment)
        if name:
            text = (tmp_path / name).read_text()
            assert before in text, f"{name} has no {before!r}"
            (tmp_path / name).write_text(text.replace(before, after))
        return list(check_versions.problems(tmp_path))

    return found


def test_the_repository_is_let_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_versions.main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("own", "fragment", "says"),
    [
        ("0.1.0", "bugfixes: [mended]", "with fragments of what is new; needed: a version above 0.1.0"),
        ("0.1.1", "minor_changes: [new]", "needed: another minor version, because the fragments have minor_changes"),
        ("0.2.0", "", "needed: a fragment of what is new, or the same version"),
    ],
)
def test_the_collections_version_follows_from_what_has_changed(
    problems: Problems, own: str, fragment: str, says: str
) -> None:
    (first, *_rest) = problems("galaxy.yml", "version: 0.2.0", f"version: {own}", fragment=fragment)
    assert first.startswith(f"galaxy.yml: version is {own}, and CHANGELOG.rst ends with 0.1.0")
    assert first.endswith(says)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "removed_in: 0.4.0",
            "removed_in: 0.2.0",
            "publish_hold was to be removed in 0.2.0, and galaxy.yml says 0.2.0",
        ),
        ("removed_in: 0.4.0", "removed_in: 0.3.0", "publish_hold goes with 0.3.0; needed: 0.4.0, two minor versions"),
        ("since: 0.2.0", "since: 0.3.0", "publish_hold is deprecated since 0.3.0, and galaxy.yml says 0.2.0"),
        ("publish_hold", "publish_dir", "publish_dir is a variable of a role still"),
        ("because: >-", "to: publish_dir\n    because: >-", "publish_hold is called publish_dir now, whose default"),
        ("because: >-", "value: >-", "is a word of publish_hold; needed: a variable of a role"),
        ("--hold", "--held", "--held is not named in roles/pull/files/bootstrap.sh"),
        ("common_deferred", "common_later", "reported is a word of common_later; needed: a variable of a role"),
    ],
)
def test_a_deprecation_that_is_over_or_not_kept_is_found(
    problems: Problems, before: str, after: str, says: str
) -> None:
    found = problems("meta/deprecations.yml", before, after)
    assert any(says in line for line in found), found


def test_a_renamed_variable_whose_default_reads_the_old_one_is_let_be(problems: Problems, tmp_path: Path) -> None:
    problems()
    entry = {"name": "publish_folder", "to": "publish_dir", "since": "0.2.0", "removed_in": "0.4.0"}
    (tmp_path / "meta/deprecations.yml").write_text(yaml.safe_dump({"variables": [entry]}))
    defaults = tmp_path / "roles/publish/defaults/main.yml"
    assert len(check_versions.problems(tmp_path)) == 1
    defaults.write_text(f"{defaults.read_text()}\npublish_dir: \"{{{{ publish_folder | default('bundles') }}}}\"\n")
    assert check_versions.problems(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "before", "after", "says"),
    [
        (
            "README.md",
            "3.13 to 3.16",
            "3.12 to 3.16",
            "'ParallelCluster 3.13 to 3.16 on Ubuntu 22.04 and 24.04, Amazon",
        ),
        ("README.md", "2.19 and 2.21 are", "2.19 is", "'Python 3.11 or newer; ansible-core 2.19 and 2.21 are tested'"),
        ("meta/runtime.yml", ">=2.19.0", ">=2.20.0", "'requires_ansible: \">=2.19.0\"' is not there"),
        ("requirements/node.in", ">=2.21", ">=2.22", "'ansible-core>=2.21,<' is not there"),
        ("plugins/module_utils/_bundle/wheels.py", '"3.14")', '"3.15")', "is not there, which follows from meta/supp"),
        ("Makefile", "parallelcluster-3.13 ", "", "Makefile: 'parallelcluster-3.13 ' is not there"),
        ("molecule/cluster/topology.yml", ": 3.13.2", ": 3.14.0", "'parallelcluster: 3.13.2' is not there"),
        ("roles/publish/defaults/main.yml", ', "3.14"', "", "publish_pythons is ['3.11', '3.12', '3.13'] by default"),
        ("docs/runbooks/upgrade.md", ".git,0.2.0", ".git,0.3.0", "docs/runbooks/upgrade.md: 0.3.0 is no release"),
        ("docs/runbooks/upgrade.md", "0.2.0", "0.1.0", "upgrades to 0.1.0; needed: 0.2.0, as galaxy.yml says"),
    ],
)
def test_what_says_something_else_is_found(problems: Problems, name: str, before: str, after: str, says: str) -> None:
    found = problems(name, before, after)
    assert any(says in line for line in found), found
