# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is gathered on a node: within limits, without secrets, and without waiting for what does not answer."""

from __future__ import annotations

import json
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import collect, node, rooms, sources
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage
from ansible_collections.pcluster.postboot.tests import strangers
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE

SECRET = "Hunter2-correcthorse"
FAILED = "2026-11-23T11:02:00Z pull: failed: enroot failed: dpkg ended with 1: it said nothing\n"
Gather = Callable[..., tuple[node.Result, dict[str, str]]]


@pytest.fixture
def root(tmp_path: Path, node_tree: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compute node's files, and the programs that it has."""
    found = node_tree("compute-gpu-ubuntu2404")
    monkeypatch.setattr(lock, "RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(collect, "PATH", "")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    for name in ("systemctl", "journalctl", "nvidia-smi", "ps", "ip", "ss", "free", "lsmod", "dpkg-query", "rpm"):
        lab.program(tmp_path / "bin" / name, "#!/bin/sh\nexit 0\n")
    return found


@pytest.fixture
def gather(root: Path) -> Gather:
    def run(**more: Any) -> tuple[node.Result, dict[str, str]]:
        result = node.gather(node.Request(name="here", **more), str(root))
        texts = {}
        if result.path:
            with tarfile.open(result.path) as archive:
                for member in archive:
                    stream = archive.extractfile(member)
                    assert stream
                    texts[member.name] = stream.read().decode()
        return result, texts

    return run


def write(root: Path, path: str, text: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_a_node_sends_its_logs_its_findings_and_no_secret(root: Path, gather: Gather) -> None:
    write(root, "var/log/pcluster-postboot/pull.log", FAILED)
    write(root, "opt/pcluster-postboot/current/inventory/group_vars/all.yml", f"grafana_admin_password: {SECRET}\n")
    write(root, "var/log/cloud-init-output.log", f"+ docker login with {SECRET}\n")
    result, texts = gather()
    assert result.node["node_type"] == "compute"
    assert result.findings[0]["kind"] == "component-enroot"
    assert texts["var/log/pcluster-postboot/pull.log"] == FAILED
    assert texts["var/log/cloud-init-output.log"] == "+ docker login with [redacted]\n"
    assert SECRET not in "".join(texts.values()) + json.dumps(result._asdict())
    assert sum(result.redacted.values()) == 2
    listed = json.loads(texts["gathered.json"])
    assert {part["name"] for part in listed["files"]} == set(texts) - {"gathered.json"}
    assert os.stat(result.path).st_mode & 0o777 == 0o600


def test_long_files_are_cut_at_a_line_and_a_full_archive_says_what_is_left_out(root: Path, gather: Gather) -> None:
    write(root, "var/log/chef-client.log", "".join(f"line {n}\n" for n in range(1000)))
    write(root, "var/log/syslog", "x" * 5000 + "\n" + "y" * 9 + "\n")
    _result, texts = gather(file_mb=0.001)
    assert texts["var/log/chef-client.log"].splitlines()[0].startswith("line ")
    assert texts["var/log/chef-client.log"].endswith("line 999\n")
    assert len(texts["var/log/chef-client.log"]) <= 1000
    (part,) = [one for one in json.loads(texts["gathered.json"])["files"] if one["name"] == "var/log/chef-client.log"]
    assert (part["kept"], part["whole"]) == (len(texts["var/log/chef-client.log"]), 8890)
    result, texts = gather(node_mb=0.006)
    assert "var/log/chef-client.log" not in texts
    assert any(line.startswith("/var/log/chef-client.log: 0.0 MB, beyond the limit") for line in result.left)


def test_special_files_are_passed_over(root: Path, gather: Gather) -> None:
    folder = root / "var/log/parallelcluster"
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "dangling").symlink_to("/nowhere")
    (folder / "binary").write_bytes(b"a\0b\xff\n")
    result, texts = gather()
    assert "/var/log/parallelcluster/pipe: it is no regular file" in result.left
    assert texts["var/log/parallelcluster/binary"] == "ab\ufffd\n"


def test_a_program_that_hangs_is_asked_once_and_is_a_finding(
    root: Path, tmp_path: Path, gather: Gather, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.program(tmp_path / "bin/nvidia-smi", f"#!/bin/sh\necho $* >> {tmp_path}/asked\nexec /bin/sleep 600\n")
    monkeypatch.setattr(sources, "OUTPUTS", [one._replace(seconds=2) for one in sources.OUTPUTS])
    begin = time.monotonic()
    result, texts = gather()
    assert time.monotonic() - begin < PATIENCE
    assert lab.lines(tmp_path / "asked") == ["-L"]
    assert "gpu-hangs" in [one["kind"] for one in result.findings]
    assert "did not end within 2 s" in texts["commands/nvidia-smi-list.txt"]
    assert "nvidia-smi -q: an earlier call did not end" in result.left


def test_time_is_limited(root: Path, gather: Gather) -> None:
    result, texts = gather(seconds=1e-9)
    assert not any(name.startswith("commands/") for name in texts)
    assert "systemctl list-units --failed --plain --no-legend --no-pager: the time was up" in result.left


def test_check_mode_says_what_would_be_gathered_and_writes_nothing(root: Path, gather: Gather) -> None:
    write(root, "var/log/pcluster-postboot/pull.log", FAILED)
    result, _texts = gather(check=True)
    assert result.path == ""
    assert {"/var/log/pcluster-postboot/pull.log", "nvidia-smi -L"} <= set(result.parts)
    assert not os.path.exists(lock.RUN_DIR)


def test_a_file_system_that_does_not_answer_is_named_and_left_alone(
    root: Path, gather: Gather, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in test_touch_names_what_does_not_answer: who looks into the folder waits."""
    dead = root / "dead"
    dead.mkdir()
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path) == str(dead):
            time.sleep(600)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(rooms, "points", lambda _mounts: {str(dead): "lustre", str(root): "ext4"})
    monkeypatch.setattr(sources, "FILES", [sources.Files((f"{dead}/x/*",)), *sources.FILES])
    begin = time.monotonic()
    result, texts = gather(mount_seconds=3)
    assert time.monotonic() - begin < PATIENCE
    (one,) = [one for one in result.findings if one["kind"].startswith("hung-mount")]
    assert one["line"] == f"{dead} (lustre) did not answer within 3 s"
    assert f"{dead}/x/*: its file system does not answer" in result.left
    room = json.loads(texts["mounts.json"])[str(root)]
    assert room["total"] >= room["free"] > 0


@strangers.TWO_USERS
def test_only_a_process_of_root_is_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for user, running in ((strangers.USER, False), (0, True)):
        with strangers.process("/tmp/roles/pull/files/pull.py", user=user) as pid:
            monkeypatch.setattr(os, "listdir", lambda _folder, pid=pid: [str(pid)])
            assert (node._running() is True) == running


def test_mounts_that_are_no_place_for_data_are_not_asked() -> None:
    def mount(path: str, kind: str) -> dict[str, str]:
        return {"path": path, "type": kind, "source": "x", "options": "rw"}

    mounts = [
        *(
            mount("/", "ext4"),
            mount("/fsx", "lustre"),
            mount("/home", "nfs4"),
            mount("/s3", "fuse.s3fs"),
            mount("/f", "fuse"),
        ),
        *(mount("/proc", "proc"), mount("/sys", "sysfs"), mount("/var/lib/docker/overlay2/x/merged", "overlay")),
        *(mount("/run/user/0", "tmpfs"), mount("/snap/core/1", "squashfs"), mount("/data", "autofs")),
        *(mount("/dev", "devtmpfs"), mount("/dev/shm", "tmpfs"), mount("/run", "tmpfs"), mount("/tmp", "tmpfs")),
        mount("/var/lib/docker/containers/0a/mounts/shm", "tmpfs"),
    ]
    assert list(rooms.points(mounts)) == ["/", "/fsx", "/home", "/s3", "/f", "/dev/shm", "/run", "/tmp"]


def test_file_systems_that_a_user_has_mounted_are_not_asked() -> None:
    options = "rw,nosuid,nodev,relatime,user_id={},group_id=0"
    mounts = storage.parse_mounts(strangers.mount_list(options.format(1000)))
    mounts += storage.parse_mounts(f"s3 /s3 fuse.mount-s3 {options.format(0)} 0 0\n")
    assert list(rooms.points(mounts)) == ["/s3"]


PLACED = (
    "2026-11-23 11:00:00,123 - [slurm_plugin.instance_manager:_update_slurm_node_addrs] - INFO - Nodes are now "
    "configured with instances (x1) [\"('cpu-st-c5-1', EC2Instance(id='i-0a1', private_ip='10.0.0.5', "
    "hostname='ip-10-0-0-5', all_private_ips={'10.0.0.5'}, launch_time=x))\"]\n"
)


def test_a_head_node_tells_what_it_knows_of_one_that_is_gone(
    root: Path, node_tree: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = node_tree("head-ubuntu2404")
    ended = "2026-11-23 11:05:00,123 - [x:y] - INFO - Terminating instances (x1) ['i-0a1']\n"
    other = "2026-11-23 11:05:00,123 - [x:y] - INFO - Terminating instances (x1) ['i-0a1f']\n"
    write(head, "var/log/parallelcluster/clustermgtd", PLACED + ended + other)
    write(head, "fsx/reports/unknown/cpu-st-c5-1.json", '{"outcome": "stopped"}')
    write(head, "fsx/reports/unknown/other.json", "{}")
    cluster = json.loads((head / "etc/chef/dna.json").read_text())["cluster"]["stack_name"]
    (head / "fsx/reports/unknown").rename(head / "fsx/reports" / cluster)
    for about in ("cpu-st-c5-1", "i-0a1"):
        result = node.gather(node.Request(name="head", about=(about,), report_dir="/fsx/reports"), str(head))
        with tarfile.open(result.path) as archive:
            names = archive.getnames()
            stream = archive.extractfile(f"gone/{about}/clustermgtd")
            assert stream
            assert stream.read().decode() == PLACED + ended
        assert f"gone/{about}/report.json" in names
        assert not [name for name in names if name.endswith("other.json")]


@strangers.TWO_USERS
def test_no_link_of_a_user_is_followed_in_a_directory_of_reports(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text("root:$6$secret")
    for name, user in (("theirs", strangers.USER), ("own", 0)):
        (tmp_path / name).symlink_to("shadow")
        os.chown(tmp_path / name, user, user, follow_symlinks=False)
    os.mkfifo(tmp_path / "pipe")
    collector = collect.Collector(collect.Limits(1000, 1000, 5))
    strangers.within(5, lambda: collector.files([sources.Files((f"{tmp_path}/*",))], ""))
    assert set(collector.texts) == {f"{tmp_path}/{name}".lstrip("/") for name in ("own", "shadow")}
    assert [line.partition(": ")[0] for line in collector.left] == [str(tmp_path / name) for name in ("pipe", "theirs")]
