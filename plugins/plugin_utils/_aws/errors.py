# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a failed call of AWS means, and the words that messages have in common."""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

try:
    from botocore.exceptions import BotoCoreError, ClientError

    AwsErrors: tuple[type[Exception], ...] = (BotoCoreError, ClientError)
except ImportError:  # session.need_boto3() says so
    AwsErrors = ()

_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "Client.UnauthorizedOperation")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "Client.RequestExpired")
_REFUSED = (
    *("AuthFailure", "InvalidClientTokenId", "OptInRequired", "SignatureDoesNotMatch", "UnrecognizedClientException"),
)
_EXPIRED_HERE = ("UnauthorizedSSOTokenError", "SSOTokenLoadError", "TokenRetrievalError", "CredentialRetrievalError")
_NO_ANSWER = (
    *("ConnectTimeoutError", "ConnectionClosedError", "EndpointConnectionError", "ProxyConnectionError"),
    *("ReadTimeoutError",),
)


class CallError(Problem):
    def __init__(self, message: str, denied: bool = False) -> None:
        super().__init__(message)
        self.denied = denied


def code_of(error: BaseException | None) -> str:
    """Return AWS' own word for what went wrong; nothing where AWS has not answered."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def explain(error: Exception, region: str, permission: str, about: str) -> CallError:
    """Return one line about a failed call: where, for which clusters, what is missing, what to do."""
    call = permission.split(" ")[0]
    where = f"{region}, {about}: {call}"
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = str(response.get("Error", {}).get("Code", ""))
        message = str(response.get("Error", {}).get("Message", ""))
        if code in _DENIED:
            text = f"{where} is not allowed; give the caller the permission {permission} ({message})"
            return CallError(text, denied=True)
        if code in _EXPIRED:
            return CallError(f"{where} failed, because the AWS credentials have expired ({code}); renew them")
        if code in _REFUSED:
            return CallError(
                f"{where} failed, because AWS does not accept the credentials in this region ({code}: {message}); "
                "check profile, the access keys, and whether the account has the region enabled",
                denied=code in ("AuthFailure", "OptInRequired"),
            )
        return CallError(f"{where} failed with {code}: {message}")
    kind = type(error).__name__
    if kind in ("NoCredentialsError", "PartialCredentialsError"):
        return CallError(
            f"{where} needs AWS credentials, and there are none that are complete; set profile, AWS_PROFILE or keys"
        )
    if kind in _EXPIRED_HERE:
        return CallError(
            f"{where} failed, the AWS credentials have expired or cannot be renewed ({error}); log in again"
        )
    if kind in _NO_ANSWER:
        return CallError(f"{where} got no answer ({error}); check the name of the region, and the way to its endpoint")
    return CallError(f"{where} failed with {kind}: {error}")


def one_line(text: object) -> str:
    return " ".join(str(text).split())


def some(names: Iterable[str], limit: int = 5) -> str:
    """Return the first few of several names, and how many more there are."""
    listed = list(names)
    rest = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {rest} more" if rest > 0 else "")
