# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A cluster without internet: a directory or an S3 prefix, filled from the pins, is all that a node needs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from .helpers import On, Play, ok, variables

NODE = "cpu-st-c5-1"


@pytest.fixture(scope="module")
def filled(on: On, play: Play) -> Iterator[Callable[[], str]]:
    """The head node fills /fsx/mirror and an S3 prefix, again when asked; afterwards both go."""
    on("head").check_output("aws s3 mb s3://sandbox-mirror")
    given = variables(
        mirror_hosts="head",
        mirror_dir="/fsx/mirror",
        mirror_s3="s3://sandbox-mirror/pins",
        mirror_from=["http://mirror"],
        mirror_architectures=["x86_64"],
        # NCCL is as large as all else together, a hundred times.
        mirror_components=["enroot", "pyxis", "efa", "node_exporter", "prometheus"],
    )

    def fill() -> str:
        return ok(play(*given, "--become", name="mirror")).stdout

    fill()
    yield fill
    on("head").check_output("rm -rf /fsx/mirror && aws s3 rb --force s3://sandbox-mirror")


@pytest.mark.usefixtures("filled")
def test_a_file_keeps_its_name(on: On) -> None:
    found = on("head").check_output("find /fsx/mirror -name 'enroot?caps[-_]4*' -printf '%f\\n'").split("\n")
    assert all(name.startswith("enroot+caps") for name in found), found


@pytest.mark.usefixtures("filled")
def test_what_vouches_for_the_efa_installer_comes_along(on: On) -> None:
    """Without a hash of its own: nodes verify the signature by the key's fingerprint."""
    found = on("head").check_output("find /fsx/mirror -name 'aws-efa-installer*' -printf '%f\\n'").split("\n")
    assert sorted(name.rpartition(".")[2] for name in found) == ["gz", "key", "sig"], found


@pytest.mark.long
def test_a_signature_of_the_same_size_is_renewed_in_s3_and_nothing_else_is(on: On, filled: Callable[[], str]) -> None:
    head, bucket = on("head"), "s3://sandbox-mirror/pins"
    again = filled()
    assert "changed=0" in again, again[-3000:]
    (old,) = [
        row for row in head.check_output(f"aws s3 ls --recursive {bucket}").split("\n") if row.endswith(".gz.sig")
    ]
    size, key = old.split()[2:]
    head.check_output(f"head -c {size} /dev/zero | aws s3 cp - s3://sandbox-mirror/{key}")
    before = set(head.check_output(f"aws s3 ls --recursive {bucket}").split("\n"))
    time.sleep(1)  # of which the list has whole ones
    assert "changed=1" in filled()
    new = set(head.check_output(f"aws s3 ls --recursive {bucket}").split("\n"))
    assert [row.split()[3] for row in new - before] == [key]
    head.check_output(f"aws s3 cp s3://sandbox-mirror/{key} - | cmp - /fsx/mirror/{key.removeprefix('pins/')}")


@pytest.mark.parametrize("mirror", [pytest.param("/fsx/mirror", marks=pytest.mark.long), "s3://sandbox-mirror/pins"])
@pytest.mark.usefixtures("filled")
def test_node_installs_from_the_mirror_alone(on: On, play: Play, mirror: str) -> None:
    node = on(NODE)
    node.check_output("rm /usr/local/bin/node_exporter")
    given = variables(common_mirrors=[mirror], common_upstream=False, common_cache_dir="")
    ok(play("--limit", NODE, "--tags", "node_exporter", *given))
    report = json.loads(node.file("/var/lib/pcluster-postboot/report.json").content_string)
    assert [c["status"] for c in report["components"]] == ["changed"], report
    assert "nodename" in node.check_output("curl -sf http://localhost:9100/metrics")
