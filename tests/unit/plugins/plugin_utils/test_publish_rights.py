# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which of AWS' own policies allow to write bundles, against the documents of these policies, which moto has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from moto.iam.aws_managed_policies import aws_managed_policies_data

from ansible_collections.pcluster.postboot.plugins.plugin_utils._publish import rights

WRITES = {"*", "s3:*", "s3:put*", "s3:putobject*", "s3:putobject"}
OWN_ACCOUNT = {"aws:resourceaccount", "s3:resourceaccount"}
PLACES = [
    *("my-bucket/post/boot/", "sagemaker-us-east-2-123456789012/boot/", "my-bucket/SageMaker/", "a-Sagemaker/boot/"),
    *("aws-glue-scripts/boot/", "groundtruth/boot/", "my-sageMaker/boot/"),
]


def listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [found]


def patterns(document: dict[str, Any]) -> Iterator[str]:
    """The objects to which a policy allows to write, on no condition but that the bucket is of the same account."""
    for statement in listed(document["Statement"]):
        keys = {key.lower() for test in statement.get("Condition", {}).values() for key in test}
        actions = {action.lower() for action in listed(statement.get("Action", []))}
        if statement["Effect"] == "Allow" and actions & WRITES and keys <= OWN_ACCOUNT:
            yield from (resource.removeprefix("arn:aws:s3:::") for resource in listed(statement.get("Resource", [])))


@pytest.fixture(scope="module")
def documents() -> dict[str, dict[str, Any]]:
    return {name: policy["Document"] for name, policy in json.loads(aws_managed_policies_data).items()}


@pytest.mark.parametrize("place", PLACES)
def test_policies_of_sagemaker_write_where_their_documents_say(
    documents: dict[str, dict[str, Any]], place: str
) -> None:
    # Those of Service Catalog's products are for roles that only services assume.
    names = [name for name in documents if re.match("AmazonSageMaker(?!ServiceCatalogProducts)", name)]
    assert len(names) > 20
    for name in names:
        policy = {"AdditionalIamPolicies": [{"Policy": f"arn:aws:iam::aws:policy/{name}"}]}
        allowed = any(rights._covered(place, pattern) for pattern in patterns(documents[name]))
        assert bool(list(rights.writers(policy, place))) is allowed, name


def test_full_access_to_sagemaker_is_wide_by_the_name_of_the_bucket_alone() -> None:
    arn = "arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"
    policy = {"AdditionalIamPolicies": [{"Policy": arn}]}
    assert list(rights.writers(policy, "sagemaker-us-east-2-123456789012/boot/")) == [arn]
    assert list(rights.writers(policy, "my-bucket/boot/")) == []
