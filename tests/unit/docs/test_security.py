# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the pages about security say of ports, gaps and links is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

ROOT = Path(__file__).resolve().parents[3]
pins = load("scripts/pins.py")
anchors = load("scripts/render_alerts.py").anchors
PAGES = ["SECURITY.md", "docs/threat-model.md", "docs/advisories.md", "docs/mirror.md"]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_what_is_there(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text()):
        name, _mark, anchor = link.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), link
        assert not anchor or anchor in anchors(file.read_text()), link


def test_the_tests_that_the_threat_model_names_are_there() -> None:
    named = re.findall(r"`([\w/]*test_\w+\.py)`", (ROOT / "docs/threat-model.md").read_text())
    assert len(named) > 10
    files = [str(path) for folder in ("tests", "molecule") for path in (ROOT / folder).rglob("test_*.py")]
    for name in named:
        assert any(file.endswith(f"/{name}") for file in files), name


def defaults(role: str) -> dict[str, Any]:
    found: dict[str, Any] = pins.load(ROOT / f"roles/{role}/defaults/main.yml")
    return found


def test_what_listens_is_told_with_its_port_and_its_reach() -> None:
    text = (ROOT / "docs/threat-model.md").read_text()
    rows = dict(re.findall(r"^\| ([^|]*\d{4}) \| ([^|]+) \|", text, re.MULTILINE))
    told = {re.sub(r"\W", "_", what.split()[0].lower()): where for where, what in rows.items()}
    for role in ("node_exporter", "dcgm_exporter", "prometheus", "grafana", "alertmanager", "slurm_exporter"):
        address = defaults(role)[f"{role}_listen_address"]
        where = told[role]
        assert where.endswith(address.rpartition(":")[2]), role
        assert ("loopback" in where) == address.startswith("127."), role


def test_every_gap_is_told_and_no_other() -> None:
    """A file that neither a hash nor a signature verifies, unless the file itself vouches for another one."""
    gaps = set()
    for role in sorted(path for path in (ROOT / "roles").iterdir() if (path / "defaults/main.yml").is_file()):
        found, variables = pins.pins_of(role)
        for pin in found:
            signed = f"__{pin.variable[: -len('_sha256')]}_signature" in variables
            if not pin.recorded and not signed and not pins.comes_along(pin, variables):
                gaps.add(role.name)
    section = (ROOT / "docs/mirror.md").read_text().partition("| component | nothing verifies it |")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == gaps


def test_the_commands_for_the_gaps_ask_for_the_pinned_releases() -> None:
    text = (ROOT / "docs/mirror.md").read_text()
    for role, repository in (("enroot", "NVIDIA/enroot"), ("slurm_exporter", "SckyzO/slurm_exporter")):
        assert f"https://api.github.com/repos/{repository}/releases/tags/v{defaults(role)[f'{role}_version']} |" in text
