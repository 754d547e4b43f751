# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The program that imports container images, with a registry and an enroot that do what a test wants."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils import _container_images
from ansible_collections.pcluster.postboot.tests import strangers
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE, until

PROGRAM = Path(__file__).resolve().parents[3] / "roles/container_images/files/container-images"
sys.path.append(str(PROGRAM.parent))
files, importer, main, names, registry, settings, state = (
    importlib.import_module(f"container_images.{name}")
    for name in ("files", "importer", "main", "names", "registry", "settings", "state")
)

# A whole squashfs: its magic, and its size where the superblock has it.
WHOLE = r"hsqs\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\144\0\0\0\0\0\0\0%052d"
ENROOT = f"""#!/bin/bash
# enroot import --output FILE URI
[ "$1" = version ] && {{ cat "$FAKE/version" 2> /dev/null || echo 4.1.2; exit; }}
echo "$*" >> "$FAKE/calls"; env > "$FAKE/environment"
cp "$ENROOT_CONFIG_PATH/.credentials" "$FAKE/credentials" 2> /dev/null
name=${{4##*#}}; name=${{name%%[:@]*}}; name=${{name##*/}}
[ -e "$3" ] && {{ echo "[ERROR] File already exists: $3"; exit 1; }}
echo "[INFO] Fetching image manifest" >&2
[ -f "$FAKE/$name" ] && . "$FAKE/$name"
printf '{WHOLE}' 0 > "$3"
"""


