# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What was installed, file by file, and whether it still is."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.files import Staged, has_digest
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import Artifact, public
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files

SCHEMA = 1
TREE_MARK = ".pcluster-postboot.json"  # the receipt that a whole tree carries in itself


@dataclasses.dataclass
class FileRecord:
    """One installed file: what it must be, and how a glance tells that nobody touched it."""

    path: str
    sha256: str = ""
    link: str = ""  # the target, of a symbolic link
    src: str = ""  # the member that asked for it
    size: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0

    def note(self, status: os.stat_result) -> None:
        """Remember how the file looks now."""
        self.size, self.mode = status.st_size, stat.S_IMODE(status.st_mode)
        self.uid, self.gid = status.st_uid, status.st_gid
        self.mtime_ns, self.ctime_ns = status.st_mtime_ns, status.st_ctime_ns

    def intact(self, status: os.stat_result) -> bool:
        """Tell whether the file holds what was installed; hash it only when a glance leaves a doubt."""
        if self.link:
            return stat.S_ISLNK(status.st_mode) and os.readlink(self.path) == self.link
        if not stat.S_ISREG(status.st_mode) or status.st_size != self.size:
            return False
        glance = (status.st_mtime_ns, status.st_ctime_ns) == (self.mtime_ns, self.ctime_ns)
        return glance or has_digest(self.path, self.sha256)


@dataclasses.dataclass
class Receipt:
    """One installation of an artifact."""

    name: str
    version: str
    url: str
    sha256: str
    layout: dict[str, Any]
    files: list[FileRecord]
    signed_by: list[str] = dataclasses.field(default_factory=list)  # the keys of which one has signed the download

    @classmethod
    def of(cls, artifact: Artifact, files: list[FileRecord], signed_by: list[str] | None = None) -> Receipt:
        """Return the receipt for files that were just installed."""
        url = public(artifact.url)
        return cls(artifact.name, artifact.version, url, artifact.sha256, artifact.layout, files, signed_by or [])

    def vouches(self, artifact: Artifact) -> bool:
        """Tell whether this is an installation of the artifact for which the same keys have vouched."""
        if not artifact.signature or (self.url, self.version) != (public(artifact.url), artifact.version):
            return False
        return bool(self.signed_by) and set(self.signed_by) <= set(artifact.signature.fingerprints)

    def answers(self, artifact: Artifact) -> bool:
        """Tell whether this is an installation of that very artifact, in that very way."""
        there = {record.path for record in self.files}
        return (self.sha256, self.layout) == (artifact.sha256, artifact.layout) and artifact.kept <= there

    def paths(self) -> list[str]:
        """Return what was installed; a whole tree by its top."""
        return [f"{self.layout['dest']}/"] if self.layout["unpack"] else [record.path for record in self.files]

    def to_json(self) -> bytes:
        """Return the receipt as it lies on disk. Version 0.1 takes one with keys of signatures for damaged."""
        told = {"schema": SCHEMA, **dataclasses.asdict(self)}
        if not self.signed_by:
            del told["signed_by"]
        return json.dumps(told, indent=1, sort_keys=True).encode() + b"\n"


def path_of(state_dir: str, name: str) -> str:
    """Return where the receipt of an artifact lies."""
    return os.path.join(state_dir, f"{name}.json")


def load(path: str) -> Receipt | None:
    """Return a receipt; None for one that is missing, damaged, of another schema, or writable by others.

    What a later version notes besides is left out: nodes go back to an earlier bundle, too.
    """
    try:
        with host_files.open_regular(path) as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                return None
            data = document.parse(file.read())
        if data.pop("schema") != SCHEMA:
            return None
        receipt = Receipt(**_known(Receipt, data))
        receipt.files = [FileRecord(**_known(FileRecord, record)) for record in data["files"]]
        return receipt if receipt.paths() else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _known(kind: type[FileRecord] | type[Receipt], told: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {key: value for key, value in told.items() if key in names}


def save(path: str, receipt: Receipt) -> None:
    """Write a receipt, whole or not at all."""
    with Staged(path) as staged:
        staged.file.write(receipt.to_json())
        staged.settle(0o644)
        staged.commit()


@dataclasses.dataclass
class Survey:
    """How the files of a receipt are now."""

    broken: list[str] = dataclasses.field(default_factory=list)
    drifted: list[tuple[FileRecord, int]] = dataclasses.field(default_factory=list)
    looks_new: bool = False

    def findings(self) -> list[str]:
        """Return what is amiss, as the diff shows it."""
        broken = [f"missing or altered: {path}" for path in self.broken]
        return broken + [f"other mode or owner than {mode:04o}: {record.path}" for record, mode in self.drifted]


def survey(receipt: Receipt, artifact: Artifact, uid: int, gid: int) -> Survey:
    """Compare every file with its record: content first, then the mode and owner that it must have."""
    found = Survey()
    for record in receipt.files:
        try:
            status = os.lstat(record.path)
            intact = record.intact(status)
        except OSError:
            intact = False
        if not intact:
            found.broken.append(record.path)
            continue
        if record.link:
            continue
        mode = artifact.mode_of(record.src, record.mode)
        if (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) != (mode, uid, gid):
            found.drifted.append((record, mode))
        elif (status.st_mtime_ns, status.st_ctime_ns) != (record.mtime_ns, record.ctime_ns):
            record.note(status)
            found.looks_new = True
    return found


def repair(drifted: list[tuple[FileRecord, int]], uid: int, gid: int) -> None:
    """Restore the mode and owner of files."""
    for record, mode in drifted:
        with host_files.open_regular(record.path) as file:
            os.fchown(file.fileno(), uid, gid)
            os.fchmod(file.fileno(), mode)
            record.note(os.fstat(file.fileno()))
