# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The sandbox's own container registry: what other tests pull from it, and how it fails on request."""

from __future__ import annotations

import base64
import hashlib
import http.client
import io
import json
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from testinfra.host import Host

TOPOLOGY = Path(__file__).resolve().parent.parent / "topology.yml"
ADDRESS = yaml.safe_load(TOPOLOGY.read_text())["services"]["registry"]["address"]
REAL, FRONT = f"http://{ADDRESS}:5000", f"http://{ADDRESS}:5001"
USER, PASSWORD = "$oauthtoken", "sandbox-ngc-key"
KINDS = "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"


def get(url: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    request = urllib.request.Request(url, headers={"Accept": f"{KINDS}, {LIST}", **headers})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def manifest(name: str, tag: str) -> dict[str, Any]:
    status, _, body = get(f"{REAL}/v2/{name}/manifests/{tag}")
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    if "manifests" in found:
        return manifest(name, found["manifests"][0]["digest"])
    return found


@pytest.fixture(autouse=True)
def forgetful() -> None:
    """A registry that has not been asked for anything yet."""
    urllib.request.urlopen(f"{FRONT}/reset", data=b"", timeout=20).close()


@pytest.mark.parametrize(
    ("name", "tag", "title"),
    [
        ("library/tiny", "1.0", "Sandbox tiny"),
        ("nvidia/pytorch", "24.01-py3", "Sandbox pytorch"),
        ("nvidia/nemo", "24.01", "Sandbox nemo"),
    ],
)
def test_images(name: str, tag: str, title: str) -> None:
    layers = manifest(name, tag)["layers"]
    assert len(layers) >= 2
    for layer in layers:
        blob = get(f"{REAL}/v2/{name}/blobs/{layer['digest']}")[2]
        assert layer["digest"] == "sha256:" + hashlib.sha256(blob).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(blob)) as top:
        release = top.extractfile("etc/os-release")
        assert release
        assert f'PRETTY_NAME="{title}"' in release.read().decode()
        assert "etc/.wh.removed" in top.getnames()


def test_a_list_names_both_architectures() -> None:
    found = json.loads(get(f"{REAL}/v2/nvidia/pytorch/manifests/24.01-py3")[2])
    assert {m["platform"]["architecture"] for m in found["manifests"]} == {"amd64", "arm64"}


def test_a_client_may_send_several_accept_headers() -> None:
    connection = http.client.HTTPConnection(ADDRESS, 5001, timeout=20)
    connection.putrequest("GET", "/v2/nvidia/nemo/manifests/24.01")
    for kind in reversed(KINDS.split(", ")):
        connection.putheader("Accept", kind)
    connection.endheaders()
    assert connection.getresponse().status == 200


def test_nodes_know_its_name(on: Callable[[str], Host], node: str) -> None:
    assert "library/tiny" in on(node).check_output("curl -sf http://registry:5000/v2/_catalog")


@pytest.mark.parametrize("status", [401, 429, 503])
def test_faults(status: int) -> None:
    found, headers, body = get(f"{FRONT}/v2/fault/{status}/library/tiny/manifests/1.0")
    assert found == status
    assert json.loads(body)["errors"]
    assert ("Retry-After" in headers) == (status != 401)


def test_a_fault_that_passes() -> None:
    url = f"{FRONT}/v2/fault/503-twice/library/tiny/manifests/1.0"
    assert [get(url)[0] for _ in range(4)] == [503, 503, 200, 200]
    assert len(json.loads(get(f"{FRONT}/requests")[2])) == 4


def test_a_blob_that_ends_in_its_middle() -> None:
    digest = manifest("library/tiny", "1.0")["layers"][0]["digest"]
    with pytest.raises(http.client.IncompleteRead):
        get(f"{FRONT}/v2/fault/truncate/library/tiny/blobs/{digest}")
    assert get(f"{FRONT}/v2/library/tiny/blobs/{digest}")[0] == 200


def test_login() -> None:
    url = f"{FRONT}/v2/private/library/tiny/manifests/1.0"
    status, headers, _ = get(url)
    challenge = headers["WWW-Authenticate"]
    assert (status, challenge.split("=")[0]) == (401, "Bearer realm")
    realm, scope = challenge.split('"')[1], challenge.split('"')[5]
    tokens = {}
    for password in ("wrong", PASSWORD):
        basic = base64.b64encode(f"{USER}:{password}".encode()).decode()
        tokens[password] = get(f"{realm}?service=registry&scope={scope}", Authorization=f"Basic {basic}")
    assert (tokens["wrong"][0], get(f"{realm}?scope={scope}")[0], tokens[PASSWORD][0]) == (401, 401, 200)
    token = json.loads(tokens[PASSWORD][2])["token"]
    assert get(url, Authorization=f"Bearer {token}")[0] == 200
    assert get(url.replace("tiny", "other"), Authorization=f"Bearer {token}")[0] == 401