# Because pauses of seconds are for a service, a test's importer makes a tenth of them.
BRISK = """
import runpy, sys, threading
pause = threading.Event.wait
threading.Event.wait = lambda event, timeout=None: pause(event, timeout and timeout / 10)
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


class Registry(lab.Pages):
    """A registry whose answers are in `says`: a path's status, headers and body, one after another."""

    says: dict[str, list[tuple[int, dict[str, str], bytes]]] = {}
    asked: list[tuple[str, str]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization") or ""))
        answers = self.says.get(self.path.partition("?")[0]) or [(404, {}, b"{}")]
        status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.say(status, body, **headers)


def manifest(size: int = 1000) -> bytes:
    layers = [{"digest": f"sha256:{letter * 64}", "size": size // 2} for letter in "ab"]
    return json.dumps({"schemaVersion": 2, "config": {"digest": "sha256:c"}, "layers": layers}).encode()


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


class Head:
    """A head node: its shared folder, its enroot, and its registry."""

    def __init__(self, root: Path, address: str) -> None:
        self.root, self.address, self.fake = root, address, root / "fake"
        self.directory, self.file = root / "fsx/containers", root / "fsx/config/containers.txt"
        self.log, self.settings_file = root / "fsx/logs/ngc-download.log", root / "settings.json"
        for path in (self.fake, self.directory, self.file.parent, self.log.parent):
            path.mkdir(parents=True)
        lab.program(self.fake / "enroot", ENROOT)
        self.settings()

    def settings(self, *wanted: str, **more: Any) -> None:
        settings = {
            "images": [self.name(one) for one in wanted],
            "file": str(self.file),
            "directory": str(self.directory),
            "log": str(self.log),
            "logs": str(self.log.parent / "container-downloads"),
            "work": str(self.root / "work"),
            "http_registries": [self.address],
            "retry_wait": 0.1,
            **more,
            "environment": {
                "PATH": f"{self.fake}:/usr/bin:/bin",
                "FAKE": str(self.fake),
                **more.get("environment", {}),
            },
        }
        self.settings_file.write_text(json.dumps(settings))

    def name(self, one: str) -> str:
        return f"{self.address}/{one}"

    def has(self, one: str, body: bytes = b"", *before: tuple[int, dict[str, str], bytes]) -> str:
        """Let the registry have an image, after some other answers; return its digest."""
        repository, _colon, tag = one.partition(":")
        body = body or manifest()
        Registry.says[f"/v2/{repository}/manifests/{tag}"] = [*before, (200, {}, body)]
        return digest(body)

    def enroot(self, one: str, script: str) -> None:
        """Let enroot do something else with an image before it makes its file."""
        (self.fake / one).write_text(script)

    def run(self) -> int:
        return int(main.main(["run", "--settings", str(self.settings_file), "--once"]))

    def imports(self, body: bytes = b"", code: int = 0, **more: Any) -> str:
        """Import an image that the registry has; return why that has failed."""
        self.has("a:1", body)
        self.settings("a:1", **more)
        assert self.run() == code
        return str(self.entry("a:1").get("why"))

    def fails(self, body: bytes = b"", **more: Any) -> str:
        return self.imports(body, 1, **more)

    def key(self, text: str, mode: int = 0o600) -> Path:
        """Write a file with logins."""
        path = self.root / "key"
        path.write_text(text)
        path.chmod(mode)
        return path

    def start(self, *more: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-I", "-c", BRISK, str(PROGRAM), "run", "--settings", str(self.settings_file), *more]
        return subprocess.Popen(line, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    @property
    def state(self) -> dict[str, Any]:
        return dict(state.read_state(str(self.directory)))

    def entry(self, one: str) -> dict[str, Any]:
        return dict(self.state["images"].get(self.name(one), {"state": "unknown"}))

    def path(self, one: str) -> Path:
        return self.directory / names.parse(self.name(one)).file

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()} - {state.STATE, importer.LOCK}

    @property
    def calls(self) -> list[str]:
        return lab.lines(self.fake / "calls")

    def said(self, pattern: str) -> list[str]:
        return [line for line in lab.lines(self.log) if re.search(pattern, line)]


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    Registry.says, Registry.asked = {}, []
    monkeypatch.setattr(os, "environ", os.environ.copy())
    pause = threading.Event.wait
    monkeypatch.setattr(threading.Event, "wait", lambda event, timeout=None: pause(event, timeout and timeout / 10))
    hasty = SimpleNamespace(time=time.time, monotonic=time.monotonic, sleep=lambda seconds: time.sleep(seconds / 10))
    monkeypatch.setattr(main, "time", hasty)
    # What the importer asks to be told is a test's own affair.
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGTERM, signal.SIGHUP)}
    with lab.serving(Registry) as url:
        yield Head(tmp_path, url.removeprefix("http://"))
    for sign, handler in before.items():
        signal.signal(sign, handler)


# Names

A64 = "a" * 64


@pytest.mark.parametrize(
    ("text", "name", "file"),
    [
        ("nvcr.io/nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3", "nvcr.io_nvidia_pytorch-24.01-py3"),
        ("docker://nvcr.io/nvidia/nemo:24.01", "nvcr.io/nvidia/nemo:24.01", "nvcr.io_nvidia_nemo-24.01"),
        ("docker://nvcr.io#nvidia/nemo:24.01", "nvcr.io/nvidia/nemo:24.01", "nvcr.io_nvidia_nemo-24.01"),
        ("docker://$oauthtoken@nvcr.io#nvidia/a:1", "nvcr.io/nvidia/a:1", "nvcr.io_nvidia_a-1"),
        ("nvcr.io/nvidia/hpc-x:24.03", "nvcr.io/nvidia/hpc-x:24.03", "nvcr.io_nvidia_hpc-x-24.03"),
        ("ubuntu", "ubuntu:latest", "ubuntu-latest"),
        ("docker://ubuntu:22.04", "ubuntu:22.04", "ubuntu-22.04"),
        ("docker.io/library/ubuntu:22.04", "ubuntu:22.04", "ubuntu-22.04"),
        ("rocm/pytorch:6.0", "rocm/pytorch:6.0", "rocm_pytorch-6.0"),
        ("registry:5000/debian:slim", "registry:5000/debian:slim", "registry+5000_debian-slim"),
        (f"nvcr.io/a/b@sha256:{A64}", f"nvcr.io/a/b@sha256:{A64}", f"nvcr.io_a_b@sha256-{A64}"),
        (f"nvcr.io/a/b:1@sha256:{A64}", f"nvcr.io/a/b:1@sha256:{A64}", f"nvcr.io_a_b-1@sha256-{A64}"),
    ],
)  # fmt: skip
def test_an_image_has_one_name_and_the_file_that_users_know(text: str, name: str, file: str) -> None:
    image = names.parse(text)
    assert str(image) == name
    assert image.file == f"{file}.sqsh"
    assert names.parse(name) == image


@pytest.mark.parametrize("text", ["x/a_b:1", "x/a:1_2", "x/a-b:c-d", "x/a-1:2", f"x/{'a' * 150}/{'b' * 100}:1"])
def test_a_name_that_could_mean_two_images_is_marked(text: str) -> None:
    assert re.search(r"~[0-9a-f]{12}\.sqsh$", names.parse(text).file)
    assert len(names.parse(text).file) < 255


def test_no_two_images_share_a_file() -> None:
    parts = ("a", "a-b", "a_b", "a-1", "1-a", "a.b")
    texts = [f"{x}/{y}:{z}" for x in (*parts, "r.io", "r:1", "r.io/a") for y in parts for z in (*parts, "1")]
    found = [names.parse(text) for text in texts]
    assert len({one.file for one in found}) == len(set(found)) == len(texts)


@pytest.mark.parametrize(
    "text",
    ["", "a b", "nvcr.io/Nvidia/x:1", "x:", "x@sha256:12", "x/../y", "-x", "http://x/y", "x:$(id)", "x/y:1/../../z"],
)
def test_what_names_no_image(text: str) -> None:
    if text == "x:":  # as enroot has it
        assert str(names.parse(text)) == "x:latest"
        return
    with pytest.raises(names.ImageError, match="names no image; needed: one such as nvcr"):
        names.parse(text)


def test_a_list_with_comments_and_nonsense(tmp_path: Path) -> None:
    path = tmp_path / "containers.txt"
    path.write_text(
        "# all\n\n docker://ubuntu:22.04 # mine\nwhat is this\ndocker://nvcr.io#nvidia/nemo:24.01\nubuntu:22.04\n"
    )
    found, problems = names.read_list(str(path))
    assert list(found) == ["ubuntu:22.04", "nvcr.io/nvidia/nemo:24.01"]
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}, line 4: 'what is this' names no image")
    assert names.read_list(str(tmp_path / "none")) == ({}, [])


# Importing


def test_what_is_missing_is_imported_and_recorded(head: Head) -> None:
    noted = head.has("nvidia/pytorch:24.01-py3")
    head.has("nvidia/nemo:24.01")
    head.file.write_text(f"docker://{head.address}#nvidia/nemo:24.01\n")
    head.settings("nvidia/pytorch:24.01-py3")
    assert head.run() == 0
    path = head.path("nvidia/pytorch:24.01-py3")
    assert path.name == f"{head.address.replace(':', '+')}_nvidia_pytorch-24.01-py3.sqsh"
    assert head.files == {path.name, head.path("nvidia/nemo:24.01").name}
    assert path.stat().st_mode & 0o777 == 0o644
    entry = head.entry("nvidia/pytorch:24.01-py3")
    assert (entry["state"], entry["digest"], entry["size"]) == ("present", noted, 100)
    # Exactly what was recorded, and to another name first.
    assert f"docker://{head.address}#nvidia/pytorch@{noted}" in " ".join(head.calls)
    assert f"{path.name}.importing" in " ".join(head.calls)
    assert head.said(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d .*pytorch:24.01-py3: importing 1.0 kB in 2 layers, sha256:")
    assert head.said(r"pytorch:24.01-py3: done, .* has 100 B, after \d+ s$")
    assert "[INFO] Fetching" in (head.log.parent / f"container-downloads/{path.name[:-5]}.log").read_text()
    assert not list((head.root / "work/cache").iterdir())


def test_an_older_enroot_knows_no_at(head: Head) -> None:
    noted = head.has("a:1")
    (head.fake / "version").write_text("3.4.1\n")
    head.settings("a:1")
    assert head.run() == 0
    assert f"#a:{noted}" in head.calls[0]


def test_what_is_there_is_not_imported_again(head: Head) -> None:
    head.has("a:1")
    head.settings("a:1")
    head.run()
    before = head.path("a:1").stat().st_ino, head.entry("a:1")
    assert head.run() == 0
    assert (head.path("a:1").stat().st_ino, head.entry("a:1")) == before
    assert len(head.calls) == 1


def test_somebody_elses_image_is_kept(head: Head) -> None:
    head.path("a:1").write_bytes(b"hsqs" + b"\0" * 36 + (96).to_bytes(8, "little") + b"\0" * 60)
    head.imports()
    assert head.calls == []
    assert head.entry("a:1")["digest"] is None


def test_a_broken_file_of_somebody_else_is_named_and_kept(head: Head) -> None:
    head.has("a:1")
    head.has("b:1")
    head.settings("a:1", "b:1")
    head.path("a:1").write_bytes(b"hsqs" + b"\0" * 36 + (9999).to_bytes(8, "little") + b"\0" * 60)
    os.utime(head.path("a:1"), (1, 1))
    assert head.run() == 1
    assert head.entry("a:1")["why"].endswith("is no image of the importer's (it has 108 of 9999 bytes); remove it")
    assert head.entry("b:1")["state"] == "present"
    head.path("a:1").unlink()
    assert head.run() == 0
    assert head.entry("a:1")["state"] == "present"


def test_only_so_many_at_a_time(head: Head) -> None:
    wanted = [f"i{number}:1" for number in range(5)]
    for one in wanted:
        head.has(one)
        head.enroot(
            one.partition(":")[0],
            'mkdir "$FAKE/$$.run"; ls -d "$FAKE"/*.run | wc -l >> "$FAKE/most"; sleep 0.4; rmdir "$FAKE/$$.run"\n',
        )
    head.settings(*wanted, parallel=2)
    assert head.run() == 0
    assert max(int(line) for line in (head.fake / "most").read_text().split()) == 2


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ((401, {"WWW-Authenticate": 'Basic realm="x"'}, b""), "answered 401 Unauthorized: it wants a login"),
        ((403, {}, b""), "answered 403 Forbidden"),
        ((404, {}, b""), "answered 404 Not Found: there is no such image"),
        ((200, {}, b'{"schemaVersion": 1}'), "its manifest is of a kind that enroot cannot import"),
        ((200, {}, b'{"manifests": [{"digest": "x", "platform": {"architecture": "s390x"}}]}'), "it is not built for"),
    ],
)
def test_a_refusal_concerns_one_image(head: Head, answer: Any, line: str) -> None:
    head.has("bad:1")
    head.has("good:1")
    Registry.says["/v2/bad/manifests/1"] = [answer]
    head.settings("bad:1", "good:1")
    assert head.run() == 1
    assert line in head.entry("bad:1")["why"]
    assert len(head.said("bad:1: ")) == 1
    assert head.entry("good:1")["state"] == "present"


