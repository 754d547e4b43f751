# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bundles of a small collection, with wheels that pip finds in a folder instead of an index."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._bundle import collection as bundle_collection
from ansible_collections.pcluster.postboot.plugins.modules import bundle
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.unit.plugins.lab import Run

GALAXY = """
namespace: pcluster
name: postboot
version: 1.2.3
readme: README.md
authors: [me]
build_ignore: [left]
dependencies: {amazon.aws: ">=10.0.0"}
"""
FILES = {
    "README.md": "read me\n",
    "docs/pull.md": "for people\n",
    "examples/iam/node-ssm.json": "{}\n",
    "changelogs/changelog.yaml": "{}\n",
    "galaxy.yml": GALAXY,
    "left/out.txt": "not shipped\n",
    "inventory/node.pcluster.yml": "plugin: pcluster.postboot.pcluster\nsource: node\n",
    "inventory/image.yml": "pcluster: {hosts: {localhost: {}}}\n",
    "plugins/modules/b.py": "b\n",
    "plugins/modules/a.py": "a\n",
    "roles/pull/files/bootstrap.sh": "#!/bin/bash\necho hello\n",
}
NOT_IN_BUNDLES = {
    *("galaxy.yml", "left/out.txt"),
    *("docs/pull.md", "examples/iam/node-ssm.json", "changelogs/changelog.yaml"),  # nodes never read these
}
WHEELS = [
    "old-1.0-py3-none-any",
    "new-1.0-py3-none-any",
    "native-2.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64",
    "native-2.0-cp311-cp311-manylinux_2_28_aarch64",
    "native-2.0-cp312-abi3-manylinux_2_34_x86_64",
    "native-2.0-cp312-abi3-manylinux_2_34_aarch64",
    "native-2.0-cp312-cp312-musllinux_1_2_x86_64",
    "tool-3.0-py3-none-manylinux_2_28_x86_64",
    "tool-3.0-py3-none-manylinux_2_28_aarch64",
]
SHARED = "ansible_collections/pcluster/postboot"


def wheel(folder: Path, tag: str, content: str = "") -> str:
    name, version = tag.split("-")[:2]
    path = folder / f"{tag}.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag.split('-', 2)[2]}\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lines(hashes: dict[str, str], requirement: str, marker: str = "") -> str:
    prefix = requirement.replace("==", "-")
    known = [f" \\\n    --hash=sha256:{digest}" for tag, digest in hashes.items() if tag.startswith(prefix)]
    return f"{requirement}{marker and ' ; ' + marker}{''.join(known)}\n    # via nothing\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone, the same collection installed, two lock files, and wheels: what no test changes."""
    folder = tmp_path_factory.mktemp("world")
    for name, text in FILES.items():
        path = folder / "clone" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "clone/roles/pull/files/bootstrap.sh").chmod(0o755)
    galaxy = [sys.executable, "-m", "ansible", "galaxy", "collection"]
    subprocess.run([*galaxy, "build", "--output-path", folder, folder / "clone"], check=True, capture_output=True)
    built = folder / "pcluster-postboot-1.2.3.tar.gz"
    subprocess.run([*galaxy, "install", "--offline", "--no-deps", "-p", folder, built], check=True, capture_output=True)
    (folder / SHARED / "scratch.txt").write_text("it is not of the collection")
    (folder / "index").mkdir()
    hashes = {tag: wheel(folder / "index", tag) for tag in WHEELS}
    node = lines(hashes, "old==1.0", "python_full_version < '3.12'")
    node += lines(hashes, "new==1.0", "python_full_version >= '3.12'") + lines(hashes, "native==2.0")
    (folder / "node.txt").write_text(node)
    (folder / "tools.txt").write_text(lines(hashes, "tool==3.0"))
    return folder


