# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the roles download, worked out with Ansible's own templating, and once through its command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import model


def pins(query: str, **variables: Any) -> list[dict[str, Any]]:
    """Ask the lookup as a template does."""
    found = Templar(loader=DataLoader(), variables=variables).template(trust_as_template("{{ " + query + " }}"))
    assert isinstance(found, list)
    return found


def test_every_file_has_an_address_of_its_own(ansible: Callable[..., Any]) -> None:
    what = ("-m", "ansible.builtin.debug", "-a", "msg={{ query('pcluster.postboot.pins') }}")
    done = ansible("adhoc", "localhost", *what, ANSIBLE_CALLBACK_RESULT_FORMAT="json")
    assert done.returncode == 0, done.stdout + done.stderr
    everything = json.loads(done.stdout[done.stdout.index("{") :])["msg"]
    assert everything == pins("query('pcluster.postboot.pins')")
    urls = [pin["url"] for pin in everything]
    assert len(set(urls)) == len(urls)
    assert all(url.startswith("https://") and "{{" not in url for url in urls), urls
    assert {pin["sha256_variable"] for pin in everything} >= {
        "node_exporter_sha256['x86_64']",
        "node_exporter_sha256['aarch64']",
    }


def test_what_the_user_sets_counts() -> None:
    query = "query('pcluster.postboot.pins', 'node_exporter', architectures=['aarch64'])"
    (pin,) = pins(query, node_exporter_version="9.9.9", node_exporter_sha256={"aarch64": "a" * 64})
    assert pin["name"] == "node_exporter-9.9.9-aarch64"
    assert pin["url"].endswith("/v9.9.9/node_exporter-9.9.9.linux-arm64.tar.gz")
    assert pin["sha256"] == "a" * 64


@pytest.mark.parametrize(("mirror", "place"), [("/srv/mirror/", "/srv/mirror/"), ("", "")])
def test_a_mirror_keeps_a_file_where_nodes_look_for_it(mirror: str, place: str) -> None:
    query = f"query('pcluster.postboot.pins', 'enroot', 'node_exporter', architectures=['x86_64'], dest='{mirror}')"
    base = "HTTPS://user:word@Example.com:8443/a%2Bb+c"
    everything = pins(query, node_exporter_base_url=base)
    assert [pin["dest"] for pin in everything] == [model.mirrored(mirror, pin["url"]) for pin in everything]
    places = {pin["sha256_variable"]: pin["dest"] for pin in everything}
    assert places["enroot_caps_deb_sha256['x86_64']"] == (
        f"{place}github.com/NVIDIA/enroot/releases/download/v4.2.1/enroot+caps_4.2.1-1_amd64.deb"
    )
    assert places["node_exporter_sha256['x86_64']"].startswith(f"{place}example.com/a+b+c/v1.12.1/node_exporter-")


def test_a_file_without_a_hash_has_its_publishers_signature() -> None:
    agent = "'cloudwatch_agent', architectures=['aarch64']"
    deb, rpm = pins(f"query('pcluster.postboot.pins', {agent}, dest='/srv/mirror')")
    assert deb["sha256"]
    assert "signature" not in deb
    site = "amazoncloudwatch-agent.s3.amazonaws.com"
    assert rpm["signature"] == {
        "url": f"{rpm['url']}.sig",
        "key_url": f"https://{site}/assets/amazon-cloudwatch-agent.gpg",
        "fingerprints": ["937616F3450B7D806CBD9725D58167303B789C72"],
        "dest": f"{rpm['dest']}.sig",
        "key_dest": f"/srv/mirror/{site}/assets/amazon-cloudwatch-agent.gpg",
    }
    assert rpm["dest"].startswith(f"/srv/mirror/{site}/redhat/arm64/")


@pytest.mark.parametrize("known", ["", "a" * 64])
def test_what_vouches_comes_along_into_a_mirror_and_is_no_pin_of_its_own(known: str) -> None:
    given = {"efa_key_sha256": {"noarch": known}, "efa_signature_sha256": {"noarch": known}}
    query = "query('pcluster.postboot.pins', 'efa'{})"
    (installer,) = pins(query.format(", dest='/m'"), **given)
    site = "/m/efa-installer.amazonaws.com/aws-efa-installer"
    assert installer["sha256"]
    assert installer["signature"]["dest"] == f"{site}-1.50.0.tar.gz.sig"
    assert installer["signature"]["key_dest"] == f"{site}.key"
    unverified = pins(query.format(", dest='/m'"), **given, efa_verify_signature=False)
    assert [pin["sha256_variable"].partition("[")[0] for pin in unverified if pin["sha256"]] == (
        ["efa_sha256", "efa_signature_sha256", "efa_key_sha256"] if known else ["efa_sha256"]
    )
    assert not any("signature" in pin for pin in unverified)


@pytest.mark.parametrize("architecture", ["amd64", "sparc"])
def test_unknown_architecture_is_named(architecture: str) -> None:
    with pytest.raises(AnsibleError, match=f"architectures has {architecture}; known are x86_64, aarch64"):
        pins(f"query('pcluster.postboot.pins', architectures=['{architecture}'])")


def test_a_component_that_is_none_is_named() -> None:
    told = "there is no component node_exportr; there are .*, enroot, .*, node_exporter, "
    with pytest.raises(AnsibleError, match=told):
        pins("query('pcluster.postboot.pins', 'node_exportr', 'enroot')")
