# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Install artifacts that no receipt proves installed, from the cache, a mirror or upstream, all at once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import files
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import install as installer
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import receipt as receipts
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import signature as signatures
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.archive import open_archive
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.cache import Cache
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.fetch import Source, SourceError, download
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import (
    PLAIN_MODE,
    Artifact,
    NoSourceError,
    Settings,
    Signature,
    algorithm,
    owner_ids,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.receipt import FileRecord, Receipt, Survey
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem

AT_ONCE = 8
LOCK_WAIT = 900.0


@dataclasses.dataclass
class Outcome:
    """What became of one artifact."""

    artifact: Artifact
    changed: bool = False
    source: str = "installed"
    seconds: float = 0.0
    size: int = 0
    before: Receipt | None = None
    amiss: list[str] = dataclasses.field(default_factory=list)
    files: list[FileRecord] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    error: str = ""

    def result(self) -> dict[str, Any]:
        """Return the outcome as the module's result shows it."""
        shown = {
            "name": self.artifact.name,
            "version": self.artifact.version,
            "sha256": self.artifact.sha256,
            "changed": self.changed,
            "source": self.source,
            "seconds": round(self.seconds, 3),
            "bytes": self.size,
            "files": self.paths(),
        }
        return {**shown, "error": self.error} if self.error else shown

    def paths(self) -> list[str]:
        """Return what is, or would be, installed; a whole tree by its top."""
        if self.artifact.unpack:
            return [self.artifact.dest + "/"]
        known = [record.path for record in self.files]
        return known or [member.dest for member in self.artifact.members] or [self.artifact.dest]

    def diff(self) -> dict[str, str]:
        """Return before and after, as Ansible's diff mode shows them."""
        before, artifact = self.before, self.artifact
        old = _lines(before.version, before.sha256, before.paths(), self.amiss) if before else ""
        signed_by = artifact.signature.fingerprints if artifact.signature and not artifact.sha256 else ()
        new = _lines(artifact.version, artifact.sha256, self.paths(), [], signed_by)
        header = f"artifact {artifact.name}"
        return {"before": old, "after": new, "before_header": header, "after_header": header}


def _lines(version: str, sha256: str, paths: list[str], amiss: list[str], signed_by: tuple[str, ...] = ()) -> str:
    proof = f"signed by: {' or '.join(signed_by)}" if signed_by else f"{algorithm(sha256)}: {sha256}"
    lines = [f"version: {version}", proof, *(f"file: {path}" for path in paths), *amiss]
    return "".join(f"{line}\n" for line in lines)


def ensure_all(artifacts: list[Artifact], settings: Settings) -> list[Outcome]:
    """Install every artifact; a failure of one does not stop the others."""
    turn = contextlib.nullcontext() if settings.check else _only_run(settings.state_dir)
    with turn, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda artifact: ensure(artifact, settings), artifacts))


def ensure(artifact: Artifact, settings: Settings) -> Outcome:
    """Install one artifact; an error becomes one line of the outcome."""
    outcome = Outcome(artifact)
    started = time.monotonic()
    try:
        _ensure(artifact, settings, outcome)
    except Problem as error:
        outcome.error = f"{artifact.label}: {error}"
    except OSError as error:
        outcome.error = f"{artifact.label}: {files.advise(error, artifact.dest)}"
    outcome.seconds = time.monotonic() - started
    return outcome


