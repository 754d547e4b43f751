# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lookup `template` returns what Ansible's own returns, and copies no variable for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import lookup_loader
from ansible.template import Templar, trust_as_template


class Uncopied:
    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("a variable was copied")


def look(name: str, term: str, variables: dict[str, Any], **options: Any) -> list[str]:
    loader = DataLoader()
    lookup = lookup_loader.get(name, loader=loader, templar=Templar(loader=loader, variables=variables))
    return list(lookup.run([term], variables, **options))


def test_text_is_that_of_ansibles_own_lookup(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/part.j2").write_text("{{ more }} of {{ name }}\n")
    (tmp_path / "templates/a.j2").write_text(
        "# {{ ansible_managed }}\n"
        "{% if name %}\n{% include 'part.j2' %}\n{% endif %}\nfrom {{ template_path }} {{ '\\\\' }}\n"
    )
    variables = {"name": trust_as_template("{{ other }}"), "other": "x", "ansible_search_path": [str(tmp_path)]}
    given = {"template_vars": {"more": "much"}}
    ours, ansibles = (
        look(f"{who}.template", "a.j2", variables, **given) for who in ("pcluster.postboot", "ansible.builtin")
    )
    # An included file ends without its last newline.
    assert ours == ansibles == ["# Ansible managed\nmuch of xfrom a.j2 \\\n"]
    with pytest.raises(AnsibleError, match=r"none\.j2"):
        look("pcluster.postboot.template", "none.j2", variables)


def test_no_variable_is_copied(tmp_path: Path) -> None:
    (tmp_path / "a.j2").write_text("{{ name }}\n")
    variables = {"name": "x", "big": Uncopied(), "ansible_search_path": [str(tmp_path)]}
    assert look("pcluster.postboot.template", "a.j2", variables) == ["x\n"]
    assert sorted(variables) == ["ansible_search_path", "big", "name"]
