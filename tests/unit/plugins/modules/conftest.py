# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What tests of several modules ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ansible.module_utils.basic import AnsibleModule

from ansible_collections.pcluster.postboot.tests.unit.plugins import slurm
from ansible_collections.pcluster.postboot.tests.unit.plugins.signers import Signer, make


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What modules warn of."""
    told: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _self, text: told.append(text))
    return told


@pytest.fixture
def run(cluster: slurm.Cluster) -> slurm.Run:
    """Module verify, on the cluster of a test's file."""
    return cluster.run


@pytest.fixture(scope="session")
def signers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Signer, Signer]]:
    yield from make(tmp_path_factory.mktemp("gpg"))
