# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a service will find AWS credentials, looked at as the service's own user, and whether AWS accepts them.

The places are those of the AWS SDKs, in their order: the environment of the unit, the shared files, and the role of the
instance. No secret leaves this process.
"""

from __future__ import annotations

import configparser
import http.client
import json
import os
import pwd
import re
import shlex
import stat
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils import _imds
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import run
from ansible_collections.pcluster.postboot.plugins.module_utils._sigv4 import Keys, signed

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
    """What is asked for; the module's documentation tells what each part means."""

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


class Environment(NamedTuple):
    """What the service's own process will have."""

    values: dict[str, str]
    home: str

    def get(self, name: str) -> str:
        return self.values.get(name, "")


def unit_environment(unit: str) -> dict[str, str]:
    """Return the variables that a unit and its drop-ins set; nothing for one that is not there yet."""
    values: dict[str, str] = {}
    files = []
    for line in _shown(unit, "Environment", "EnvironmentFiles"):
        name, _sign, rest = line.partition("=")
        if name == "Environment":
            values.update(dict(word.partition("=")[::2] for word in shlex.split(rest)))
        elif name == "EnvironmentFiles":
            files += re.findall(r"(\S+) \(ignore_errors=\w+\)", rest)
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


# What the service's user sees. This runs in a process of its own.


