# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Verifies the detached OpenPGP signature of a download, with a key that is known by its fingerprint."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import fetch
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import Artifact, Settings, public
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.reason import reason
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, Said, run
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import openpgp

LARGEST = 64 * 1024
TIMEOUT = 300


class BadSignature(Problem):
    """No trusted key has signed these bytes."""


class _OtherHash(fetch.SourceError):
    """A source has another file than the pinned one."""


class Words(NamedTuple):
    """How messages name the file, the variable of the fingerprints, and the ways out."""

    whose: str = "its"
    fingerprints: str = "signature.fingerprints"
    hashes: str = "%s_sha256"
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


class Offer(NamedTuple):
    """A small file as one source has it."""

    source: fetch.Source
    data: bytes


class _Offers:
    """A small file from each source, in order; each is asked once, and only when those before it were of no use."""

    def __init__(self, url: str, sha256: str, what: str, trust: Trust, refuse: Callable[[bytes], str]) -> None:
        self._url, self._sha256, self._what, self._trust, self._refuse = url, sha256, what, trust, refuse
        self._known: list[Offer] = []
        self._failures: list[str] = []
        self._answer = ""  # the variable that takes what was refused last
        self.refused: list[str] = []
        self._more = self._ask()

    def __iter__(self) -> Iterator[Offer]:
        yield from self._known
        for offer in self._more:
            self._known.append(offer)
            yield offer

    def first(self) -> Offer:
        for offer in self:
            return offer
        words, failures = self._trust.words, list(self._failures)
        if not self._trust.upstream:
            failures.append(f"upstream: not allowed ({words.upstream} is false)")
        ways = f"put it into the mirror beside {words.place}, or {words.instead}"
        if self.refused:
            changed = f"If the publisher has changed the {self._what}, compare with its documentation and"
            ways = f"nothing was installed. {changed} set {self._answer}"
        raise Problem(
            f"no source delivered {words.whose} {self._what} {public(self._url)}: {'; '.join(failures)}; {ways}"
        )

    def _ask(self) -> Iterator[Offer]:
        settings = Settings(state_dir="", mirrors=self._trust.mirrors, upstream=self._trust.upstream)
        for source in fetch.sources(Artifact(self._what, self._url, "", ""), settings):
            try:
                data = _small(source, self._sha256, settings)
            except _OtherHash as error:
                self._pass_over(source, str(error), self._trust.words.hashes % self._what)
            except fetch.SourceError as error:
                self._failures.append(f"{source}: {error}")
            else:
                if why := self._refuse(data):
                    self._pass_over(source, why, self._trust.words.fingerprints)
                else:
                    yield Offer(source, data)

    def _pass_over(self, source: fetch.Source, why: str, answer: str) -> None:
        self._answer = answer
        self._failures.append(f"{source}: {why}")
        self.refused.append(f"{self._trust.words.whose} {self._what} from {source} was passed over: {why}")


def _small(source: fetch.Source, sha256: str, settings: Settings) -> bytes:
    for attempt in range(settings.retries + 1):
        data = b""
        try:
            with contextlib.closing(fetch.content(source.url, settings)) as chunks:
                for chunk in chunks:
                    data += chunk
                    if len(data) > LARGEST:
                        raise fetch.SourceError(f"it is larger than {LARGEST} bytes")
            found = hashlib.sha256(data).hexdigest()
            if sha256 and found != sha256:
                raise _OtherHash(f"its sha256 is {found}, needed is {sha256}")
            return data
        except fetch.SourceError as error:
            if not error.again or attempt == settings.retries:
                raise
            time.sleep(min(settings.backoff * 2**attempt, fetch.LONGEST_PAUSE))
    raise AssertionError("unreachable")


class Proofs:
    """The publisher's keys and signatures, as the mirrors and the publisher have them.

    A key that was not named, and a signature that does not fit, end nothing while another source may have a good one.
    `warnings` has a line for each of them.
    """

    def __init__(self, trust: Trust) -> None:
        if not trust.key_fingerprints:
            raise Problem(f"{trust.words.fingerprints} is empty; without one any key would be believed")
        self._trust = trust
        try:
            self._allowed = [openpgp.normalized(text) for text in trust.key_fingerprints]
        except openpgp.BadKey as error:
            raise Problem(f"{trust.words.fingerprints} cannot be used: {error}") from error
        self._keys = _Offers(trust.key_url, trust.key_sha256, "key", trust, self._strange)
        self._signatures = _Offers(trust.signature_url, trust.signature_sha256, "signature", trust, lambda _data: "")
        self._unfit: list[str] = []

    def key(self) -> bytes:
        """Return a key that was named, as it is published."""
        return self._keys.first().data

    def look(self) -> None:
        """Raise where no source has a key that was named, or none has a signature, before anything large is fetched."""
        self._keys.first()
        self._signatures.first()

    def verify(self, path: str, called: str = "") -> tuple[bytes, bytes]:
        """Check that a trusted key has signed the file, which messages may call otherwise.

        Return the key and the signature that vouch for it; raise BadSignature where none of any source does.
        """
        self.look()
        tried: dict[tuple[bytes, bytes], str] = {}
        for key in self._keys:
            for signature in self._signatures:
                if (key.data, signature.data) in tried:
                    continue
                try:
                    warnings = _verify(self._trust, path, signature, key)
                except BadSignature as error:
                    line = (
                        f"{self._trust.words.whose} signature from {signature.source} does not verify "
                        f"{called or path}: {error}"
                    )
                    tried[key.data, signature.data] = line
                else:
                    self._unfit += [*tried.values(), *warnings]
                    return key.data, signature.data
        self._unfit += tried.values()
        raise BadSignature(f"{'; '.join(tried.values())}; nothing was installed. {self._trust.words.compare}")

    @property
    def warnings(self) -> list[str]:
        """What was passed over, and what was accepted although a key has expired."""
        return list(dict.fromkeys([*self._keys.refused, *self._signatures.refused, *self._unfit]))

    def _strange(self, data: bytes) -> str:
        try:
            found = openpgp.fingerprints(data)
        except openpgp.BadKey as error:
            return f"it cannot be used: {error}"
        strange = [fingerprint for fingerprint in found if fingerprint not in self._allowed]
        return f"it is {', '.join(strange)}, needed is {' or '.join(self._allowed)}" if strange else ""


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


def _verify(trust: Trust, path: str, signature: Offer, key: Offer) -> list[str]:
    """Check that a trusted key has signed the file; return warnings."""
    with host_files.folder("postboot-signature-") as folder:
        files = {"key.gpg": openpgp.dearmor(key.data), "signature": signature.data}
        for name, data in files.items():
            with open(os.path.join(folder, name), "wb") as stream:
                stream.write(data)
        argv = [
            *_verifier(folder, os.path.join(folder, "key.gpg"), trust.words),
            os.path.join(folder, "signature"),
            path,
        ]
        try:
            said = run(argv, TIMEOUT, environment={"HOME": folder}, only=True)
        except NotRun as error:
            raise Problem(f"{trust.words.whose} signature is not verified: {error}") from error
    return _judge(said, [openpgp.normalized(text) for text in trust.key_fingerprints], trust)


def _judge(said: Said, allowed: list[str], trust: Trust) -> list[str]:
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
        why = reason(said.err) or f"the verification ended with {said.code}"
    raise BadSignature(why)