@pytest.fixture
def index(tmp_path: Path, world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks."""
    folder = tmp_path / "index"
    shutil.copytree(world / "index", folder)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(folder)), ("CONFIG_FILE", os.devnull)):
        monkeypatch.setenv(f"PIP_{name}", value)
    return folder


@pytest.fixture
def bare(tmp_path: Path, world: Path, index: Path) -> dict[str, Any]:
    """The module's arguments, where nothing was ever fetched."""
    collection = tmp_path / "installed"
    shutil.copytree(world / SHARED, collection)
    return {
        "dest": str(tmp_path / "bundles"),
        "collection": str(collection),
        "bootstrap": str(collection / "roles/pull/files/bootstrap.sh"),
        "requirements": str(world / "node.txt"),
        "tools": str(world / "tools.txt"),
        "pythons": ["3.11", "3.12"],
        "architectures": ["x86_64"],
    }


@pytest.fixture
def given(bare: dict[str, Any], world: Path, run_module: Run) -> dict[str, Any]:
    kept = world / "kept"
    if not kept.exists():
        run_module(bundle, {**bare, "dest": str(kept)})
    shutil.copytree(kept / ".wheels", Path(bare["dest"], ".wheels"))
    return bare


def members(result: dict[str, Any]) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(Path(result["directory"]) / "pcluster-postboot.tar.gz") as tar:
        return {member.name: member for member in tar}


def content(result: dict[str, Any], name: str) -> bytes:
    with tarfile.open(Path(result["directory"]) / "pcluster-postboot.tar.gz") as tar:
        stream = tar.extractfile(name)
        assert stream
        return stream.read()


def test_check_build_check_build(run_module: Run, bare: dict[str, Any], index: Path) -> None:
    given = bare
    check = run_module(bundle, given, check=True)
    assert (check["changed"], check["id"], check["fetched"]) == (True, "", ["3.11 x86_64", "3.12 x86_64"])
    assert not Path(given["dest"]).exists()

    first = run_module(bundle, given)
    assert first["changed"]
    assert first["id"] == f"1.2.3-{first['sha256'][:12]}"
    folder = Path(first["directory"])
    assert folder == Path(given["dest"]) / first["id"]
    assert sorted(path.name for path in folder.iterdir()) == ["SHA256SUMS", "bootstrap.sh", "pcluster-postboot.tar.gz"]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
    assert [file["name"] for file in first["files"]] == ["bootstrap.sh", "pcluster-postboot.tar.gz", "SHA256SUMS"]
    for file in first["files"]:
        assert hashlib.sha256((folder / file["name"]).read_bytes()).hexdigest() == file["sha256"]
    assert first["bytes"] == (folder / "pcluster-postboot.tar.gz").stat().st_size

    shutil.rmtree(index)  # nothing is fetched any more
    assert run_module(bundle, given, check=True)["changed"] is False
    again = run_module(bundle, given)
    assert (again["changed"], again["fetched"], again["sha256"]) == (False, [], first["sha256"])
    assert sorted(path.name for path in Path(given["dest"]).iterdir()) == [".lock", ".wheels", first["id"]]


def test_what_is_in_it(run_module: Run, given: dict[str, Any]) -> None:
    result = run_module(bundle, given)
    found = members(result)
    expected = {f"{SHARED}/{name}" for name in FILES if name not in NOT_IN_BUNDLES}
    expected |= {f"{SHARED}/FILES.json", f"{SHARED}/MANIFEST.json"}
    expected |= {
        "bundle.json",
        "bootstrap.sh",
        "requirements.txt",
        "inventory/node.pcluster.yml",
        "inventory/image.yml",
    }
    # Each target gets what its own interpreter would take, whatever the interpreter that runs this is.
    of_311 = ["old-1.0-py3-none-any", "native-2.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64"]
    of_312 = ["new-1.0-py3-none-any", "native-2.0-cp312-abi3-manylinux_2_34_x86_64"]
    tools = ["tool-3.0-py3-none-manylinux_2_28_x86_64"]
    expected |= {f"wheelhouse/{name}.whl" for name in [*of_311, *of_312, *tools]}
    assert set(found) == expected
    assert list(found) == sorted(found)
    told = {(info.uid, info.gid, info.uname, info.gname, info.mtime) for info in found.values()}
    assert told == {(0, 0, "", "", 0)}
    assert {name for name, info in found.items() if info.mode == 0o755} == {
        "bootstrap.sh",
        f"{SHARED}/roles/pull/files/bootstrap.sh",
    }
    about = json.loads(content(result, "bundle.json"))
    listing = content(result, f"{SHARED}/FILES.json")
    assert about == {
        "format": 1,
        "version": "1.2.3",
        "created_from": {
            "collection": hashlib.sha256(listing).hexdigest(),
            "requirements": hashlib.sha256(Path(given["requirements"]).read_bytes()).hexdigest(),
        },
        "pythons": ["3.11", "3.12"],
        "architectures": ["x86_64"],
    }
    assert content(result, "requirements.txt") == Path(given["requirements"]).read_bytes()
    assert content(result, "bootstrap.sh") == Path(given["bootstrap"]).read_bytes()
    manifest = json.loads(content(result, f"{SHARED}/MANIFEST.json"))
    assert manifest["file_manifest_file"]["chksum_sha256"] == hashlib.sha256(listing).hexdigest()
    entries = {entry["name"]: entry for entry in json.loads(listing)["files"]}
    digest = hashlib.sha256(b"a\n").hexdigest()
    assert entries["plugins/modules/a.py"]["chksum_sha256"] == digest
    assert entries["plugins/modules"]["ftype"] == "dir"
    # The node's tar, and not only Python's, which tolerates more.
    archive = Path(result["directory"]) / "pcluster-postboot.tar.gz"
    listed = subprocess.run(["tar", "-tzf", archive], check=True, capture_output=True, text=True).stdout.split()
    assert set(listed) == expected
    # gzip would tell when it ran, and what the file was called.
    assert archive.read_bytes()[3:8] == b"\0" * 5
    assert archive.stat().st_mode & 0o777 == 0o600


def test_the_same_inputs_make_the_same_bytes(
    run_module: Run, given: dict[str, Any], world: Path, tmp_path: Path
) -> None:
    """From a clone as from what was installed; in another order, at another time, with another umask."""
    first = run_module(bundle, given)
    other = tmp_path / "other clone"
    shutil.copytree(world / "clone", other)
    for path in sorted(other.rglob("*"), reverse=True):
        if path.is_file():
            data, mode = path.read_bytes(), path.stat().st_mode
            path.unlink()
            path.write_bytes(data)
            path.chmod((mode & 0o700) | 0o060)
            os.utime(path, (1, 1))
    second = run_module(bundle, {**given, "collection": str(other), "pythons": ["3.12", "3.11", "3.12"]})
    assert (second["changed"], second["sha256"]) == (False, first["sha256"])
    # ansible-galaxy lists files as their directory does, and a umask may have left other modes.
    listing = Path(given["collection"], "FILES.json")
    listed = json.loads(listing.read_text())
    listing.write_text(json.dumps({**listed, "files": listed["files"][::-1]}))
    Path(given["collection"], "README.md").chmod(0o640)
    assert run_module(bundle, given)["changed"] is False
    elsewhere = Path(given["dest"]).rename(tmp_path / "elsewhere")
    shutil.rmtree(elsewhere / first["id"])
    assert run_module(bundle, {**given, "dest": str(elsewhere)})["sha256"] == first["sha256"]


def test_a_collection_that_is_not_whole(run_module: Run, given: dict[str, Any]) -> None:
    Path(given["collection"], "plugins/modules/a.py").unlink()
    assert "plugins/modules/a.py is not there: install the collection again" in run_module(bundle, given)["msg"]


def test_ansible_galaxy_hangs(
    run_module: Run, given: dict[str, Any], world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    lab.program(python, "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(bundle_collection, "SECONDS", 0.2)
    failed = run_module(bundle, {**given, "collection": str(world / "clone")})
    assert failed["msg"].startswith(f"'{python} -m ansible galaxy collection build ")
    assert failed["msg"].endswith(
        "' did not end within 0.2 s; see whether the disk of the clone answers, and run it by hand"
    )


def test_another_content_is_another_bundle(run_module: Run, given: dict[str, Any]) -> None:
    first = run_module(bundle, given)
    Path(given["bootstrap"]).write_text("#!/bin/bash\necho other\n")
    check = run_module(bundle, given, check=True)
    second = run_module(bundle, given)
    assert check["changed"]
    assert second["changed"]
    assert check["id"] == second["id"] != first["id"]
    assert (Path(first["directory"]) / "SHA256SUMS").exists()
    assert not (Path(second["directory"]) / "SHA256SUMS").samefile(Path(first["directory"]) / "SHA256SUMS")


def test_damage_is_mended(run_module: Run, given: dict[str, Any]) -> None:
    first = run_module(bundle, given)
    archive = Path(first["directory"]) / "pcluster-postboot.tar.gz"
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-100])
    assert run_module(bundle, given, check=True)["changed"]
    again = run_module(bundle, given)
    assert (again["changed"], again["fetched"], archive.read_bytes()) == (True, [], whole)
    # A wheel of which half was kept is fetched anew, and so is a set that lost one.
    kept = sorted(Path(given["dest"], ".wheels").rglob("native*.whl"))
    kept[0].write_bytes(kept[0].read_bytes()[:50])
    kept[1].unlink()
    again = run_module(bundle, given)
    assert (again["fetched"], again["sha256"]) == (["3.11 x86_64", "3.12 x86_64"], first["sha256"])
    # What a killed run has left.
    leftover = Path(given["dest"], ".building", "pcluster-postboot.tar.gz")
    leftover.parent.mkdir()
    leftover.write_bytes(b"half")
    assert run_module(bundle, given)["changed"] is False
    assert not leftover.exists()


def test_only_what_the_lock_knows(run_module: Run, bare: dict[str, Any], index: Path) -> None:
    given = bare
    wheel(index, WHEELS[0], "something else")
    failed = run_module(bundle, given)
    assert failed["failed"]
    assert failed["msg"].startswith("the wheels of Python 3.11 on x86_64: ")
    assert "Expected sha256" in failed["msg"]
    assert "\n" not in failed["msg"]
    assert [path.name for path in Path(given["dest"]).iterdir() if not path.name.startswith(".")] == []


def test_no_wheel_for_a_target(run_module: Run, bare: dict[str, Any], index: Path) -> None:
    for path in index.glob("tool-*aarch64.whl"):
        path.unlink()
    failed = run_module(bundle, {**bare, "architectures": ["aarch64"]})
    assert "the wheels of Python 3.11 on aarch64: No matching distribution found for tool==3.0" in failed["msg"]


def test_without_pip(run_module: Run, bare: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "python"], check=True)
    python = str(tmp_path / "python/bin/python")
    monkeypatch.setattr(sys, "executable", python)  # an installed collection is read without ansible-galaxy
    failed = run_module(bundle, bare)
    assert failed["msg"].endswith(f": {python} has no pip to fetch them with; needed: {python} -m ensurepip")