def test_a_busy_registry_is_left_alone_for_as_long_as_it_asks(head: Head) -> None:
    head.has("a:1", b"", (429, {"Retry-After": "1"}, b""), (503, {}, b""))
    head.settings("a:1")
    begun = time.monotonic()
    assert head.run() == 0
    assert time.monotonic() - begun > 1
    assert head.said("answered 429 Too Many Requests; next try in 1 s")
    assert head.said("answered 503 Service Unavailable; next try in 0 s")


def test_it_gives_up_for_now(head: Head) -> None:
    head.has("a:1", b"", *[(503, {}, b"")] * 9)
    head.settings("a:1", retries=3)
    assert head.run() == 1
    assert head.entry("a:1")["why"].endswith("answered 503 Service Unavailable, tried 3 times")
    assert len(Registry.asked) == 3


@pytest.mark.parametrize(
    ("script", "line", "again"),
    [
        ("echo '[ERROR] URL http://r/v2/x returned error code: 401 Unauthorized' >&2; exit 1", "answered 401", False),
        ("echo 'curl: (22) The requested URL returned error: 429' >&2; exit 1", "answered 429 Too Many", True),
        (f"echo 'Checksum mismatch: {A64}' >&2; exit 1", "layer sha256:aaaaaaaaaaaa was cut off", True),
        (
            "echo 'curl: (18) transfer closed with 9 bytes remaining to read' >&2; exit 1",
            "a layer was cut off on the way",
            True,
        ),
        ("echo 'curl: (7) Failed to connect' >&2; exit 1", "enroot ended with 1 and said: curl: (7) Failed", True),
        (
            "printf 'enroot-mksquashovlfs: %s\\n' 'Compressor \"lzo\" is not supported!' 'Compressors available:' >&2; "
            "printf '\\tgzip (default)\\n\\txz\\n\\tzstd\\n\\tlzma\\n' >&2; exit 1",
            'enroot ended with 1 and said: enroot-mksquashovlfs: Compressor "lzo" is not supported!',
            True,
        ),
        ("echo 'write error: No space left on device' >&2; exit 1", "the disk is full", False),
        ('echo broken > "$3"; exit 0', "enroot made a file that cannot be used: it is no squashfs image", True),
    ],
)
def test_what_enroot_says_becomes_one_line(head: Head, script: str, line: str, again: bool) -> None:
    head.has("bad:1")
    head.has("good:1")
    head.enroot("bad", script)
    head.settings("bad:1", "good:1", retries=2)
    assert head.run() == 1
    assert line in head.entry("bad:1")["why"]
    assert len([call for call in head.calls if "#bad" in call]) == (2 if again else 1)
    assert head.files == {head.path("good:1").name}


