# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Adds a signed package repository to apt or dnf, or takes it away."""

from __future__ import annotations

import glob
import os
import re
import shutil
import time
import urllib.request
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import mirrored, public
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files, http
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.reason import reason
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import openpgp, records, tool

# Where the system begins. Tests put a folder here; what the files say stays the same.
ROOT = "/"
HEADER = "# Managed by Ansible (pcluster.postboot.package_repository): changes are overwritten.\n"
_LARGEST_KEY = 4 * 1024 * 1024
_RETRIES = 3
_PAUSE = 1.0
_OURS = {
    "apt": ("types", "uris", "suites", "components", "architectures", "signed-by", "enabled"),
    "dnf": ("name", "baseurl", "mirrorlist", "metalink", "enabled", "gpgcheck", "repo_gpgcheck", "gpgkey"),
}
# Each of these would let unsigned packages in.
_UNSAFE = (
    "trusted",
    "allow-insecure",
    "allow-weak",
    "allow-downgrade-to-insecure",
    "pkg_gpgcheck",
    "localpkg_gpgcheck",
)


class Request(NamedTuple):
    """The module's options."""

    name: str
    format: str
    url: str | None = None
    description: str | None = None
    suites: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    key_url: str | None = None
    key_fingerprints: tuple[str, ...] = ()
    gpgcheck: bool = True
    repo_gpgcheck: bool = False
    mirrors: tuple[str, ...] = ()
    enabled: bool = True
    options: dict[str, Any] = {}
    state: str = "present"
    refresh: str = "missing"
    unless_provided: bool = False
    lock_timeout: int = 300
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    actions: list[str]
    diff: list[dict[str, str]]
    url: str | None
    source_path: str
    key_path: str
    fingerprints: list[str]
    warnings: list[str]


class _Places(NamedTuple):
    source: str
    key: str


def _places(request: Request) -> _Places:
    keys = {"apt": f"/etc/apt/keyrings/{request.name}.gpg", "dnf": f"/etc/pki/rpm-gpg/RPM-GPG-KEY-{request.name}"}
    return _Places(records.source_path(request.format, request.name), keys[request.format])


def at(path: str) -> str:
    """Return where a system's absolute path lies on this machine."""
    return os.path.join(ROOT, path.lstrip("/"))


