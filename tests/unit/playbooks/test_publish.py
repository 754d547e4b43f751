# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What publish.yml and fleet.yml refuse before they do anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

from ansible_collections.pcluster.postboot.plugins.action import check_variables
from ansible_collections.pcluster.postboot.plugins.module_utils import _s3_release

PLAYBOOKS = Path(__file__).parents[3] / "playbooks"

GONE = "publish_hold"


def strangers(name: str, **variables: Any) -> tuple[list[str], list[str]]:
    """Return the options that a playbook knows, and which of these variables it refuses."""
    plays = yaml.safe_load((PLAYBOOKS / f"{name}.yml").read_text())
    (play,) = [one for one in plays if f"__{name}_strangers" in one.get("vars", {})]
    assert "No option is misspelt" in [task["name"] for task in play["tasks"][:2]]
    everything = {key: check_variables._trusted(value) for key, value in play["vars"].items()} | variables
    templar = Templar(loader=DataLoader(), variables=everything)
    found = [
        templar.template(check_variables._trusted(f"{{{{ __{name}_{what} }}}}"))
        for what in ("known_options", "strangers")
    ]
    return sorted(found[0]), sorted(found[1])


@pytest.mark.parametrize("name", ["publish", "fleet"])
def test_every_documented_option_is_known_and_no_other(name: str) -> None:
    text = (PLAYBOOKS / f"{name}.yml").read_text()
    head = "\n".join(line for line in text.splitlines() if re.match(rf"# {name}_", line))
    used = set(re.findall(rf"(?<![_\w]){name}_\w+", re.sub(r"#.*|__\w+", "", text))) - {GONE}
    known, _refused = strangers(name)
    assert known == sorted(set(re.findall(rf"\b{name}_\w+", head))) == sorted(used)


@pytest.mark.parametrize("name", ["publish", "fleet"])
def test_a_misspelt_option_is_refused(name: str) -> None:
    known, _refused = strangers(name)
    given = dict.fromkeys(known, "x") | {f"{name}_mod": 1, f"{name}_mine": 2, "mine": 3}
    assert strangers(name, **given)[1] == [f"{name}_mine", f"{name}_mod"]
    assert strangers(name, **given, common_foreign_variables=[f"{name}_mine"])[1] == [f"{name}_mod"]


def test_an_option_that_is_gone_is_one_line_that_says_what_to_do() -> None:
    first, *_rest = yaml.safe_load((PLAYBOOKS / "publish.yml").read_text())[0]["tasks"]
    refused = first["ansible.builtin.assert"]
    expression = check_variables._trusted(f"{{{{ {refused['that']} }}}}")
    assert Templar(loader=DataLoader(), variables={GONE: False}).template(expression) is False
    assert Templar(loader=DataLoader(), variables={}).template(expression) is True
    assert re.match(rf"{GONE} is gone, because .*; take it out, .*Timeout[^\n]*$", refused["fail_msg"])


BAD = ["s3://b/p", "s3://bucket", "s3://bucket/", "s3://Bucket/p", "s3://bucket/a b", "s3://bucket/a/p?", ""]


@pytest.mark.parametrize(
    ("place", "good"), [("s3://bucket/a/p", True), ("s3://my.bucket-1/p//", True), *((place, False) for place in BAD)]
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_built(place: str, good: bool) -> None:
    play = yaml.safe_load((PLAYBOOKS / "publish.yml").read_text())[0]
    (task,) = [one for one in play["tasks"] if one["name"] == "The place is named"]
    expression = check_variables._trusted(f"{{{{ {task['ansible.builtin.assert']['that']} }}}}")
    assert Templar(loader=DataLoader(), variables={"publish_s3": place}).template(expression) is good
    try:  # what the upload would say
        _s3_release.parse(place.rstrip("/"))
    except _s3_release.ReleaseError:
        assert not good
    else:
        assert good
