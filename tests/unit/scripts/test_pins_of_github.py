# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What scripts/pins.py makes of GitHub's releases, which a web server on loopback has as GitHub's API has them.

The documents have what the programs read of a release and of a file, named and typed by GitHub's description of its
API (schemas `release` and `release-asset` of @octokit/openapi-types 29.0.1); the repository is not a real one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

pins = load("scripts/pins.py")
A, B, C = "a" * 64, "b" * 64, "c" * 64
REPOSITORY = "octocat/tool"


def asset(name: str, digest: str | None) -> dict[str, Any]:
    return {"name": name, "digest": digest}


def release(tag: str, *assets: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "html_url": f"https://github.com/{REPOSITORY}/releases/tag/{tag}",
        "tag_name": tag,
        "body": "Description of the release",
        "draft": False,
        "prerelease": False,
        "published_at": "2026-03-01T09:00:00Z",
        "assets": list(assets),
        **more,
    }


class GitHub:
    """A server that has the API and the files."""

    def __init__(self, top: Path) -> None:
        self.top = top

    def put(self, path: str, content: Any) -> None:
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))

    def releases(self, *found: dict[str, Any]) -> None:
        # A directory has no query, so the server takes the name without.
        self.put(f"repos/{REPOSITORY}/releases/index.html", list(found))
        for one in found:
            self.put(f"repos/{REPOSITORY}/releases/tags/{one['tag_name']}", one)


def test_the_api_alone_is_told_the_token_also_for_a_publishers_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of hashes of a release may be the API's own page of the release."""
    seen: dict[str, str | None] = {}

    class Site(lab.Pages):
        def do_GET(self) -> None:
            seen[self.path] = self.headers["Authorization"]
            self.say(200, "{}")

    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    with lab.serving(Site) as api, lab.serving(Site) as other:
        monkeypatch.setenv("GITHUB_API_URL", api)
        for url in (f"{api}/repos/a/b/releases/tags/v1", f"{other}/sha256sums.txt"):
            pins.fetch(url)
    assert seen == {"/repos/a/b/releases/tags/v1": "Bearer secret", "/sha256sums.txt": None}


@pytest.fixture
def github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    monkeypatch.delenv("GITHUB_TOKEN", raising=False)
    with lab.serving_files(tmp_path / "www") as url:
        monkeypatch.setenv("GITHUB_API_URL", url)
        monkeypatch.setenv("GITHUB_SERVER_URL", url)
        yield GitHub(tmp_path / "www")


@pytest.fixture
def role(tmp_path: Path, github: GitHub, monkeypatch: pytest.MonkeyPatch) -> Path:
    role = tmp_path / "roles/tool"
    for folder in ("defaults", "vars", "meta"):
        (role / folder).mkdir(parents=True)
    base = f"{pins.github_releases.os.environ['GITHUB_SERVER_URL']}/{REPOSITORY}/releases/download"
    (role / "defaults/main.yml").write_text(
        f"---\n# Which.\ntool_version: 1.0.0 # the newest\ntool_base_url: {base}\n"
        f'tool_sha256:\n  x86_64: "{A}"\n  aarch64: ""\n'
    )
    (role / "vars/main.yml").write_text(
        "__tool_url: \"{{ tool_base_url }}/v{{ tool_version }}/tool-{{ ansible_facts['pcluster']['go_architecture']"
        ' }}.tgz"\n'
    )
    (role / "meta/argument_specs.yml").write_text(
        "argument_specs:\n  main:\n    options:\n      tool_version:\n        description: Which.\n        type: str\n"
        "        default: 1.0.0\n      tool_base_url:\n        default: x\n"
    )
    return role


