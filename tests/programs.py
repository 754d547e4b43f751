# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Programs of the repository that are no part of a package, as modules for their tests; and the collection for them."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

REPO = Path(__file__).resolve().parents[1]


def load(path: str) -> ModuleType:
    """Return the program at a path below the repository's root, which finds modules beside itself as when it is run."""
    file = REPO / path
    spec = importlib.util.spec_from_file_location(f"postboot_{re.sub(r'[^a-z0-9]', '_', path)}", file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.modules[spec.name] = module  # where a dataclass looks for its annotations
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


def load_collection() -> None:
    """Make this checkout importable as a collection without Ansible, whatever else is installed."""
    if "ansible_collections.pcluster.postboot" in sys.modules:
        return
    for name, path in (
        ("ansible_collections", []),
        ("ansible_collections.pcluster", []),
        ("ansible_collections.pcluster.postboot", [str(REPO)]),
    ):
        package = ModuleType(name)
        package.__path__ = path
        sys.modules[name] = package