def test_an_import_that_takes_too_long_is_ended(head: Head) -> None:
    head.enroot("a", "sleep 600")
    begun = time.monotonic()
    assert "not imported within 1 s (container_images_timeout)" in head.fails(timeout=1, retries=1)
    assert time.monotonic() - begun < PATIENCE


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b'{"manifests": null}', "sent no valid list of manifests"),
        (b'{"manifests": ["x"]}', "sent no valid list of manifests"),
        (b'{"manifests": [{"platform": "x"}]}', "sent no valid list of manifests"),
        (b'{"manifests": [{"platform": {"architecture": "ARCH"}}]}', "its manifest names 'None', which is no digest"),
        (b'{"layers": [{"digest": "sha256:../../x", "size": 1}]}', "its manifest names 'sha256:../../x', which is no"),
        (b'{"layers": ["x"]}', "its manifest is of a kind that enroot cannot import"),
        (
            b'{"layers": [{"digest": "sha256:aa", "size": Infinity}]}',
            "its manifest is of a kind that enroot cannot import",
        ),
    ],
)
def test_an_odd_answer_is_a_failure_like_others(head: Head, body: bytes, line: str) -> None:
    mine = registry.ARCHITECTURES[os.uname().machine].encode()
    head.has("a:1", body.replace(b"ARCH", mine))
    head.settings("a:1", retries=2)
    assert head.start("--once").wait(PATIENCE) == 1
    assert line in head.entry("a:1")["why"]
    assert len(Registry.asked) == (1 if "of a kind" in line else 2)


@pytest.mark.parametrize("token", [b'["T0"]', b"null", b"T0"])
def test_an_odd_token_is_a_failure_like_others(head: Head, token: bytes) -> None:
    Registry.says["/v2/a/manifests/1"] = [(401, {"WWW-Authenticate": f'Bearer realm="http://{head.address}/t"'}, b"")]
    Registry.says["/t"] = [(200, {}, token)]
    head.settings("a:1", retries=2)
    assert head.start("--once").wait(PATIENCE) == 1
    assert "does not answer: " in head.entry("a:1")["why"]
    assert len(Registry.asked) == 4


def test_there_must_be_room(head: Head) -> None:
    line = r"fsx/containers has \S+ \wB free, and the image needs about 3000000000 GB; make room there"
    assert re.search(line, head.fails(manifest(10**18)))
    assert head.calls == []


