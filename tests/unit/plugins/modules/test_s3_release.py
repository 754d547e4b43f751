# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files that are uploaded once, to an S3 on loopback; and what S3 may say, from a client that only pretends."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, UnauthorizedSSOTokenError

from ansible_collections.pcluster.postboot.plugins.module_utils._bundle.s3_release import Place, Release, parse
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.modules import s3_release

Run = Callable[..., dict[str, Any]]
FILES = {"bootstrap.sh": b"#!/bin/bash\n", "bundle.tar.gz": b"bytes" * 1000, "SHA256SUMS": b"sums\n"}


def bucket_of(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")


@pytest.fixture
def s3(moto: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """A client, with a bucket of its own for this test."""
    given = {"ENDPOINT_URL": moto, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}
    for name, value in given.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    client = boto3.client("s3")
    client.bucket = bucket_of(request)
    client.create_bucket(Bucket=client.bucket)
    return client


@pytest.fixture
def given(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    files = [{"name": name, "sha256": hashlib.sha256(content).hexdigest()} for name, content in FILES.items()]
    return {"src": str(tmp_path), "files": files, "dest": f"s3://{bucket_of(request)}/postboot/1.0-abc"}


def keys(s3: Any) -> list[str]:
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket=s3.bucket).get("Contents", [])]


def test_check_upload_check_upload(run_module: Run, given: dict[str, Any], s3: Any) -> None:
    check = run_module(s3_release, {**given, "src": "/not/built/yet"}, check=True)
    assert (check["changed"], check["uploaded"], keys(s3)) == (True, list(FILES), [])
    first = run_module(s3_release, given)
    assert (first["changed"], first["uploaded"], first["present"]) == (True, list(FILES), [])
    assert (first["account"], first["partition"], first["region"]) == ("123456789012", "aws", "us-east-1")
    assert first["caller"].startswith("arn:aws:sts::123456789012:")
    assert sorted(keys(s3)) == sorted(f"postboot/1.0-abc/{name}" for name in FILES)
    for name, content in FILES.items():
        found = s3.get_object(Bucket=s3.bucket, Key=f"postboot/1.0-abc/{name}", ChecksumMode="ENABLED")
        assert found["Body"].read() == content
        assert found["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(content).digest()).decode()
    for name in FILES:
        Path(given["src"], name).unlink()  # not even read again
    assert run_module(s3_release, given, check=True)["changed"] is False
    again = run_module(s3_release, given)
    assert (again["changed"], again["uploaded"], again["present"]) == (False, [], list(FILES))


def test_the_policy_of_the_bucket_is_told(run_module: Run, given: dict[str, Any], s3: Any) -> None:
    assert run_module(s3_release, given)["bucket_policy"] == ""
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    s3.put_bucket_policy(Bucket=s3.bucket, Policy=policy)
    assert run_module(s3_release, given)["bucket_policy"] == policy


@pytest.mark.parametrize("code", ["AccessDenied", "NotImplemented"])
def test_a_policy_that_may_not_be_read_is_unknown(code: str) -> None:
    class Denied:
        def get_bucket_policy(self, Bucket: str) -> dict[str, Any]:
            raise ClientError({"Error": {"Code": code}}, "GetBucketPolicy")

    assert s3_release.policy_of(Denied(), Place("my-bucket", "p")) is None


@pytest.mark.usefixtures("s3", "strict")
@pytest.mark.parametrize("files", [None, []], ids=["files", "none"])
def test_refused_credentials(
    run_module: Run, given: dict[str, Any], warnings: list[str], files: list[Any] | None
) -> None:
    asked = {**given, "files": given["files"] if files is None else files}
    failed = run_module(s3_release, asked)
    assert failed["msg"].startswith(f"{given['dest']}: the AWS credentials are refused (InvalidAccessKeyId: The AWS")
    assert failed["msg"].endswith("; needed: those of a login that has not ended, and a clock that is right")
    told = run_module(s3_release, asked, check=True)
    assert (told["failed"], told["uploaded"]) == (False, [file["name"] for file in asked["files"]])
    assert (told["account"], told["bucket_policy"]) == ("", None)
    (warning,) = warnings
    assert warning.startswith(failed["msg"])


# Words of S3 ("Error responses" of its API reference) and of botocore, which moto never says.
EXPIRED = ClientError(
    {"Error": {"Code": "ExpiredToken", "Message": "The provided token has expired."}}, "GetBucketPolicy"
)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (EXPIRED, "the AWS credentials are refused (ExpiredToken: The provided token has expired.); needed"),
        (UnauthorizedSSOTokenError(), "The SSO session associated with this profile has expired"),
        (EndpointConnectionError(endpoint_url="https://b.s3.amazonaws.com"), "Could not connect to the endpoint URL"),
    ],
)
def test_who_cannot_ask_is_told_so(error: Exception, says: str) -> None:
    class Silent:
        def get_bucket_policy(self, Bucket: str) -> dict[str, Any]:
            raise error

    with pytest.raises(Problem, match=re.escape(says)):
        s3_release.policy_of(Silent(), Place("my-bucket", "p"))


