# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The examples of docs/alerts.md, as far as they need no amtool, to which the sandbox's tests show them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.filter.secret_paths import secret_paths
from ansible_collections.pcluster.postboot.tests import templating

PAGE = Path(__file__).resolve().parents[3] / "docs/alerts.md"
FOLDER = "/etc/alertmanager/secrets/"


class Loader(yaml.SafeLoader):
    """Takes a value that is left to Go's templates as an Ansible that has templated it already."""


Loader.add_constructor("!unsafe", lambda _loader, node: "{% raw %}" + node.value + "{% endraw %}")
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES: list[dict[str, Any]] = [yaml.load(block, Loader) for block in BLOCKS]


def work_out(**variables: Any) -> Callable[[str], Any]:
    return templating.work_out("alertmanager", {}, role_path=str(templating.ROLES / "alertmanager"), **variables)


def test_there_is_one_for_each_kind_of_receiver() -> None:
    kinds = {key for one in EXAMPLES for receiver in one["alertmanager_receivers"] for key in receiver}
    assert kinds - {"name"} == {f"{kind}_configs" for kind in ("sns", "slack", "email", "pagerduty", "webhook")}


@pytest.mark.parametrize("given", EXAMPLES)
def test_its_variables_are_the_roles_and_every_secret_has_a_source(given: dict[str, Any]) -> None:
    options = yaml.safe_load((templating.ROLES / "alertmanager/meta/argument_specs.yml").read_text())
    assert set(given) <= set(options["argument_specs"]["main"]["options"])
    value = work_out(**given)
    assert value("__alertmanager_problems") == []
    named = secret_paths([given.get("alertmanager_global"), given["alertmanager_receivers"]])
    assert sorted(named) == sorted(FOLDER + name for name in given.get("alertmanager_secrets", {}))
    configuration = yaml.safe_load(value("alertmanager.yml.j2"))
    names = {one["name"] for one in configuration["receivers"]}
    assert {one["receiver"] for one in [configuration["route"], *configuration["route"]["routes"]]} <= names


def test_routes_of_the_page_are_those_of_the_roles_readme() -> None:
    readme = (templating.ROLES / "alertmanager/README.md").read_text()
    route = work_out()("__alertmanager_route")
    table = readme.split("## What is sent where")[1].split("**One alert")[0]
    for key, text in re.findall(r"^\| `(\w+)` \| `(.*?)` \|", table, re.MULTILINE):
        assert yaml.safe_load(text) == route.pop(key)
    assert set(route) == {"receiver"}