def room(monkeypatch: pytest.MonkeyPatch, **free: int) -> None:
    """Let folders of these names have so many bytes left."""
    real = os.statvfs

    def answer(path: str) -> Any:
        left = free.get(os.path.basename(path))
        return real(path) if left is None else os.statvfs_result((1, 1, left, left, left, 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", answer)


def test_no_room_to_unpack(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, containers=10**12, work=22 * 10**9)
    assert head.fails(manifest(10**10)) == (
        f"{head.root}/work has 22.0 GB free, and the image needs about 40.0 GB there, 4 times its download; make room "
        "there, or set container_images_work_dir to a folder on a larger disk of this node's own"
    )


def test_an_image_waits_for_the_room_of_another(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, work=6000)  # for one of the two
    for one in ("a", "b"):
        head.has(f"{one}:1")
        head.enroot(one, '[ -e "$FAKE/busy" ] && exit 1; touch "$FAKE/busy"; sleep 0.5; rm "$FAKE/busy"')
    head.settings("a:1", "b:1", parallel=2, retries=1)
    assert head.run() == 0
    assert len(head.said("waits until other images are there, because .*/work has 2.0 kB free")) == 1


def test_file_systems_of_a_network_are_those_of_the_node_facts() -> None:
    from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage

    assert importer.NETWORK == storage.NETWORK_TYPES


def test_where_enroot_cannot_unpack(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "mounts", lambda: [("/", "ext4"), (str(head.root), "lustre")])
    assert f"container_images_work_dir: found {head.root}/work, which is on lustre" in head.fails()
    assert head.calls == []


def test_the_file_system_that_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        files, "mounts", lambda: [("/", "ext4"), ("/a", "autofs"), ("/a", "nfs4"), ("/a/b", "xfs"), ("/ab", "lustre")]
    )
    found = [files.kind_of(path) for path in ("/", "/a", "/a/c", "/a/b/c", "/abc")]
    assert found == ["ext4", "nfs4", "nfs4", "xfs", "ext4"]
    monkeypatch.undo()
    assert files.is_mounted("/proc")
    assert files.kind_of("/proc/self") == "proc"


def test_no_path_of_a_user_forges_a_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounts").write_bytes(f"/dev/root / ext4 rw 0 0\n{strangers.mount_list()}".encode())
    monkeypatch.setattr(files, "MOUNTS", str(tmp_path / "mounts"))
    assert files.kind_of("/var/lib/enroot") == "ext4"
    assert not files.is_mounted("/var")


def test_no_enroot(head: Head) -> None:
    why = "enroot is not on this node; needed: the component enroot"
    assert head.fails(environment={"PATH": "/nowhere"}) == why


def test_an_index_is_followed_to_this_architecture(head: Head) -> None:
    mine = registry.ARCHITECTURES[os.uname().machine]
    inner, other = manifest(), digest(manifest(500))
    index = {
        "manifests": [
            {"digest": other, "platform": {"architecture": "s390x", "os": "linux"}},
            {"digest": digest(inner), "platform": {"architecture": mine, "os": "linux"}},
        ]
    }
    head.has("a:1", json.dumps(index).encode())
    Registry.says[f"/v2/a/manifests/{digest(inner)}"] = [(200, {}, inner)]
    head.settings("a:1")
    assert head.run() == 0
    assert head.entry("a:1")["digest"] == digest(inner)


def test_a_manifest_that_is_not_the_digest_is_refused(head: Head) -> None:
    Registry.says[f"/v2/a/manifests/sha256:{A64}"] = [(200, {}, manifest())]
    head.settings(f"a@sha256:{A64}", retries=1)
    assert head.run() == 1
    assert "sent a manifest that is not sha256:aaa" in head.entry(f"a@sha256:{A64}")["why"]


# Credentials


def test_a_login_reaches_the_registry_and_enroot_and_nothing_else(head: Head) -> None:
    key = head.key("machine 127.0.0.1 login $oauthtoken password nvapi-SECRET_1\n")
    body = manifest()
    realm = {
        "WWW-Authenticate": f'Bearer realm="http://{head.address}/token?account=x",scope="repository:a:pull",service="s"'
    }
    Registry.says["/v2/a/manifests/1"] = [(401, realm, b""), (200, {}, body)]
    Registry.says["/token"] = [(200, {}, b'{"token": "T0"}')]
    head.enroot("a", "echo nvapi-SECRET_1 >&2")
    head.settings("a:1", credentials=str(key))
    assert head.run() == 0
    basic = base64.b64encode(b"$oauthtoken:nvapi-SECRET_1").decode()
    assert [authorization for _path, authorization in Registry.asked] == ["", f"Basic {basic}", "Bearer T0"]
    assert Registry.asked[1][0].startswith("/token?account=x&scope=repository%3Aa%3Apull&service=s")
    assert (head.fake / "credentials").read_text() == key.read_text()
    told = [
        path
        for path in (head.root / "fsx").rglob("*")
        if path.is_file() and "SECRET" in path.read_text(errors="replace")
    ]
    assert told == []
    assert "SECRET" not in (head.fake / "environment").read_text() + (head.fake / "calls").read_text()
    assert (head.root / "work").stat().st_mode & 0o777 == 0o700
    assert not list((head.root / "work/config").iterdir())


def test_a_token_is_not_asked_of_another_host_with_this_login(head: Head) -> None:
    key = head.key("machine elsewhere login a password b\n")
    head.has("a:1")
    Registry.says["/v2/a/manifests/1"] = [
        (401, {"WWW-Authenticate": f'Bearer realm="http://{head.address}/token"'}, b"")
    ]
    Registry.says["/token"] = [(200, {}, b'{"token": "anonymous"}')]
    head.settings("a:1", credentials=str(key), retries=1)
    assert head.run() == 1
    assert [authorization for _path, authorization in Registry.asked] == ["", "", "Bearer anonymous"]


def test_an_import_that_reads_its_logins_is_not_cut_off_by_another_one(head: Head) -> None:
    login = settings.Login("$oauthtoken", "nvapi-SECRET_1")
    enroots = importer.Enroot(settings.read_settings(str(head.settings_file)), {"nvcr.io": login})
    enroots.prepare()
    file = head.root / "work/config/.credentials"
    with file.open() as reader:
        enroots.logins = {}
        enroots.prepare()
        assert reader.read() == "machine nvcr.io login $oauthtoken password nvapi-SECRET_1\n"
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("", 0o600)


def test_a_lone_key_is_for_ngc(head: Head) -> None:
    path = head.key("nvapi-abc\n")
    login = settings.Login("$oauthtoken", "nvapi-abc")
    assert settings.read_credentials(str(path)) == {"nvcr.io": login, "authn.nvidia.com": login}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_that_others_can_read_is_not_used(head: Head, mode: int) -> None:
    key = head.key("nvapi-abc\n", mode)
    head.has("a:1")
    head.settings("a:1", credentials=str(key))
    assert head.run() == 1  # although the image is there
    assert head.entry("a:1")["state"] == "present"
    assert head.state["problems"] == [
        f"container_images_credentials_file: {key} has mode {mode:04o} and owner {os.geteuid()}, so it is not used; "
        "needed: a file that only root can read (chown root, chmod 600)"
    ]
    assert (head.fake / "credentials").read_text() == ""


def test_a_key_behind_a_link_or_of_another_form(head: Head) -> None:
    key, link = head.key("machine nvcr.io password x\n"), head.root / "link"
    link.symlink_to(key)
    with pytest.raises(names.ImageError, match="cannot be read: Too many levels"):
        settings.read_credentials(str(link))
    with pytest.raises(
        names.ImageError, match=r"line 1 of .*key is no login; needed: nothing but an NGC API key"
    ) as caught:
        settings.read_credentials(str(key))
    assert "password x" not in str(caught.value)


def test_a_password_may_be_a_command(head: Head) -> None:
    path = head.key("# ECR\nmachine 1.dkr.ecr.us-east-1.amazonaws.com login AWS password $(echo a b | tr -d ' ')\n")
    login = settings.read_credentials(str(path))["1.dkr.ecr.us-east-1.amazonaws.com"]
    assert settings.secret_of(login) == "ab"


def test_a_command_for_a_password_that_hangs_ends_without_telling_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PATIENCE", 0.3)
    begun = time.monotonic()
    with pytest.raises(names.ImageError) as caught:
        settings.secret_of(settings.Login("AWS", "$(sleep 600; echo secret)"))
    assert str(caught.value) == "the command for the password of AWS did not end within 0.3 s"
    assert time.monotonic() - begun < PATIENCE


# Kills, locks, and time


def test_what_a_killed_import_has_left_is_cleared_and_finished(head: Head) -> None:
    head.has("a:1")
    head.enroot(
        "a",
        'printf half > "$3"; mkdir "$ENROOT_TEMP_PATH/enroot.x"; touch "$FAKE/begun"\n'
        '[ -f "$FAKE/go" ] || sleep 60; rm "$3"',
    )
    head.settings("a:1")
    program = head.start()
    until((head.fake / "begun").exists)
    program.kill()
    program.communicate()
    assert not head.path("a:1").exists()
    assert [path.name for path in head.directory.glob(".images.part/*")] == [f"{head.path('a:1').name}.importing"]
    (head.fake / "go").touch()
    assert head.run() == 0
    assert head.files == {head.path("a:1").name}
    assert not list((head.root / "work/temp").iterdir())


def test_a_kill_between_the_file_and_its_record_loses_no_digest(head: Head) -> None:
    noted = head.has("a:1")
    head.settings("a:1")
    head.run()
    before = head.state
    entry = before["images"][head.name("a:1")]
    entry.update(state="importing")
    del entry["inode"], entry["size"]
    (head.directory / state.STATE).write_text(json.dumps(before))
    assert head.run() == 0
    assert head.entry("a:1")["digest"] == noted
    assert len(head.calls) == 1


def test_a_stop_ends_enroot_and_leaves_nothing(head: Head) -> None:
    head.has("a:1")
    head.enroot("a", 'echo $$ > "$FAKE/pid"; printf half > "$3"; sleep 60')
    head.settings("a:1")
    program = head.start()
    until((head.fake / "pid").exists)
    program.terminate()
    assert program.wait(PATIENCE) == 0
    assert head.files == set()
    assert head.entry("a:1")["state"] == "queued"
    with pytest.raises(ProcessLookupError):
        os.kill(int((head.fake / "pid").read_text()), 0)


def test_two_importers_do_not_collide(head: Head) -> None:
    head.has("a:1")
    head.enroot("a", 'touch "$FAKE/begun"; until [ -f "$FAKE/go" ]; do sleep 0.1; done')
    head.settings("a:1")
    first = head.start("--once")
    until((head.fake / "begun").exists)
    second = head.start("--once")
    until(lambda: head.said(r"another importer is at work \(.*, process \d+\): waiting for it"))
    (head.fake / "go").touch()
    assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0)
    assert len(head.calls) == 1