def _ensure(artifact: Artifact, settings: Settings, outcome: Outcome) -> None:
    path = receipts.path_of(settings.state_dir, artifact.name)
    outcome.before = receipts.load(path)
    _refuse_half_a_pin(artifact, outcome.before)
    if not settings.check:
        for directory in (settings.state_dir, *artifact.directories):
            host_files.sweep(directory)
    try:
        uid, gid = owner_ids(artifact)
    except Problem:
        if not settings.check:  # a user whom an earlier task of this play would have made
            raise
        uid, gid = -1, -1
    asked, before = artifact, outcome.before
    if not artifact.sha256 and before and before.vouches(artifact):
        artifact = outcome.artifact = dataclasses.replace(artifact, sha256=before.sha256)
    known = _installed(artifact, before)
    found = receipts.survey(known, artifact, uid, gid) if known else Survey()
    outcome.amiss = found.findings()
    if known and not found.broken:
        outcome.files, outcome.changed = known.files, bool(found.drifted)
        if not settings.check:
            receipts.repair(found.drifted, uid, gid)
            receipt = Receipt.of(artifact, known.files, known.signed_by)
            if found.looks_new or receipt != outcome.before:
                receipts.save(path, receipt)
        return
    outcome.artifact = asked
    installer.refuse_foreign(asked, before)
    if settings.check:
        outcome.changed, outcome.source = True, "predicted"
        return
    _install(asked, settings, outcome, uid, gid)
    signed_by = list(asked.signature.fingerprints) if asked.signature and asked.signed else []
    receipts.save(path, Receipt.of(outcome.artifact, outcome.files, signed_by))


def _refuse_half_a_pin(artifact: Artifact, receipt: Receipt | None) -> None:
    """Raise where the version was changed and its hash was not: what is installed would pass for the new version."""
    if not receipt or receipt.sha256 != artifact.sha256 or not receipt.version or not artifact.version:
        return
    if receipt.version != artifact.version:
        raise Problem(_half_a_pin(receipt.version, "which is installed", artifact))


def _half_a_pin(version: str, where: str, artifact: Artifact) -> str:
    return (
        f"its {algorithm(artifact.sha256)} is that of version {version}, {where}; "
        f"set {artifact.sha256_variable or 'sha256'} for version {artifact.version} too"
    )


def _installed(artifact: Artifact, receipt: Receipt | None) -> Receipt | None:
    """Return the receipt for what is installed: this node's, a tree's own, or the evident one of a single file."""
    if receipt and receipt.answers(artifact):
        return receipt
    if artifact.unpack:
        mark = receipts.load(os.path.join(artifact.dest, receipts.TREE_MARK))
        return mark if mark and mark.answers(artifact) else None
    if artifact.plain and artifact.sha256 and not artifact.kept:
        with contextlib.suppress(OSError):
            if files.has_digest(artifact.dest, artifact.sha256):
                record = FileRecord(artifact.dest, sha256=artifact.sha256)
                record.note(os.lstat(artifact.dest))
                return Receipt.of(artifact, [record])
    return None


def _install(artifact: Artifact, settings: Settings, outcome: Outcome, uid: int, gid: int) -> None:
    if artifact.plain:
        with files.Staged(artifact.dest) as staged:
            proof = _obtain(artifact, settings, outcome, files.Sink(staged.file, artifact.dest))
            outcome.files = installer.install_plain(outcome.artifact, staged, uid, gid)
        outcome.files += _keep(proof, uid, gid)
        outcome.changed = True
        return
    with files.scratch(settings.state_dir) as packed:
        proof = _obtain(artifact, settings, outcome, files.Sink(packed, settings.state_dir))
        artifact = outcome.artifact
        with open_archive(packed, settings.state_dir, artifact.strip_components) as archive:
            if artifact.members:
                outcome.files, outcome.changed = installer.install_members(artifact, archive, uid, gid)
            else:
                outcome.files = installer.install_tree(artifact, archive, uid, gid)
                outcome.changed = True
    outcome.files += _keep(proof, uid, gid)


def _keep(proof: dict[str, bytes], uid: int, gid: int) -> list[FileRecord]:
    """Write the signature and the key where a mirror has them."""
    records = []
    for path, content in proof.items():
        with files.Staged(path) as staged:
            staged.file.write(content)
            staged.settle(PLAIN_MODE, uid, gid)
            record = FileRecord(path, sha256=hashlib.sha256(content).hexdigest())
            record.note(staged.commit())
        records.append(record)
    return records