def validate(request: Request) -> list[str]:
    """Refuse what cannot be meant; return the fingerprints in one spelling."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", request.name, re.ASCII):
        raise Problem(f"name: {request.name!r} cannot name a file; expected letters, digits, '.', '_' and '-'")
    if request.state == "absent":
        return []
    for key in ("url", "key_url"):
        value = getattr(request, key)
        if not value:
            raise Problem(f"{key}: it is missing; a repository that is present needs url, key_url and key_fingerprints")
        if re.search(r"\s", value) or not re.match(r"(https?|file)://", value):
            raise Problem(f"{key}: {public(value)!r} is no http, https or file URL")
        if "@" in urlsplit(value).netloc:
            raise Problem(
                f"{key}: it holds a password, which would stand in a file that everybody may read; leave it out"
            )
    if request.format == "apt" and not request.suites:
        raise Problem("suites: apt needs at least one, such as noble, or '/' for a repository without suites")
    flat = [suite for suite in request.suites if suite.endswith("/")]
    if request.format == "apt" and (
        len(flat) not in (0, len(request.suites)) or bool(flat) == bool(request.components)
    ):
        raise Problem(
            f"components: found {list(request.components)} with suites {list(request.suites)}; "
            "a suite that ends in '/' has none, and any other needs at least one"
        )
    for word in (*request.suites, *request.components, *request.architectures):
        if not re.fullmatch(r"[\w./:+~$()-]+", word, re.ASCII):
            raise Problem(f"suites, components, architectures: {word!r} is not one word")
    for key in request.options:
        if key.lower() in _OURS[request.format]:
            raise Problem(f"options: {key!r} has an argument of its own; use that")
        if key.lower() in _UNSAFE or not re.fullmatch(r"[A-Za-z][\w-]*", key, re.ASCII):
            raise Problem(f"options: {key!r} is refused: it is no option's name, or would let unsigned packages in")
    if request.description and "\n" in request.description.strip():
        raise Problem("description: it must be one line")
    if not request.key_fingerprints:
        raise Problem("key_fingerprints: at least one is needed; without it any key would be believed")
    try:
        return [openpgp.normalized(text) for text in request.key_fingerprints]
    except openpgp.BadKey as error:
        raise Problem(f"key_fingerprints: {error}") from error


def through_mirror(url: str, mirrors: tuple[str, ...]) -> str:
    """Return where the first mirror that a package manager can read keeps what `url` names; without one, `url`."""
    for mirror in mirrors:
        if mirror.startswith("/"):
            return "file://" + mirrored(mirror, url)
        if re.match(r"(https?|file)://", mirror):
            return mirrored(mirror, url)
    return url


def _option(value: Any, kind: str) -> str:
    if isinstance(value, bool):
        return {"apt": ("no", "yes"), "dnf": ("0", "1")}[kind][value]
    if isinstance(value, (list, tuple)):
        return " ".join(_option(part, kind) for part in value)
    text = str(value).strip()
    if "\n" in text:
        raise Problem(f"options: {text.splitlines()[0]!r}… must be one line")
    return text


def source_text(request: Request, url: str, key_path: str) -> str:
    """Return the content of the file that names the repository."""
    options = [(key, _option(value, request.format)) for key, value in sorted(request.options.items())]
    if request.format == "apt":
        fields = [
            ("Types", "deb"),
            ("URIs", url),
            ("Suites", " ".join(request.suites)),
            ("Components", " ".join(request.components)),
            ("Architectures", " ".join(request.architectures)),
            ("Signed-By", key_path),
            ("Enabled", "" if request.enabled else "no"),
            *options,
        ]
        if request.description:
            fields.insert(0, ("X-Repolib-Name", request.description.strip()))
        return HEADER + "".join(f"{key}: {value}\n" for key, value in fields if value)
    fields = [
        ("name", (request.description or request.name).strip()),
        ("baseurl", url),
        ("enabled", _option(request.enabled, "dnf")),
        ("gpgcheck", _option(request.gpgcheck, "dnf")),
        ("repo_gpgcheck", _option(request.repo_gpgcheck, "dnf")),
        ("gpgkey", f"file://{key_path}"),
        *options,
    ]
    return f"{HEADER}[{request.name}]\n" + "".join(f"{key}={value}\n" for key, value in fields)


def _read(path: str) -> bytes | None:
    try:
        with open(at(path), "rb") as stream:
            return stream.read(_LARGEST_KEY)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _differs(path: str, content: bytes) -> bool:
    if os.path.islink(at(path)) or _read(path) != content:
        return True
    return os.stat(at(path)).st_mode & 0o7777 != 0o644


def _write(path: str, content: bytes) -> None:
    """Put a file in place in one step; its temporary name begins with a dot, which apt and dnf pass over."""
    os.makedirs(os.path.dirname(at(path)), mode=0o755, exist_ok=True)
    files.write(at(path), content)


def download(url: str) -> bytes:
    """Return what an address holds, after some tries."""
    reason = ""
    for attempt in range(_RETRIES + 1):
        if attempt:
            time.sleep(_PAUSE * 2 ** (attempt - 1))
        asked = urllib.request.Request(url, headers={"User-Agent": "pcluster.postboot (Ansible collection)"})
        try:
            answer = http.ask(asked, 30, files=True, most=_LARGEST_KEY + 1)
        except http.Unanswered as error:
            reason = str(error)
            if url.startswith("file:"):
                break
            continue
        if answer.good:
            if len(answer.body) > _LARGEST_KEY:
                raise Problem(f"key_url: {public(url)} holds more than {_LARGEST_KEY} bytes, a key was expected")
            return answer.body
        reason = f"it answered {answer.status} {answer.reason}"
        if answer.status not in (408, 425, 429, 500, 502, 503, 504):
            break
    raise Problem(f"key_url: {public(url)} gave no key: {reason}; if the node has no way there, set a mirror")


def _known_key(path: str, allowed: list[str]) -> tuple[bytes, list[str]]:
    """Return the key on disk with its fingerprints if every one of them is allowed, else nothing."""
    data = _read(path)
    try:
        found = openpgp.fingerprints(data) if data is not None else []
    except openpgp.BadKey:
        found = []
    return (data or b"", found) if found and set(found) <= set(allowed) else (b"", [])


def _as_read(data: bytes, kind: str) -> bytes:
    """Return a key in the form in which it is read: apt takes .gpg files as binary, rpm takes nothing but armor."""
    binary = openpgp.dearmor(data)
    if kind == "apt":
        return binary
    return data if data != binary else openpgp.armor(binary).encode()


def _fetch_key(request: Request, allowed: list[str]) -> tuple[bytes, list[str]]:
    """Return the key in the form that its reader wants, with its fingerprints; refuse any that was not named."""
    url = through_mirror(request.key_url or "", request.mirrors)
    data = download(url)
    try:
        found = openpgp.fingerprints(data)
        key = _as_read(data, request.format)
    except openpgp.BadKey as error:
        raise Problem(f"key_url: {public(url)} cannot be used: {error}") from error
    strange = [fingerprint for fingerprint in found if fingerprint not in allowed]
    if strange:
        raise Problem(
            f"key_url: {public(url)} holds the key {', '.join(strange)}, needed is {' or '.join(allowed)}; it was not "
            "installed. If the repository changed its key, check that with its owner and set key_fingerprints"
        )
    return key, found


def _renew_key(request: Request, path: str, allowed: list[str], complaint: str) -> None:
    """Put the key in place anew whose expiry its owner has extended; raise the complaint where that is no remedy."""
    try:
        key, _found = _fetch_key(request, allowed)
    except Problem as error:
        raise Problem(f"{complaint}; its key could not be fetched anew: {error}") from error
    if key == _read(path):
        raise Problem(f"{complaint}; its key was fetched anew, and is the same")
    _write(path, key)
    # dnf never reads a key again whose id it has in this keyring.
    for ring in glob.glob(at(f"/var/cache/dnf/{glob.escape(request.name)}-*/pubring")):
        shutil.rmtree(ring)


def _same_place(left: str, right: str) -> bool:
    return left.rstrip("/").lower() == right.rstrip("/").lower()


def _without_our_url(text: str, urls: set[str]) -> str:
    """Return the text of a one-line sources file without the lines that name one of some addresses."""
    kept = []
    for line in text.splitlines(keepends=True):
        match = re.match(r"\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s+)?(\S+)", line)
        if not (match and any(_same_place(match[1], url) for url in urls)):
            kept.append(line)
    return "".join(kept)


def _names(text: str, urls: set[str]) -> bool:
    """Tell whether a file of apt's sources names one of some addresses."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return any(_same_place(word, url) for line in lines for word in line.split() for url in urls)


