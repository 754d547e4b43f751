# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who asks AWS, and with which clients."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import AwsErrors, explain
from ansible_collections.pcluster.postboot.plugins.plugin_utils._inventory import xml

try:
    import boto3
    import botocore.session
    from botocore.config import Config
    from botocore.credentials import RefreshableCredentials
except ImportError:  # said by need_boto3(), once AWS is to be asked
    boto3 = None

ClientMaker = Callable[[str, str], Any]
_SETUP_ERRORS: tuple[type[Exception], ...] = (*AwsErrors, ValueError)


def need_boto3() -> None:
    if boto3 is None:
        python = sys.executable
        raise Problem(f"AWS is asked by boto3, which Ansible's Python has not; needed: {python} -m pip install boto3")


@dataclass(frozen=True)
class Credentials:
    profile: str = ""
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    assume_role_arn: str = ""
    endpoint_url: str = ""

    def session(self, region: str) -> Any:
        need_boto3()
        if self.profile and (self.access_key or self.secret_key or self.session_token):
            raise Problem(
                "profile and access keys (options or environment) exclude each other; set one, and '' for the other"
            )
        if bool(self.access_key) != bool(self.secret_key):
            raise Problem("access_key and secret_key (options or environment) go together; only one is set")
        try:
            session = boto3.Session(
                profile_name=self.profile or None,
                aws_access_key_id=self.access_key or None,
                aws_secret_access_key=self.secret_key or None,
                aws_session_token=self.session_token or None,
            )
        except _SETUP_ERRORS as error:
            raise Problem(f"no AWS session: {error}; check profile and the access keys") from error
        if not self.assume_role_arn:
            return session
        return self._assumed(session, region)

    def _assumed(self, session: Any, region: str) -> Any:
        """Return a session in the assumed role. Its keys last an hour, and are fetched anew before they end."""
        sts = self.client(session, "sts", region)

        def fetch() -> dict[str, str]:
            answer = sts.assume_role(RoleArn=self.assume_role_arn, RoleSessionName="pcluster-postboot-inventory")
            keys = answer["Credentials"]
            return {
                "access_key": keys["AccessKeyId"],
                "secret_key": keys["SecretAccessKey"],
                "token": keys["SessionToken"],
                "expiry_time": keys["Expiration"].isoformat(),
            }

        try:
            first = fetch()
        except AwsErrors as error:
            raise explain(error, region, "sts:AssumeRole", f"role {self.assume_role_arn}") from error
        assumed = botocore.session.get_session()
        # botocore has no public way to give a session credentials that it renews.
        assumed._credentials = RefreshableCredentials.create_from_metadata(first, fetch, "sts-assume-role")
        return boto3.Session(botocore_session=assumed)

    def client(self, session: Any, service: str, region: str) -> Any:
        """Return a client that retries what is throttled. These two throttle soonest, and get the most patience."""
        patient = service in ("sagemaker", "ssm")
        retries = {"mode": "adaptive" if patient else "standard", "max_attempts": 10 if patient else 6}
        config = Config(retries=retries, connect_timeout=10, user_agent_extra="pcluster.postboot")
        client = session.client(service, region_name=region, endpoint_url=self.endpoint_url or None, config=config)
        if service == "ec2":
            xml.register(client)
        return client


def client_maker(credentials: Credentials, region: str) -> ClientMaker:
    """Return a function that gives clients of one session, one of each kind. Only the main thread may call it."""
    session = credentials.session(region)

    @functools.cache
    def make(service: str, where: str) -> Any:
        try:
            return credentials.client(session, service, where)
        except _SETUP_ERRORS as error:
            text = f"{where}: no client for {service}: {error}; check the name of the region"
            raise Problem(text) from error

    return make


def regions_of(
    credentials: Credentials, regions: Sequence[str], unset: str = "regions is empty (list regions, or 'all')"
) -> tuple[str, ...]:
    """Return the regions that are meant: those that are named, all that the account has enabled, or the session's."""
    need_boto3()
    named = tuple(dict.fromkeys(regions))
    if named and "all" not in named:
        return named
    try:
        own = boto3.Session(profile_name=credentials.profile or None).region_name
    except AwsErrors as error:
        raise Problem(f"no AWS session: {error}; check profile") from error
    if not named:
        if not own:
            raise Problem(f"{unset}, and neither AWS_REGION nor the profile names one")
        return (str(own),)
    first = next((region for region in named if region != "all"), own or "us-east-1")
    try:
        answer = client_maker(credentials, first)("ec2", first).describe_regions()
    except AwsErrors as error:
        raise explain(error, first, "ec2:DescribeRegions", "regions: all") from error
    return tuple(sorted(region["RegionName"] for region in answer["Regions"]))