def run(role: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    code = pins.main(["--root", str(role.parents[1]), *arguments])
    return code, capsys.readouterr().out.splitlines()


def test_what_github_computed_is_recorded_without_a_list(
    role: Path, github: GitHub, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (asset("tool-amd64.tgz", f"sha256:{A}"), asset("tool-arm64.tgz", f"sha256:{B}"))
    github.releases(release("v1.0.0", *files))
    assert run(role, capsys) == (
        0,
        [
            "tool_sha256['x86_64']: what GitHub computed of the file",
            "tool_sha256['aarch64']: recorded, what GitHub computed of the file",
        ],
    )
    assert f'aarch64: "{B}"' in (role / "defaults/main.yml").read_text()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([asset("tool-arm64.tgz", None)], "GitHub has no hash of tool-arm64.tgz, which is older than such hashes"),
        ([], "release v1.0.0 of octocat/tool has no file tool-arm64.tgz"),
        ([asset("tool-arm64.tgz", "md5:abc")], "GitHub has no hash of tool-arm64.tgz"),
    ],
)
def test_what_nobody_vouches_for_is_named_at_the_end(
    role: Path, github: GitHub, capsys: pytest.CaptureFixture[str], files: list[dict[str, Any]], says: str
) -> None:
    github.releases(release("v1.0.0", asset("tool-amd64.tgz", f"sha256:{A}"), *files))
    _code, said = run(role, capsys)
    assert said[1].startswith(f"tool_sha256['aarch64']: MISSING: {says}")
    assert said[2] == "nobody vouches for 1: tool_sha256['aarch64']"