def _provided_by(request: Request, url: str) -> str:
    """Return the file of somebody else by which apt has the repository already."""
    if request.format != "apt":
        return ""
    own = _places(request).source
    files = [at("/etc/apt/sources.list"), *sorted(glob.glob(at("/etc/apt/sources.list.d/*")))]
    for path in files:
        if path == at(own) or not path.endswith((".list", ".sources")) or not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read()
        if _names(text, {url}) and not re.search(r"^enabled:\s*no", text, re.IGNORECASE | re.MULTILINE):
            return path
    return ""


def _conflicts(request: Request, urls: set[str]) -> tuple[dict[str, str | None], list[str]]:
    """Return what must become of a vendor's file of the same name, and warnings about other files with our address.

    apt refuses to work at all while two files name the same repository with different keys.
    """
    changes: dict[str, str | None] = {}
    warnings = []
    suffixes = (".list", ".sources") if request.format == "apt" else (".repo",)
    folder = os.path.dirname(_places(request).source)
    for name in sorted(os.listdir(at(folder))) if os.path.isdir(at(folder)) else []:
        path = f"{folder}/{name}"
        if name.startswith(".") or not name.endswith(suffixes) or path == _places(request).source:
            continue
        text = (_read(path) or b"").decode("utf-8", "replace")
        if request.format == "apt" and name == f"{request.name}.list":
            rest = _without_our_url(text, urls)
            if rest != text:
                active = any(line.strip() and not line.strip().startswith("#") for line in rest.splitlines())
                changes[path] = rest if active else None
        elif request.format == "dnf" and re.search(rf"^\[{re.escape(request.name)}\]", text, re.MULTILINE):
            warnings.append(f"{path} has a section [{request.name}] too, dnf reads only one of them; remove it there")
        elif request.format == "apt" and _names(text, urls):
            warnings.append(f"{path} names the same repository; apt refuses both where their keys differ: remove it")
    return changes, warnings


