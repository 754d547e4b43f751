# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every CloudFormation template of the roles is one that cfn-lint finds nothing in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TEMPLATES = sorted((ROOT / "roles").glob("*/files/*.template"))


def test_every_stack_has_a_template() -> None:
    assert [path.stem for path in TEMPLATES] == ["infrastructure", "monitoring", "observability"]


def test_the_templates_are_valid() -> None:
    """cfn-lint starts once for all, since it reads long; what it finds begins with the file."""
    line = [str(Path(sys.executable).parent / "cfn-lint"), "--non-zero-exit-code", "informational", "--"]
    done = subprocess.run([*line, *map(str, TEMPLATES)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
