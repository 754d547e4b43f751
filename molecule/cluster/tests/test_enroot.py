# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Enroot on every node: ordinary users run containers on the node's own disk, also after a boot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from testinfra.host import Host

from .helpers import On, Play, failed, image_of_busybox, ok

USERS = ("alice", "bob")
CONF = "/etc/enroot/enroot.conf"
RECORD = "/var/lib/pcluster-postboot/packages/enroot.json"
IMAGE = "/tmp/sandbox-enroot.sqsh"
ARGUMENTS = ("--tags", "enroot", "--limit", "login")


def in_container(host: Host, user: str, command: str) -> str:
    """Unpack the image as a user, run a command in it, and remove it again."""
    name = f"sandbox-{user}"
    start = f"enroot start {name} {command}; rc=$?; enroot remove -f {name}; exit $rc"
    line = f"enroot create --name {name} {IMAGE} && {start}"
    return host.check_output(f"su - {user} -c {line!r}")


def settings(host: Host) -> dict[str, str]:
    """What enroot.conf says, as Enroot works it out for root."""
    script = f'grep ^ENROOT {CONF} | while read -r key value; do eval echo $key "$value"; done'
    lines = host.check_output(f"bash -c '{script}'").splitlines()
    return dict(line.split(maxsplit=1) for line in lines)


@pytest.fixture
def image(on: On, node: str) -> Iterator[None]:
    """An image on a node, for as long as a test runs."""
    image_of_busybox(on(node), IMAGE, "echo ID=busy > etc/os-release")
    yield
    on(node).run(f"rm -f {IMAGE}")


@pytest.fixture
def login(on: On) -> Iterator[Host]:
    """The login node, with its record of what was installed put back afterwards."""
    record = on("login").file(RECORD).content_string
    yield on("login")
    on("login").check_output(f"printf '%s\\n' '{record.strip()}' > {RECORD}")


@pytest.mark.usefixtures("image")
def test_two_users_run_containers(on: On, node: str) -> None:
    host = on(node)
    for user in USERS:
        assert "ID=busy" in in_container(host, user, "/bin/cat /etc/os-release")


def test_nobody_keeps_containers_in_what_another_user_has_made(on: On) -> None:
    host = on("login")
    parent = settings(host)["ENROOT_DATA_PATH"].rpartition("/")[0]
    bobs = f"{parent}/user-{host.user('alice').uid}"
    host.check_output(f"rm -rf {bobs} && runuser -u bob -- mkdir -m 777 {bobs}")
    try:
        refused = host.run("su - alice -c 'enroot list'")
        assert refused.rc != 0
        assert f"{bobs} is missing, or another user's" in refused.stderr
        assert host.run("su - bob -c 'enroot list'").rc == 0
    finally:
        host.check_output(f"rmdir {bobs}")
    assert host.run("su - alice -c 'enroot list'").rc == 0


def test_nothing_of_it_is_on_shared_storage(on: On, node: str) -> None:
    host = on(node)
    for key in ("ENROOT_RUNTIME_PATH", "ENROOT_DATA_PATH", "ENROOT_TEMP_PATH"):
        assert not settings(host)[key].startswith(("/fsx", "/home", "/opt/slurm"))
    assert host.check_output("findmnt --noheadings --output FSTYPE --target /run/enroot") == "tmpfs"


@pytest.mark.usefixtures("image")
def test_its_directories_are_there_again_after_a_boot(on: On, node: str) -> None:
    host = on(node)
    # What a boot does to /run and, on an instance that was stopped, to the scratch disk.
    data = settings(host)["ENROOT_DATA_PATH"].partition("/user-")[0]
    host.check_output(f"rm -rf /run/enroot {data}")
    assert host.service("enroot-directories").is_enabled
    host.check_output("systemctl restart enroot-directories")
    assert "ID=busy" in in_container(host, "alice", "/bin/cat /etc/os-release")
    assert host.file(data).mode == 0o1777


def test_slurms_hooks_are_on(on: On, node: str) -> None:
    for name in ("50-slurm-pmi.sh", "50-slurm-pytorch.sh"):
        assert on(node).file(f"/etc/enroot/hooks.d/{name}").linked_to == f"/usr/share/enroot/hooks.d/{name}"
    for name in ("51-slurm-address.sh", "98-nvidia.sh"):
        assert on(node).file(f"/etc/enroot/hooks.d/{name}").is_executable


@pytest.mark.usefixtures("image")
def test_images_that_ask_for_gpus_start_with_what_there_is(on: On, node: str) -> None:
    host = on(node)
    # NVIDIA's images ask for GPUs by this variable.
    image_of_busybox(host, IMAGE, "echo NVIDIA_VISIBLE_DEVICES=all > etc/environment")
    found = in_container(host, "alice", "/bin/ls /dev").split()
    assert ("nvidia0" in found) is host.file("/dev/nvidia0").exists


def test_everybody_may_convert_images(on: On, node: str) -> None:
    assert "cap_sys_admin" in on(node).check_output("getcap /usr/bin/enroot-mksquashovlfs")


@pytest.mark.long
def test_what_the_ami_brought_stays_until_it_is_to_be_replaced(login: Host, play: Play) -> None:
    login.check_output(f"rm {RECORD}")
    other = ("-e", "enroot_version=4.1.1")
    done = ok(play(*ARGUMENTS, *other))
    assert "1 node, 0 changed" in done.stdout
    assert "Enroot 4.1.2, the AMI's own" in done.stdout
    # The hash of another version is not known to the one that is asked for.
    done = failed(
        play("--check", *ARGUMENTS, *other, "-e", "enroot_upgrade=true", "-e", '{"enroot_deb_sha256": {"x86_64": ""}}')
    )
    assert (
        "enroot_deb_sha256['x86_64'] is not set; needed: the 64 hexadecimal digits of the sha256 of version 4.1.1"
        in done.stdout
    )


@pytest.mark.long
def test_an_interrupted_installation_is_finished(login: Host, play: Play) -> None:
    login.check_output("dpkg --remove --force-depends enroot+caps")
    login.check_output("dpkg --unpack /var/cache/pcluster-postboot/enroot+caps.deb")
    ok(play(*ARGUMENTS))
    assert login.package("enroot+caps").is_installed
    assert "cap_sys_admin" in login.check_output("getcap /usr/bin/enroot-mksquashovlfs")