def test_variables_beside_the_inventory(run_module: Run, given: dict[str, Any], tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    (tmp_path / "shared").mkdir()
    real.mkdir()
    (real / "pcluster").symlink_to(tmp_path / "shared")
    (real / "all.yml").write_text("docker_version: 1\n")
    (real / "pcluster/more").write_text("# not !vault, nor $ANSIBLE_VAULT;\nx: {y: !unsafe '{{'}\n")
    (real / "pcluster/.hidden").write_text("no")
    (real / "pcluster/old.yml~").write_text("no")
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory/group_vars").symlink_to(real)
    (tmp_path / "inventory/my.pcluster.yml").write_text("")
    plain = run_module(bundle, given)
    assert plain["group_vars"] == ""
    # A file and its folder are the same place, and a list of hosts is none.
    sources = [str(tmp_path / "inventory/my.pcluster.yml"), str(tmp_path / "inventory"), "host,"]
    result = run_module(bundle, {**given, "inventories": sources})
    assert result["group_vars"] == str(real)
    found = {name: info.mode for name, info in members(result).items() if "group_vars" in name}
    assert found == {"inventory/group_vars/all.yml": 0o600, "inventory/group_vars/pcluster/more": 0o600}
    assert result["id"] != plain["id"]
    # The one that is named is taken, and naming none is possible.
    other = tmp_path / "other/group_vars"
    other.mkdir(parents=True)
    assert run_module(bundle, {**given, "inventories": sources, "group_vars": ""})["id"] == plain["id"]
    assert run_module(bundle, {**given, "inventories": sources, "group_vars": str(other)})["group_vars"] == str(other)
    two = run_module(bundle, {**given, "inventories": [*sources, str(other.parent)]})
    assert "lie each beside an inventory: set publish_group_vars to one of them" in two["msg"]
    missing = run_module(bundle, {**given, "group_vars": "/nowhere"})
    assert missing["msg"] == (
        "publish_group_vars is /nowhere, which is no directory; needed: one as beside an inventory"
    )


def test_only_what_nodes_read_comes_along(
    run_module: Run, given: dict[str, Any], tmp_path: Path, warnings: list[str]
) -> None:
    folder = tmp_path / "group_vars"
    of_nodes = ["all/b.yml", "ungrouped.json", "pcluster", "pcluster_queue_gpu.yaml", "pcluster_gpu/deep/x"]
    others = ["README", "all.md", "databases.yml", "pclusters.yml", "pcluster_a/notes.txt", "web/a.yml"]
    others += ["pcluster_compte.yml", "pcluster_queue.yml", "team_x.yml"]
    for name in (*of_nodes, *others):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("$ANSIBLE_VAULT;1.1;AES256\n3362\n" if name in others[:4] else "a: 1\n")
    wanted = {**given, "group_vars": str(folder)}

    def variables(**more: Any) -> set[str]:
        prefix = "inventory/group_vars/"
        found = members(run_module(bundle, {**wanted, **more}))
        return {name[len(prefix) :] for name in found if name.startswith(prefix)}

    assert variables() == set(of_nodes)
    because = "not in the bundle, because a node is in no such group or reads no such file: "
    assert warnings == [f"{folder}: {because}{', '.join(sorted(others))}"]
    warnings.clear()
    assert variables(node_groups=["team_.*", "we"]) == {*of_nodes, "team_x.yml"}
    assert warnings == [f"{folder}: {because}{', '.join(sorted(others[:-1]))}"]


def test_the_nodes_own_inventory_has_the_users_groups(run_module: Run, given: dict[str, Any]) -> None:
    plain = run_module(bundle, given)
    text = "groups: {heads: pcluster_node_type == 'head'}\n"
    result = run_module(bundle, {**given, "node_inventory": text})
    name = "inventory/node.pcluster.yml"
    assert content(result, name) == content(plain, name) + text.encode()
    assert content(result, f"{SHARED}/{name}") == content(plain, name) == FILES[name].encode()
    assert yaml.safe_load(content(result, name))["source"] == "node"


VAULT = "!vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        3362\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("$ANSIBLE_VAULT;1.1;AES256\n3362\n", [""]),
        (f"a: 1\ntoken: {VAULT}", [" (token)"]),
        (f"a: {VAULT}b:\n  - c: {VAULT}  - d\n", [" (a)", " (b[0].c)"]),
        (f"a: {{% if x %}}\ntoken: {VAULT}", [""]),  # no YAML
    ],
)
def test_what_is_encrypted_is_refused_before_anything_is_fetched(
    run_module: Run, bare: dict[str, Any], tmp_path: Path, text: str, names: list[str]
) -> None:
    (tmp_path / "vars/all").mkdir(parents=True)
    (tmp_path / "vars/all/x.yml").write_text(text)
    (tmp_path / "vars/pcluster.yml").write_text("a: 1\n")
    for check in (True, False):
        failed = run_module(bundle, {**bare, "group_vars": str(tmp_path / "vars")}, check=check)
        where = ", ".join(f"{tmp_path}/vars/all/x.yml{name}" for name in names)
        assert failed["msg"].startswith(f"{where}: encrypted by ansible-vault, whose password no node has; needed: ")
        assert "\n" not in failed["msg"]
    assert not Path(bare["dest"]).exists()


