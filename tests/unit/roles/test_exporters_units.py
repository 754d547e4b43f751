# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the exporters' services may do, as systemd itself judges it, and what they leave alone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components

# The exposure that systemd 252 has measured, by the roles' templates.
MEASURED = {
    f"{each.name}/templates/{unit.source}": unit.exposure
    for each in components.read()
    for unit in each.units
    if unit.exposure
}
# Who has to be root, and the privileges of root that are left: node-health writes where the head node believes what
# it reads, and reads the kernel's log; the decider drains nodes; Neuron's driver has files that root alone reads.
ROOT = {
    "node_health/templates/pcluster-node-health.service.j2": "CAP_SYSLOG",
    "node_health/templates/pcluster-node-health-decider.service.j2": "",
    "neuron_exporter/templates/neuron-exporter.service.j2": "",
}


def unit_of(repo: Path, template: str) -> str:
    """Return a unit without what its template works out, which is its program's command line only."""
    text = (repo / "roles" / template).read_text()
    assert len(re.findall(r"^ExecStart=", text, re.MULTILINE)) == 1
    text = re.sub(r"^ExecStart=.*?\n(?=\n|[A-Z#])", "ExecStart=/bin/true\n", text, flags=re.MULTILINE | re.DOTALL)
    return text.replace("{{ ansible_managed }}", "Managed.")


def offline() -> bool:
    if not shutil.which("systemd-analyze"):
        return False
    done = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[1]) >= 252


@pytest.mark.skipif(not offline(), reason="needs systemd-analyze of systemd 252")
@pytest.mark.parametrize(("template", "most"), MEASURED.items())
def test_its_exposure_is_no_more_than_was_measured(repo: Path, tmp_path: Path, template: str, most: float) -> None:
    unit = tmp_path / Path(template).stem
    unit.write_text(unit_of(repo, template))
    line = ["systemd-analyze", "security", "--no-pager", "--offline=true", str(unit)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert score, done.stdout
    assert float(score[1]) <= most


@pytest.mark.parametrize("template", MEASURED)
def test_it_touches_no_mount(repo: Path, template: str) -> None:
    """One that is dead, or comes by itself as FSx does, would keep it from starting when it is needed most."""
    settings = dict(line.split("=", 1) for line in unit_of(repo, template).splitlines() if re.match(r"\w+=", line))
    assert settings["ProtectSystem"] == "full"
    touching = {"ProtectHome", "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "TemporaryFileSystem"}
    assert not touching & set(settings)
    assert settings["CapabilityBoundingSet"] == ROOT.get(template, "")
    assert (settings.get("User", "root") == "root") is (template in ROOT)
