# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes this checkout importable as a collection, and runs modules in the test's own process."""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

# What a person has set for Ansible and AWS, such as a sandbox's configuration, is not meant for tests.
for _name in [name for name in os.environ if name.startswith(("ANSIBLE_", "AWS_"))]:
    if _name != "ANSIBLE_COLLECTIONS_PATH":
        del os.environ[_name]

REPO = Path(__file__).resolve().parents[1]
_HELD: list[tempfile.TemporaryDirectory[str]] = []
Done = subprocess.CompletedProcess[str]


@functools.cache
def _collections_root() -> Path:
    """Return a folder in which ansible_collections/pcluster/postboot is this very checkout."""
    for root in (*REPO.parents[2:3], REPO / ".venv" / "collections"):
        link = root / "ansible_collections" / "pcluster" / "postboot"
        if link.exists() and link.resolve() == REPO:
            return root
    held = tempfile.TemporaryDirectory(prefix="postboot-collections-")
    _HELD.append(held)
    link = Path(held.name) / "ansible_collections" / "pcluster" / "postboot"
    link.parent.mkdir(parents=True)
    link.symlink_to(REPO)
    return Path(held.name)


def _install_finder() -> None:
    from ansible.utils.collection_loader import AnsibleCollectionConfig

    if AnsibleCollectionConfig.collection_finder is None:  # ansible-test brings its own
        from ansible.plugins.loader import init_plugin_loader

        # First in the list, so it wins over the ansible_collections that the "ansible" package puts into site-packages.
        init_plugin_loader([str(_collections_root())])


_install_finder()
# Each look for garbage goes through all that was imported, and through botocore's data: with Python's usual threshold
# of 700 objects, that is a quarter of the time that tests take in this process.
gc.set_threshold(100_000, 20, 20)


def pytest_collection_finish() -> None:
    """What was imported until here stays to the end, and is no garbage to look for."""
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _empty_account() -> Iterator[None]:
    """What a file's tests have left in moto is gone: one process runs many files, in an order that nobody chose."""
    yield
    if "moto" in sys.modules:
        from moto.moto_api._internal import moto_api_backend

        moto_api_backend.reset()


class ModuleExit(Exception):
    """What a module said when it ended."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(json.dumps(result, default=str))
        self.result = result


class ModuleRunner:
    """Runs a module's main() here and returns its result; `failed` is set as Ansible would."""

    def __call__(
        self, module: ModuleType, args: dict[str, Any] | None = None, *, check: bool = False, diff: bool = True
    ) -> dict[str, Any]:
        from ansible.module_utils import basic
        from ansible.module_utils.testing import patch_module_args

        def exit_json(_self: Any, **result: Any) -> None:
            raise ModuleExit({"changed": False, "failed": False, **result})

        def fail_json(_self: Any, msg: str = "", **result: Any) -> None:
            raise ModuleExit({"changed": False, **result, "failed": True, "msg": msg})

        given = {
            **(args or {}),
            "_ansible_check_mode": check,
            "_ansible_diff": diff,
            "_ansible_remote_tmp": tempfile.gettempdir(),
            "_ansible_keep_remote_files": False,
        }
        with (
            patch_module_args(given),
            mock.patch.object(basic.AnsibleModule, "exit_json", exit_json),
            mock.patch.object(basic.AnsibleModule, "fail_json", fail_json),
        ):
            try:
                module.main()
            except ModuleExit as ended:
                return json.loads(json.dumps(ended.result))  # type: ignore[no-any-return]
        raise AssertionError(f"{module.__name__} ended without exit_json or fail_json")


@pytest.fixture
def run_module() -> ModuleRunner:
    """run_module(module, {"name": …}, check=True) returns the module's result, `failed` included."""
    return ModuleRunner()


def unpack_node_tree(source: Path, target: Path) -> Path:
    """Write a node of tests/unit/fixtures/nodes (its README.md tells the form) into a folder."""
    machines = {"x86_64": 62, "aarch64": 183}
    for part in f"\n{source.read_text()}".split("\n== ")[1:]:
        head, _, content = part.partition("\n")
        words = head.split()
        if words[0] == "pci":
            for line in content.splitlines():
                address, vendor, device, kind, *driver = line.split()
                folder = target / "sys/bus/pci/devices" / address
                folder.mkdir(parents=True)
                for name, value in (("vendor", vendor), ("device", device), ("class", kind)):
                    (folder / name).write_text(f"0x{value}\n")
                if driver:
                    (folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver[0]}")
            continue
        path = target / words[-1 if words[0] == "elf" else 0].lstrip("/")
        if head.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if words[0] == "elf":
            path.write_bytes(b"\x7fELF\x02\x01".ljust(18, b"\0") + machines[words[1]].to_bytes(2, "little"))
        elif len(words) == 3:
            path.symlink_to(words[2])
        else:
            path.write_text(f"{content}\n" if content else "")
    return target


@pytest.fixture
def node_tree(tmp_path: Path) -> Callable[[str], Path]:
    """node_tree("head-ubuntu2404") unpacks that node of tests/unit/fixtures/nodes and returns its root."""

    def unpack(name: str) -> Path:
        return unpack_node_tree(REPO / f"tests/unit/fixtures/nodes/{name}.tree", tmp_path / name)

    return unpack


@pytest.fixture(scope="session", autouse=True)
def _read_once() -> Iterator[None]:
    """Let all of botocore's sessions share what they read of its data: each would parse megabytes of JSON anew."""
    from botocore.loaders import JSONFileLoader

    read = functools.cache(JSONFileLoader().load_file)
    with mock.patch.object(JSONFileLoader, "load_file", lambda _self, path: read(path)):
        yield


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """The address of an AWS API that moto serves."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def strict(moto: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """moto's address; moto refuses every access key, as AWS refuses one that was deleted."""
    monkeypatch.setattr("moto.settings.INITIAL_NO_AUTH_ACTION_COUNT", 0)
    return moto


@pytest.fixture(scope="session")
def collections() -> Path:
    """A folder for ANSIBLE_COLLECTIONS_PATH in which a program finds this checkout."""
    return _collections_root()


@pytest.fixture(scope="session")
def ansible(collections: Path) -> Callable[..., Done]:
    """ansible("playbook", *arguments, cwd=…, NAME=value) runs one of Ansible's programs to its end.

    PWD is a shell's word; a program that a timer or another program starts has none, or the wrong one.
    """

    def run(program: str, *arguments: str, cwd: Path | None = None, **environment: str) -> Done:
        inherited = {name: value for name, value in os.environ.items() if name != "PWD"}
        return subprocess.run(
            [sys.executable, "-m", "ansible", program, *arguments],
            env={**inherited, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_COLLECTIONS_PATH": str(collections), **environment},
            cwd=cwd,
            text=True,
            capture_output=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def repo() -> Path:
    """The root of the checkout."""
    return REPO
