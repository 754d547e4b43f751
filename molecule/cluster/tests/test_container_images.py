# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Container images that the head node imports in the background, from a real registry and from one that fails."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from testinfra.host import Host

from .helpers import On, Play, failure, ok, until, variables

ONLY = ("--limit", "head", "--tags", "container_images")
IMAGES, LIST, LOG = "/fsx/containers", "/fsx/config/containers.txt", "/fsx/logs/ngc-download.log"
DOWNLOAD, SHOW = "/fsx/scripts/download-ngc-containers.sh", "/fsx/containers/list-containers.sh"
TINY, PYTORCH = "registry:5000/library/tiny:1.0", "registry:5000/nvidia/pytorch:24.01-py3"
KEY = "/etc/pcluster-postboot/registry-login"


def entries(host: Host) -> dict[str, dict[str, Any]]:
    """How far each image is."""
    return dict(json.loads(host.check_output(f"{DOWNLOAD} --status --json"))["images"])


def file_of(image: str) -> str:
    return f"{IMAGES}/{image.replace(':5', '+5').replace('/', '_').replace(':', '-')}.sqsh"


@pytest.fixture
def another(on: On) -> Iterator[Callable[..., tuple[int, str]]]:
    """A function that has root import another list of images to its end, and returns the exit code and the output."""
    head = on("head")

    def go(*images: str) -> tuple[int, str]:
        head.check_output("printf '%s\\n' " + " ".join(shlex.quote(one) for one in images) + " > /root/list.txt")
        result = head.run(f"timeout 200 {DOWNLOAD} /root/list.txt")
        return result.rc, result.stdout + result.stderr

    yield go
    head.run(f"rm -f /root/list.txt {IMAGES}/registry+5001_*.sqsh")


@pytest.fixture
def as_before(as_before: None, on: On) -> Iterator[None]:
    yield
    on("head").run(f"rm -f {KEY} {IMAGES}/registry+5001_*.sqsh")


@pytest.mark.parametrize("image", [TINY, PYTORCH])
def test_images_are_there_for_everybody(on: On, image: str) -> None:
    until(lambda: entries(on("head")).get(image, {}).get("state") == "present")
    assert on("head").file(file_of(image)).mode == 0o644
    assert on("login").run(f"runuser -u alice -- unsquashfs -l {file_of(image)}").rc == 0
    assert "etc/removed" not in on("head").check_output(f"unsquashfs -l {file_of(image)}")


def test_the_digest_is_the_registrys(on: On) -> None:
    head = on("head")
    kinds = "application/vnd.docker.distribution.manifest.v2+json"
    answer = head.check_output(f"curl -sI -H 'Accept: {kinds}' http://registry:5000/v2/library/tiny/manifests/1.0")
    found = re.search(r"(?i)^docker-content-digest: (\S+)", answer, re.MULTILINE)
    assert found
    assert entries(head)[TINY]["digest"] == found[1]


@pytest.mark.parametrize("where", ["head", "login", "cpu-st-c5-1"])
def test_users_see_them_everywhere(on: On, where: str) -> None:
    shown = on(where).check_output(f"runuser -u alice -- {SHOW}")
    assert re.search(rf"(?m)^registry\+5000_library_tiny-1.0.sqsh +\S+ MB +20\S+ \S+ +{TINY} +sha256:", shown)
    assert re.search(rf"{TINY} +ready", on(where).check_output(f"runuser -u alice -- bash {DOWNLOAD} --status"))
    assert f"{TINY}: done" in on(where).check_output(f"runuser -u alice -- cat {LOG}")


def test_what_a_user_adds_is_imported(on: On) -> None:
    """The list is edited on the login node, and is never written again by a run."""
    login, image = on("login"), "registry:5001/library/tiny:1.0"
    before = login.check_output(f"cat {LIST}")
    login.check_output(f"echo docker://{image} | runuser -u ubuntu -- tee -a {LIST}")
    try:
        result = login.run(f"runuser -u alice -- timeout 60 {DOWNLOAD} {LIST}")
        assert result.rc == 0, result.stdout + result.stderr
        assert re.search(rf"(?m)^{image} +ready", result.stdout), result.stdout
        assert login.file(file_of(image)).exists
    finally:
        login.check_output(f"cat > {LIST} <<'EOF'\n{before}\nEOF")
        on("head").check_output(f"rm -f {file_of(image)}")