def test_a_killed_upload_is_finished(run_module: Run, given: dict[str, Any], s3: Any) -> None:
    s3.put_object(
        Bucket=s3.bucket, Key="postboot/1.0-abc/bootstrap.sh", Body=FILES["bootstrap.sh"]
    )  # no hash of its own
    result = run_module(s3_release, given)
    assert (result["uploaded"], result["present"]) == (["bundle.tar.gz", "SHA256SUMS"], ["bootstrap.sh"])


@pytest.mark.parametrize("options", [{}, {"ChecksumAlgorithm": "SHA256"}], ids=["bare", "hashed"])
def test_other_bytes_stay(run_module: Run, given: dict[str, Any], s3: Any, options: dict[str, str]) -> None:
    s3.put_object(Bucket=s3.bucket, Key="p/bundle.tar.gz", Body=b"other", **options)
    for check in (True, False):
        failed = run_module(s3_release, {**given, "dest": f"s3://{s3.bucket}/p"}, check=check)
        there = f"s3://{s3.bucket}/p/bundle.tar.gz is there with other bytes"
        assert failed["msg"] == f"{there}, and no published file is replaced; remove it first"
    assert s3.get_object(Bucket=s3.bucket, Key="p/bundle.tar.gz")["Body"].read() == b"other"
    assert "p/SHA256SUMS" not in keys(s3)


@pytest.mark.parametrize("files", [None, []], ids=["files", "none"])
@pytest.mark.usefixtures("s3")
def test_no_bucket(run_module: Run, given: dict[str, Any], warnings: list[str], files: list[Any] | None) -> None:
    asked = {**given, "files": given["files"] if files is None else files, "dest": "s3://nobodys-bucket/p"}
    failed = run_module(s3_release, asked)
    assert failed["msg"] == "there is no bucket nobodys-bucket; needed: aws s3 mb s3://nobodys-bucket"
    assert not run_module(s3_release, asked, check=True)["failed"]
    (warning,) = warnings
    assert warning.startswith(failed["msg"])


