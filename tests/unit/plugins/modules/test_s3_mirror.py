# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A directory that is copied to S3: moto, and a program that does with boto3 what the AWS CLI does for this module.

The sandbox's test_mirror.py does so with the AWS CLI itself.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import fetch
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import s3_mirror as logic
from ansible_collections.pcluster.postboot.plugins.modules import s3_mirror
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

# As AWS CLI 2.31 prints: JSON by --output, what --query selects, and null for what is not there.
AWS = """#!{python}
import json, sys
import boto3
s3, words = boto3.client("s3"), sys.argv[1:]
open({log!r}, "a").write(" ".join(words) + "\\n")
given = dict(zip(words, words[1:]))
try:
    if words[:2] == ["s3api", "list-objects-v2"]:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=given["--bucket"], Prefix=given["--prefix"])
        rows = [[one["Key"], one["Size"], one["ETag"]] for page in pages for one in page.get("Contents", [])]
        print(json.dumps(rows or None))
    elif words[:2] == ["s3api", "head-object"]:
        print(json.dumps(s3.head_object(Bucket=given["--bucket"], Key=given["--key"])["Metadata"].get("sha256")))
    elif words[:2] == ["s3", "cp"]:
        bucket, _slash, key = words[-1].removeprefix("s3://").partition("/")
        name, _equals, value = given["--metadata"].partition("=")
        s3.upload_file(words[-2], bucket, key, ExtraArgs={{"Metadata": {{name: value}}}})
except Exception as error:
    print(f"\\n{{error}}", file=sys.stderr)
    sys.exit(254)
"""


NUMBERS = itertools.count()


class Mirror:
    """A directory, and a bucket of its own."""

    def __init__(self, top: Path, run: lab.Run, bucket: str) -> None:
        self.top, self.run, self.bucket, self.log = top, run, bucket, top / "aws.log"
        self.folder, self.s3 = top / "mirror", boto3.client("s3")
        self.s3.create_bucket(Bucket=bucket)
        lab.program(top / "bin/aws", AWS.format(python=sys.executable, log=str(self.log)))
        self.has(**{"a.org/key.asc": b"key 1", "b.org/large": os.urandom(logic.PART + 5), ".receipts/x": b"{}"})

    def has(self, **files: bytes) -> None:
        for name, content in files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)

    def __call__(self, check: bool = False, **more: Any) -> dict[str, Any]:
        self.log.unlink(missing_ok=True)
        given = {"src": str(self.folder), "dest": f"s3://{self.bucket}/pins", "exclude": [".receipts"], **more}
        return self.run(s3_mirror, given, check=check)

    def content(self, name: str) -> bytes:
        return bytes(self.s3.get_object(Bucket=self.bucket, Key=f"pins/{name}")["Body"].read())

    @property
    def uploads(self) -> list[str]:
        return [line.split()[-1].partition("/pins/")[2] for line in lab.lines(self.log) if line.startswith("s3 cp")]


@pytest.fixture
def mirror(moto: str, tmp_path: Path, run_module: lab.Run, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    given = {"ENDPOINT_URL": moto, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}
    for name, value in given.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return Mirror(tmp_path, run_module, f"mirror-{next(NUMBERS)}")


def test_check_apply_check_apply(mirror: Mirror) -> None:
    names = ["a.org/key.asc", "b.org/large"]
    checked = mirror(check=True)
    assert (checked["changed"], checked["copied"], mirror.uploads) == (True, names, [])
    done = mirror()
    assert (done["changed"], done["copied"], sorted(mirror.uploads)) == (True, names, names)
    assert mirror.content("b.org/large") == (mirror.folder / "b.org/large").read_bytes()
    for check in (True, False):
        again = mirror(check=check)
        assert (again["changed"], again["copied"]) == (False, [])
        assert [line.split()[1] for line in lab.lines(mirror.log)] == ["list-objects-v2"]  # the ETags tell all


def test_a_key_of_the_same_size_is_copied_and_nothing_else(mirror: Mirror) -> None:
    mirror()
    before = os.stat(mirror.folder / "a.org/key.asc")
    mirror.has(**{"a.org/key.asc": b"key 2"})
    os.utime(mirror.folder / "a.org/key.asc", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert mirror(check=True)["copied"] == ["a.org/key.asc"]
    assert (mirror()["copied"], mirror.uploads) == (["a.org/key.asc"], ["a.org/key.asc"])
    assert mirror.content("a.org/key.asc") == b"key 2"
    assert not mirror()["changed"]


def test_what_an_etag_does_not_tell_the_noted_hash_does(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a key of KMS, or parts of another size."""
    mirror()
    real = logic.content_of
    monkeypatch.setattr(logic, "content_of", lambda path: real(path)._replace(etag="another"))
    assert not mirror()["changed"]
    assert sum("head-object" in line for line in lab.lines(mirror.log)) == 2
    # What another program has uploaded has no such note, and is uploaded once.
    mirror.s3.put_object(Bucket=mirror.bucket, Key="pins/a.org/key.asc", Body=b"key 1")
    assert mirror()["copied"] == ["a.org/key.asc"]
    assert not mirror()["changed"]


@pytest.mark.parametrize("folder", ["", "/"])
def test_the_whole_bucket_may_be_the_mirror(mirror: Mirror, folder: str) -> None:
    assert mirror(dest=f"s3://{mirror.bucket}{folder}")["changed"]
    assert mirror.s3.get_object(Bucket=mirror.bucket, Key="a.org/key.asc")["Body"].read() == b"key 1"
    assert not mirror(dest=f"s3://{mirror.bucket}{folder}")["changed"]


def test_what_cannot_be_is_one_line(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mirror(dest="bucket/pins")["msg"] == "dest is 'bucket/pins'; needed: s3://<bucket>/<prefix>"
    failed = mirror(dest="s3://nobodys-bucket/pins")["msg"]
    assert "list-objects-v2" in failed
    assert "NoSuchBucket" in failed
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(fetch, "AWS_PLACES", ())
    assert "needs the AWS CLI" in mirror()["msg"]
