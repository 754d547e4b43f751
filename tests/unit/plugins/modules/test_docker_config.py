# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docker_config on real files: daemon.json, dpkg's records, a process named dockerd, and a socket that answers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._docker import config as _docker_config
from ansible_collections.pcluster.postboot.plugins.module_utils._docker import engine
from ansible_collections.pcluster.postboot.plugins.module_utils._host import lock
from ansible_collections.pcluster.postboot.plugins.module_utils._node import storage
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import records
from ansible_collections.pcluster.postboot.plugins.modules import docker_config
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

PACKAGES = ["docker-ce", "docker-ce-cli", "docker-compose-plugin"]
VERSIONED = ["docker-ce", "docker-ce-cli"]
DOCKER: dict[str, Any] = {
    "packages": VERSIONED,
    "apart": ["docker-compose-plugin"],
    "alternatives": ["docker.io", "docker", "moby-engine"],
}

# It refuses what is a flag and in daemon.json, in dockerd 28.5's words (findConfigurationConflicts of its config.go).
# Like it, --validate needs no argument, and the runtimes of both places are put together.
DOCKERD = """import json, sys
names = {"-H": "hosts", "--default-ulimit": "default-ulimits", "--containerd": "containerd", "--add-runtime": None}
words = [part for word in sys.argv[1:] for part in (word.split("=", 1) if word.startswith("--") else [word])]
given = dict(zip(words[:-1], words[1:]))
text = json.load(open(given["--config-file"]))
both = [f"{names[flag]}: (from flag: [{given[flag]}], from file: {text[names[flag]]})" for flag in names
        if flag in given and names[flag] in text]
if both:
    sys.exit(f"unable to configure the Docker daemon with file {given['--config-file']}: the following directives are "
             f"specified both as a flag and in the configuration file: {', '.join(both)}")
print("configuration OK", file=sys.stderr)
"""
# What `systemctl show` prints of docker.service in Amazon Linux 2023 (systemd 252), and the files that its unit names.
COMMAND = "/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock"
RUNS = "ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0"
AMAZON_LINUX = (
    f"ExecStart={{{{ path=/usr/bin/dockerd ; argv[]={COMMAND} $OPTIONS $DOCKER_STORAGE_OPTIONS $DOCKER_ADD_RUNTIMES ; "
    f"{RUNS} }}}}\n"
    "EnvironmentFiles={top}/sysconfig/docker (ignore_errors=yes)\n"
    "EnvironmentFiles={top}/sysconfig/docker-storage (ignore_errors=yes)\n"
    "EnvironmentFiles={top}/run/docker/runtimes.env (ignore_errors=yes)\n"
)
SYSCONFIG = """# The max number of open files for the daemon itself, and all
# running containers.
DAEMON_MAXFILES=1048576

# OPTIONS="--ip-forward=true --iptables=true"
OPTIONS="--default-ulimit nofile=32768:65536"

DAEMON_PIDFILE_TIMEOUT=10
"""
MEMLOCK = {"default-ulimits": {"memlock": {"Name": "memlock", "Soft": -1, "Hard": -1}}}


