# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An AWS on loopback for the playbooks that deploy a stack: moto, with what the sandbox adds to its CloudFormation."""

from __future__ import annotations

import functools
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.playbooks import stacks
from ansible_collections.pcluster.postboot.tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def aws(moto: str) -> Iterator[str]:
    """The address of an empty account, which programs that are started here find by AWS_ENDPOINT_URL."""
    resources = load("molecule/cluster/aws/resources.py")
    urllib.request.urlopen(urllib.request.Request(f"{moto}/moto-api/reset", method="POST"), timeout=PATIENCE).close()
    with pytest.MonkeyPatch.context() as patch:
        for target, name, value in resources.patches():
            patch.setattr(target, name, value)
        for name in list(os.environ):
            if name.startswith("AWS_"):
                patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL", moto)
        patch.setenv("AWS_ACCESS_KEY_ID", "x")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
        yield moto


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a playbook is run, and so where its file of variables lies."""
    return tmp_path_factory.mktemp("stack")


@pytest.fixture(scope="module")
def deploy(aws: str, ansible: Callable[..., Any], folder: Path) -> Callable[..., list[str]]:
    """deploy(playbook, common, ({variables}, …)) runs a playbook once for each, with this account; see stacks.run."""
    assert aws
    return functools.partial(stacks.run, ansible, folder)


@pytest.fixture(scope="module")
def client(aws: str) -> Callable[..., Any]:
    """client("s3") asks the AWS on loopback, as the one that deploys unless it is given credentials of others."""
    return functools.partial(boto3.client, region_name="us-east-2", endpoint_url=aws)
