# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Signs a request to AWS (Signature Version 4) with the standard library alone, for nodes that have no boto3."""

from __future__ import annotations

import hashlib
import hmac
import time
import urllib.parse
import urllib.request
from typing import NamedTuple


class Keys(NamedTuple):
    """Credentials of AWS. They do not show where the tuple is printed."""

    access_key: str
    secret_key: str
    token: str = ""

    def __repr__(self) -> str:
        """Name the key, and nothing that is secret."""
        return f"Keys({self.access_key!r})"


def signed(
    method: str, url: str, body: bytes, keys: Keys, region: str, service: str, headers: dict[str, str] | None = None
) -> urllib.request.Request:
    """Return a request that is signed as of now."""
    parts = urllib.parse.urlsplit(url)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    named = {name.lower(): value for name, value in (headers or {}).items()}
    named.update({"host": parts.netloc, "x-amz-date": stamp})
    if keys.token:
        named["x-amz-security-token"] = keys.token
    names = ";".join(sorted(named))
    query = sorted(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    canonical = "\n".join(
        [
            method,
            urllib.parse.quote(parts.path or "/", safe="/-_.~"),
            urllib.parse.urlencode(query, quote_via=urllib.parse.quote, safe="-_.~"),
            *(f"{name}:{named[name].strip()}" for name in sorted(named)),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        ]
    )
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys.secret_key}".encode()
    for word in scope.split("/"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    named["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return urllib.request.Request(url, data=body if method != "GET" else None, headers=named, method=method)