def look(environment: Environment, profile: str) -> Found:
    """Return the first place that has credentials; Problem says what all of them lack."""
    if all(environment.get(name) for name in _STATIC) and not profile:
        keys = Keys(*(environment.get(name) for name in (*_STATIC, "AWS_SESSION_TOKEN")))
        return Found("the environment of the service", keys)
    if any(environment.get(name) for name in _OTHER) and not profile:
        return Found("the environment of the service")
    profile = profile or environment.get("AWS_PROFILE") or "default"
    folder = os.path.join(environment.home, ".aws")
    files = (
        (environment.get("AWS_SHARED_CREDENTIALS_FILE") or f"{folder}/credentials", profile),
        (
            environment.get("AWS_CONFIG_FILE") or f"{folder}/config",
            "default" if profile == "default" else f"profile {profile}",
        ),
    )
    for path, section in files:
        found = _in_file(path, section)
        if found:
            return found
    if profile != "default":
        raise Problem(f"neither {files[0][0]} nor {files[1][0]} has the profile {profile}")
    if environment.get("AWS_EC2_METADATA_DISABLED").lower() == "true":
        raise Problem(f"none in its environment, none in {files[0][0]}, and AWS_EC2_METADATA_DISABLED is true")
    try:
        return _of_role(environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT").rstrip("/") or _imds.ADDRESS)
    except _imds.ImdsError as error:
        raise _imds.ImdsError(f"none in its environment, none in {files[0][0]}, and {error}", error.silent) from error


def _in_file(path: str, section: str) -> Found | None:
    try:
        with open(path, encoding="utf-8") as stream:
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
        role = (_imds.get(_imds.ROLE, address).split() or [""])[0]
    except _imds.ImdsError as error:
        if " 404 " in str(error):
            raise _imds.ImdsError("the instance has no role") from error
        if " 403 " in str(error):
            # Where root is answered it is the lock, as if nobody had answered.
            user = pwd.getpwuid(os.geteuid()).pw_name
            raise _imds.ImdsError(
                f"{error}: user {user} is locked out of the instance's metadata (Imds/Secured: "
                f"'{_imds.TOOL} --allow {user}' lets it in), or the metadata service is off",
                silent=True,
            ) from error
        raise
    answer: dict[str, Any] = {}
    try:
        answer = json.loads(_imds.get(_imds.ROLE + urllib.parse.quote(role), address))
    except ValueError as error:
        raise _imds.ImdsError(f"the credentials of role {role} are no JSON") from error
    if answer.get("Code") != "Success":
        raise _imds.ImdsError(f"the role {role} gives no credentials: {answer.get('Code')} {answer.get('Message', '')}")
    return Found(
        f"the role {role} of the instance", Keys(answer["AccessKeyId"], answer["SecretAccessKey"], answer["Token"])
    )


def as_user(user: str, question: Callable[[], Found]) -> Found:
    """Ask in a process that is that user's, and return or raise what it says."""
    entry = pwd.getpwnam(user)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _answer(entry, question, writer)
    os.close(writer)
    with open(reader, encoding="utf-8") as stream:
        text = stream.read()
    os.waitpid(child, 0)
    answer = json.loads(text or '{"error": "the process that looked has died"}')
    if "silent" in answer:
        raise _imds.ImdsError(answer["error"], answer["silent"])
    if "error" in answer:
        raise Problem(answer["error"])
    return Found(answer["source"], Keys(*answer["keys"]) if answer["keys"] else None)


def _answer(entry: pwd.struct_passwd, question: Callable[[], Found], writer: int) -> None:
    try:
        if os.geteuid() != entry.pw_uid:
            os.initgroups(entry.pw_name, entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
        found = question()
        said: dict[str, Any] = {"source": found.source, "keys": list(found.keys or ())}
    except _imds.ImdsError as error:
        said = {"error": str(error), "silent": error.silent}
    except Exception as error:  # whatever it is, the parent says it; this process must not go on as a second module
        said = {"error": str(error) or type(error).__name__}
    try:
        with open(writer, "w", encoding="utf-8") as stream:
            json.dump(said, stream)
    finally:
        os._exit(0)


# What AWS says


def refusal(request: Request, keys: Keys, environment: Environment) -> tuple[str, str]:
    """Write nothing to the workspace; return why that is refused, and what it says instead of a clear answer."""
    url, service = request.write_url, "aps-workspaces"
    try:
        if request.role_arn:
            url, service = _sts(request, environment), "sts"
            keys = _assumed(request, keys, environment)
            url, service = request.write_url, "aps-workspaces"
        write = signed("POST", request.write_url, EMPTY_WRITE, keys, request.region, "aps", WRITE_HEADERS)
        with urllib.request.build_opener().open(write, timeout=TIMEOUT):
            return "", ""
    except urllib.error.HTTPError as error:
        text = " ".join(error.read(2000).decode("utf-8", "replace").split())
        said = f"{error.code} {error.reason} ({_message_of(text)})"
        what = f"sts:AssumeRole of {request.role_arn}" if error.url != request.write_url else request.write_url
        # A 400 is about the empty write itself; 429 and 5xx pass.
        if error.code not in (401, 403, 404):
            return "", f"{what} says {said}"
        do = "allow aps:RemoteWrite on the workspace"
        if error.code == 404:
            do = "correct prometheus_amp_workspace or prometheus_amp_region"
        elif error.url != request.write_url:
            do = "allow the instance's role to assume it (sts:AssumeRole), and let its trust policy name that role"
        return f"{what} says {said}; {do}", ""
    except (OSError, http.client.HTTPException) as error:
        raise SilentError(
            f"{url} gives no answer ({getattr(error, 'reason', error)}): the address is wrong, or the node has neither "
            f"a VPC endpoint com.amazonaws.{request.region}.{service} nor a way to the internet"
        ) from error


def _message_of(text: str) -> str:
    try:
        return str(json.loads(text).get("message") or text)[:300]
    except (ValueError, AttributeError):
        found = re.search(r"<Message>(.*?)</Message>", text)
        return (found[1] if found else text)[:300]


def _sts(request: Request, environment: Environment) -> str:
    suffix = "amazonaws.com.cn" if request.region.startswith("cn-") else "amazonaws.com"
    endpoint = environment.get("AWS_ENDPOINT_URL_STS") or environment.get("AWS_ENDPOINT_URL")
    return (endpoint or f"https://sts.{request.region}.{suffix}").rstrip("/") + "/"


def _assumed(request: Request, keys: Keys, environment: Environment) -> Keys:
    query = {
        "Action": "AssumeRole",
        "Version": "2011-06-15",
        "RoleArn": request.role_arn,
        "RoleSessionName": "pcluster-postboot",
    }
    url = _sts(request, environment)
    body = urllib.parse.urlencode(query).encode()
    kind = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    with urllib.request.build_opener().open(
        signed("POST", url, body, keys, request.region, "sts", kind), timeout=TIMEOUT
    ) as answer:
        text = answer.read().decode("utf-8", "replace")
    fields = [
        re.search(rf"<{name}>\s*(.*?)\s*</{name}>", text, re.DOTALL)
        for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
    ]
    return Keys(*(field[1] if field else "" for field in fields))


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
    environment = Environment(unit_environment(request.unit), entry.pw_dir)
    actions: list[str] = []
    warnings: list[str] = []

    def question() -> Found:
        return look(environment, request.profile)

    try:
        found = as_user(request.user, question)
    except _imds.ImdsError as error:
        if not (error.silent and _locked()):
            raise Problem(_lacking(request, str(error))) from error
        actions.append("allowed")
        if request.check:
            found = Found("the role of the instance")
        else:
            _imds.allow(request.user)
            try:
                found = as_user(request.user, question)
            except _imds.ImdsError as still:
                although = f", although '{_imds.TOOL} --allow' was run" if still.silent else ""
                raise Problem(_lacking(request, f"{still}{although}")) from still
    except Problem as error:
        raise Problem(_lacking(request, str(error))) from error
    diff = []
    if found.source.startswith("the role"):
        saved = _imds.save(entry.pw_uid, request.check)
        actions += ["saved"] if saved else []
        diff = [
            {"before_header": path, "after_header": path, "before": "", "after": f"{request.user} may ask\n"}
            for path in saved
        ]
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
        _imds.get("")
    except _imds.ImdsError:
        return False
    return os.path.exists(_imds.TOOL)


def _lacking(request: Request, why: str) -> str:
    return (
        f"{request.needed_for} needs AWS credentials, and user {request.user} has none: {why}; give the instance a "
        "role that may (HeadNode/Iam/AdditionalIamPolicies), or the user a file with its own"
    )