def _lists_are_there(request: Request, url: str) -> bool:
    if request.format == "dnf":
        caches = ("/var/cache/dnf", "/var/cache/libdnf5")
        return any(glob.glob(at(f"{cache}/{glob.escape(request.name)}-*/repodata/repomd.xml")) for cache in caches)
    for suite in request.suites:
        place = url.rstrip("/") + ("/" + suite.strip("/") if suite.endswith("/") else f"/dists/{suite}/")
        place = place.rstrip("/") + "/"
        pattern = glob.escape(apt_list_name(place)).replace("$(ARCH)", "*").replace("%24(ARCH)", "*")
        if not glob.glob(at(f"/var/lib/apt/lists/{pattern}*Release")):
            return False
    return True


def apt_list_name(url: str) -> str:
    """Return how apt names the files that it keeps of a URL."""
    bare = re.sub(r"^[a-z+]+:(//)?", "", url)
    bare = re.sub(r"[\\|{}\[\]<>\"^~_=!@#$%&*]", lambda match: f"%{ord(match[0]):02x}", bare)
    return bare.replace("/", "_")


def _refreshed(argv: list[str], lock_timeout: int) -> str:
    """Run apt-get or dnf; return what was wrong, or nothing."""
    said = tool.call(argv, lock_timeout, merged=True)
    # A component that is not there is nothing but a warning to apt, and nothing would ever be installed from it.
    misspelt = re.search(r"^.*doesn't have the component.*$", said.out, re.MULTILINE)
    if misspelt:
        return misspelt[0]
    return (_complaint(said.out) or f"exit status {said.code}") if said.code else ""


def _complaint(output: str) -> str:
    """Return the line that says most of why apt or dnf failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for pattern in (r"^(E|W): .*(GPG error|signature|NO_PUBKEY)", r"^(E|Error|W): *\S"):
        for line in lines:
            if re.search(pattern, line):
                return line
    return reason(output)


def refresh(request: Request, text: str) -> None:
    """Read the repository's lists through a file of its own, so that no other repository matters, nor sees this one."""
    with files.folder("postboot-repository-") as folder:
        os.chmod(folder, 0o755)
        suffix = "sources" if request.format == "apt" else "repo"
        path = os.path.join(folder, f"{request.name}.{suffix}")
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        if request.format == "apt":
            options = [
                f"Dir::Etc::sourcelist={path}",
                "Dir::Etc::sourceparts=-",
                "APT::Get::List-Cleanup=0",
                "APT::Update::Error-Mode=any",
                "Acquire::Retries=3",
                f"DPkg::Lock::Timeout={request.lock_timeout}",
            ]
            argv = ["apt-get", "-q", "update", *(word for option in options for word in ("-o", option))]
        else:
            argv = [
                "dnf",
                "-q",
                "-y",
                f"--setopt=reposdir={folder}",
                f"--setopt={request.name}.skip_if_unavailable=0",
                *(["--refresh"] if request.refresh == "always" else []),
                "makecache",
                "--repo",
                request.name,
            ]
        complaint = _refreshed(argv, request.lock_timeout)
    if complaint:
        raise Problem(f"url: {argv[0]} cannot use {request.name}: {complaint}; it was not added")


