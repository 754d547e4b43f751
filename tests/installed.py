# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where packages lie whose data the tests read. To import one takes seconds, in each process that lists the tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def package(name: str) -> Path:
    """Return the folder of a package, which is not imported."""
    spec = importlib.util.find_spec(name)
    assert spec
    assert spec.origin
    return Path(spec.origin).parent
