# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a service will find AWS credentials, looked at as the service's own user, and whether AWS accepts them.

The places are those of the AWS SDKs, in their order: the environment of the unit, the shared files, and the role of the
instance. No secret leaves this process.
"""

from __future__ import annotations

import configparser
import contextlib
import http.client
import os
import pwd
import re
import shlex
import stat
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._aws import imds
from ansible_collections.pcluster.postboot.plugins.module_utils._aws.sigv4 import Keys, signed
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files
from ansible_collections.pcluster.postboot.plugins.module_utils._host import http as host_http
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run

# What an empty write is in the form that Prometheus sends: nothing, compressed by snappy.
EMPTY_WRITE = b"\x00"
WRITE_HEADERS = {
    "content-type": "application/x-protobuf",
    "content-encoding": "snappy",
    "x-prometheus-remote-write-version": "0.1.0",
}
TIMEOUT = 10
_STATIC = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_OTHER = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
_PROFILE_KEYS = (
    "aws_access_key_id",
    "role_arn",
    "credential_process",
    "web_identity_token_file",
    "sso_session",
    "sso_start_url",
)


class SilentError(Exception):
    """An endpoint of AWS from which no answer came, and what may be missing."""


class Request(NamedTuple):
    """The module's options."""

    user: str
    unit: str
    needed_for: str
    profile: str = ""
    write_url: str = ""
    region: str = ""
    role_arn: str = ""
    check: bool = False


class Outcome(NamedTuple):
    """Where the credentials come from, and what was done for them."""

    source: str
    actions: list[str]
    diff: list[dict[str, str]]
    warnings: list[str]


class Found(NamedTuple):
    """Where credentials are; the keys only where they stand there as such."""

    source: str
    keys: Keys | None = None


def unit_environment(unit: str) -> dict[str, str]:
    """Return the variables that a unit and its drop-ins set; nothing for one that is not there yet."""
    values: dict[str, str] = {}
    files = []
    for line in _shown(unit, "Environment", "EnvironmentFiles"):
        name, _sign, rest = line.partition("=")
        if name == "Environment":
            values.update(dict(word.partition("=")[::2] for word in shlex.split(rest)))
        elif name == "EnvironmentFiles":
            files += re.findall(r"(?<!\S)(\S+) \(ignore_errors=\w+\)", rest)
    for path in files:
        values.update(_environment_file(path))
    return values


def runs_a_server(unit: str) -> bool:
    """Tell whether a unit is up with a Prometheus that keeps its samples itself."""
    shown = dict(line.partition("=")[::2] for line in _shown(unit, "ActiveState", "ExecStart"))
    words = shown.get("ExecStart", "").split()
    return shown.get("ActiveState") == "active" and "--agent" not in words and '"--agent"' not in words


def _shown(unit: str, *properties: str) -> list[str]:
    return run(["systemctl", "show", unit, *(f"--property={name}" for name in properties)], 30).out.splitlines()