def _text(path: str) -> str:
    return (_read(path) or b"").decode("utf-8", "replace")


def _key_lines(path: str) -> str:
    data = _read(path)
    if data is None:
        return ""
    try:
        return "".join(f"fingerprint: {fingerprint}\n" for fingerprint in openpgp.fingerprints(data))
    except openpgp.BadKey as error:
        return f"unusable: {error}\n"


def _remove(request: Request, places: _Places) -> Outcome:
    actions: list[str] = []
    diff = []
    for path in places:
        if os.path.lexists(at(path)):
            actions = ["removed"]
            diff.append(files.diff(path, _key_lines(path) if path == places.key else _text(path), ""))
            if not request.check:
                os.unlink(at(path))
    return Outcome(actions, diff, None, *places, [], [])


def apply(request: Request) -> Outcome:
    """Bring the repository into the state that is asked for.

    The key comes first; the repository's file comes last, after its lists could be read with that key. A run that is
    killed in between leaves nothing that another package operation would stumble over, and the next one finishes it.
    """
    allowed = validate(request)
    places = _places(request)
    if request.state == "absent":
        return _remove(request, places)
    actions: list[str] = []
    diff: list[dict[str, str]] = []
    url = through_mirror(request.url or "", request.mirrors)
    if request.unless_provided and _provided_by(request, url):
        return Outcome([], [], url, *places, [], [])
    text = source_text(request, url, places.key)

    key, found = _known_key(places.key, allowed)
    fetched = not found
    # apt drops its privileges before it reads the key, so the file's mode counts too.
    if not found or _differs(places.key, _as_read(key, request.format)):
        actions.append("installed-key")
        before = _key_lines(places.key)
        after = "".join(f"fingerprint: {fingerprint}\n" for fingerprint in found or allowed)
        if not request.check:
            if found:
                key = _as_read(key, request.format)
            else:
                key, found = _fetch_key(request, allowed)
            _write(places.key, key)
            after = _key_lines(places.key)
        diff.append(files.diff(places.key, before, after))

    conflicts, warnings = _conflicts(request, {request.url or "", url})
    changed = _differs(places.source, text.encode()) or bool(conflicts)
    if changed:
        diff.append(files.diff(places.source, _text(places.source), text))
    diff += [files.diff(path, _text(path), content or "") for path, content in conflicts.items()]
    reads = request.refresh != "never" and request.enabled
    refresh_due = reads and (changed or not _lists_are_there(request, url))
    if (refresh_due or (reads and request.refresh == "always")) and not request.check:
        try:
            refresh(request, text)
        except Problem as error:
            if fetched or not re.search(r"gpg|signature|EXPKEYSIG", str(error), re.IGNORECASE):
                raise
            _renew_key(request, places.key, allowed, str(error))
            actions = ["installed-key"]
            refresh(request, text)
    if changed:
        actions.append("wrote")
        if not request.check:
            for path, content in conflicts.items():
                if content is None:
                    os.unlink(at(path))
                else:
                    _write(path, content.encode())
            _write(places.source, text.encode())
    if refresh_due:
        actions.append("refreshed")
    if request.mirrors and url == request.url:
        warnings.append("mirrors: none of them can be read by a package manager (s3 cannot), so url is used as it is")
    return Outcome(actions, diff, url, *places, found, warnings)
