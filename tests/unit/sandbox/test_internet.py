# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""SANDBOX_SOURCES=internet: upstream's files take the place of the stand-ins', played against a server on loopback."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.programs import load

REPO = Path(__file__).resolve().parents[3]
MACHINE = platform.machine()
GO = {"x86_64": "amd64", "aarch64": "arm64"}[MACHINE]
internet = load("molecule/cluster/mirror/internet.py")
STANDIN = {"version": "1.0", "sha256": "stand-in"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose node_exporter is a file of the test's, as upstream serves it at its path."""
    top = tmp_path / ".venv/collections/ansible_collections/pcluster/postboot"
    (top / "roles").mkdir(parents=True)
    for name in ("galaxy.yml", "meta", "playbooks", "plugins"):
        (top / name).symlink_to(REPO / name)
    for role in (REPO / "roles").iterdir():
        (top / "roles" / role.name).symlink_to(role)
    (top / "roles/node_exporter").unlink()
    shutil.copytree(REPO / "roles/node_exporter", top / "roles/node_exporter")
    (tmp_path / "roles").symlink_to(top / "roles")
    return tmp_path


@pytest.fixture
def upstream(checkout: Path) -> Iterator[str]:
    """A server on loopback with /<host>/<path> of upstream, and the role pins what is there."""
    defaults = checkout / "roles/node_exporter/defaults/main.yml"
    found = yaml.safe_load(defaults.read_text())
    version, recorded = found["node_exporter_version"], found["node_exporter_sha256"][MACHINE]
    release = f"github.com/prometheus/node_exporter/releases/download/v{version}"
    file = checkout / "upstream" / release / f"node_exporter-{version}.linux-{GO}.tar.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"upstream's own")
    defaults.write_text(defaults.read_text().replace(recorded, hashlib.sha256(b"upstream's own").hexdigest()))
    handler = partial(SimpleHTTPRequestHandler, directory=str(checkout / "upstream"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def mirror(checkout: Path) -> Path:
    """A mirror with stand-ins."""
    folder = checkout / "mirror"
    folder.mkdir()
    pins = {
        "node_exporter": STANDIN,
        "nccl": {"version": "2.32"},
        "docker": {"version": "28", "key_fingerprints": ["sandbox"]},
        "grafana": {"version": "13", "key_fingerprints": ["sandbox"]},
    }
    (folder / "pins.json").write_text(json.dumps(pins))
    return folder


def test_upstreams_file_is_fetched_and_pinned(
    checkout: Path, upstream: str, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill() -> list[str]:
        found: list[str] = internet.fill(mirror, MACHINE, checkout, ["node_exporter"], [upstream])
        return found

    served = next((checkout / "upstream").rglob("*.tar.gz"))
    standins = (mirror / "pins.json").read_text()
    served.write_bytes(b"somebody else's")
    with pytest.raises(SystemExit, match="SANDBOX_SOURCES=internet: upstream's files could not be fetched"):
        fill()
    assert list(mirror.rglob("*.tar.gz")) == []
    assert (mirror / "pins.json").read_text() == standins

    served.write_bytes(b"upstream's own")
    version = yaml.safe_load((checkout / "roles/node_exporter/defaults/main.yml").read_text())["node_exporter_version"]
    assert fill() == ["docker", "grafana", f"node_exporter {version}"]
    (file,) = (mirror / "github.com").rglob("*.tar.gz")
    assert file.read_bytes() == b"upstream's own"
    pins = json.loads((mirror / "pins.json").read_text())
    assert pins["node_exporter"] == {"version": version, "sha256": hashlib.sha256(b"upstream's own").hexdigest()}
    assert pins["nccl"] == {"version": "2.32"}
    assert pins["docker"]["key_fingerprints"] != ["sandbox"]
    assert "location /download.docker.com/ {" in (mirror / "sites.conf").read_text()

    monkeypatch.setattr(internet, "fetch", lambda *_: None)
    assert fill() == []


@pytest.mark.parametrize("component", internet.COMPONENTS)
def test_pins_are_those_of_the_role_in_the_shape_that_the_sandbox_reads(component: str) -> None:
    told = internet.pinned(REPO / "roles" / component, MACHINE)
    defaults = yaml.safe_load((REPO / "roles" / component / "defaults/main.yml").read_text())
    assert told["version"] == str(defaults[f"{component}_version"])
    variables = (REPO / "molecule/cluster/inventory/group_vars/pcluster.yml").read_text()
    files = [f".{name}" for name in told["sha256"]] if isinstance(told["sha256"], dict) else [""]
    read = {file for file in files if f"sandbox_pins.{component}.sha256{file} }}}}" in variables}
    assert read == (set() if component == "cloudwatch_agent" else set(files))  # verified by its signature alone


def test_every_site_that_is_passed_on_is_one_of_its_role() -> None:
    for component, sites in internet.SITES.items():
        defaults = (REPO / "roles" / component / "defaults/main.yml").read_text()
        assert all(site in defaults for site in sites)
