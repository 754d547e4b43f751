# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a bucket's policy denies, asked for every call of S3.

moto keeps policies, but looks at no condition and no principal. The rules here are those of "Policy evaluation logic"
and "IAM JSON policy elements: Condition operators" (IAM User Guide): an explicit Deny wins; a negated operator holds
where the key is missing; the six parts of an ARN are compared one by one. A caller that has no key of moto's is the
one of moto's GetCallerIdentity. Calls of the sandbox count as encrypted, because its AWS speaks HTTP alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from moto.iam.access_control import IAMPolicy
from moto.s3.exceptions import S3AccessDeniedError
from moto.s3.models import FakeBucket, s3_backends
from moto.s3.responses import S3Response
from moto.sts import sts_backends


def denied(policy: Mapping[str, Any], action: str, resource: str, context: Mapping[str, str]) -> bool:
    """Say whether a statement forbids a call. The context has the keys of conditions, such as aws:PrincipalArn."""
    return any(
        one["Effect"] == "Deny"
        and one["Principal"] == "*"
        and any(_like(pattern.lower(), action.lower()) for pattern in _listed(one["Action"]))
        and any(_like(pattern, resource) for pattern in _listed(one["Resource"]))
        and all(
            _holds(operator, context.get(key), _listed(wanted))
            for operator, keys in one.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
        for one in policy["Statement"]
    )


def _holds(operator: str, found: str | None, wanted: Iterable[str]) -> bool:
    if operator.startswith("ArnNot"):
        return found is None or not any(_arn(pattern, found) for pattern in wanted)
    if found is None:
        return False
    if operator in ("ArnLike", "ArnEquals"):
        return any(_arn(pattern, found) for pattern in wanted)
    if operator == "Bool":
        return found.lower() in [str(one).lower() for one in wanted]
    raise NotImplementedError(f"condition operator {operator}")


def _arn(pattern: str, found: str) -> bool:
    ours, theirs = pattern.split(":", 5), found.split(":", 5)
    return len(ours) == len(theirs) and all(map(_like, ours, theirs))


def _like(pattern: str, text: str) -> bool:
    return bool(re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), text, re.DOTALL))


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def principal(account: str, region: str, key: str) -> str:
    """Return aws:PrincipalArn of who has an access key: of a session it is the role's ARN."""
    backend = sts_backends[account]["aws"]
    session = backend.get_assumed_role_from_access_key(key)
    return str(session.role_arn if session else backend.get_caller_identity(key, region)[1])


def unconditional(bucket: FakeBucket, action: str, resource: str) -> Any:
    """Return what moto says of a policy's statements without a condition. Those with one are judged by denied().

    moto asks for no principal, so that what ParallelCluster denies to CloudWatch's service would hold for everybody.
    """
    policy = json.loads(bucket.policy or '{"Statement": []}')
    policy["Statement"] = [
        one for one in policy["Statement"] if "Condition" not in one and "Service" not in one["Principal"]
    ]
    return IAMPolicy(json.dumps(policy)).is_action_permitted(action, resource)


def patches() -> list[tuple[Any, str, Any]]:
    known = S3Response._authenticate_and_authorize_s3_action

    def authorize(self: Any, bucket_name: str | None = None, key_name: str | None = None) -> None:
        known(self, bucket_name, key_name)
        account = self.current_account
        bucket = s3_backends[account]["aws"].buckets.get(bucket_name)
        if bucket is None or not bucket.policy:
            return
        resource = f"arn:aws:s3:::{bucket_name}" + (f"/{key_name}" if key_name else "")
        context = {
            "aws:PrincipalArn": principal(account, self.region, self.get_access_key()),
            "aws:SecureTransport": "true",
        }
        if denied(json.loads(bucket.policy), f"s3:{self.data['Action']}", resource, context):
            raise S3AccessDeniedError

    return [
        (S3Response, "_authenticate_and_authorize_s3_action", authorize),
        (FakeBucket, "get_permission", unconditional),
    ]