def _obtain_signed(
    artifact: Artifact, signature: Signature, settings: Settings, outcome: Outcome, sink: files.Sink
) -> dict[str, bytes]:
    """Fill the sink with bytes that a trusted key has signed; return what a mirror keeps of the proof, by its path.

    The cache finds files by their hash, and so has none of these.
    """
    instead = f"set {artifact.sha256_variable or 'sha256'} to the hash of a file that you have verified"
    trust = signatures.Trust(
        signature_url=signature.url,
        key_url=signature.key_url,
        key_fingerprints=signature.fingerprints,
        mirrors=settings.mirrors,
        upstream=settings.upstream,
        words=signatures.Words(instead=instead),
    )
    proofs = signatures.Proofs(trust)
    proofs.look()
    found: list[bytes] = []

    def vouch(source: Source) -> None:
        path = f"/proc/{os.getpid()}/fd/{sink.file.fileno()}"  # a scratch file has no name
        try:
            found[:] = proofs.verify(path, str(source))
        except signatures.BadSignature as error:
            raise SourceError(str(error)) from error

    outcome.source, outcome.size = download(artifact, settings, sink, vouch=vouch, warn=outcome.warnings.append)
    outcome.warnings += [f"{artifact.label}: {line}" for line in proofs.warnings]
    if not artifact.sha256:
        outcome.artifact = dataclasses.replace(artifact, sha256=files.copy(sink.file, len)[1])
    sink.finish()
    key, detached = found
    return {path: data for path, data in ((signature.dest, detached), (signature.key_dest, key)) if path}


def _obtain(artifact: Artifact, settings: Settings, outcome: Outcome, sink: files.Sink) -> dict[str, bytes]:
    """Fill the sink with verified bytes, and the cache with them for everybody else."""
    if artifact.signature and artifact.signed:
        return _obtain_signed(artifact, artifact.signature, settings, outcome, sink)
    if not settings.cache:
        outcome.source, outcome.size = download(artifact, settings, sink, warn=outcome.warnings.append)
        return {}
    cache = Cache(settings.cache, settings.cache_wait, settings.lease_ttl, outcome.warnings.append)
    sha256, version, lease = artifact.sha256, artifact.version, None
    try:
        size, lease = cache.find_or_claim(sha256, sink, version)
        if size is None:
            source, size = download(
                artifact, settings, sink, lambda: cache.look(sha256, sink, version), warn=outcome.warnings.append
            )
            if source != "cache":
                cache.publish(sha256, version, sink.file)
        else:
            source = "cache"
        outcome.source, outcome.size = source, size
    except NoSourceError as error:
        # Another node may have filled the cache meanwhile. The hash decides, unless a source had other bytes.
        found, known = cache.look(sha256, sink, version if error.other_bytes else ""), cache.versions(sha256)
        told = bool(known and version) and version not in known
        if found is None:
            if lease and error.may_pass:
                cache.tell_failure(sha256, str(error))
            if told and error.other_bytes:
                half = _half_a_pin(known[0], "which is in the cache", artifact)
                raise Problem(f"{error}; {half}") from error
            raise
        if told:
            outcome.warnings.append(
                f"{artifact.label}: the cache has the file of its {algorithm(sha256)} as version {known[0]}; it was "
                f"used, as no source could be asked: {error}"
            )
        outcome.source, outcome.size = "cache", found
    finally:
        if lease:
            lease.release()
    return {}


@contextlib.contextmanager
def _only_run(state_dir: str) -> Iterator[None]:
    """Keep a second run on this node out until this one is done; the kernel forgets the lock of a killed one."""
    try:
        os.makedirs(state_dir, exist_ok=True)
        fd = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Problem(files.advise(error, state_dir)) from error
    try:
        deadline = time.monotonic() + LOCK_WAIT
        while not _try_lock(fd):
            if time.monotonic() > deadline:
                raise Problem(f"another run has held {state_dir} for {LOCK_WAIT:g} s: wait until it ends, or end it")
            time.sleep(0.1)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    return True
