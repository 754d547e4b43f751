# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The artifact module with downloads that have no hash, and signatures that gpg has made."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import signature
from ansible_collections.pcluster.postboot.plugins.modules import artifact as module
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.unit.plugins.signers import Signer, needs_gpg

pytestmark = needs_gpg
CONTENT = b"agent 1.0\n" * 4000


class Publisher:
    """A publisher's files below a folder, a node, and a mirror that may have copies."""

    def __init__(self, top: Path, run: lab.Run, signer: Signer) -> None:
        self.top, self.run, self.signer = top, run, signer
        self.site = top / "site"
        self.site.mkdir()
        self.dest, self.state = top / "node/agent.rpm", top / "state"
        (self.site / "agent.gpg").write_bytes(signer.key)
        self.publishes(CONTENT)

    def publishes(self, content: bytes, signer: Signer | None = None) -> None:
        (self.site / "agent.rpm").write_bytes(content)
        (self.site / "agent.rpm.sig").write_bytes((signer or self.signer).sign(content))

    def artifact(self, **more: Any) -> dict[str, Any]:
        url = f"file://{self.site}/agent.rpm"
        signed = {
            "url": f"{url}.sig",
            "key_url": f"file://{self.site}/agent.gpg",
            "fingerprints": [self.signer.fingerprint.lower()],
        }
        given = {"name": "agent", "version": "1.0", "url": url, "sha256": "", "sha256_variable": "agent_sha256"}
        return {**given, "dest": str(self.dest), "signature": {**signed, **more.pop("signature", {})}, **more}

    def __call__(self, check: bool = False, mirrors: list[str] | None = None, **more: Any) -> dict[str, Any]:
        given = {"artifacts": [self.artifact(**more)], "state_dir": str(self.state), "mirrors": mirrors or []}
        return self.run(module, given, check=check)

    def receipt(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / "agent.json").read_text())
        return found


@pytest.fixture
def publisher(tmp_path: Path, run_module: lab.Run, signers: tuple[Signer, Signer]) -> Publisher:
    return Publisher(tmp_path, run_module, signers[0])


