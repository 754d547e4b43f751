# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the roles download, worked out through Ansible itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils import _artifact_model


def pins(repo: Path, query: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Ask the lookup through Ansible's own command line."""
    program = Path(sys.executable).parent / "ansible"
    line = [
        program,
        "localhost",
        "-m",
        "ansible.builtin.debug",
        "-e",
        json.dumps(variables),
        "-a",
        "msg={{ " + query + " }}",
    ]
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": str(repo / ".venv/collections"),
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    }
    return subprocess.run(line, env=environment, text=True, capture_output=True, timeout=60, check=False)


def found(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout[done.stdout.index("{") :])["msg"]
    assert isinstance(answer, list)
    return answer


def test_every_file_has_an_address_of_its_own(repo: Path) -> None:
    everything = found(pins(repo, "query('pcluster.postboot.pins')"))
    urls = [pin["url"] for pin in everything]
    assert len(set(urls)) == len(urls)
    assert all(url.startswith("https://") and "{{" not in url for url in urls), urls
    assert {pin["sha256_variable"] for pin in everything} >= {
        "node_exporter_sha256['x86_64']",
        "node_exporter_sha256['aarch64']",
    }


def test_what_the_user_sets_counts(repo: Path) -> None:
    query = "query('pcluster.postboot.pins', 'node_exporter', architectures=['aarch64'])"
    (pin,) = found(pins(repo, query, node_exporter_version="9.9.9", node_exporter_sha256={"aarch64": "a" * 64}))
    assert pin["name"] == "node_exporter-9.9.9-aarch64"
    assert pin["url"].endswith("/v9.9.9/node_exporter-9.9.9.linux-arm64.tar.gz")
    assert pin["sha256"] == "a" * 64


@pytest.mark.parametrize(("mirror", "place"), [("/srv/mirror/", "/srv/mirror/"), ("", "")])
def test_a_mirror_keeps_a_file_where_nodes_look_for_it(repo: Path, mirror: str, place: str) -> None:
    query = f"query('pcluster.postboot.pins', 'enroot', 'node_exporter', architectures=['x86_64'], dest='{mirror}')"
    base = "HTTPS://user:word@Example.com:8443/a%2Bb+c"
    everything = found(pins(repo, query, node_exporter_base_url=base))
    assert [pin["dest"] for pin in everything] == [_artifact_model.mirrored(mirror, pin["url"]) for pin in everything]
    places = {pin["sha256_variable"]: pin["dest"] for pin in everything}
    assert places["enroot_caps_deb_sha256['x86_64']"] == (
        f"{place}github.com/NVIDIA/enroot/releases/download/v4.2.1/enroot+caps_4.2.1-1_amd64.deb"
    )
    assert places["node_exporter_sha256['x86_64']"].startswith(f"{place}example.com/a+b+c/v1.12.1/node_exporter-")


@pytest.mark.parametrize("architecture", ["amd64", "sparc"])
def test_unknown_architecture_is_named(repo: Path, architecture: str) -> None:
    done = pins(repo, f"query('pcluster.postboot.pins', architectures=['{architecture}'])")
    assert done.returncode != 0
    assert f"architectures has {architecture}; known are x86_64, aarch64" in done.stdout + done.stderr
