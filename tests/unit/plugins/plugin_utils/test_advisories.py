# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is known against the software of nodes: the data, what roles take of it, and what the report tells."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import advisories, roles
from ansible_collections.pcluster.postboot.tests import templating

CHECKED, KNOWN = advisories.read()
PINS = {
    "dcgm_exporter": "__dcgm_exporter_pin",
    "nvidia_container_toolkit": "__nvidia_container_toolkit_pin",
    "prometheus": "prometheus_version",
}


@pytest.mark.parametrize("advisory", KNOWN, ids=lambda each: each.ids[0])
def test_an_advisory_is_whole(advisory: advisories.Advisory) -> None:
    assert advisory.component in {*roles.for_nodes(), advisories.DRIVER, advisories.SLURM}
    assert advisory.answer in advisories.ANSWERS
    assert all(re.fullmatch(r"(CVE|GO)-20\d\d-\d{4,}|[\w-]+/[\w-]+#\d+", one) for one in advisory.ids)
    assert all(source.startswith("https://") for source in advisory.sources)
    assert advisory.sources
    assert date.fromisoformat(advisory.published) <= date.fromisoformat(CHECKED)
    # Without branches one version mends all, or none is known.
    assert advisory.branch or len(advisory.fixed) == 1 or (advisory.since and advisory.answer == "told")


@pytest.mark.parametrize("advisory", [one for one in KNOWN if one.component in PINS], ids=lambda each: each.ids[0])
def test_no_role_installs_what_an_advisory_names(advisory: advisories.Advisory) -> None:
    version = str(templating.work_out(f"common {advisory.component}", {})(PINS[advisory.component]))
    assert advisory.fix_for(version) == ""
    assert advisories.numbers(version) >= min(advisories.numbers(fix) for fix in advisory.fixed)


@pytest.mark.parametrize(
    ("version", "fix"),
    [("580.126.20", "580.159.03"), ("580.159.03", ""), ("595.71.05", ""), ("595.58.03", "595.71.05"), ("570.1", "")],
)
def test_a_branch_is_mended_by_its_own_version(version: str, fix: str) -> None:
    (driver,) = [each for each in KNOWN if each.component == advisories.DRIVER and each.branch]
    assert driver.fix_for(version) == fix


def test_the_floor_is_that_of_the_newest_flaw() -> None:
    assert advisories.floor("nvidia_container_toolkit") == {"minimum": "1.19.1", "flaw": "CVE-2026-24260"}
    assert advisories.floor("grafana", "13.2") == {
        "minimum": "13.2.2",
        "flaw": "CVE-2026-15815, CVE-2026-76154 and CVE-2026-79656",
    }
    for component in ("prometheus", "pyxis"):  # no older one is there to be replaced, and nothing is known
        assert advisories.floor(component) == {"minimum": "", "flaw": ""}


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"gpus": {"driver": "580.126.20"}}, ["nvidia_driver 580.126.20 has CVE-2026-24187 and 4 more, which 580.159"]),
        ({"gpus": {"driver": "595.112.07"}}, []),
        (
            {"gpus": {"driver": "570.172.08"}},
            ["nvidia_driver 570.172.08 has CVE-2026-24187 and 4 more, and no"],
        ),
        ({"gpus": {"driver": "610.10"}}, []),
        (
            {"components": {"grafana": "12.3.1"}},
            ["grafana 12.3.1 has CVE-2026-15815 and 2 more, and no"],
        ),
        ({"components": {"grafana": "11.6.0"}}, []),
        ({"gpus": {"driver": None}, "components": {"grafana": "unknown"}}, []),
        # The role replaces these; the older minor stays.
        ({"components": {"grafana": "13.2.1", "nvidia_container_toolkit": "1.17.0"}}, []),
        ({"components": {"grafana": "13.1.2"}}, ["grafana 13.1.2 has CVE-2026-15815 and 2 more, which 13.1.6 mends"]),
        ({"components": {"docker": "28.0.1", "prometheus": "3.0.0"}}, []),
        ({"components": {"alertmanager": "0.34.1"}}, ["alertmanager 0.34.1 has CVE-2026-111943, which 0.34.2 mends"]),
        ({"components": {"alertmanager": "0.34.2"}}, []),
        ({}, []),
        ({"slurm": {"version": "25.11.6"}}, ["slurm 25.11.6 has CVE-2026-65107 and 7 more, which 25.11.8 mends"]),
        (
            {"slurm": {"version": "24.05.8"}},
            ["slurm 24.05.8 has CVE-2026-65107 and 7 more, and no version of its branch is known that mends them"],
        ),
        *(({"slurm": {"version": version}}, []) for version in ("25.05.9", "25.11.8", "26.05.4", "26.11.0", None)),
        (
            {"gpus": {"driver": "595.91.07"}, "instance_type": "p6e-gb300r.36xlarge"},
            ["nvidia_driver 595.91.07 has NVIDIA/aicr#2383, and no newer version is known that mends it: see docs/"],
        ),
        ({"gpus": {"driver": "580.173.02"}, "instance_type": "p6e-gb200.36xlarge"}, []),
        ({"gpus": {"driver": "595.91.07"}, "instance_type": "p6-b200.48xlarge"}, []),
        ({"gpus": {"driver": "595.91.07"}, "instance_type": None}, []),
    ],
)
def test_the_report_tells_of_what_stays(facts: dict[str, Any], says: list[str]) -> None:
    told = advisories.told(facts)
    assert len(told) == len(says)
    assert all(line.startswith(text) for line, text in zip(told, says, strict=True))


def test_roles_take_their_floors_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def value(role: str, name: str, **facts: Any) -> Any:
        return templating.work_out(f"common {role}", facts)(name)

    assert value("dcgm_exporter", "__dcgm_exporter_minimum") == "4.8.2"
    changed = [advisories.Advisory(**{**vars(each), "fixed": ["99.1"]}) if each.branch == 0 else each for each in KNOWN]
    monkeypatch.setattr(advisories, "read", lambda: (CHECKED, tuple(changed)))
    assert value("dcgm_exporter", "__dcgm_exporter_minimum") == "99.1"
    assert value("nvidia_container_toolkit", "__nvidia_container_toolkit_minimum") == "99.1"