def test_check_apply_check_apply(publisher: Publisher) -> None:
    checked = publisher(check=True)
    assert checked["changed"]
    assert checked["artifacts"][0]["source"] == "predicted"
    assert not publisher.dest.exists()
    assert f"signed by: {publisher.signer.fingerprint}\n" in checked["diff"][0]["after"]
    applied = publisher()
    assert applied["changed"], applied
    assert publisher.dest.read_bytes() == CONTENT
    assert applied["artifacts"][0]["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    for name in ("agent.rpm", "agent.rpm.sig", "agent.gpg"):  # nobody is asked again
        (publisher.site / name).unlink()
    for check in (True, False):
        again = publisher(check=check)
        assert (again["changed"], again["failed"]) == (False, False), again
        assert again["artifacts"][0]["sha256"] == applied["artifacts"][0]["sha256"]


def test_what_is_installed_counts_only_for_its_version_its_url_and_its_keys(
    publisher: Publisher, signers: tuple[Signer, Signer]
) -> None:
    assert publisher()["changed"]
    for more in ({"version": "1.1"}, {"signature": {"fingerprints": [signers[1].fingerprint]}}):
        assert publisher(check=True, **more)["changed"]
    (publisher.site / "new.rpm").write_bytes(b"new")
    assert publisher(check=True, url=f"file://{publisher.site}/new.rpm")["changed"]
    publisher.dest.write_bytes(b"altered")
    assert publisher()["changed"]
    assert publisher.dest.read_bytes() == CONTENT


def test_a_hash_decides_alone_and_its_installation_vouches_for_nothing(publisher: Publisher) -> None:
    known = hashlib.sha256(CONTENT).hexdigest()
    (publisher.site / "agent.rpm.sig").unlink()
    assert not publisher(sha256=known)["failed"]
    assert set(publisher.receipt()) == {"schema", "name", "version", "url", "sha256", "layout", "files"}  # as in 0.1
    assert publisher(check=True)["changed"]
    assert "no source delivered its signature" in publisher()["msg"]


def test_other_bytes_and_other_signers_are_refused(publisher: Publisher, signers: tuple[Signer, Signer]) -> None:
    mine, theirs = signers[0].fingerprint, signers[1].fingerprint
    (publisher.site / "agent.rpm").write_bytes(CONTENT + b"more")
    failed = publisher()["msg"]
    assert failed.startswith(f"agent 1.0: no source delivered a file that {mine} has signed: upstream file://")
    assert "the signature is not that of these bytes; nothing was installed" in failed
    publisher.publishes(CONTENT, signers[1])
    assert f"it was made with the key {theirs[-16:]}, needed is {mine}" in publisher()["msg"]
    (publisher.site / "agent.gpg").write_bytes(signers[1].key)
    assert f"is {theirs}, needed is {mine}; nothing was installed" in publisher()["msg"]
    assert not publisher.dest.exists()
    assert not publisher.state.exists() or not list(publisher.state.iterdir())


def test_a_mirror_keeps_what_vouches_and_another_mirrors_bytes_are_passed_over(publisher: Publisher) -> None:
    site = str(publisher.site).lstrip("/")
    mirror, bad = publisher.top / "mirror", publisher.top / "bad"
    kept = {"dest": f"{mirror}/{site}/agent.rpm.sig", "key_dest": f"{mirror}/{site}/agent.gpg"}
    here = {"dest": f"{mirror}/{site}/agent.rpm", "name": "mirrored"}
    assert publisher(signature=kept, **here)["changed"]
    assert not publisher(signature=kept, **here)["changed"]
    Path(kept["dest"]).unlink()
    assert publisher(signature=kept, **here)["changed"]
    assert Path(kept["dest"]).read_bytes() == (publisher.site / "agent.rpm.sig").read_bytes()
    (bad / site).mkdir(parents=True)
    (bad / site / "agent.rpm").write_bytes(b"other bytes")
    for name in ("agent.rpm", "agent.rpm.sig", "agent.gpg"):
        (publisher.site / name).unlink()
    done = publisher(mirrors=[str(bad), str(mirror)])
    assert done["artifacts"][0]["source"] == f"mirror:{mirror}", done
    assert publisher.dest.read_bytes() == CONTENT


class Mirror:
    """A copy of what the publisher has."""

    def __init__(self, publisher: Publisher, name: str = "mirror") -> None:
        self.top = publisher.top / name
        self.folder = self.top / str(publisher.site).lstrip("/")
        shutil.copytree(publisher.site, self.folder)

    def has(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)


@pytest.mark.parametrize("what", ["another key", "no key", "old signature", "no signature", "key and signature"])
def test_a_bad_key_or_signature_of_one_source_is_passed_over(
    publisher: Publisher, signers: tuple[Signer, Signer], warnings: list[str], what: str
) -> None:
    """As where a publisher has signed anew, and a mirror has kept what it had."""
    mirror, mine, theirs = Mirror(publisher), signers[0].fingerprint, signers[1].fingerprint
    if "key" in what:
        mirror.has("agent.gpg", b"<html>" if what == "no key" else signers[1].key)
    if "signature" in what:
        old = b"<html>" if what == "no signature" else signers["key" in what].sign(b"another file")
        mirror.has("agent.rpm.sig", old)
    done = publisher(mirrors=[str(mirror.top)])
    assert (done["failed"], done["artifacts"][0]["source"]) == (False, f"mirror:{mirror.top}"), done
    assert publisher.dest.read_bytes() == CONTENT
    where = f"mirror file://{mirror.folder}/agent"
    said = {
        "another key": f"agent 1.0: its key from {where}.gpg was passed over: it is {theirs}, needed is {mine}",
        "no key": f"agent 1.0: its key from {where}.gpg was passed over: it cannot be used: ",
        "old signature": f"agent 1.0: its signature from {where}.rpm.sig does not verify {where}.rpm: the signature is",
        "no signature": f"agent 1.0: its signature from {where}.rpm.sig does not verify {where}.rpm: ",
    }
    lines = [said["another key"], said["no signature"]] if what == "key and signature" else [said[what]]
    assert len(warnings) == len(lines)
    assert all(one.startswith(line.replace("file://", "")) for one, line in zip(warnings, lines)), warnings


def test_a_file_of_a_mirror_that_no_source_has_signed_is_passed_over_with_a_line(
    publisher: Publisher, warnings: list[str]
) -> None:
    mirror = Mirror(publisher)
    mirror.has("agent.rpm", b"other bytes")
    done = publisher(mirrors=[str(mirror.top)])
    assert done["artifacts"][0]["source"] == "upstream", done
    assert publisher.dest.read_bytes() == CONTENT
    (warning,) = warnings
    assert f"does not verify mirror {mirror.folder}/agent.rpm: the signature is not that of these bytes" in warning


def test_where_no_source_has_a_good_one_each_is_named_with_its_reason(
    publisher: Publisher, signers: tuple[Signer, Signer]
) -> None:
    mirror = Mirror(publisher)
    mirror.has("agent.rpm.sig", signers[1].sign(CONTENT))
    (publisher.site / "agent.rpm.sig").write_bytes(signers[0].sign(b"another"))
    failed = publisher(mirrors=[str(mirror.top)])["msg"]
    for file in (f"mirror {mirror.folder}/agent.rpm", f"upstream file://{publisher.site}/agent.rpm"):
        other = (
            f"its signature from mirror {mirror.folder}/agent.rpm.sig does not verify {file}: it was made with the key"
        )
        bytes_ = (
            f"its signature from upstream file://{publisher.site}/agent.rpm.sig does not verify {file}: the signature"
        )
        assert (failed.count(other), failed.count(bytes_)) == (1, 1), failed
    mirror.has("agent.gpg", signers[1].key)
    (publisher.site / "agent.gpg").unlink()
    failed = publisher(mirrors=[str(mirror.top)])["msg"]
    assert f"its key file://{publisher.site}/agent.gpg: mirror {mirror.folder}/agent.gpg: it is" in failed
    assert "; upstream file:///" in failed
    assert not publisher.dest.exists()


@pytest.mark.parametrize("kind", ["sha256", "sha512"])
def test_a_mirror_has_the_proof_of_a_file_with_a_hash_too(publisher: Publisher, kind: str) -> None:
    known = hashlib.new(kind, CONTENT).hexdigest()
    kept = {"dest": str(publisher.top / "m/agent.sig"), "key_dest": str(publisher.top / "m/agent.gpg")}
    assert publisher(sha256=known)["changed"]  # as an earlier version has left it
    assert publisher(sha256=known, signature=kept)["changed"]
    assert (publisher.top / "m/agent.gpg").read_bytes() == publisher.signer.key
    assert not publisher(sha256=known, signature=kept)["changed"]
    publisher.dest.unlink()
    assert "no source delivered sha256 0000" in publisher(sha256="0" * 64, signature=kept)["msg"]
    (publisher.site / "agent.rpm.sig").write_bytes(publisher.signer.sign(b"another"))
    assert "does not verify" in publisher(sha256=known, signature=kept)["msg"]
    assert not publisher.dest.exists()


def test_members_of_an_archive(publisher: Publisher) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        info = tarfile.TarInfo("agent-1.0/bin/agent")
        info.size = len(CONTENT)
        archive.addfile(info, io.BytesIO(CONTENT))
    publisher.publishes(packed.getvalue())
    given = {"dest": str(publisher.dest.parent), "members": [{"src": "*/bin/agent"}]}
    assert publisher(**given)["changed"]
    assert (publisher.dest.parent / "agent").read_bytes() == CONTENT
    assert not publisher(**given)["changed"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"fingerprints": []}, "agent: signature.fingerprints is empty; without one any key would be believed"),
        ({"fingerprints": ["3B789C72"]}, "agent: signature.fingerprints: '3B789C72' is no full fingerprint: 40 hex"),
        ({"url": "agent.sig"}, "agent: signature.url 'agent.sig' must be an http, https, s3 or file URL"),
        ({"key_dest": "key"}, "agent: signature.key_dest 'key' must be an absolute path"),
    ],
)
def test_what_verifies_nothing_is_refused(publisher: Publisher, more: dict[str, Any], says: str) -> None:
    failed = publisher(check=True, signature=more)
    assert failed["failed"]
    assert failed["msg"].startswith(says)


def test_a_node_without_gpg_says_what_to_install(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature.shutil, "which", lambda _name: None)
    failed = publisher()["msg"]
    assert "neither gpgv nor gpg is there to verify its signature; install gpgv (Ubuntu)" in failed
    assert failed.endswith("or set agent_sha256 to the hash of a file that you have verified")
