# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From verified bytes to installed files: one file, some members, or a whole tree that appears in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import archive as archives
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import files
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import receipt as receipts
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import Artifact
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.receipt import FileRecord, Receipt, Survey
from ansible_collections.pcluster.postboot.plugins.module_utils._host import files as host_files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem


def refuse_foreign(artifact: Artifact, known: Receipt | None) -> None:
    """Refuse a destination that installing would destroy, unless this artifact made it."""
    dest = artifact.dest
    try:
        directory = stat.S_ISDIR(os.lstat(dest).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return
    if artifact.plain and directory:
        raise Problem(f"dest {dest} is a directory and must be the file's own path: add the file's name to it")
    if not artifact.unpack:
        return
    if not directory:
        raise Problem(f"dest {dest} is no directory, which unpack needs: remove it or choose another dest")
    mark = receipts.load(os.path.join(dest, receipts.TREE_MARK))
    ours = known is not None and known.layout["unpack"] and known.layout["dest"] == dest
    if not ours and not (mark and mark.name == artifact.name) and os.listdir(dest):
        raise Problem(f"dest {dest} holds files that {artifact.name} did not unpack: remove it or choose another")


def install_plain(artifact: Artifact, staged: host_files.Staged, uid: int, gid: int) -> list[FileRecord]:
    """Rename a complete download to its final name."""
    staged.settle(artifact.mode_of("", 0), uid, gid)
    record = FileRecord(artifact.dest, sha256=artifact.sha256)
    record.note(staged.commit())
    return [record]


def install_members(artifact: Artifact, archive: archives.Archive, uid: int, gid: int) -> tuple[list[FileRecord], bool]:
    """Put the chosen files of an archive in place, each in one step; tell whether any of them was not there already."""
    waiting: list[tuple[FileRecord, host_files.Staged]] = []
    installed: list[FileRecord] = []
    seen = Survey()
    with contextlib.ExitStack() as stack:
        for pick in archive.select(artifact.members):
            staged = stack.enter_context(files.Staged(pick.dest))
            with archive.open(pick.entry) as source:
                size, sha256 = files.copy(source, staged.file.write)
            record = FileRecord(pick.dest, sha256=sha256, src=pick.member.src, size=size)
            mode = artifact.mode_of(record.src, archive.content(pick.entry).mode)
            if _is_there(record, mode, uid, gid, seen):
                staged.discard()
                installed.append(record)
            else:
                staged.settle(mode, uid, gid)
                waiting.append((record, staged))
        for record, staged in waiting:
            record.note(staged.commit())
    receipts.repair(seen.drifted, uid, gid)
    return [*installed, *(record for record, _staged in waiting)], bool(waiting or seen.drifted)


def _is_there(record: FileRecord, mode: int, uid: int, gid: int, seen: Survey) -> bool:
    """Tell whether the file has these bytes already: then it stays, and what depends on its time sees no change."""
    try:
        status = os.lstat(record.path)
        if not record.intact(status):
            return False
    except OSError:
        return False
    record.note(status)
    if (record.mode, record.uid, record.gid) != (mode, uid, gid):
        seen.drifted.append((record, mode))
    return True


def install_tree(artifact: Artifact, archive: archives.Archive, uid: int, gid: int) -> list[FileRecord]:
    """Unpack everything beside the destination, then let it appear there at once; an older tree goes afterwards."""
    temp = host_files.temp_name(artifact.dest)
    os.makedirs(os.path.dirname(temp), exist_ok=True)
    os.mkdir(temp, 0o700)
    try:
        records = _unpack(archive, temp, artifact.dest, uid, gid)
        receipts.save(os.path.join(temp, receipts.TREE_MARK), Receipt.of(artifact, records))
        os.chmod(temp, 0o755)
        os.chown(temp, uid, gid)
        files.sync_file_system(temp)
        return _put_in_place(artifact, temp, uid, gid) or records
    finally:
        host_files.remove(temp)


def _unpack(archive: archives.Archive, temp: str, dest: str, uid: int, gid: int) -> list[FileRecord]:
    entries = [entry for entry in archive.entries.values() if entry.name != receipts.TREE_MARK]
    records: dict[str, FileRecord] = {}
    directories = {temp}
    # links follow what they lead to, so that nothing is ever written through one
    for entry in sorted(entries, key=lambda entry: (entry.kind == archives.HARDLINK, entry.kind == archives.SYMLINK)):
        path = os.path.join(temp, entry.name)
        parent = path if entry.kind == archives.DIRECTORY else os.path.dirname(path)
        if parent not in directories:
            os.makedirs(parent, exist_ok=True)
            directories.add(parent)
        record = FileRecord(os.path.join(dest, entry.name))
        if entry.kind == archives.FILE:
            record.sha256 = _write(archive, entry, path, uid, gid)
        elif entry.kind == archives.SYMLINK:
            record.link = entry.target
            os.symlink(entry.target, path)
            os.lchown(path, uid, gid)
        elif entry.kind == archives.HARDLINK:
            record.sha256 = records[entry.target].sha256
            os.link(os.path.join(temp, entry.target), path)
        else:
            os.chown(path, uid, gid)
            os.chmod(path, entry.mode | 0o700)
            continue
        records[entry.name] = record
    for name, record in records.items():
        record.note(os.lstat(os.path.join(temp, name)))
    return list(records.values())


def _write(archive: archives.Archive, entry: archives.Entry, path: str, uid: int, gid: int) -> str:
    """Write one file of a new tree; keep its time, by which a build decides what is up to date."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file, archive.open(entry) as source:
        sha256 = files.copy(source, file.write)[1]
        file.flush()
        os.fchown(fd, uid, gid)
        os.fchmod(fd, entry.mode)
        os.utime(fd, (entry.mtime, entry.mtime))
    return sha256


def _put_in_place(artifact: Artifact, temp: str, uid: int, gid: int) -> list[FileRecord] | None:
    """Give the new tree its name; return the records of another node's if that was faster on shared storage."""
    dest = artifact.dest
    try:
        os.rename(temp, dest)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        theirs = receipts.load(os.path.join(dest, receipts.TREE_MARK))
        if theirs and theirs.answers(artifact) and not receipts.survey(theirs, artifact, uid, gid).broken:
            return theirs.files
        if not files.exchange(temp, dest):
            aside = host_files.temp_name(dest, "old")
            os.rename(dest, aside)
            os.rename(temp, dest)
            host_files.remove(aside)
    host_files.sync(os.path.dirname(dest))
    return None
