# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Verifies the detached OpenPGP signature of a download, with a key that is known by its fingerprint."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import fetch
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import Artifact, Settings, public
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, Said, run
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import openpgp

LARGEST = 64 * 1024
TIMEOUT = 300


class BadSignature(Problem):
    """No trusted key has signed these bytes."""


class Words(NamedTuple):
    """How messages name the file, the variable of the fingerprints, and the ways out."""

    whose: str = "its"
    fingerprints: str = "signature.fingerprints"
    place: str = "the file"
    instead: str = "set the file's sha256"
    compare: str = "Compare the file with what its publisher offers"
    upstream: str = "upstream"


class Trust(NamedTuple):
    """Where the signature and the key are, and which key is believed. A sha256 is checked where it is known."""

    signature_url: str = ""
    signature_sha256: str = ""
    key_url: str = ""
    key_sha256: str = ""
    key_fingerprints: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    upstream: bool = True
    words: Words = Words()


def _fetch(url: str, sha256: str, what: str, trust: Trust) -> bytes:
    """Return a small file from the first place that has it."""
    settings = Settings(state_dir="", mirrors=trust.mirrors, upstream=trust.upstream)
    failures = []
    for source in fetch.sources(Artifact(what, url, "", ""), settings):
        for attempt in range(settings.retries + 1):
            data = b""
            try:
                with contextlib.closing(fetch.content(source.url, settings)) as chunks:
                    for chunk in chunks:
                        data += chunk
                        if len(data) > LARGEST:
                            raise fetch.SourceError(f"it is larger than {LARGEST} bytes")
                if sha256 and hashlib.sha256(data).hexdigest() != sha256:
                    raise fetch.SourceError(f"its sha256 is not {sha256}")
                return data
            except fetch.SourceError as error:
                if not error.again or attempt == settings.retries:
                    failures.append(f"{source}: {error}")
                    break
                time.sleep(min(settings.backoff * 2**attempt, fetch.LONGEST_PAUSE))
    if not trust.upstream:
        failures.append(f"upstream: not allowed ({trust.words.upstream} is false)")
    raise Problem(
        f"no source delivered {trust.words.whose} {what} {public(url)}: {'; '.join(failures)}; put it into the mirror "
        f"beside {trust.words.place}, or {trust.words.instead}"
    )


def key(trust: Trust) -> bytes:
    """Return the publisher's key as it is published; refuse any that was not named."""
    if not trust.key_fingerprints:
        raise Problem(f"{trust.words.fingerprints} is empty; without one any key would be believed")
    data = _fetch(trust.key_url, trust.key_sha256, "key", trust)
    try:
        allowed = [openpgp.normalized(text) for text in trust.key_fingerprints]
        found = openpgp.fingerprints(data)
    except openpgp.BadKey as error:
        raise Problem(f"{trust.words.whose} key {public(trust.key_url)} cannot be used: {error}") from error
    strange = [fingerprint for fingerprint in found if fingerprint not in allowed]
    if strange:
        raise Problem(
            f"{trust.words.whose} key {public(trust.key_url)} is {', '.join(strange)}, "
            f"needed is {' or '.join(allowed)}; nothing was installed. If the publisher has changed the key, compare "
            f"with its documentation and set {trust.words.fingerprints}"
        )
    return data


def _verifier(folder: str, keyring: str, words: Words) -> list[str]:
    """Return the command that verifies: gpgv, or gpg where it is alone and without its agent, as on Amazon Linux."""
    if shutil.which("gpgv"):
        return ["gpgv", "--homedir", folder, "--keyring", keyring, "--status-fd", "1"]
    program = next((name for name in ("gpg", "gpg2") if shutil.which(name)), "")
    if not program:
        raise Problem(
            f"neither gpgv nor gpg is there to verify {words.whose} signature; install gpgv (Ubuntu), gnupg2 (RHEL, "
            f"Rocky) or gnupg2-minimal (Amazon Linux), or {words.instead}"
        )
    quiet = ["--batch", "--no-tty", "--no-default-keyring", "--trust-model", "always", "--no-auto-check-trustdb"]
    return [program, *quiet, "--homedir", folder, "--keyring", keyring, "--status-fd", "1", "--verify"]


def detached(trust: Trust) -> bytes:
    """Return the signature, which is yet to be verified."""
    return _fetch(trust.signature_url, trust.signature_sha256, "signature", trust)


def verify(trust: Trust, source: str, signature: bytes, key_data: bytes, called: str = "") -> list[str]:
    """Check that a trusted key has signed the file, which messages may call otherwise; return warnings."""
    with tempfile.TemporaryDirectory(prefix="postboot-signature-") as folder:
        files = {"key.gpg": openpgp.dearmor(key_data), "signature": signature}
        for name, data in files.items():
            with open(os.path.join(folder, name), "wb") as stream:
                stream.write(data)
        argv = [
            *_verifier(folder, os.path.join(folder, "key.gpg"), trust.words),
            os.path.join(folder, "signature"),
            source,
        ]
        try:
            said = run(argv, TIMEOUT, environment={"HOME": folder}, only=True)
        except NotRun as error:
            raise Problem(f"{trust.words.whose} signature is not verified: {error}") from error
    return _judge(said, [openpgp.normalized(text) for text in trust.key_fingerprints], trust, called or source)


def _judge(said: Said, allowed: list[str], trust: Trust, source: str) -> list[str]:
    """Read what gpgv or gpg says for programs: their exit status does not tell who has signed."""
    status = [line.split()[1:] for line in said.out.splitlines() if line.startswith("[GNUPG:] ")]
    states = {line[0] for line in status if line}
    # The last word is the primary key, also where a subkey has signed.
    valid = any(line[0] == "VALIDSIG" and line[-1] in allowed for line in status if line)
    if valid and states & {"GOODSIG", "EXPKEYSIG"} and not states & {"BADSIG", "ERRSIG", "EXPSIG", "REVKEYSIG"}:
        expired = "EXPKEYSIG" in states
        told = f"{trust.words.whose} key {public(trust.key_url)} has expired; what the key signed is accepted"
        return [told] if expired else []
    signers = [line[-1] for line in status if line and line[0] in ("VALIDSIG", "NO_PUBKEY")]
    if "BADSIG" in states:
        why = "the signature is not that of these bytes"
    elif signers and not valid:
        why = f"it was made with the key {signers[-1]}, needed is {' or '.join(allowed)}"
    elif "REVKEYSIG" in states:
        why = "its key was revoked"
    elif "EXPSIG" in states:
        why = "it has expired"
    elif states & {"NODATA", "UNEXPECTED", "BADARMOR"}:
        why = "it is no detached OpenPGP signature"
    else:
        lines = [line.strip() for line in said.err.splitlines() if line.strip()]
        why = lines[-1] if lines else f"the verification ended with {said.code}"
    raise BadSignature(
        f"{trust.words.whose} signature {public(trust.signature_url)} does not verify {source}: {why}; nothing was "
        f"installed. {trust.words.compare}"
    )
