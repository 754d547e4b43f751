# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files and folders that other users may write to: nothing of theirs is followed, nor believed to be our own."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pwd
import secrets
import stat

from .errors import ImageError

LARGEST_LOG = 5_000_000
MOUNTS = "/proc/self/mounts"


def put(path: str, text: str, mode: int = 0o644) -> None:
    """Put a file in place in one step; whoever has opened the former one goes on to read that."""
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.new")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "w", encoding="utf-8") as stream:
        os.fchmod(descriptor, mode)
        stream.write(text)
        stream.flush()
        os.fsync(descriptor)
    os.rename(temporary, path)


def sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def peek(path: str, flags: int) -> int:
    """Open a file, and nothing else that users may have put there, such as a pipe that never ends."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file", path)
    return descriptor


def enter(path: str, user: str) -> tuple[int, str]:
    """Open a folder, making what is missing of it, and follow no link but root's own on the way to it.

    With it comes what on the way lets somebody else put something in its place; nothing if there is nothing. The
    cluster's own user may become root anyway.
    """
    uids, gids = {0, os.geteuid()}, {0, os.getegid()}
    with contextlib.suppress(KeyError):
        account = pwd.getpwnam(user)
        uids, gids = {*uids, account.pw_uid}, {*gids, account.pw_gid}
    kind, flaw, links = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, "", 0
    at, rest = os.open("/", kind), path.split("/")
    try:
        while rest:
            name = rest.pop(0) or "."
            try:
                below = os.open(name, kind, dir_fd=at)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=at)
                below = os.open(name, kind, dir_fd=at)
            except OSError as error:
                links += 1
                if error.errno not in (errno.ELOOP, errno.ENOTDIR) or links > 40:
                    raise
                target = target_of(name, at, uids)
                rest = [*target.split("/"), *rest]
                below = os.open("/" if target.startswith("/") else ".", kind, dir_fd=at)
            os.close(at)
            at, status, where = below, os.fstat(below), os.readlink(f"/proc/self/fd/{below}")
            mode = stat.S_IMODE(status.st_mode)
            if status.st_uid not in uids:
                flaw = flaw or f"{where} belongs to user {status.st_uid}; needed: chown root {where}"
            elif (mode & 0o002 or (mode & 0o020 and status.st_gid not in gids)) and not mode & stat.S_ISVTX:
                flaw = flaw or f"{where} has mode {mode:04o}; needed: chmod +t {where}"
    except BaseException:
        os.close(at)
        raise
    return at, flaw


def target_of(name: str, folder: int, uids: set[int]) -> str:
    """Return where a link leads that one of these users has made."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        status, where = os.fstat(descriptor), os.readlink(f"/proc/self/fd/{descriptor}")
        if not stat.S_ISLNK(status.st_mode):
            raise ImageError(f"{where} is no folder; remove it")
        if status.st_uid not in uids:
            raise ImageError(f"{where} is a link of user {status.st_uid}, and is not followed; remove it")
        return os.readlink("", dir_fd=descriptor)
    finally:
        os.close(descriptor)


def require_own(descriptor: int, path: str) -> None:
    """Refuse, and close, an open file that somebody else has put in the place of our own."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink != 1:
        os.close(descriptor)
        raise ImageError(f"{path} is not the importer's own file, so nothing is written to it; remove it")


def open_log(path: str, user: str) -> int:
    """Open a log at its end; one that is too large begins anew."""
    folder, name = enter(os.path.dirname(path), user)[0], os.path.basename(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, 0o644, dir_fd=folder)
        require_own(descriptor, path)
        if os.fstat(descriptor).st_size > LARGEST_LOG:
            os.close(descriptor)
            os.rename(name, f"{name}.1", src_dir_fd=folder, dst_dir_fd=folder)
            descriptor = os.open(name, flags | os.O_EXCL, 0o644, dir_fd=folder)
        return descriptor
    except OSError as error:
        raise ImageError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        os.close(folder)


def private(path: str) -> str:
    """Return a folder that nobody else can enter; make it where it is missing."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ImageError(f"{path} is not a folder that only root can enter, as it must be; remove it, or chmod 700 it")
    return path


def clear(path: str) -> None:
    """Empty a folder. Each folder in it moves up first, because an image's layer may be deeper than Python recurses."""
    folders = [path]
    while folders:
        folder = folders.pop()
        for name in os.listdir(folder):
            one = os.path.join(folder, name)
            if os.path.isdir(one) and not os.path.islink(one):
                folders.append(os.path.join(path, f".{secrets.token_hex(8)}"))
                os.rename(one, folders[-1])
            else:
                os.unlink(one)
        if folder != path:
            os.rmdir(folder)


def digest_of(path: str) -> str:
    try:
        with open(path, "rb", opener=peek) as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def is_mounted(path: str) -> bool:
    """Say whether a file system is mounted there now. An automount is asked to appear first."""
    with contextlib.suppress(OSError):
        os.stat(os.path.join(path, "."))
    return os.path.normpath(path) in {point for point, kind in mounts() if kind != "autofs"}


def mounts() -> list[tuple[str, str]]:
    """Return the mount points and the types of their file systems, those last that lie over others."""
    # A user may mount by FUSE at any path, and the kernel escapes no other blank and no other end of a line than these.
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape", newline="\n") as stream:
        return [(fields[1].replace("\\040", " "), fields[2]) for fields in (line.split(" ") for line in stream)]


def kind_of(path: str) -> str:
    real = os.path.realpath(path)
    over = [(len(point), kind) for point, kind in mounts() if os.path.commonpath([real, point]) == point]
    return max(reversed(over), key=lambda one: one[0])[1] if over else ""


def flaw_of(path: str) -> str:
    """Say what keeps a file from being a whole squashfs image; nothing if it is one."""
    try:
        with open(path, "rb", opener=peek) as stream:
            head = stream.read(96)
            found = os.fstat(stream.fileno()).st_size
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if len(head) < 96 or head[:4] != b"hsqs":
        return "it is no squashfs image"
    needed = int.from_bytes(head[40:48], "little")
    return f"it has {found} of {needed} bytes" if found < needed else ""
