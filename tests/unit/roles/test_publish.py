# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What role publish works out, with Ansible's own templating."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import model


def test_what_is_put_into_a_bundle_is_asked_of_it_by_the_same_name(
    work_out: Callable[..., Callable[[str], Any]],
) -> None:
    url, folder = "https://github.com/a+b/c%20d.deb", "/bundles/.mirror"
    dest = model.mirrored(folder, url)
    downloads = [{"url": url, "sha256": "1", "dest": dest}]
    value = work_out("publish", {}, __publish_downloads=downloads, __publish_dir="/bundles")
    assert value("__publish_mirror") == folder
    assert dest == f"{folder}/github.com/a+b/c d.deb"
    assert value("__publish_files") == ["github.com/a+b/c d.deb"]


def signed(name: str, sha256: str = "") -> dict[str, Any]:
    """A file of a mirror whose publisher signs it."""
    folder = "/bundles/.mirror/a.org"
    proof = {"url": f"https://a.org/{name}.sig", "dest": f"{folder}/{name}.sig", "key_dest": f"{folder}/key"}
    return {"url": f"https://a.org/{name}", "sha256": sha256, "dest": f"{folder}/{name}", "signature": proof}


HASHED = {"url": "https://a.org/z", "sha256": "1", "dest": "/bundles/.mirror/a.org/z"}
LACKING = {**HASHED, "url": "https://a.org/y", "sha256": "", "sha256_variable": "y_sha256['noarch']"}


@pytest.mark.parametrize(("role", "given"), [("publish", "__publish_downloads"), ("mirror", "__mirror_pins")])
def test_what_something_verifies_is_brought_once(
    work_out: Callable[..., Callable[[str], Any]], role: str, given: str
) -> None:
    pins = [HASHED, signed("x.rpm"), signed("efa.tgz", "2"), LACKING]
    value = work_out(role, {}, **{given: pins}, publish_dir="/bundles")
    assert value(f"__{role}_known") == pins[:3]
    assert value(f"__{role}_unknown") == ["y_sha256['noarch']"]


def test_a_file_that_its_publisher_signs_brings_the_proof_along(work_out: Callable[..., Callable[[str], Any]]) -> None:
    value = work_out("publish", {}, __publish_downloads=[signed("x.rpm"), HASHED, LACKING], __publish_dir="/bundles")
    assert value("__publish_files") == ["a.org/x.rpm", "a.org/z", "a.org/x.rpm.sig", "a.org/key"]