def _environment_file(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as stream:
            lines = [line.strip() for line in stream]
    except OSError:
        return {}
    pairs = [line.partition("=") for line in lines if "=" in line and not line.startswith(("#", ";"))]
    return {name.strip(): value.strip().strip("'\"") for name, _sign, value in pairs}


# What the service's user sees


def look(environment: Mapping[str, str], profile: str) -> Found:
    """Return the first place that has credentials; Problem says what all of them lack."""
    keys = [environment.get(name, "") for name in (*_STATIC, "AWS_SESSION_TOKEN")]
    if all(keys[:2]) and not profile:
        return Found("the environment of the service", Keys(*keys))
    if any(environment.get(name) for name in _OTHER) and not profile:
        return Found("the environment of the service")
    profile = profile or environment.get("AWS_PROFILE") or "default"
    folder = os.path.join(environment["HOME"], ".aws")
    credentials = environment.get("AWS_SHARED_CREDENTIALS_FILE") or f"{folder}/credentials"
    config = environment.get("AWS_CONFIG_FILE") or f"{folder}/config"
    found = _in_file(credentials, profile) or _in_file(config, f"{'profile ' * (profile != 'default')}{profile}")
    if found:
        return found
    if profile != "default":
        raise Problem(f"neither {credentials} nor {config} has the profile {profile}")
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise Problem(f"none in its environment, none in {credentials}, and AWS_EC2_METADATA_DISABLED is true")
    try:
        return _of_role(environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").rstrip("/") or imds.ADDRESS)
    except imds.ImdsError as error:
        raise imds.ImdsError(f"none in its environment, none in {credentials}, and {error}", error.silent) from error


def _in_file(path: str, section: str) -> Found | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            text = stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}") from error
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise Problem(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not parser.has_section(section) or not any(parser.has_option(section, key) for key in _PROFILE_KEYS):
        return None
    values = dict(parser.items(section))
    if "aws_secret_access_key" in values and mode & 0o007:
        raise Problem(f"{path} holds a secret, and its mode is {stat.S_IMODE(mode):04o}; needed: 0640 or less")
    names = ("aws_access_key_id", "aws_secret_access_key")
    static = all(values.get(name) for name in names)
    keys = Keys(*(values.get(name, "") for name in (*names, "aws_session_token"))) if static else None
    return Found(path, keys)


def _of_role(address: str) -> Found:
    try:
        role = (imds.get(imds.ROLE, address).split() or [""])[0]
    except imds.ImdsError as error:
        if " 404 " in str(error):
            raise imds.ImdsError("the instance has no role") from error
        if " 403 " in str(error):
            # Where root is answered it is the lock, as if nobody had answered.
            user = pwd.getpwuid(os.geteuid()).pw_name
            raise imds.ImdsError(
                f"{error}: user {user} is locked out of the instance's metadata (Imds/Secured: "
                f"'{imds.TOOL} --allow {user}' lets it in), or the metadata service is off",
                silent=True,
            ) from error
        raise
    answer: dict[str, Any] = {}
    try:
        answer = document.parse(imds.get(imds.ROLE + urllib.parse.quote(role), address))
        if answer["Code"] == "Success":
            keys = Keys(answer["AccessKeyId"], answer["SecretAccessKey"], answer["Token"])
            return Found(f"the role {role} of the instance", keys)
    except (ValueError, KeyError, TypeError) as error:
        raise imds.ImdsError(f"the role {role} gives no credentials that can be read: {error!r}") from error
    raise imds.ImdsError(f"the role {role} gives no credentials: {answer['Code']} {answer.get('Message', '')}")


@contextlib.contextmanager
def acting_as(entry: pwd.struct_passwd) -> Iterator[None]:
    """Open files and connections as a user, whom the lock before the instance's metadata sees, too."""
    if os.geteuid() == entry.pw_uid:
        yield
        return
    user, group, groups = os.geteuid(), os.getegid(), os.getgroups()
    os.setgroups(os.getgrouplist(entry.pw_name, entry.pw_gid))
    try:
        os.setegid(entry.pw_gid)
        os.seteuid(entry.pw_uid)
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)
        os.setgroups(groups)


# What AWS says


class _Call(NamedTuple):
    url: str
    endpoint: str  # the VPC endpoint's last word
    what: str
    do: str  # where it is refused


def refusal(request: Request, keys: Keys, environment: Mapping[str, str]) -> tuple[str, str]:
    """Write nothing to the workspace; return why that is refused, and what it says instead of a clear answer."""
    url = request.write_url
    call = write = _Call(url, "aps-workspaces", url, "allow aps:RemoteWrite on the workspace")
    try:
        if request.role_arn:
            call = _Call(
                _sts(request.region, environment),
                "sts",
                f"sts:AssumeRole of {request.role_arn}",
                "allow the instance's role to assume it (sts:AssumeRole), and let its trust policy name that role",
            )
            keys = _assumed(request, keys, call.url)
            call = write
        _answer(signed("POST", url, EMPTY_WRITE, keys, request.region, "aps", WRITE_HEADERS))
    except urllib.error.HTTPError as error:
        text = " ".join(error.read(2000).decode("utf-8", "replace").split())
        said = f"{call.what} says {error.code} {error.reason} ({_message_of(text)})"
        # A 400 is about the empty write itself; 429 and 5xx pass.
        if error.code not in (401, 403, 404):
            return "", said
        return (
            f"{said}; {'correct prometheus_amp_workspace or prometheus_amp_region' if error.code == 404 else call.do}",
            "",
        )
    except (OSError, http.client.HTTPException) as error:
        raise SilentError(
            f"{call.url} gives no answer ({getattr(error, 'reason', error)}): the address is wrong, or the node has "
            f"neither a VPC endpoint com.amazonaws.{request.region}.{call.endpoint} nor a way to the internet"
        ) from error
    return "", ""


def _answer(request: urllib.request.Request) -> str:
    with host_http.opener().open(request, timeout=TIMEOUT) as answer:
        return str(answer.read().decode("utf-8", "replace"))


def _message_of(text: str) -> str:
    try:
        return str(document.parse(text).get("message") or text)[:300]
    except (ValueError, AttributeError):
        found = re.search(r"<Message>([^<]*)</Message>", text)
        return (found[1] if found else text)[:300]


def _sts(region: str, environment: Mapping[str, str]) -> str:
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    endpoint = environment.get("AWS_ENDPOINT_URL_STS") or environment.get("AWS_ENDPOINT_URL")
    return (endpoint or f"https://sts.{region}.{suffix}").rstrip("/") + "/"


def _assumed(request: Request, keys: Keys, url: str) -> Keys:
    query = {"Action": "AssumeRole", "Version": "2011-06-15", "RoleSessionName": "pcluster-postboot"}
    body = urllib.parse.urlencode({**query, "RoleArn": request.role_arn}).encode()
    kind = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    text = _answer(signed("POST", url, body, keys, request.region, "sts", kind))
    fields = [
        re.search(rf"<{name}>([^<]*)</{name}>", text)
        for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
    ]
    return Keys(*(field[1].strip() if field else "" for field in fields))


def _ask(request: Request, entry: pwd.struct_passwd, environment: Mapping[str, str], allowed: bool) -> Found | None:
    """Return what the service's user finds; None where it only has to be allowed to ask."""
    try:
        with acting_as(entry):
            return look(environment, request.profile)
    except Problem as error:
        silent = isinstance(error, imds.ImdsError) and error.silent
        if silent and not allowed and _locked():
            return None
        although = f", although '{imds.TOOL} --allow' was run" if silent and allowed else ""
        raise Problem(
            f"{request.needed_for} needs AWS credentials, and user {request.user} has none: {error}{although}; give "
            "the instance a role that may (HeadNode/Iam/AdditionalIamPolicies), or the user a file with its own"
        ) from error


def apply(request: Request) -> Outcome:
    """See that the service finds credentials, and let its user ask for the role's where that is refused."""
    try:
        entry = pwd.getpwnam(request.user)
    except KeyError as error:
        if request.check:
            return Outcome(
                "", [], [], [f"user {request.user} is not there yet: whether it finds credentials shows later"]
            )
        raise Problem(f"user {request.user} is not there") from error
    environment = {"HOME": entry.pw_dir, **unit_environment(request.unit)}
    actions: list[str] = []
    warnings: list[str] = []
    found = _ask(request, entry, environment, allowed=False)
    if not found:
        actions.append("allowed")
        if not request.check:
            imds.allow(request.user)
            found = _ask(request, entry, environment, allowed=True)
    found = found or Found("the role of the instance")
    diff = []
    if found.source.startswith("the role"):
        saved = imds.save(entry.pw_uid, request.check)
        actions += ["saved"] if saved else []
        diff = [files.diff(path, "", f"{request.user} may ask\n") for path in saved]
    if found.keys and request.write_url:
        try:
            refused, unclear = refusal(request, found.keys, environment)
        except SilentError as error:
            if runs_a_server(request.unit):
                raise Problem(f"{request.needed_for}: {error}; the server that {request.unit} runs stays") from error
            refused, unclear = "", str(error)
        if refused:
            raise Problem(f"{request.needed_for}: AWS refuses {found.source}: {refused}")
        if unclear:
            warnings.append(f"{request.needed_for}: whether AWS accepts the credentials is not known: {unclear}")
    return Outcome(found.source, actions, diff, warnings)


def _locked() -> bool:
    """Tell whether the service answers this process, which is root's, so that it is the lock that refuses others."""
    try:
        imds.get("")
    except imds.ImdsError:
        return False
    return os.path.exists(imds.TOOL)
