# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who asks: credentials, roles, regions, and the patience of the clients."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws import session
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory.cloud import describe_instances
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

EMPTY = "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>"
REGIONS = (
    "<DescribeRegionsResponse><regionInfo><item><regionName>us-east-1</regionName></item>"
    "<item><regionName>eu-west-1</regionName></item></regionInfo></DescribeRegionsResponse>"
)
KEYS = {"access_key": "KEY", "secret_key": "secret"}


def failure(code: str) -> str:
    return f"<Response><Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors></Response>"


def role(key: str = "ROLE-KEY", seconds: float = 3600) -> str:
    """What STS answers; its keys last an hour unless more is asked for."""
    end = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    return (
        f"<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s"
        f"</SecretAccessKey><SessionToken>t</SessionToken><Expiration>{end:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials>"
        "</AssumeRoleResult></AssumeRoleResponse>"
    )


class Endpoint:
    """An endpoint on loopback that gives the answers that it is told, and keeps the requests."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[tuple[int, str]] = []
        self.requests: list[tuple[str, str]] = []


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    found = Endpoint()

    class Handler(lab.Pages):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            found.requests.append((body, self.headers.get("Authorization", "")))
            self.say(*found.answers.pop(0))

    with lab.serving(Handler) as found.url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", found.url)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        yield found


def test_throttled_calls_are_repeated(endpoint: Endpoint) -> None:
    throttled = (503, failure("RequestLimitExceeded"))
    endpoint.answers = [throttled, throttled, throttled, (200, EMPTY)]
    client = session.client_maker(session.Credentials(**KEYS), "us-east-1")("ec2", "us-east-1")
    assert describe_instances(client, []) == []
    assert len(endpoint.requests) == 4


def test_ssm_is_the_most_patient() -> None:
    make = session.client_maker(session.Credentials(**KEYS), "us-east-1")
    assert make("ssm", "us-east-1").meta.config.retries == {"mode": "adaptive", "total_max_attempts": 11}
    assert make("ec2", "us-east-1").meta.config.retries == {"mode": "standard", "total_max_attempts": 7}
    assert make("ec2", "us-east-1") is make("ec2", "us-east-1") is not make("ec2", "eu-west-1")


def test_keys_are_used(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, EMPTY)]
    client = session.client_maker(session.Credentials(**KEYS), "us-east-1")("ec2", "eu-west-1")
    describe_instances(client, [])
    assert "Credential=KEY/" in endpoint.requests[0][1]
    assert "/eu-west-1/ec2/" in endpoint.requests[0][1]


def test_profile_is_used(endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    file.write_text("[work]\naws_access_key_id = WORK\naws_secret_access_key = s\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    endpoint.answers = [(200, EMPTY)]
    credentials = session.Credentials(profile="work")
    describe_instances(session.client_maker(credentials, "us-east-1")("ec2", "us-east-1"), [])
    assert "Credential=WORK/" in endpoint.requests[0][1]
    assert session.regions_of(credentials, []) == ("eu-north-1",)


def test_role_is_assumed_once(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, role()), (200, EMPTY), (200, EMPTY)]
    credentials = session.Credentials(**KEYS, assume_role_arn="arn:aws:iam::123456789012:role/reader")
    make = session.client_maker(credentials, "us-east-1")
    for region in ("us-east-1", "eu-west-1"):
        describe_instances(make("ec2", region), [])
    assert "RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Freader" in endpoint.requests[0][0]
    assert all("Credential=ROLE-KEY/" in request[1] for request in endpoint.requests[1:])


def test_role_is_assumed_again_before_its_keys_end(endpoint: Endpoint) -> None:
    """A client lives for as long as a rollout; the keys of a role end after an hour."""
    endpoint.answers = [(200, role("FIRST", seconds=300)), (200, role("SECOND")), (200, EMPTY), (200, EMPTY)]
    credentials = session.Credentials(**KEYS, assume_role_arn="arn:aws:iam::123456789012:role/reader")
    client = session.client_maker(credentials, "us-east-1")("ec2", "us-east-1")
    for _call in range(2):
        describe_instances(client, [])
    assert not endpoint.answers
    assert ["Credential=SECOND/" in request[1] for request in endpoint.requests] == [False, False, True, True]
    assert "Credential=KEY/" in endpoint.requests[1][1], "the caller's own keys ask for them"


def test_role_is_refused(endpoint: Endpoint) -> None:
    endpoint.answers = [
        (403, "<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>")
    ]
    credentials = session.Credentials(**KEYS, assume_role_arn="arn:aws:iam::123456789012:role/reader")
    with pytest.raises(Problem, match=r"role arn:.*reader: sts:AssumeRole is not allowed; give the caller the perm"):
        session.client_maker(credentials, "us-east-1")


def test_endpoint_option(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    endpoint.answers = [(200, EMPTY)]
    credentials = session.Credentials(**KEYS, endpoint_url=endpoint.url)
    describe_instances(session.client_maker(credentials, "us-east-1")("ec2", "us-east-1"), [])
    assert len(endpoint.requests) == 1


def test_named_regions() -> None:
    credentials = session.Credentials(**KEYS)
    assert session.regions_of(credentials, ["us-east-1", "eu-west-1", "us-east-1"]) == ("us-east-1", "eu-west-1")


def test_all_regions(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, REGIONS)]
    assert session.regions_of(session.Credentials(**KEYS), ["all"]) == ("eu-west-1", "us-east-1")


def test_all_regions_are_refused(endpoint: Endpoint) -> None:
    endpoint.answers = [(403, failure("UnauthorizedOperation"))]
    with pytest.raises(Problem, match="eu-west-1, regions: all: ec2:DescribeRegions is not allowed"):
        session.regions_of(session.Credentials(**KEYS), ["eu-west-1", "all"])


def test_no_region() -> None:
    with pytest.raises(Problem, match="regions is empty"):
        session.regions_of(session.Credentials(), [])


@pytest.mark.parametrize("key", ["access_key", "secret_key", "session_token"])
def test_profile_and_keys_exclude_each_other(key: str) -> None:
    with pytest.raises(Problem, match=r"profile and access keys .* exclude each other"):
        session.Credentials(profile="work", **{key: "x"}).session("us-east-1")


def test_unknown_profile() -> None:
    with pytest.raises(Problem, match=r"no AWS session: The config profile .nobody. could not be found"):
        session.Credentials(profile="nobody").session("us-east-1")
    with pytest.raises(Problem, match="check profile"):
        session.regions_of(session.Credentials(profile="nobody"), [])


@pytest.mark.parametrize("key", ["access_key", "secret_key"])
def test_half_a_key(key: str) -> None:
    with pytest.raises(Problem, match=r"access_key and secret_key .* go together"):
        session.Credentials(**{key: "x"}).session("us-east-1")


def test_region_that_is_none() -> None:
    with pytest.raises(Problem, match=r"us east: no client for ec2: .*check the name of the region"):
        session.client_maker(session.Credentials(**KEYS), "us-east-1")("ec2", "us east")


def test_without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "boto3", None)
    for call in (
        lambda: session.regions_of(session.Credentials(), []),
        lambda: session.Credentials().session("us-east-1"),
    ):
        with pytest.raises(Problem, match=f"{re.escape(sys.executable)} -m pip install boto3"):
            call()
