# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the sandbox's S3 says of a bucket's policy, by AWS's documented rules."""

from __future__ import annotations

import json
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load

pytest.importorskip("moto.server")

ARN = "arn:aws:s3:::bundles"
ROLE = "arn:aws:iam::123456789012:role"
PLAIN = {"Effect": "Deny", "Principal": "*", "Action": "s3:PutObject*", "Resource": f"{ARN}/postboot/*"}
PUBLISHERS = [f"{ROLE}/Admin", f"{ROLE}/*/Admin"]


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    return load("molecule/cluster/aws/bucket_policies.py")


def denied(judge: ModuleType, caller: str | None = None, *, action: str = "s3:PutObject", **statement: Any) -> bool:
    context = {} if caller is None else {"aws:PrincipalArn": caller}
    policy = {"Statement": [{**PLAIN, **statement}]}
    return bool(judge.denied(policy, action, f"{ARN}/postboot/x/bootstrap.sh", context))


def test_actions_and_resources_are_patterns(judge: ModuleType) -> None:
    assert denied(judge)
    assert denied(judge, action="s3:PutObjectAcl")
    assert denied(judge, action="S3:putobject"), "actions have no case"
    assert not denied(judge, action="s3:GetObject")
    assert not denied(judge, Resource=f"{ARN}/other/*")
    assert denied(judge, Resource=[ARN, f"{ARN}/*"])
    assert not denied(judge, Effect="Allow")


@pytest.mark.parametrize(
    ("caller", "is_denied"),
    [
        (f"{ROLE}/Admin", False),
        (f"{ROLE}/aws-reserved/sso.amazonaws.com/Admin", False),
        (f"{ROLE}/Administrator", True),
        (f"{ROLE}/pcluster-RoleHeadNode", True),
        ("arn:aws:iam::210987654321:role/Admin", True),
        ("arn:aws:iam::123456789012:user/role/Admin", True),
        (None, True),  # a negated operator holds where the key is missing
    ],
)
def test_all_but_publishers_are_denied(judge: ModuleType, caller: str | None, is_denied: bool) -> None:
    assert denied(judge, caller, Condition={"ArnNotLike": {"aws:PrincipalArn": PUBLISHERS}}) is is_denied


def test_a_condition_whose_key_is_missing_does_not_hold_and_an_unknown_operator_is_an_error(judge: ModuleType) -> None:
    assert not denied(judge, Condition={"Bool": {"aws:SecureTransport": "false"}})
    with pytest.raises(NotImplementedError):
        denied(judge, "x", Condition={"IpAddress": {"aws:PrincipalArn": "10.0.0.0/8"}})


@pytest.mark.parametrize(
    ("principal", "is_denied"), [("*", True), ({"Service": "logs.us-east-1.amazonaws.com"}, False)]
)
def test_what_is_denied_to_a_service_is_denied_to_nobody_else(
    judge: ModuleType, principal: Any, is_denied: bool
) -> None:
    """ParallelCluster forbids CloudWatch to write where the clusters' configurations lie."""
    bucket = SimpleNamespace(policy=json.dumps({"Statement": [{**PLAIN, "Principal": principal}]}))
    found = judge.unconditional(bucket, "s3:PutObject", f"{ARN}/postboot/x")
    assert (found.name == "DENIED") is is_denied