def test_it_follows_the_users_list_and_asks_again_when_told(head: Head) -> None:
    head.has("a:1")
    head.settings()
    program = head.start()
    try:
        until(lambda: head.state["seen"])
        head.file.write_text(f"{head.address}/a:1\n{head.address}/b:1\n")
        until(lambda: (head.entry("a:1")["state"], head.entry("b:1")["state"]) == ("present", "failed"))
        head.has("b:1")
        time.sleep(0.5)  # two looks
        assert head.entry("b:1")["state"] == "failed"
        assert head.entry("b:1")["next_try"] > time.time() + 3000
        program.send_signal(signal.SIGHUP)
        until(lambda: head.entry("b:1")["state"] == "present")
        assert head.state["seen"]["asked"] > 0
        assert head.state["seen"]["file"] == digest(head.file.read_bytes())[7:]
    finally:
        program.terminate()
        program.communicate()


def test_an_image_that_is_removed_comes_back_when_asked_for(head: Head) -> None:
    head.has("a:1")
    head.settings("a:1", retry_interval=1)
    program = head.start()
    try:
        until(lambda: head.entry("a:1")["state"] == "present")
        head.path("a:1").unlink()
        until(lambda: len(head.calls) == 2)
    finally:
        program.terminate()
        program.communicate()


def test_nothing_is_written_underneath_a_missing_mount(head: Head) -> None:
    head.has("a:1")
    head.settings("a:1", mount=str(head.root / "fsx"))
    program = head.start()
    until(lambda: head.said("fsx is not mounted: nothing is imported until it is"))
    program.terminate()
    program.communicate()
    assert list(head.directory.iterdir()) == []


def test_a_proxy_that_is_corrected_reaches_the_importer_too(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    head.has("a:1")
    head.has("b:1")
    head.settings("a:1", environment={"http_proxy": "http://127.0.0.1:9"})
    program = head.start()
    try:
        until(lambda: "does not answer" in head.entry("a:1").get("why", ""))
        head.settings("a:1", environment={"http_proxy": f"http://{head.address}"})
        until(lambda: Registry.asked)
        assert Registry.asked[0][0] == f"http://{head.address}/v2/a/manifests/1"  # as a proxy is asked
        head.settings("b:1")
        until(lambda: head.entry("b:1")["state"] == "present")
        assert Registry.asked[-1][0] == "/v2/b/manifests/1"
    finally:
        program.terminate()
        program.communicate()


# What others may have put into shared folders

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="asks for root")


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "pipe", "folder"])
@pytest.mark.parametrize("log", ["ngc-download.log", "container-downloads/IMAGE.log"])
def test_a_log_is_written_to_no_file_of_others(head: Head, kind: str, log: str) -> None:
    path, victim = head.log.parent / log.replace("IMAGE", head.path("a:1").stem), head.root / "victim"
    path.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        victim.write_text("precious")
        path.hardlink_to(victim) if kind == "hard link" else path.symlink_to(victim)
        victim.unlink() if kind == "dangling link" else None
    before = path.lstat()
    head.has("a:1")
    head.settings("a:1")
    program = head.start("--once")
    out = program.communicate(timeout=PATIENCE)[0]
    assert program.returncode == 0
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert not victim.exists() if kind in ("dangling link", "pipe", "folder") else victim.read_text() == "precious"
    assert len([line for line in out.splitlines() if f"{path} " in line]) == 1
    if path == head.log:
        assert str(path) in head.state["warnings"][0]