@pytest.fixture
def nobody(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    for name, value in (("SHARED_CREDENTIALS_FILE", "/x"), ("CONFIG_FILE", "/x"), ("EC2_METADATA_DISABLED", "true")):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("files", [None, []], ids=["files", "none"])
def test_no_credentials(run_module: Run, given: dict[str, Any], warnings: list[str], files: list[Any] | None) -> None:
    asked = {**given, "files": given["files"] if files is None else files}
    failed = run_module(s3_release, asked)
    assert failed["failed"]
    assert failed["msg"].startswith(f"{given['dest']}: no AWS credentials were found, neither in the environment nor")
    told = run_module(s3_release, asked, check=True)
    assert (told["failed"], told["uploaded"]) == (False, [file["name"] for file in asked["files"]])
    assert (told["account"], told["partition"], told["bucket_policy"]) == ("", "aws", None)
    (warning,) = warnings
    assert warning.startswith(failed["msg"])


def test_no_boto3(run_module: Run, given: dict[str, Any], warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_release, "HAS_BOTO3", False)
    failed = run_module(s3_release, {**given, "files": []})["msg"]
    assert failed.startswith("Failed to import the required Python library (boto3)")
    assert run_module(s3_release, given, check=True)["uploaded"] == list(FILES)
    assert len(warnings) == 1


@pytest.mark.usefixtures("nobody")
def test_a_profile_that_is_not_there(run_module: Run, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "mine")
    failed = run_module(s3_release, {**given, "files": []})["msg"]
    assert failed == f"{given['dest']}: The config profile (mine) could not be found"


def test_whoever_can_ask_is_told_nothing(run_module: Run, given: dict[str, Any], s3: Any, warnings: list[str]) -> None:
    told = run_module(s3_release, {**given, "files": []})
    assert (told["changed"], told["account"], warnings, keys(s3)) == (False, "123456789012", [], [])


def test_a_changed_file_is_not_taken(run_module: Run, given: dict[str, Any], s3: Any) -> None:
    Path(given["src"], "bundle.tar.gz").write_bytes(b"changed")
    failed = run_module(s3_release, given)
    assert "bundle.tar.gz no longer has the sha256" in failed["msg"]
    assert keys(s3) == ["postboot/1.0-abc/bootstrap.sh"]


@pytest.mark.parametrize("url", ["https://b/p", "s3://bucket", "s3://bucket/", "s3://Bucket/p", "s3://bucket/a*"])
def test_what_is_no_place(url: str) -> None:
    with pytest.raises(Problem, match="needed: s3://<bucket>/<prefix>"):
        parse(url)


def test_a_place() -> None:
    assert str(parse("s3://my-bucket/a/b/") / "c") == "s3://my-bucket/a/b/c"


class Pretender:
    """An S3 that holds objects and answers what it is told to, each in turn."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers, self.calls = answers, []
        self.meta = self
        self.service_model = self
        self.input_shape = self
        self.members = {"IfNoneMatch": None}

    def operation_model(self, _name: str) -> Pretender:
        return self

    def _answer(self, name: str, arguments: dict[str, Any]) -> Any:
        self.calls.append((name, arguments))
        answer = self.answers[name].pop(0)
        if isinstance(answer, str):
            raise ClientError({"Error": {"Code": answer, "Message": "no"}}, name)
        return answer

    def head_object(self, **arguments: Any) -> Any:
        return self._answer("head", arguments)

    def put_object(self, **arguments: Any) -> Any:
        return self._answer("put", arguments)

    def get_object(self, **arguments: Any) -> Any:
        return self._answer("get", arguments)

    def head_bucket(self, **arguments: Any) -> Any:
        return self._answer("bucket", arguments)


SAME = {"ChecksumSHA256": base64.b64encode(hashlib.sha256(b"one").digest()).decode()}
OTHER = {"ChecksumSHA256": base64.b64encode(hashlib.sha256(b"two").digest()).decode()}


def upload(client: Pretender, tmp_path: Path, check: bool = False) -> tuple[list[str], list[str]]:
    (tmp_path / "one").write_bytes(b"one")
    files = [{"name": "one", "sha256": hashlib.sha256(b"one").hexdigest()}]
    return Release(client, s3_release.code_of, check=check).upload(str(tmp_path), files, Place("bucket", "p"))


def test_it_is_never_written_over(tmp_path: Path) -> None:
    client = Pretender(head=["404"], put=[{}])
    assert upload(client, tmp_path) == (["one"], [])
    sent = dict(client.calls[-1][1])
    assert sent.pop("Body").closed
    assert sent == {"Bucket": "bucket", "Key": "p/one", "ChecksumAlgorithm": "SHA256", "IfNoneMatch": "*", **SAME}


def test_an_old_boto3_and_an_s3_without_conditions(tmp_path: Path) -> None:
    client = Pretender(head=["404"], put=[{}])
    client.members = {}
    assert upload(client, tmp_path) == (["one"], [])
    assert "IfNoneMatch" not in client.calls[-1][1]
    client = Pretender(head=["404"], put=["NotImplemented", {}])
    assert upload(client, tmp_path) == (["one"], [])
    assert "IfNoneMatch" not in client.calls[-1][1]


def test_somebody_else_was_quicker(tmp_path: Path) -> None:
    assert upload(Pretender(head=["404", SAME], put=["PreconditionFailed"]), tmp_path) == ([], ["one"])
    with pytest.raises(Problem, match="is there with other bytes"):
        upload(Pretender(head=["404", OTHER], put=["PreconditionFailed"]), tmp_path)
    with pytest.raises(Problem, match="is being uploaded by somebody else"):
        upload(Pretender(head=["404"], put=["ConditionalRequestConflict"]), tmp_path)


def test_what_is_denied(tmp_path: Path) -> None:
    # Who may not list is told 403 of what is not there, and may still upload.
    assert upload(Pretender(head=["403"], put=[{}]), tmp_path) == (["one"], [])
    with pytest.raises(Problem, match=r"s3:PutObject is denied to you on s3://bucket/p/one \("):
        upload(Pretender(head=["404"], put=["AccessDenied"]), tmp_path)
    with pytest.raises(Problem, match="s3:GetObject, which compares it with yours, is denied to you"):
        upload(Pretender(head=["403", "403"], put=["PreconditionFailed"]), tmp_path)
    with pytest.raises(Problem, match="s3:GetObject is denied to you on"):
        upload(Pretender(head=["403"]), tmp_path, check=True)
    with pytest.raises(Problem, match="s3:ListBucket is denied to you on"):
        upload(Pretender(head=["404"], bucket=["403"]), tmp_path, check=True)
    with pytest.raises(Problem, match=r"s3://bucket/p/one: .*SlowDown"):
        upload(Pretender(head=["404"], put=["SlowDown"]), tmp_path)


def test_what_has_no_hash_of_its_own_is_read(tmp_path: Path) -> None:
    client = Pretender(head=[{}], get=[{"Body": io.BytesIO(b"one")}])
    assert upload(client, tmp_path) == ([], ["one"])
    # That of an upload in parts is a hash of hashes.
    parts = {"ChecksumSHA256": "c29tZXRoaW5n-2", "ChecksumType": "COMPOSITE"}
    assert upload(Pretender(head=[parts], get=[{"Body": io.BytesIO(b"one")}]), tmp_path) == ([], ["one"])


def test_more_than_one_upload_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible_collections.pcluster.postboot.plugins.module_utils._bundle import s3_release as bundle_s3_release

    monkeypatch.setattr(bundle_s3_release, "_LIMIT", 2)
    with pytest.raises(Problem, match="one has 3 bytes; S3 takes at most 2 at once"):
        upload(Pretender(head=["404"]), tmp_path)
