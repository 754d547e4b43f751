# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The checker of molecule/cluster/parallelcluster, for the tests of examples and of the page about clusters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def check() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "molecule/cluster/parallelcluster"))
        import check

        yield check
    for name in ("account", "check", "resolver", "synthesize"):
        sys.modules.pop(name, None)