def test_a_log_that_is_too_large_begins_anew(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST_LOG", 100)
    head.log.write_text("x" * 101)
    head.imports()
    assert head.said("done, ")
    assert any("xxx" in path.read_text() or "importing" in path.read_text() for path in head.log.parent.glob("*.log.1"))


@ROOT_ONLY
def test_a_link_of_another_user_is_not_followed(head: Head) -> None:
    logs, elsewhere = head.log.parent / "container-downloads", head.root / "elsewhere"
    elsewhere.mkdir()
    logs.symlink_to(elsewhere)
    os.chown(logs, 65534, 65534, follow_symlinks=False)
    head.imports()
    assert head.state["warnings"] == [f"{logs}: {logs} is a link of user 65534, and is not followed; remove it"]
    assert list(elsewhere.iterdir()) == []
    os.chown(logs, 0, 0, follow_symlinks=False)
    head.path("a:1").unlink()
    assert head.run() == 0
    assert head.state["warnings"] == []
    assert [path.suffix for path in elsewhere.iterdir()] == [".log"]


@pytest.mark.parametrize("above", [False, True])
def test_nothing_is_imported_where_others_can_replace_it(
    head: Head, above: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = head.directory.parent if above else head.directory
    folder.chmod(0o777)
    line = f"{folder} has mode 0777; needed: chmod +t {folder}"
    assert head.fails() == f"{head.directory} is not safe from others, and nothing is imported into it: {line}"
    main.main(["status", "--directory", str(head.directory)])
    assert f"others can replace the images in {head.directory}: {line}" in capsys.readouterr().out
    assert head.calls == []
    folder.chmod(0o1777)
    assert head.run() == 0
    assert head.state["warnings"] == []


def test_logs_that_others_can_replace_are_written_all_the_same(head: Head) -> None:
    head.log.parent.chmod(0o777)
    head.imports()
    logs = head.log.parent
    assert head.state["warnings"] == [
        f"others can replace the logs in {logs}/container-downloads: {logs} has mode 0777; needed: chmod +t {logs}"
    ]
    assert len(head.said("others can replace")) == 1
    assert head.said("done, ")


@ROOT_ONLY
def test_the_clusters_own_user_may_have_the_folders(head: Head) -> None:
    os.chown(head.directory.parent, 65534, 65534)
    head.directory.parent.chmod(0o775)
    assert "belongs to user 65534; needed: chown root" in head.fails()
    head.imports(user=pwd.getpwuid(65534).pw_name)
    assert head.state["warnings"] == []


def test_a_link_in_the_way_of_an_image(head: Head) -> None:
    elsewhere = head.root / "elsewhere"
    elsewhere.mkdir()
    (head.directory / ".images.part").symlink_to(elsewhere)
    (head.directory / f".{state.STATE}.new").symlink_to(elsewhere / "state")
    assert ".images.part is not a folder that only root can enter" in head.fails(retries=1)
    assert list(elsewhere.iterdir()) == []


def test_a_lock_of_somebody_else(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    (head.root / "victim").write_text("precious")
    (head.directory / importer.LOCK).hardlink_to(head.root / "victim")
    head.settings("a:1")
    assert head.run() == 1
    assert f"{importer.LOCK} is not the importer's own file" in capsys.readouterr().err
    assert (head.root / "victim").read_text() == "precious"


def test_a_list_behind_a_link_or_a_pipe_is_not_read(head: Head) -> None:
    (head.root / "shadow").write_text("root:$6$secret\n")
    head.file.symlink_to(head.root / "shadow")
    found, problems = names.read_list(str(head.file))
    assert (found, problems) == ({}, [f"{head.file} cannot be read: Too many levels of symbolic links"])
    head.file.unlink()
    os.mkfifo(head.file)
    assert names.read_list(str(head.file))[1] == [f"{head.file} cannot be read: it is no file"]
    assert files.digest_of(str(head.file)) == ""


def test_a_folder_under_an_images_name(head: Head) -> None:
    head.path("a:1").mkdir()
    os.utime(head.path("a:1"), (1, 1))
    assert "is no image of the importer's (it cannot be read: " in head.fails()


# What users see


def test_the_list_leaves_out_what_leads_nowhere(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.path("a:1").symlink_to(head.root / "nowhere")
    assert main.main(["list", "--directory", str(head.directory)]) == 0
    assert "There is no image" in capsys.readouterr().out
    head.path("b:1").write_bytes(b"hsqs")
    assert main.main(["list", "--directory", str(head.directory)]) == 0
    out = capsys.readouterr().out
    assert head.path("b:1").name in out
    assert head.path("a:1").name not in out


def test_status_and_list(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    noted = head.has("a:1")
    head.settings("a:1", "b:1")
    head.file.write_text("what is this\n")
    main.main(["status", "--directory", str(head.directory)])
    assert "Nothing has been imported into" in capsys.readouterr().out
    head.run()
    capsys.readouterr()
    assert main.main(["status", "--directory", str(head.directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"IMAGE +STATE +SIZE", lines[0])
    assert re.fullmatch(rf"{head.address}/a:1 +ready +100 B +{re.escape(head.path('a:1').name)}", lines[1])
    assert re.search(r"/b:1 +failed +.* answered 404 Not Found: .* \(next try in \d+ s\)", lines[2])
    assert "line 1: 'what is this' names no image" in lines[3]
    assert lines[4].endswith("sudo systemctl reload container-images, on the head node")
    assert main.main(["list", "--directory", str(head.directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.search(rf"100 B +20\d\d-\S+ \S+ +{head.address}/a:1 +{noted[:19]}", lines[1])
    assert lines[-1] == f"srun --container-image={head.directory}/{head.path('a:1').name} COMMAND"


def download(head: Head, *words: str) -> int:
    line = ["download", "--directory", str(head.directory), "--file", str(head.file), "--log", str(head.log)]
    return int(main.main([*line, "--settings", str(head.root / "elsewhere.json"), *words]))


def test_a_user_sees_how_it_goes_on(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.has("a:1")
    head.enroot("a", "sleep 1")
    head.settings()
    program = head.start()
    try:
        until(lambda: head.state["seen"])
        head.file.write_text(f"{head.address}/a:1\n")
        assert download(head, str(head.file)) == 0
        out = capsys.readouterr().out
        assert re.search(r"a:1: importing .*\n.*a:1: done.*\nIMAGE .*\n.*a:1 +ready", out)
    finally:
        program.terminate()
        program.communicate()


def test_another_list_is_roots_affair(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    other = head.root / "other.txt"
    other.write_text("a:1\n")
    assert download(head, str(other)) == 1
    assert f"only root on the head node imports another list; add its lines to {head.file}" in capsys.readouterr().err
    assert download(head, str(head.root / "none.txt")) == 1
    assert "is not there; needed: a list of images" in capsys.readouterr().err


def test_root_imports_another_list_at_once(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid())
    if os.getuid():
        pytest.skip("asks for root")
    head.has("a:1")
    head.has("b:1")
    head.settings("b:1")
    head.run()
    seen = head.state["seen"]
    other = head.root / "other.txt"
    other.write_text(f"{head.address}/a:1\n")
    line = ["download", "--directory", str(head.directory), "--file", str(head.file), "--log", str(head.log)]
    assert main.main([*line, "--settings", str(head.settings_file), str(other)]) == 0
    assert head.entry("a:1")["state"] == head.entry("b:1")["state"] == "present"
    assert head.state["seen"] == seen


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"images": ["what is this"]}, "container_images_list: 'what is this' names no image"),
        ({"unknown": 1}, "unexpected keyword"),
        ({"environment": {"x": 30}}, "container_images_environment: found x: 30; needed: a name and a string"),
        ({"environment": {"a=b": "c"}}, "container_images_environment: found a=b: 'c'; needed"),
    ],
)
def test_settings_are_checked(head: Head, capsys: pytest.CaptureFixture[str], settings: Any, line: str) -> None:
    head.settings(**settings)
    assert main.main(["check", "--settings", str(head.settings_file)]) == 1
    assert line in capsys.readouterr().err


def test_sizes() -> None:
    found = [state.size(number) for number in (0, 999, 1000, 9_870_000_000, 999_600, 123_456_789_000)]
    assert found == ["0 B", "999 B", "1.0 kB", "9.9 GB", "1.0 MB", "123 GB"]


def test_a_login_does_not_follow_a_redirection(head: Head) -> None:
    key = head.key("machine 127.0.0.1 login a password b\n")
    challenge = {"WWW-Authenticate": 'Basic realm="x"'}
    elsewhere = {"Location": f"http://{head.address}/elsewhere"}
    Registry.says["/v2/a/manifests/1"] = [(401, challenge, b""), (302, elsewhere, b"")]
    Registry.says["/elsewhere"] = [(200, {}, manifest())]
    head.settings("a:1", credentials=str(key))
    assert head.run() == 0
    basic = f"Basic {base64.b64encode(b'a:b').decode()}"
    assert Registry.asked[1:] == [("/v2/a/manifests/1", basic), ("/elsewhere", "")]


def test_the_readmes_examples_are_taken(repo: Path, tmp_path: Path) -> None:
    text = (repo / "roles/container_images/README.md").read_text()
    listed = yaml.safe_load(text.split("```yaml\n")[1].partition("```")[0])["container_images_list"]
    assert [names.parse(name).registry for name in listed] == ["nvcr.io", "nvcr.io"]
    (tmp_path / "key").write_text(next(part for part in text.split("```\n") if part.startswith("machine ")))
    (tmp_path / "key").chmod(0o600)
    # Docker Hub's registry, and the host that it sends its users to for a token.
    assert {"registry-1.docker.io", "auth.docker.io"} <= set(settings.read_credentials(str(tmp_path / "key")))


def test_an_empty_list_is_settled(head: Head) -> None:
    assert head.run() == 0
    assert (head.state["images"], head.state["problems"], head.calls) == ({}, [], [])
    outlook = _container_images.look(str(head.directory), str(head.settings_file))
    assert (outlook.settled, outlook.summary) == (True, "no image is listed")


def test_a_deep_and_wide_tree_of_an_image_is_cleared() -> None:
    """Layers of an image are unpacked in the working folder, and users may list any image."""
    with strangers.crowd() as work:
        strangers.deep_tree(work / "layer", os.geteuid())
        for number in range(2000):
            (work / f"wide/{number}").mkdir(parents=True)
        (work / "link").symlink_to("/etc")
        files.clear(str(work))
        assert list(work.iterdir()) == []
        assert Path("/etc/passwd").exists()


@pytest.mark.parametrize("step", [3600.0, -6 * 3600.0])
def test_a_step_of_the_clock_neither_brings_the_next_try_nor_keeps_it_away(
    monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    waiting = importer.Importer.__new__(importer.Importer)
    waiting.tries = {}
    clock = SimpleNamespace(wall=1_795_000_000.0, up=300.0)
    monkeypatch.setattr(importer, "time", SimpleNamespace(time=lambda: clock.wall, monotonic=lambda: clock.up))
    entry = {"next_try": clock.wall + 60}
    assert waiting._waits("a:1", entry)
    clock.wall += step
    assert waiting._waits("a:1", entry)
    clock.up += 61
    assert not waiting._waits("a:1", entry)
    assert not waiting._waits("b:1", {})
