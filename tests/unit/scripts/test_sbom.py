# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The bill of materials: CycloneDX' own schema takes it, and it has what the roles pin."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.model import HashAlgorithm, HashType

from ansible_collections.pcluster.postboot.tests.programs import REPO, load

sbom = load("scripts/sbom.py")


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sbom.written(sbom.bill(REPO)))
    return found


def told(component: dict[str, Any]) -> dict[str, str]:
    return {one["name"].partition(":")[2]: one["value"] for one in component["properties"]}


def named(bill: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [one for one in bill["components"] if one["name"] == name]


def test_every_pinned_file_is_there_with_its_hash_and_its_address(bill: dict[str, Any]) -> None:
    for role in sorted((REPO / "roles").iterdir()):
        if not (role / "defaults/main.yml").is_file():
            continue
        for pin in sbom.pins_of(role)[0]:
            found = [one for one in named(bill, pin.variable[: -len("_sha256")]) if told(one)["role"] == role.name]
            (component,) = [one for one in found if told(one)["architecture"] == pin.architecture]
            assert [one["content"] for one in component.get("hashes", [])] == ([pin.recorded] if pin.recorded else [])
            assert component["externalReferences"][0]["url"].startswith("https://")
            assert "{{" not in json.dumps(component)


def test_what_verifies_each_is_told(bill: dict[str, Any]) -> None:
    assert {told(one)["verified_by"] for one in named(bill, "node_exporter")} == {"sha256"}
    assert told(named(bill, "aws_ofi_nccl")[0])["verified_by"] == "sha512"
    for rpm in named(bill, "cloudwatch_agent_rpm"):
        assert told(rpm)["verified_by"] == "OpenPGP signature of 937616F3450B7D806CBD9725D58167303B789C72"
    # A hash decides alone, and only the EFA installer has both.
    assert {told(deb)["verified_by"] for deb in named(bill, "cloudwatch_agent_deb")} == {"sha256"}
    assert "sha256, and OpenPGP signature of " in told(named(bill, "efa")[0])["verified_by"]
    assert told(named(bill, "grafana")[0])["verified_by"].startswith("the repository's key B53AE77BADB630A6830460")
    for proof in ("efa_key", "efa_signature"):
        assert told(named(bill, proof)[0])["verified_by"] == "itself: it vouches for another file, by a known key"
    (exporter,) = [one for one in named(bill, "slurm_exporter") if told(one)["architecture"] == "x86_64"]
    assert told(exporter)["verified_by"].startswith("nothing: nobody has told its hash")


def test_scanners_find_components_by_names_that_they_know(bill: dict[str, Any]) -> None:
    assert {one["purl"] for one in named(bill, "prometheus")} == {
        f"pkg:github/prometheus/prometheus@v3.13.4?arch={arch}" for arch in ("aarch64", "x86_64")
    }
    assert named(bill, "nccl_cu13")[0]["purl"] == "pkg:pypi/nvidia-nccl-cu13@2.32.3"
    (image,) = [one for one in bill["components"] if one["type"] == "container"]
    assert image["purl"].startswith("pkg:oci/dcgm-exporter@sha256:613ab03c")
    lock = "".join((REPO / f"requirements/{name}.txt").read_text() for name in ("node", "uv"))
    wheels = {(one["name"], one["version"]) for one in bill["components"] if one["type"] == "library"}
    assert wheels == set(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))


def test_every_version_that_a_role_takes_from_a_repository_is_there(bill: dict[str, Any]) -> None:
    versions = {name: named(bill, name)[0]["version"] for name in ("neuron", "neuron_driver", "dcgm", "docker")}
    assert versions == {"neuron": "2.32.28.0", "neuron_driver": "2.30.2.0", "dcgm": "4.6.0", "docker": "29"}
    for role in (REPO / "roles").iterdir():
        variables = sbom.pins_of(role)[1] if (role / "defaults/main.yml").is_file() else {}
        if f"{role.name}_key_fingerprints" in variables and not sbom.pins_of(role)[0]:
            there = {one["name"] for one in bill["components"] if told(one)["role"] == role.name}
            pinned = {key[2 : -len("_pin")] for key in variables if re.fullmatch(rf"__{role.name}(_\w+)?_pin", key)}
            assert there >= (pinned or {role.name})


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkout with one role."""
    for name in (
        "galaxy.yml",
        "requirements/node.txt",
        "requirements/uv.txt",
        "roles/pyxis/defaults/main.yml",
        "roles/pyxis/vars/main.yml",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, tmp_path / name)
    return tmp_path


def test_the_same_pins_make_the_same_bytes_and_others_do_not(small: Path) -> None:
    def write() -> str:
        assert sbom.main(["--root", str(small), "--output", str(small / "out.json")]) == 0
        return (small / "out.json").read_text()

    before = write()
    assert write() == before
    defaults = small / "roles/pyxis/defaults/main.yml"
    defaults.write_text(re.sub(r"noarch: \w+", f"noarch: {'0' * 64}", defaults.read_text()))
    assert json.loads(write())["serialNumber"] != json.loads(before)["serialNumber"]


def test_what_the_schema_refuses_is_no_bill(small: Path) -> None:
    bom = sbom.bill(small)
    next(iter(bom.components)).hashes.add(HashType(alg=HashAlgorithm.SHA_256, content="no hash"))
    with pytest.raises(ValueError, match=r"^CycloneDX 1\.6 refuses the bill: "):
        sbom.written(bom)
