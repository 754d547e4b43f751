# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Our signatures against botocore's."""

from __future__ import annotations

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ansible_collections.pcluster.postboot.plugins.module_utils._aws.sigv4 import Keys, signed


@pytest.mark.parametrize(
    ("method", "url", "body", "token", "headers"),
    [
        ("POST", "https://aps-workspaces.us-east-1.amazonaws.com/workspaces/ws-1/api/v1/remote_write", b"\x00", "", {}),
        (
            "POST",
            "https://sts.us-east-1.amazonaws.com/",
            b"Action=AssumeRole",
            "session",
            {"content-type": "text/plain"},
        ),
        ("GET", "http://127.0.0.1:9090/workspaces/ws-1/api/v1/query?query=up%20%3D%3D%200&b=~a&empty=", b"", "t", {}),
        ("GET", "https://example.org", b"", "", {"X-Mixed-Case": "  padded "}),
    ],
)
def test_botocore_agrees(method: str, url: str, body: bytes, token: str, headers: dict[str, str]) -> None:
    ours = signed(method, url, body, Keys("AKIA", "secret", token), "us-east-1", "aps", headers)
    given = {name.lower(): value for name, value in ours.header_items()}
    names = given["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
    assert {"host", "x-amz-date"} <= set(names)
    assert ("x-amz-security-token" in names) is bool(token)
    request = AWSRequest(method, url, {name: given[name] for name in names if name != "host"}, body)
    request.context["timestamp"] = given["x-amz-date"]
    theirs = SigV4Auth(Credentials("AKIA", "secret", token or None), "aps", "us-east-1")
    text = theirs.string_to_sign(request, theirs.canonical_request(request))
    assert given["authorization"].endswith(f"Signature={theirs.signature(text, request)}")


def test_keys_do_not_show_what_is_secret() -> None:
    assert repr(Keys("AKIA", "hidden", "token")) == "Keys('AKIA')"
