# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The scripts that check roles, render their tables, and compare their pins with what publishers say."""

from __future__ import annotations

import functools
import hashlib
import http.server
import importlib.util
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

REPO = Path(__file__).resolve().parents[3]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"postboot_{name}", REPO / f"scripts/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check_roles, render_role_docs, pins = script("check_roles"), script("render_role_docs"), script("pins")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout with two roles and a site.yml for them."""
    for name in ("common", "node_exporter"):
        shutil.copytree(REPO / "roles" / name, tmp_path / "roles" / name)
    (tmp_path / "playbooks").mkdir()
    plays = yaml.safe_load((REPO / "playbooks/site.yml").read_text())
    (main,) = (task for task in plays[-1]["tasks"] if "block" in task)
    kept = []
    for task in main["block"]:
        if "pcluster.postboot.check_variables" in task:
            task["pcluster.postboot.check_variables"]["components"] = ["node_exporter"]
        if (task.get("vars") or {}).get("postboot_component", "node_exporter") == "node_exporter":
            kept.append(task)
    main["block"] = kept
    (tmp_path / "playbooks/site.yml").write_text(yaml.safe_dump(plays))
    return tmp_path


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_roles_that_keep_the_contracts_are_let_be(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_roles.main(["--root", str(copy)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("file", "before", "after", "says"),
    [
        (
            "meta/argument_specs.yml",
            "      node_exporter_flags:",
            "      node_exporter_flag:",
            "node_exporter_flags is missing; defaults",
        ),
        ("defaults/main.yml", "node_exporter_flags:", "node_exporter_flag:", "node_exporter_flags is missing; meta"),
        (
            "defaults/main.yml",
            "1.12.1",
            "1.13.0",
            "node_exporter_version has the default '1.12.1', in defaults '1.13.0'",
        ),
        (
            "defaults/main.yml",
            "disabled: [cpu.guest, infiniband, netclass, nfs, schedstat, softnet]",
            "disabled: zfs=1",
            "node_exporter_collectors_disabled has the default ['cpu.guest', 'infiniband', 'netclass', 'nfs', "
            "'schedstat', 'softnet']",
        ),
        ("defaults/main.yml", "sha256:\n", "sha256: abc\nnode_exporter_x:\n", "node_exporter_sha256: "),
        ("defaults/main.yml", "# The version to install.\n", "", "node_exporter_version has no comment above it"),
        (
            "defaults/main.yml",
            "node_exporter_essential",
            "node_exporter_important",
            "node_exporter_essential is missing: every",
        ),
        ("meta/main.yml", "GPL-3.0-or-later", "MIT", "license is 'MIT'; needed: 'GPL-3.0-or-later'"),
        ("meta/main.yml", "  - role: pcluster.postboot.common", "  []", "depends not on pcluster.postboot.common"),
        (
            "tasks/install.yml",
            "  register: __node_exporter_binary\n",
            "",
            "'install | The binary is the pinned one' registers nothing; needed",
        ),
        (
            "tasks/install.yml",
            "__node_exporter_binary",
            "node_exporter_user",
            "registers node_exporter_user; needed: __node",
        ),
        ("tasks/install.yml", "__node_exporter_binary", "__node_exporter_service", "one would hide the other"),
        ("tasks/install.yml", "---\n", "---\n" + "#\n" * 100, "lines; 100 at most"),
        (
            "tasks/install.yml",
            "---\n",
            "---\n- name: X\n  ansible.builtin.set_fact:\n    node_exporter_version: 1\n",
            "'X' sets node_exporter_version, which is not an internal of this role",
        ),
        (
            "tasks/install.yml",
            "---\n",
            "---\n- name: X\n  ansible.builtin.include_role:\n    name: a.b.c\n    tasks_from: d.yml\n",
            "'X': tasks_from is d.yml; without the suffix",
        ),
        ("tasks/install.yml", "  register:", "  ignore_errors: true\n  register:", "ignores errors"),
    ],
)
def test_a_broken_contract_is_a_line(
    copy: Path, capsys: pytest.CaptureFixture[str], file: str, before: str, after: str, says: str
) -> None:
    change(copy / "roles/node_exporter" / file, before, after)
    assert check_roles.main(["--root", str(copy)]) == 1
    assert says in capsys.readouterr().out


def test_tasks_in_blocks_and_handlers_are_looked_at(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    role = copy / "roles/node_exporter"
    (role / "handlers").mkdir()
    (role / "handlers/main.yml").write_text("- name: H\n  service: {name: x}\n")
    (role / "tasks/more.yml").write_text(
        "- name: B\n  block:\n    - name: I\n      command: x\n  rescue:\n    - name: R\n      debug:\n        msg: y\n"
    )
    assert check_roles.main(["--root", str(copy)]) == 1
    said = capsys.readouterr().out
    assert "'H' registers nothing" in said
    assert "'I' registers nothing" in said
    assert "'R'" not in said
    assert "'B'" not in said


def test_the_table_of_components_has_to_agree_with_itself(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = copy / "playbooks/site.yml"
    plays = yaml.safe_load(site.read_text())
    (main,) = (task for task in plays[-1]["tasks"] if "block" in task)
    for task in main["block"]:
        if "vars" in task:
            task["tags"] = ["metrics"]
        if "pcluster.postboot.check_variables" in task:
            task["pcluster.postboot.check_variables"]["components"] = ["dcgm"]
    site.write_text(yaml.safe_dump(plays))
    assert check_roles.main(["--root", str(copy)]) == 1
    said = capsys.readouterr().out
    assert "the tags of node_exporter are ['metrics']" in said
    assert "check_variables has ['dcgm'], and what runs is ['node_exporter']" in said


def test_a_table_that_is_out_of_date_is_found_and_written(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(copy)]
    assert render_role_docs.main(["--check", *root]) == 0
    change(copy / "roles/node_exporter/meta/argument_specs.yml", "The version to install.", "Which | version.")
    assert render_role_docs.main(["--check", *root]) == 1
    assert "is out of date" in capsys.readouterr().err
    assert render_role_docs.main(root) == 0
    text = (copy / "roles/node_exporter/README.md").read_text()
    assert "| `node_exporter_version` | str | `1.12.1` | Which \\| version. |" in text
    assert text.startswith("# node_exporter\n")
    assert render_role_docs.main(["--check", *root]) == 0


def test_a_readme_without_a_place_for_the_table_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "roles/common/README.md").write_text("# common\n")
    assert render_role_docs.main(["--root", str(copy)]) == 1
    assert "there is no place for the table" in capsys.readouterr().err


class Publisher:
    """A publisher's web server."""

    def __init__(self, top: Path, url: str) -> None:
        self.top, self.url = top, url

    def put(self, path: str, content: str) -> None:
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_arguments: object) -> None:
            """Say nothing."""

    top = tmp_path / "www"
    top.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(top)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield Publisher(top, f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


DEFAULTS = """---
# What it is.
tool_version: 1.0 # the newest

tool_base_url: URL
# Its hash.
tool_sha256:
  x86_64: "{x}"  # checked by hand
  aarch64: ""
other_sha256:
  aarch64: ""
"""
VARS = """
__tool_url: "{{ tool_base_url }}/v{{ tool_version }}/tool-{{ ansible_facts['pcluster']['go_architecture'] }}.tgz"
__tool_checksums: "{{ tool_base_url }}/v{{ tool_version }}/sums.txt"
"""
A, B = "a" * 64, "b" * 64


@pytest.fixture
def tool(tmp_path: Path, publisher: Publisher) -> Path:
    role = tmp_path / "roles/tool"
    (role / "defaults").mkdir(parents=True)
    (role / "vars").mkdir()
    (role / "defaults/main.yml").write_text(DEFAULTS.replace("{x}", A).replace("URL", publisher.url))
    (role / "vars/main.yml").write_text(VARS)
    return role


def run_pins(tool: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    code = pins.main(["--root", str(tool.parents[1]), *arguments])
    return code, capsys.readouterr().out.splitlines(), (tool / "defaults/main.yml").read_text()


def test_what_is_missing_is_recorded_and_nothing_else_changes(
    tool: Path, publisher: Publisher, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher.put("v1.0/sums.txt", f"{A}  tool-amd64.tgz\n{B} *./dist/tool-arm64.tgz\n")
    before = (tool / "defaults/main.yml").read_text()
    code, said, after = run_pins(tool, capsys, "--check")
    assert (code, after) == (0, before)
    assert said[1] == f"tool_sha256['aarch64']: MISSING: what the publisher's list says is {B}"
    code, said, after = run_pins(tool, capsys)
    assert code == 0
    assert said[:2] == [
        "tool_sha256['x86_64']: what the publisher's list says",
        "tool_sha256['aarch64']: recorded, what the publisher's list says",
    ]
    assert after == before.replace('aarch64: ""', f'aarch64: "{B}"', 1)
    assert said[2] == "other_sha256['aarch64']: MISSING: the role has no __other_url"


def test_a_recorded_checksum_that_is_wrong_fails_and_is_replaced_on_request(
    tool: Path, publisher: Publisher, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher.put("v1.0/sums.txt", f"{B}  tool-amd64.tgz\n{B}  tool-arm64.tgz\n")
    code, said, after = run_pins(tool, capsys)
    assert code == 1
    assert said[0].startswith(f"tool_sha256['x86_64']: WRONG: recorded is {A}, what the publisher's list says is {B}")
    assert f'x86_64: "{A}"  # checked by hand' in after
    code, said, after = run_pins(tool, capsys, "--update")
    assert code == 0
    assert f'x86_64: "{B}"  # checked by hand' in after


def test_a_publisher_that_cannot_be_asked_proves_nothing(
    tool: Path, publisher: Publisher, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, after = run_pins(tool, capsys)
    assert code == 0
    assert said[0].startswith("tool_sha256['x86_64']: recorded, and not verified: http://127.0.0.1")
    assert said[1].startswith("tool_sha256['aarch64']: MISSING: http://127.0.0.1")
    assert 'aarch64: ""' in after


def test_without_a_list_the_download_itself_has_to_do(
    tool: Path, publisher: Publisher, capsys: pytest.CaptureFixture[str]
) -> None:
    (tool / "vars/main.yml").write_text(VARS.splitlines()[1] + "\n")
    publisher.put("v1.0/tool-amd64.tgz", "amd64")
    publisher.put("v1.0/tool-arm64.tgz", "arm64")
    code, said, after = run_pins(tool, capsys)
    assert "--download computes it from the file itself" in said[1]
    code, said, after = run_pins(tool, capsys, "--download")
    assert code == 1
    assert said[0].startswith("tool_sha256['x86_64']: WRONG")
    assert said[1] == "tool_sha256['aarch64']: recorded, computed from the download, for which no publisher vouches"
    assert hashlib.sha256(b"arm64").hexdigest() in after


def test_a_recorded_sha512_is_compared_with_a_sha512(
    tool: Path, publisher: Publisher, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults, content = tool / "defaults/main.yml", "amd64"
    (tool / "vars/main.yml").write_text(VARS.splitlines()[1] + "\n")
    publisher.put("v1.0/tool-amd64.tgz", content)
    sha512 = hashlib.sha512(content.encode()).hexdigest()
    defaults.write_text(defaults.read_text().replace(A, sha512))
    code, said, after = run_pins(tool, capsys, "--download", "--check")
    assert (code, said[0]) == (
        0,
        "tool_sha256['x86_64']: computed from the download, for which no publisher vouches",
    )
    publisher.put("v1.0/tool-amd64.tgz", "another")
    code, said, after = run_pins(tool, capsys, "--download", "--update")
    assert hashlib.sha512(b"another").hexdigest() in after


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{A}  tool.tgz\n{B}  tool.tgz.asc\n", A),
        (f"{A} *dist/tool.tgz\n", A),
        (f"SHA256 (tool.tgz) = {A}\n", A),
        (f"{A.upper()}\n", A),
        (f"tool.tgz: {A}\n", A),
        (f"{A}{B}  tool.tgz\n", A + B),
        (f"SHA512 (tool.tgz) = {A}{B}\n", A + B),
        (f"{A}{B}  tool.tgz\n{B}  tool.tgz\n", B),
    ],
)
def test_publishers_write_their_lists_in_many_ways(text: str, found: str) -> None:
    assert pins.published(text, "tool.tgz") == found


def test_a_list_with_both_hashes_is_asked_for_the_one_that_is_recorded() -> None:
    text = f"{A}{B}  tool.tgz\n{B}  tool.tgz\n"
    assert pins.published(text, "tool.tgz", 128) == A + B
    assert pins.published(text, "tool.tgz", 64) == B
    assert pins.published(f"{A}{B}  tool.tgz\n", "tool.tgz", 64) == A + B


def test_what_github_says_of_a_release_is_a_list() -> None:
    release = {
        "tag_name": "v1.0",
        "body": f"## Bug fixes\r\n\r\nChecksum (sha512) for tool.tgz:\r\n```\r\n{A}{B}  tool.tgz\r\n```\r\n",
        "assets": [
            {"name": "old.tgz", "digest": None},
            {"name": "other.tgz", "digest": f"sha256:{A}"},
            {"name": "tool.tgz", "digest": f"sha256:{B}"},
        ],
    }
    assert pins.published(json.dumps(release), "tool.tgz", 128) == A + B
    assert pins.published(json.dumps(release), "tool.tgz") == B
    with pytest.raises(pins.PinError, match=r"does not name old\.tgz"):
        pins.published(json.dumps(release), "old.tgz")


@pytest.mark.parametrize("text", [f"{A}  other.tgz\n", "", f"{A}\n{B}\n", f"{A}  tool.tgz.asc\n"])
def test_a_list_that_does_not_name_the_file_proves_nothing(text: str) -> None:
    with pytest.raises(pins.PinError, match=r"does not name tool\.tgz"):
        pins.published(text, "tool.tgz")