class Node:
    def __init__(self, top: Path, run: lab.Run) -> None:
        self.top = top
        self.run = run
        self.file = top / "etc/docker/daemon.json"
        self.scratch = top / "scratch"
        self.stanzas: dict[str, str] = {}
        for name in ("dpkg/updates", "lib/docker", "bin", "scratch"):
            (top / name).mkdir(parents=True)
        self.mounts("/dev/root / ext4 rw 0 0")

    def mounts(self, text: str) -> None:
        (self.top / "mounts").write_text(text + "\n")

    def package(self, name: str, version: str, state: str = "installed") -> None:
        self.stanzas[name] = lab.package(name, version, state)
        (self.top / "dpkg/status").write_text("".join(self.stanzas.values()))

    def says(self, text: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text)

    def dockerd(self, body: str = "exit 0") -> None:
        path = self.top / "bin/dockerd"
        lab.program(path, f"#!/bin/sh\n{body}\n")

    def unit(self, shown: str) -> None:
        (self.top / "shown").write_text(shown.format(top=self.top))
        path = self.top / "tools/systemctl"
        path.parent.mkdir(exist_ok=True)
        lab.program(path, f"#!/bin/sh\necho $* > {self.top}/asked\ncat {self.top}/shown\n")

    def __call__(self, check: bool = False, **args: Any) -> dict[str, Any]:
        return self.run(docker_config, {"path": str(self.file), **args}, check=check)

    def content(self) -> Any:
        return json.loads(self.file.read_text())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: lab.Run) -> Node:
    monkeypatch.setattr(storage, "MOUNTS", str(tmp_path / "mounts"))
    monkeypatch.setattr(_docker_config, "DEFAULT_ROOT", str(tmp_path / "lib/docker"))
    monkeypatch.setattr(_docker_config, "CONTAINERD_ROOT", str(tmp_path / "lib/containerd"))
    monkeypatch.setattr(_docker_config, "CONTAINERD_CONFIG", str(tmp_path / "containerd.toml"))
    monkeypatch.setattr(lock, "STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(records, "DPKG", str(tmp_path / "dpkg"))
    monkeypatch.setattr(engine, "PROGRAMS", (str(tmp_path / "bin/dockerd"),))
    monkeypatch.setattr(engine, "PID_FILE", str(tmp_path / "docker.pid"))
    monkeypatch.setattr(engine, "SOCKET", str(tmp_path / "docker.sock"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    made = Node(tmp_path, run_module)
    made.unit("")
    return made


@pytest.fixture
def amazon_linux(node: Node) -> Node:
    """A node whose dockerd gets flags from its unit, as Amazon Linux's does."""
    node.unit(AMAZON_LINUX)
    (node.top / "sysconfig").mkdir()
    (node.top / "sysconfig/docker").write_text(SYSCONFIG)
    (node.top / "sysconfig/docker-storage").write_text("DOCKER_STORAGE_OPTIONS=\n")
    (node.top / "dockerd.py").write_text(DOCKERD)
    node.dockerd(f'echo "$*" >> {node.top}/flags; exec {sys.executable} {node.top}/dockerd.py "$@"')
    return node


@pytest.fixture
def running(node: Node) -> Iterator[Callable[..., None]]:
    """running(containers=…, live=…, root=…) starts a process named dockerd, and a socket that answers as it would."""
    program = node.top / "dockerd"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    started: list[subprocess.Popen[bytes]] = []
    serving: list[threading.Thread] = []
    listener = socket.socket(socket.AF_UNIX)

    def serve(answer: bytes) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                client.sendall(answer)

    def start(containers: int = 0, live: bool = True, root: str = "", status: str = "200 OK") -> None:
        started.append(subprocess.Popen([program, "60"]))
        (node.top / "docker.pid").write_text(str(started[-1].pid))
        body = {"ContainersRunning": containers, "LiveRestoreEnabled": live, "DockerRootDir": root}
        text = json.dumps(body)
        listener.bind(str(node.top / "docker.sock"))
        listener.listen()
        answer = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
        serving.append(threading.Thread(target=serve, args=(answer,), daemon=True))
        serving[0].start()
        time.sleep(0.05)

    yield start
    # A thread that waits on a closed socket would serve the next that gets its number, once the process was paused.
    for thread in serving:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    listener.close()
    for process in started:
        process.kill()
        process.wait()


def test_check_apply_check_apply(node: Node) -> None:
    wanted = {"settings": {"live-restore": True}}
    checked = node(check=True, **wanted)
    assert checked["changed"]
    assert not node.file.exists()
    applied = node(**wanted)
    assert applied["diff"] == checked["diff"]
    assert node.content() == {"live-restore": True}
    assert node.file.stat().st_mode & 0o777 == 0o644
    assert not node(check=True, **wanted)["changed"]
    assert not node(**wanted)["changed"]
    assert list(node.file.parent.iterdir()) == [node.file]


def test_what_others_have_put_there_stays(node: Node) -> None:
    node.says(
        '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "log-opts": {"max-size": "1m"}, "bip": "x"}'
    )
    node.file.chmod(0o600)
    node(settings={"log-opts": {"max-file": "3"}, "bip": None, "insecure-registries": ["a"], "absent": None})
    assert node.content() == {
        "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},
        "log-opts": {"max-size": "1m", "max-file": "3"},
        "insecure-registries": ["a"],
    }
    assert node.file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_means_the_same_is_not_written(node: Node) -> None:
    node.says('{"debug":true,   "live-restore":true}')
    assert not node(settings={"live-restore": True})["changed"]
    assert node.file.read_text() == '{"debug":true,   "live-restore":true}'


def test_an_empty_file_and_a_byte_order_mark_are_taken(node: Node) -> None:
    node.says(" \n")
    assert node(settings={"debug": True})["changed"]
    node.says("\ufeff" + '{"debug": true}')
    assert not node(settings={"debug": True})["changed"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "b": }', "is no valid JSON (line 2, column 7: Expecting value); correct it, or move it away"),
        ("[1]", "holds [1], needed is an object in braces; move it away"),
        ('{"a": 1}{"b": 2}', "is no valid JSON (line 1, column 9: Extra data); correct it, or move it away"),
    ],
)
def test_no_json(node: Node, text: str, message: str) -> None:
    node.says(text)
    result = node(settings={"debug": True})
    assert result["failed"]
    assert result["msg"] == f"{node.file} {message}"
    assert node.file.read_text() == text


def test_a_link_is_followed(node: Node) -> None:
    real = node.top / "real.json"
    real.write_text("{}")
    node.file.parent.mkdir(parents=True)
    node.file.symlink_to(real)
    node(settings={"debug": True})
    assert node.file.is_symlink()
    assert json.loads(real.read_text()) == {"debug": True}


def test_dockerd_refuses(node: Node) -> None:
    node.dockerd('echo "unable to configure the Docker daemon with file $3: the option bogus is none" >&2; exit 1')
    result = node(settings={"bogus": 1})
    assert result["failed"]
    assert result["msg"] == (
        f"dockerd would not take {node.file} as it is to be: the option bogus is none; correct "
        "docker_daemon_config, where null takes a key away"
    )
    assert not node.file.exists()


def test_what_docker_refuses_beside_the_flags_of_its_unit_is_not_written(amazon_linux: Node) -> None:
    node = amazon_linux
    for check in (True, False):
        assert node(check=check, settings=MEMLOCK)["msg"] == (
            f"dockerd would not take {node.file} as it is to be: the following directives are specified both as a flag "
            "and in the configuration file: default-ulimits: (from flag: [nofile=32768:65536], from file: "
            f"{MEMLOCK['default-ulimits']}); its flags are in docker.service and {node.top}/sysconfig/docker; correct "
            "docker_daemon_config, where null takes a key away"
        )
    assert not node.file.exists()
    assert "--property=ExecStart,Environment,EnvironmentFiles docker.service" in (node.top / "asked").read_text()


def test_flags_of_the_unit_that_nothing_contradicts_are_no_hindrance(amazon_linux: Node) -> None:
    node = amazon_linux
    (node.top / "run/docker").mkdir(parents=True)
    (node.top / "run/docker/runtimes.env").write_text(
        'DOCKER_ADD_RUNTIMES="--add-runtime nvidia=/etc/docker-runtimes.d/nvidia "\n'
    )
    settings = {"live-restore": True, "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}
    assert not node(settings=settings)["failed"]
    assert node.content() == settings
    (flags,) = (node.top / "flags").read_text().splitlines()
    assert flags.startswith(
        "-H fd:// --containerd=/run/containerd/containerd.sock --default-ulimit nofile=32768:65536 "
        "--add-runtime nvidia=/etc/docker-runtimes.d/nvidia --validate --config-file "
    )


def test_a_key_that_the_unit_sets_too_can_be_taken_away(amazon_linux: Node) -> None:
    node = amazon_linux
    node.says(json.dumps(MEMLOCK))
    assert node(settings={"live-restore": True})["failed"]
    assert not node(settings={"live-restore": True, "default-ulimits": None})["failed"]
    assert node.content() == {"live-restore": True}


def test_hosts_beside_the_socket_of_the_unit(amazon_linux: Node) -> None:
    # Docker's own unit says -H fd://, on every system.
    message = amazon_linux(settings={"hosts": ["unix:///run/docker.sock"]})["msg"]
    assert "hosts: (from flag: [fd://]," in message


@pytest.mark.parametrize(
    ("shown", "flags"),
    [
        ("", ""),
        ("ExecStart={{ path=/x ; argv[]=/x ; ignore_errors=no ; pid=0 }}", ""),
        ("ExecStart={{ path=/x ; argv[]=/x $A -D --l=${{B}}x ; pid=0 }}\nEnvironment=A=1 B=3", "1|-D|--l=3x"),
        ('ExecStart={{ path=/x ; argv[]=/x $A ; pid=0 }}\nEnvironment="A=-H fd://" C=', "-H|fd://"),
        ("ExecStart={{ path=/x ; argv[]=/x -D $A ; pid=0 }}\nEnvironmentFiles=/nowhere (ignore_errors=yes)", "-D"),
    ],
)
def test_flags_as_systemd_tells_them(node: Node, shown: str, flags: str) -> None:
    node.unit(shown)
    assert "|".join(_docker_config.unit_flags().words) == flags


def test_a_program_that_hangs_ends_in_one_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_docker_config, "TIMEOUT", 2)
    node.dockerd("exec sleep 60")
    said = node(settings={"debug": True})["msg"]
    assert said.startswith(f"'{node.top}/bin/dockerd ")
    assert said.endswith("' did not end within 2 s; see what it waits for")
    assert not node.file.exists()
    (node.top / "tools/systemctl").write_text("#!/bin/sh\nexec sleep 60\n")
    assert node(settings={"debug": True})["msg"].startswith("'systemctl show ")


def test_the_readmes_examples_are_taken_on_amazon_linux(amazon_linux: Node, repo: Path) -> None:
    text = (repo / "roles/docker/README.md").read_text()
    examples = [yaml.safe_load(part.partition("```")[0]) for part in text.split("```yaml\n")[1:]]
    settings = [example["docker_daemon_config"] for example in examples if "docker_daemon_config" in example]
    assert settings
    for wanted in settings:
        assert not amazon_linux(settings=wanted)["failed"]


def test_dockerd_sees_the_whole_file(node: Node) -> None:
    node.says('{"debug": true}')
    node.dockerd(f"cp $3 {node.top}/seen; echo configuration OK")
    node(check=True, settings={"live-restore": True})
    assert json.loads((node.top / "seen").read_text()) == {"debug": True, "live-restore": True}
    assert node.content() == {"debug": True}


def test_an_old_dockerd_is_not_asked(node: Node) -> None:
    node.dockerd('echo "Status: unknown flag: --validate" >&2; echo "See dockerd --help" >&2; exit 125')
    assert node(settings={"debug": True})["changed"]


def test_a_configuration_that_did_not_change_is_validated_unless_dockerd_runs(
    node: Node, running: Callable[..., None]
) -> None:
    node.says('{"bogus": 1}')
    node.dockerd("echo bogus; exit 1")
    assert node()["failed"]
    running()
    assert not node()["failed"]


# Where Docker's data is.


def test_data_root_auto(node: Node) -> None:
    assert node(data_root="auto")["data_root"] == str(node.top / "lib/docker")
    assert not node.file.exists()
    result = node(data_root="auto", scratch=str(node.scratch))
    assert result["data_root"] == f"{node.scratch}/docker"
    # The image store of Docker 29 would not keep its images there.
    assert node.content() == {"data-root": f"{node.scratch}/docker", "features": {"containerd-snapshotter": False}}
    assert not node(data_root="auto", scratch="/elsewhere")["changed"]
    assert not node(data_root="auto")["changed"]


@pytest.mark.parametrize(
    "path",
    [
        "docker/containers/0123",
        "docker/image/overlay2/layerdb/sha256/0123",
        "docker/volumes/data",
        "containerd/io.containerd.content.v1.content/blobs/sha256/0123",
    ],
)
def test_data_that_is_there_is_not_left_behind(node: Node, path: str) -> None:
    (node.top / "lib" / path).mkdir(parents=True)
    assert not node(data_root="auto", scratch=str(node.scratch))["changed"]


def test_an_empty_root_is_no_data(node: Node) -> None:
    for path in ("containers", "image/overlay2/layerdb/sha256", "volumes/metadata.db", "overlay2/l"):
        (node.top / "lib/docker" / path).mkdir(parents=True)
    assert node(data_root="auto", scratch=str(node.scratch))["changed"]


def test_who_decides_on_the_image_store(node: Node) -> None:
    node.says('{"features": {"cdi": true, "containerd-snapshotter": true}}')
    node(data_root=str(node.scratch))
    assert node.content()["features"] == {"cdi": True, "containerd-snapshotter": True}
    node.says("{}")
    node(data_root=str(node.scratch), settings={"features": {"containerd-snapshotter": True}})
    assert node.content()["features"] == {"containerd-snapshotter": True}


@pytest.mark.parametrize("data_root", ["auto", "", "same"])
def test_a_data_root_of_others_gets_the_images_while_none_is_stored(
    node: Node, data_root: str, warnings: list[str]
) -> None:
    """Docker 29 keeps images in /var/lib/containerd whatever data-root says (docker/cli#6645, moby/moby#50517)."""
    root = node.scratch / "images"
    node.says(json.dumps({"data-root": str(root), "features": {"cdi": True}}))
    args = {"data_root": str(root) if data_root == "same" else data_root, "scratch": str(node.scratch)}
    # Volumes are in the data root in either case.
    (root / "volumes/data").mkdir(parents=True)
    checked = node(check=True, **args)
    assert checked["changed"]
    applied = node(**args)
    assert (applied["diff"], warnings) == (checked["diff"], [])
    assert node.content() == {"data-root": str(root), "features": {"containerd-snapshotter": False, "cdi": True}}
    for check in (True, False):
        assert not node(check=check, **args)["changed"]


# Where Docker 28 and 29 have a container or an image, and containerd's configuration as Docker's package has it.
@pytest.mark.parametrize(
    ("there", "toml", "warned"),
    [
        ("scratch/image/overlay2/layerdb/sha256/0f", "", False),
        ("scratch/containers/5c", "", False),
        ("scratch/containerd/daemon/io.containerd.content.v1.content/blobs/sha256/1a", "", False),
        ("lib/containerd/io.containerd.content.v1.content/blobs/sha256/1a", "", True),
        ("lib/containerd/io.containerd.content.v1.content/blobs/sha256/1a", '#root = "{top}/other"\n', True),
        ("scratch", 'version = 3\nroot = "{top}/nvme"\n[plugins]\n', False),
        ("scratch", "version = 2\n\nroot = '{top}/nvme'\n", False),
    ],
)
def test_images_that_are_stored_are_not_hidden(
    node: Node, there: str, toml: str, warned: bool, warnings: list[str]
) -> None:
    (node.top / there).mkdir(parents=True, exist_ok=True)
    (node.top / "containerd.toml").write_text(toml.format(top=node.top))
    node.says(json.dumps({"data-root": str(node.scratch)}))
    assert not node(data_root="auto", scratch=str(node.scratch))["changed"]
    line = (
        f"Docker's data root is {node.scratch}, but images are in {node.top}/lib/containerd, the image store of Docker "
        "29; to have them in the data root, set docker_daemon_config: {features: {containerd-snapshotter: false}} and "
        "pull them again (true keeps them there, without this warning)"
    )
    assert warnings == ([line] if warned else [])
    warnings.clear()
    for decided in (True, False):
        node(settings={"features": {"containerd-snapshotter": decided}})
    assert warnings == []


def test_containerds_default_root_by_name_is_no_decision(node: Node) -> None:
    (node.top / "containerd.toml").write_text(f'root = "{node.top}/lib/containerd/"\n[plugins]\nroot = "/x"\n')
    node.says(json.dumps({"data-root": str(node.scratch)}))
    assert node()["changed"]
    assert node.content()["features"] == {"containerd-snapshotter": False}


def test_a_scratch_disk_that_is_not_mounted_is_no_root_disk(node: Node) -> None:
    dropin = node.top / "10-scratch.conf"
    auto = {"data_root": "auto", "scratch_dropin": str(dropin)}
    node(scratch=str(node.scratch), **auto)
    # What the role leaves beside the unit of a Docker whose data is on a scratch disk.
    dropin.write_text(f"[Unit]\nRequiresMountsFor={node.scratch}/docker\n")
    assert not node(scratch=str(node.scratch), **auto)["changed"]
    for scratch in ({}, {"scratch": "/elsewhere"}):
        assert node(**auto, **scratch)["msg"] == (
            f"Docker's data is in {node.scratch}/docker, on a scratch disk that is not mounted now (see 'journalctl -u "
            "setup-ephemeral'); mount it, or set docker_data_root to where the data shall be, such as "
            f"{node.top}/lib/docker"
        )
    assert not node(data_root="auto")["changed"]
    moved = {"data_root": str(node.top / "lib/docker"), "scratch_dropin": str(dropin)}
    assert node(**moved)["data_root"] == str(node.top / "lib/docker")
    # The run was killed before the drop-in was taken away.
    assert not node(**moved)["changed"]


def test_data_root_among_the_settings(node: Node) -> None:
    assert node(settings={"data-root": "/a"}, data_root="auto", scratch=str(node.scratch))["data_root"] == "/a"
    result = node(settings={"data-root": "/a"}, data_root="/b")
    assert result["msg"] == "docker_data_root is /b, and data-root in docker_daemon_config is /a; set only one of them"
    node(settings={"data-root": None}, data_root="auto")
    assert "data-root" not in node.content()


def test_a_relative_data_root(node: Node) -> None:
    assert node(data_root="scratch")["msg"].startswith("docker_data_root is 'scratch'; needed is an absolute path")


@pytest.mark.parametrize("kind", ["lustre", "nfs4", "fuse.s3fs", "autofs"])
def test_network_file_systems_are_refused(node: Node, kind: str) -> None:
    node.mounts(f"/dev/root / ext4 rw 0 0\nserver /fsx {kind} rw 0 0")
    result = node(data_root="/fsx/docker", scratch="/nvme")
    assert result["msg"] == (
        f"docker_data_root is /fsx/docker, on {kind} (mounted at /fsx), where Docker's storage does not work; needed "
        "is a disk of this node's own: set docker_data_root, for example to /nvme/docker"
    )
    assert not node(data_root="/fsx2/docker", check=True)["failed"]


def test_a_local_file_system_over_a_network_one(node: Node) -> None:
    node.mounts("/dev/root / ext4 rw 0 0\nauto /data autofs rw 0 0\n/dev/nvme1n1 /data xfs rw 0 0")
    assert not node(data_root="/data/docker", check=True)["failed"]


def test_what_the_cluster_shares_is_refused_even_unmounted(node: Node) -> None:
    shared = {"/fsx": "lustre", "/shared": "ebs"}
    assert "on lustre (mounted at /fsx)" in node(data_root="/fsx", shared=shared)["msg"]
    assert not node(data_root="/shared/docker", shared=shared, check=True)["failed"]


def test_a_link_to_a_network_file_system_is_refused(node: Node) -> None:
    node.mounts(f"/dev/root / ext4 rw 0 0\nserver {node.top}/fsx lustre rw 0 0")
    (node.top / "lib/docker").rmdir()
    (node.top / "lib/docker").symlink_to(node.top / "fsx/docker")
    message = node()["msg"]
    assert message.startswith(
        f"Docker's data would lie in {node.top}/lib/docker, which leads to {node.top}/fsx/docker, on lustre"
    )


def test_the_file_names_a_network_file_system(node: Node) -> None:
    node.says('{"data-root": "/fsx/docker"}')
    message = node(data_root="auto", shared={"/fsx": "lustre"})["msg"]
    assert message.startswith(f"data-root in {node.file} is /fsx/docker, on lustre")


# What has to be installed.


def test_a_fresh_node(node: Node) -> None:
    install = node(**DOCKER, fresh_version="29")["install"]
    assert (install["due"], install["version"]) == (True, "29")
    assert (install["packages"], install["along"]) == (VERSIONED, ["docker-compose-plugin"])
    assert node(**DOCKER, fresh_version="29", version="28.1.0")["install"]["version"] == "28.1.0"
    assert not node(fresh_version="29")["install"]["due"]


def test_an_installed_docker_is_left(node: Node) -> None:
    for name in PACKAGES:
        node.package(name, "5:28.5.1-1~ubuntu.24.04~noble")
    node.dockerd()
    install = node(**DOCKER, fresh_version="29")["install"]
    assert (install["due"], install["why"]) == (False, "docker-ce 28.5.1 is installed")
    assert not node(**DOCKER, version="28.5")["install"]["due"]
    asked = node(**DOCKER, version="28.51")["install"]
    assert (asked["due"], asked["version"], asked["packages"]) == (True, "28.51", VERSIONED)
    upgraded = node(**DOCKER, upgrade=True, fresh_version="29")["install"]
    assert (upgraded["due"], upgraded["version"]) == (True, "29")
    assert node(**DOCKER, upgrade=True, fresh_version="28")["install"]["why"] == "docker_upgrade is true"


def test_a_missing_plugin_is_added_without_touching_docker(node: Node) -> None:
    for name in PACKAGES[:2]:
        node.package(name, "5:28.5.1-1")
    install = node(**DOCKER, fresh_version="29")["install"]
    assert (install["due"], install["why"]) == (True, "missing: docker-compose-plugin")
    # Docker's own packages are not even named, so nothing can replace them.
    assert (install["packages"], install["along"]) == ([], ["docker-compose-plugin"])


def test_another_docker_is_left(node: Node) -> None:
    node.package("docker.io", "28.2.2-0ubuntu1")
    wanted: dict[str, Any] = {**DOCKER, "conflicts": ["docker.io", "runc"], "fresh_version": "29"}
    assert not node(**wanted)["install"]["due"]
    assert not node(**wanted, version="28.2")["install"]["due"]
    assert node(**wanted, version="29.1")["msg"] == (
        "docker.io 28.2.2 is installed, wanted is docker-ce 29.1, as docker_version says; in the way of docker-ce: "
        "docker.io 28.2.2; remove them, or set docker_replace to true, which removes them"
    )
    install = node(**wanted, upgrade=True, replace=True)["install"]
    assert (install["due"], install["version"], install["packages"]) == (True, "29", VERSIONED)


def test_conflicts_on_a_fresh_node(node: Node) -> None:
    node.package("runc", "1.1.12-0ubuntu3")
    wanted: dict[str, Any] = {**DOCKER, "conflicts": ["podman-docker", "runc"]}
    assert "in the way of docker-ce: runc 1.1.12; remove them" in node(**wanted)["msg"]
    assert node(**wanted, replace=True)["install"]["due"]


def test_an_interrupted_installation_is_finished(node: Node) -> None:
    node.dockerd()
    node.package("docker-ce", "5:29.1.0-1", "half-configured")
    install = node(**DOCKER, fresh_version="29")["install"]
    assert (install["why"], install["packages"]) == ("the installation of docker-ce was interrupted", VERSIONED)


def test_an_interrupted_plugin_is_finished_without_touching_docker(node: Node) -> None:
    node.dockerd()
    for name, state in zip(PACKAGES, ("installed", "installed", "unpacked")):
        node.package(name, "5:29.1.0-1", state)
    install = node(**DOCKER, fresh_version="29")["install"]
    assert (install["due"], install["packages"], install["along"]) == (True, [], ["docker-compose-plugin"])


def test_rpm(node: Node, monkeypatch: pytest.MonkeyPatch, running: Callable[..., None]) -> None:
    tools = node.top / "tools"
    lab.program(tools / "rpm", "#!/bin/sh\nprintf 'docker\\t25.0.8\\nrunc\\t1.2\\n'\n")
    wanted: dict[str, Any] = {"package_manager": "dnf", "packages": ["docker"], "conflicts": ["docker-ce"]}
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    assert node(**wanted)["install"]["why"] == "docker 25.0.8 is installed"
    # A dockerd that rpm does not know of: what an interrupted installation left, unless it runs.
    (tools / "rpm").write_text("#!/bin/sh\nexit 1\n")
    node.dockerd()
    assert node(**wanted)["install"]["due"]
    running()
    assert not node(**wanted)["install"]["due"]


# Whether it may be restarted.


def test_nothing_runs(node: Node) -> None:
    assert not node(restart="never")["hold"]
    (node.top / "docker.pid").write_text(str(os.getpid()))  # a number that another program has got since
    assert not node(restart="never")["hold"]


@pytest.mark.parametrize(
    ("containers", "live", "config", "policy", "why"),
    [
        (0, False, {}, "auto", ""),
        (2, False, {"live-restore": True}, "auto", "2 containers run in it, which would be stopped"),
        (1, True, {}, "auto", "1 container runs in it, which would be stopped"),
        (1, True, {"live-restore": True}, "auto", ""),
        (1, True, {"live-restore": True, "data-root": "/new"}, "auto", "1 container runs in it, with data in /old"),
        (9, False, {}, "always", ""),
        (0, True, {"live-restore": True}, "never", "docker_restart is never"),
    ],
)
def test_restart(
    node: Node, running: Callable[..., None], containers: int, live: bool, config: dict[str, Any], policy: str, why: str
) -> None:
    running(containers, live, "/old")
    result = node(settings=config, restart=policy)
    assert result["hold"] == bool(why)
    assert result["why_hold"].split(";")[0] == why


def test_a_docker_that_does_not_answer_is_not_restarted(node: Node, running: Callable[..., None]) -> None:
    running(status="500 Internal Server Error")
    assert node()["why_hold"].startswith("it does not answer on its socket")


def test_a_docker_in_use_is_not_replaced(node: Node, running: Callable[..., None]) -> None:
    for name in PACKAGES:
        node.package(name, "5:28.5.1-1")
    running(containers=1, live=True)
    install = node(**DOCKER, version="29")["install"]
    assert not install["due"]
    assert install["why"].startswith(
        "Docker was left as it is (docker-ce 28.5.1, docker-ce-cli 28.5.1 installed, wanted is 29, as "
        "docker_version says): 1 container runs in it"
    )
    assert node(**DOCKER, version="29", restart="always")["install"]["due"]


def test_a_restart_that_is_due_and_not_allowed_is_warned_of(
    node: Node, running: Callable[..., None], monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    node.says('{"debug": true}')
    running(containers=1, live=False)
    now = engine.running()
    assert now is not None
    os.utime(node.file)  # its ctime
    node()
    assert len(warnings) == 1
    assert "it does not use what changed" in warnings[0]
    warnings.clear()
    monkeypatch.setattr(engine, "outdated", lambda *_: False)
    node()
    assert warnings == []