def test_variables_of_hosts_are_told_to_stay(
    run_module: Run, given: dict[str, Any], tmp_path: Path, warnings: list[str]
) -> None:
    sources = {"inventories": [str(tmp_path / "my.pcluster.yml"), str(tmp_path)]}
    run_module(bundle, {**given, **sources}, check=True)
    assert warnings == []
    (tmp_path / "host_vars").mkdir()
    run_module(bundle, {**given, **sources}, check=True)
    assert warnings == [
        f"{tmp_path}/host_vars does not come along: on itself each node is localhost, so use group_vars"
    ]


def test_downloads_come_along(run_module: Run, given: dict[str, Any], tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    (mirror / "example.com/a").mkdir(parents=True)
    (mirror / "example.com/a/one.tar.gz").write_bytes(b"one")
    (mirror / "example.com/a/former.tar.gz").write_bytes(b"not asked for")
    wanted = {**given, "mirror": str(mirror), "mirror_files": ["example.com/a/one.tar.gz"]}
    result = run_module(bundle, wanted)
    assert [name for name in members(result) if name.startswith("mirror/")] == ["mirror/example.com/a/one.tar.gz"]
    assert content(result, "mirror/example.com/a/one.tar.gz") == b"one"
    wanted["mirror_files"].append("example.com/two.tar.gz")
    assert run_module(bundle, wanted, check=True)["id"] == ""
    assert "has no example.com/two.tar.gz" in run_module(bundle, wanted)["msg"]


def test_one_at_a_time(run_module: Run, given: dict[str, Any]) -> None:
    dest = Path(given["dest"])
    with open(dest / ".lock", "w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        failed = run_module(bundle, given)
    assert failed["msg"] == f"another run publishes from {dest}; needed: that it ends"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pythons": ["3.1"]}, "publish_pythons is 3.1; needed: one or more of 3.11, 3.12, 3.13, 3.14"),
        ({"architectures": []}, "publish_architectures is empty; needed: one or more of x86_64, aarch64"),
        ({"bootstrap": "/nowhere/bootstrap.sh"}, "No such file or directory: '/nowhere/bootstrap.sh'"),
        ({"collection": "/proc"}, "/proc has neither galaxy.yml nor MANIFEST.json"),
        ({"dest": "/proc/nowhere"}, "the bundle cannot be built: "),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said(run_module: Run, given: dict[str, Any], change: dict[str, Any], message: str) -> None:
    failed = run_module(bundle, {**given, **change})
    assert failed["failed"]
    assert message in failed["msg"]
    assert "\n" not in failed["msg"]


def test_a_script_that_dos2unix_would_change(run_module: Run, given: dict[str, Any]) -> None:
    Path(given["bootstrap"]).write_bytes(b"#!/bin/bash\r\necho\r\n")
    assert "is no script; needed: #! at its beginning, and no carriage return" in run_module(bundle, given)["msg"]


def test_a_full_disk_is_said_and_given_back(
    run_module: Run, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansible_collections.pcluster.postboot.plugins.module_utils._bundle import archive as bundle_archive

    def full(_members: Any, sink: Any) -> None:
        sink.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(bundle_archive, "write", full)
        failed = run_module(bundle, given)
    assert failed["msg"] == "the bundle cannot be built: [Errno 28] No space left on device"
    assert sorted(path.name for path in Path(given["dest"]).iterdir()) == [".lock", ".wheels"]
    assert run_module(bundle, given)["changed"]
