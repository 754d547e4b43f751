# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Names of bundles on pages are examples of a later version, so that none is taken for today's and ages with it.

docs/runbooks/upgrade.md has the version that comes: scripts/check_versions.py keeps that one.
"""

from __future__ import annotations

import re

from ansible_collections.pcluster.postboot.tests.programs import REPO

PAGES = [
    *(path for path in (REPO / "docs").rglob("*.md") if path.name != "upgrade.md"),
    *(REPO / "roles").glob("*/README.md"),
    *(REPO / "plugins/modules").glob("*.py"),
    *(REPO / "examples").rglob("*.md"),
]


def test_bundles_on_pages_have_the_versions_of_examples() -> None:
    found = {name for path in PAGES for name in re.findall(r"\b(\d+\.\d+\.\d+)-[0-9a-f]{12}\b", path.read_text())}
    assert found == {"1.3.0", "1.4.2"}
