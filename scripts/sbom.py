#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write what nodes get as a software bill of materials (CycloneDX 1.6, JSON), from the pins of the roles.

It lists the files that roles pin, the packages that come from publishers' repositories, the container image of the DCGM
exporter, and the Python packages of a bundle. The same pins make the same bytes. What the distribution's own
repositories bring is not listed, nor what the AMI has.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cyclonedx.contrib.hash.factories import HashTypeFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import github_releases
from pins import by_signature, comes_along, pins_of, work_out

from plugins.plugin_utils._site.components import load

SCHEMA = SchemaVersion.V1_6
_HASHES = HashTypeFactory()
NAME = "pcluster.postboot"
_WHEEL = re.compile(r"/([^/]+?)-(\d[^-/]*)-[^/]+\.whl$")
_REQUIREMENT = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)(?: ; [^\\\n]+)?((?: \\\n +--hash=sha256:[0-9a-f]{64})+)", re.MULTILINE
)
_PIN = re.compile(r"__\w+_(?:pin|major)")
_IMAGE = re.compile(r"(?P<repository>[^@]+)/(?P<name>[^/@]+)@sha256:(?P<digest>[0-9a-f]{64})")


def _component(
    name: str,
    version: str,
    purl: PackageURL,
    *,
    kind: ComponentType = ComponentType.APPLICATION,
    url: str = "",
    digest: str = "",
    **told: str,
) -> Component:
    hashes = [_HASHES.from_hashlib_alg("sha512" if len(digest) == 128 else "sha256", digest)] if digest else []
    return Component(
        name=name,
        version=version,
        type=kind,
        bom_ref="/".join(["pcluster.postboot", name, version, told.get("architecture", "any")]),
        purl=purl,
        hashes=hashes,
        external_references=[ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(url))] if url else [],
        properties=[Property(name=f"{NAME}:{key}", value=value) for key, value in told.items()],
    )


def _purl(name: str, version: str, url: str, architecture: str) -> PackageURL:
    place, wheel = github_releases.place_of(url), _WHEEL.search(url)
    arch = {} if architecture == "noarch" else {"arch": architecture}
    if place:
        owner, _slash, repository = place.repository.partition("/")
        return PackageURL("github", owner, repository, place.tag, arch)
    if wheel:
        return PackageURL("pypi", None, wheel[1].replace("_", "-"), wheel[2])
    return PackageURL("generic", None, name, version, {**arch, "download_url": url})


def _files(role: Path) -> Iterator[Component]:
    """Yield the files that a role pins."""
    pins, variables = pins_of(role)
    for pin in pins:
        what = pin.variable[: -len("_sha256")]
        if f"__{what}_url" not in variables:
            continue
        named = (f"__{what}_version", f"{what}_version", f"{role.name}_version")
        version = work_out(next(name for name in named if name in variables), variables, pin.architecture)
        url = work_out(f"__{what}_url", variables, pin.architecture)
        verified = pin.kind if pin.recorded else "nothing: nobody has told its hash, and no node installs it"
        if not pin.recorded and comes_along(pin, variables):
            verified = "itself: it vouches for another file, by a known key"
        if by_signature(pin, variables):
            keys = [re.sub(" ", "", key) for key in variables[f"{role.name}_key_fingerprints"]]
            both = f"{pin.kind}, and " if pin.recorded else ""
            verified = f"{both}OpenPGP signature of {' or '.join(keys)}"
        yield _component(
            what,
            version,
            _purl(what, version, url, pin.architecture),
            url=url,
            digest=pin.recorded,
            architecture=pin.architecture,
            role=role.name,
            verified_by=verified,
        )


def _packages(role: Path) -> Iterator[Component]:
    """Yield what a role takes from its publisher's repository, each by its version, such as __<role>_<what>_pin."""
    pins, variables = pins_of(role)
    keys = variables.get(f"{role.name}_key_fingerprints")
    if not keys or pins:
        return
    found = {key[2:].rpartition("_")[0]: key for key in variables if _PIN.fullmatch(key) and role.name in key}
    for name, variable in sorted(found.items()):
        version = str(variables.get(f"{name}_version") or work_out(variable, variables, "x86_64"))
        yield _component(
            name,
            version,
            PackageURL("generic", None, name, version),
            role=role.name,
            verified_by=f"the repository's key {' or '.join(re.sub(' ', '', key) for key in keys)}",
        )


def _images(role: Path) -> Iterator[Component]:
    """Yield the container images that a role names by their digest."""
    for value in (load(role / "defaults/main.yml") or {}).values():
        found = _IMAGE.fullmatch(value) if isinstance(value, str) else None
        if found:
            where = {"repository_url": f"{found['repository']}/{found['name']}"}
            yield _component(
                f"{found['name']} (container)",
                f"sha256:{found['digest']}",
                PackageURL("oci", None, found["name"], f"sha256:{found['digest']}", where),
                kind=ComponentType.CONTAINER,
                digest=found["digest"],
                role=role.name,
                verified_by="digest",
            )


def _wheels(root: Path) -> Iterator[Component]:
    """Yield the Python packages with which a node runs a bundle; one of several files, each of a hash of its own."""
    text = "".join((root / f"requirements/{name}.txt").read_text(encoding="utf-8") for name in ("node", "uv"))
    for name, version, hashes in _REQUIREMENT.findall(text):
        files = [_HASHES.from_hashlib_alg("sha256", one) for one in re.findall(r"[0-9a-f]{64}", hashes)]
        component = _component(
            name,
            version,
            PackageURL("pypi", None, name, version),
            kind=ComponentType.LIBRARY,
            role="pull",
            verified_by="sha256",
        )
        page = XsUri(f"https://pypi.org/project/{name}/{version}/")
        component.external_references.add(
            ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=page, hashes=files)
        )
        yield component


def bill(root: Path) -> Bom:
    """Return the whole bill."""
    galaxy: Mapping[str, Any] = load(root / "galaxy.yml")
    version = str(galaxy["version"])
    collection = Component(
        name=NAME,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=f"pcluster.postboot/{version}",
        purl=PackageURL("generic", None, NAME, version),
    )
    roles = [role for role in sorted((root / "roles").iterdir()) if (role / "defaults/main.yml").is_file()]
    found = [*_wheels(root), *(one for role in roles for make in (_files, _packages, _images) for one in make(role))]
    bom = Bom(components=found)
    bom.metadata.component = collection
    bom.register_dependency(collection, found)
    return bom


def written(bom: Bom) -> str:
    """Return the bill as JSON. ValueError says what CycloneDX' own schema refuses."""
    data = json.loads(make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string())
    # The same pins make the same bytes.
    del data["metadata"]["timestamp"], data["serialNumber"]
    data["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(data, sort_keys=True)).urn
    text = json.dumps(data, indent=2, sort_keys=True) + "\n"
    error = JsonStrictValidator(SCHEMA).validate_str(text)
    if error:
        raise ValueError(f"CycloneDX {SCHEMA.to_version()} refuses the bill: {error}")
    return text


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1], help="the checkout")
    parser.add_argument("--output", type=Path, default=Path("sbom.cdx.json"), help="the file to write")
    options = parser.parse_args(arguments)
    bom = bill(options.root)
    options.output.write_text(written(bom), encoding="utf-8")
    print(f"{options.output}: {len(bom.components)} components, valid by CycloneDX {SCHEMA.to_version()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