@pytest.mark.long
def test_a_registry_that_fails_concerns_its_image_only(
    on: On, another: Callable[..., tuple[int, str]], play: Play, as_before: None
) -> None:
    ok(play(*ONLY, *variables(container_images_retries=2)))
    faults = {
        "fault/401/library/tiny": "answered 401 Unauthorized: it wants a login",
        "fault/429/library/tiny": "answered 429 Too Many Requests, tried 2 times",
        "fault/503/library/tiny": "answered 503 Service Unavailable, tried 2 times",
        # Its upper layers are in no other image.
        "fault/truncate/nvidia/pytorch": "a layer was cut off on the way, tried 2 times",
    }
    good = "registry:5001/library/tiny:1.0"
    images = {
        f"registry:5001/{name}:{'24.01-py3' if 'pytorch' in name else '1.0'}": line for name, line in faults.items()
    }
    code, out = another(*images, good)
    assert code == 1
    for image, line in images.items():
        lines = [one for one in out.splitlines() if f"{image}: " in one and "importing" not in one]
        assert line in lines[-1], out
        assert not on("head").file(file_of(image)).exists
    assert f"{good}: done" in out


def test_a_registry_that_recovers(on: On, another: Callable[..., tuple[int, str]]) -> None:
    on("head").check_output("curl -sf -X POST http://registry:5001/reset")
    code, out = another("registry:5001/fault/503-twice/library/tiny:1.0")
    assert code == 0, out
    assert "answered 503 Service Unavailable; next try in" in out


@pytest.mark.long
def test_a_login_is_read_by_nobody_else(on: On, play: Play, as_before: None) -> None:
    head, image, secret = on("head"), "registry:5001/private/library/tiny:1.0", "sandbox-ngc-key"
    entry = f"machine registry login $oauthtoken password {secret}"
    head.check_output(f"echo {shlex.quote(entry)} > {KEY}; chmod 644 {KEY}")
    change = variables(
        container_images_list=[TINY, image], container_images_credentials_file=KEY, container_images_wait=True
    )
    result = play(*ONLY, *change)
    line = failure(result, "head", "container_images")
    assert f"container_images_credentials_file: {KEY} has mode 0644 and owner 0, so it is not used" in line
    assert f"{image}: registry:5001 answered 401 Unauthorized: it wants a login" in line
    head.check_output(f"chmod 600 {KEY}; systemctl reload container-images")
    until(lambda: entries(head)[image]["state"] == "present")
    ok(play(*ONLY, *change))
    assert head.run(f"grep -rl {secret} /fsx /run/systemd /etc/systemd /tmp/container-images").stdout == ""
    assert secret not in head.check_output("journalctl --no-pager --unit container-images")


@pytest.mark.long
def test_a_killed_import_is_finished_by_the_next(on: On, play: Play, as_before: None) -> None:
    head, image = on("head"), "registry:5001/fault/slow/library/tiny:1.0"
    ok(play(*ONLY, *variables(container_images_list=[TINY, image])))
    until(lambda: head.run("pgrep -f 'enroot import'").rc == 0, 30)
    # systemd ends what it has started.
    head.check_output("kill -KILL $(systemctl show --value --property=MainPID container-images)")
    assert not head.file(file_of(image)).exists
    head.check_output("systemctl reset-failed container-images; systemctl start container-images")
    until(lambda: entries(head).get(image, {}).get("state") == "present")
    assert head.run(f"ls -AR {IMAGES} | grep importing").stdout == ""
    assert head.run(f"unsquashfs -l {file_of(image)}").rc == 0
    until(lambda: head.run("ls -A /tmp/container-images/temp").stdout == "", 10)


@pytest.mark.long
def test_a_run_that_waits_says_what_failed(play: Play, as_before: None) -> None:
    result = play(*ONLY, *variables(container_images_list=["registry:5000/nothing:1"], container_images_wait=True))
    assert "registry:5000/nothing:1: registry:5000 answered 404 Not Found: there is no such image" in failure(
        result, "head", "container_images"
    )