def test_a_list_is_compared_with_what_github_computed(
    role: Path, github: GitHub, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = role / "vars/main.yml"
    variables.write_text(f'{variables.read_text()}__tool_checksums: "{{{{ tool_base_url }}}}/v1.0.0/sums.txt"\n')
    github.put(f"{REPOSITORY}/releases/download/v1.0.0/sums.txt", f"{A}  tool-amd64.tgz\n{B}  tool-arm64.tgz\n")
    github.releases(release("v1.0.0", asset("tool-amd64.tgz", f"sha256:{A}"), asset("tool-arm64.tgz", f"sha256:{C}")))
    _code, said = run(role, capsys)
    assert said[0] == "tool_sha256['x86_64']: what the publisher's list says"
    assert said[1].endswith(f"the publisher's list says {B}, and GitHub computed {C} of the file")
    assert 'aarch64: ""' in (role / "defaults/main.yml").read_text()


@pytest.fixture
def signed(role: Path, github: GitHub) -> Path:
    """A list that is signed; its bundle says nothing, because the program that reads it is none of ours."""
    variables = role / "vars/main.yml"
    variables.write_text(
        f'{variables.read_text()}__tool_checksums: "{{{{ tool_base_url }}}}/v1.0.0/sums.txt"\n'
        "__tool_checksums_sigstore:\n"
        '  bundle: "{{ __tool_checksums }}.sigstore.json"\n'
        "  identity: https://github.com/octocat/tool/.github/workflows/release.yml@refs/tags/v{{ tool_version }}\n"
        "  issuer: https://token.actions.githubusercontent.com\n"
    )
    github.put(f"{REPOSITORY}/releases/download/v1.0.0/sums.txt", f"{A}  tool-amd64.tgz\n{B}  tool-arm64.tgz\n")
    github.put(f"{REPOSITORY}/releases/download/v1.0.0/sums.txt.sigstore.json", "the bundle")
    return role


@pytest.mark.parametrize("trusted", [True, False])
def test_a_signed_list_counts_once_sigstore_vouches_for_it(
    signed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    """The program stands for cosign 3.0: its options, its exit status, and where it says why it refuses."""
    lab.program(
        tmp_path / "bin/cosign",
        '#!/bin/sh\n[ "$1 $2" = "verify-blob --bundle" ] && [ "$(cat "$3")" = "the bundle" ] || exit 9\n'
        '[ "$4 $6" = "--certificate-identity --certificate-oidc-issuer" ] || exit 9\n'
        f'grep -q tool-amd64 "$8" || exit 9\necho "$5 $7" > {tmp_path}/asked\n'
        + (
            'echo "Verified OK" >&2\n'
            if trusted
            else 'echo "Error: none of the expected identities matched" >&2\nexit 1\n'
        ),
    )
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{pins.github_releases.os.environ['PATH']}")
    _code, said = run(signed, capsys)
    identity = f"https://github.com/{REPOSITORY}/.github/workflows/release.yml@refs/tags/v1.0.0"
    assert (tmp_path / "asked").read_text() == f"{identity} https://token.actions.githubusercontent.com\n"
    if trusted:
        assert said[0] == f"tool_sha256['x86_64']: what the publisher's list says ({identity} has signed the list)"
    else:
        why = f"cosign refuses the list for {identity}: Error: none of the expected identities matched"
        assert said[:2] == [
            f"tool_sha256['x86_64']: recorded, and not verified: {why}",
            f"tool_sha256['aarch64']: MISSING: {why}",
        ]


def test_without_cosign_a_signed_list_counts_as_any_other(
    signed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins.cosign.shutil, "which", lambda _name: None)
    _code, said = run(signed, capsys)
    assert said[1].endswith("the publisher's list says (Sigstore was not asked: cosign is not installed)")


def test_a_key_is_known_by_its_fingerprint(role: Path, github: GitHub, capsys: pytest.CaptureFixture[str]) -> None:
    variables, defaults = role / "vars/main.yml", role / "defaults/main.yml"
    variables.write_text(
        f"{variables.read_text()}__tool_key_url: '{{{{ tool_base_url }}}}/key'\n"
        "__tool_signature: {url: x, key_url: '{{ __tool_key_url }}', fingerprints: [z]}\n"
    )
    defaults.write_text(f'{defaults.read_text()}tool_key_sha256:\n  noarch: ""\n')
    _code, said = run(role, capsys)
    assert said[0].startswith("tool_sha256['x86_64']: recorded, and not verified: ")  # the hash decides alone
    assert said[1:] == [
        "tool_sha256['aarch64']: nodes verify the publisher's signature",
        "tool_key_sha256['noarch']: not needed: the file vouches for another, by a key whose fingerprint is recorded",
        "nobody vouches for 1: tool_sha256['x86_64']",
    ]


def test_a_signed_file_lacks_nothing(role: Path, github: GitHub, capsys: pytest.CaptureFixture[str]) -> None:
    variables = role / "vars/main.yml"
    variables.write_text(f"{variables.read_text()}__tool_signature: {{url: x, key_url: y, fingerprints: [z]}}\n")
    github.releases(release("v1.0.0", asset("tool-amd64.tgz", f"sha256:{A}")))
    _code, said = run(role, capsys)
    assert said == [
        "tool_sha256['x86_64']: what GitHub computed of the file",
        "tool_sha256['aarch64']: nodes verify the publisher's signature",
    ]


def test_newer_releases_are_proposed_and_a_patch_is_recorded(
    role: Path, github: GitHub, capsys: pytest.CaptureFixture[str]
) -> None:
    def files(one: str, other: str) -> tuple[dict[str, Any], ...]:
        return asset("tool-amd64.tgz", f"sha256:{one}"), asset("tool-arm64.tgz", f"sha256:{other}")

    github.releases(
        release("v2.0.0-rc.1", prerelease=True),
        release("v9.0.0", draft=True),
        release("v1.10.0", *files(B, A)),
        release("nightly"),
        release("v1.0.2", *files(B, C)),
        release("v1.0.1", *files(C, C)),
        release("v1.0.0", *files(A, A)),
    )
    code, said = run(role, capsys, "--new")
    web = f"https://github.com/{REPOSITORY}/releases/tag"
    assert (code, said) == (
        0,
        [
            f"tool 1.0.0: 1.0.2 of 2026-03-01 is there: {web}/v1.0.2",
            f"  tool_sha256['x86_64']: {B}",
            f"  tool_sha256['aarch64']: {C}",
            f"tool 1.0.0: 1.10.0 of 2026-03-01 is there: {web}/v1.10.0",
            f"  tool_sha256['x86_64']: {B}",
            f"  tool_sha256['aarch64']: {A}",
        ],
    )
    assert f'x86_64: "{A}"' in (role / "defaults/main.yml").read_text()
    _code, said = run(role, capsys, "--new", "--upgrade")
    assert said[-1] == "tool: 1.0.2 is recorded"
    written = (role / "defaults/main.yml").read_text()
    assert "tool_version: 1.0.2 # the newest\n" in written
    assert f'  x86_64: "{B}"\n  aarch64: "{C}"\n' in written
    assert (
        "        default: 1.0.2\n      tool_base_url:\n        default: x\n"
        in (role / "meta/argument_specs.yml").read_text()
    )
    assert run(role, capsys, "--new")[1][0].startswith("tool 1.0.2: 1.10.0 of")


def test_a_patch_without_every_hash_is_left(role: Path, github: GitHub, capsys: pytest.CaptureFixture[str]) -> None:
    github.releases(release("v1.0.1", asset("tool-arm64.tgz", f"sha256:{B}")), release("v1.0.0"))
    before = (role / "defaults/main.yml").read_text()
    _code, said = run(role, capsys, "--new", "--upgrade")
    assert said[-1] == "tool: left as it is: nobody tells tool_sha256['x86_64'] of 1.0.1"
    assert (role / "defaults/main.yml").read_text() == before
