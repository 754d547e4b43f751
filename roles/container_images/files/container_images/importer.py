# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The importer: brings what is wanted and missing, a few images at a time, and says how far it is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import threading
import time
from typing import Any

from .enroot import FOLDERS, Enroot, program, trouble_in
from .errors import ImageError, Trouble
from .files import clear, digest_of, enter, flaw_of, is_mounted, kind_of, open_log, private, put, require_own, sync
from .names import Image, parse, read_list
from .registry import Manifest, Registry
from .settings import Login, Settings, read_credentials, read_settings
from .state import STATE, Entry, failures_of, is_settled, read_state, size, when
from .text import visible

LOCK, PARTS, PART = ".images.lock", ".images.part", ".importing"
# What an image needs where, as a multiple of its compressed size: enroot keeps and unpacks its layers in the working
# folder, and its squashfs is hardly compressed.
WORK_FACTOR, IMAGE_FACTOR = 4, 3
# The table of module_utils/_node/storage.py, which is not on the node: on these file systems no overlay works.
NETWORK = (
    *("lustre", "nfs", "nfs4", "efs", "cifs", "smb3", "beegfs", "weka", "wekafs", "gpfs", "ceph", "glusterfs"),
    *("afs", "9p"),
)


class Importer:
    """Imports what is wanted and missing, a few images at a time."""

    def __init__(self, settings_path: str, list_path: str = "") -> None:
        self.settings_path, self.list_path = settings_path, list_path
        self.settings = self._settings()
        self.outside = dict(os.environ)
        self.wanted: dict[str, Image] = {}
        self.entries: dict[str, Entry] = {}
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.logins: dict[str, Login] = {}
        self.seen: dict[str, Any] = {"asked": 0.0}
        self.stamp: object = None
        self.looked = 0.0
        self.tries: dict[str, tuple[float | None, float]] = {}
        self.jobs: dict[str, threading.Thread] = {}
        self.reserved: dict[str, int] = {}
        self.guard = threading.RLock()
        self.stop, self.asked = threading.Event(), threading.Event()
        self.lock: int | None = None
        self.told = self.mute = ""
        self.dirty, self.saved = True, 0.0

    def _settings(self) -> Settings:
        settings = read_settings(self.settings_path)
        return settings._replace(images=[], file=self.list_path) if self.list_path else settings

    def run(self, once: bool) -> int:
        """Import until told to stop; with `once`, until there is nothing left to try."""
        try:
            while not self.stop.is_set():
                if self._step() and once:
                    break
                self.stop.wait(0.2 if self.jobs or once else 2)
        finally:
            self.stop.set()
            for job in self.jobs.values():
                job.join()
            if self.lock is not None:
                self._save()
                self._unlock()
        failures = failures_of({"images": self.entries, "problems": self.problems})
        return 1 if failures else 0

    def _step(self) -> bool:
        """Do what is due, and say whether nothing is left to do for now."""
        if self.settings.mount and not is_mounted(self.settings.mount):
            self._tell_once(f"{self.settings.mount} is not mounted: nothing is imported until it is")
            return False
        self._refresh()
        self.jobs = {name: job for name, job in self.jobs.items() if job.is_alive()}
        now = time.monotonic()
        due = [
            name
            for name, entry in self.entries.items()
            if entry["state"] != "present" and name not in self.jobs and not self._waits(name, entry)
        ]
        settled = not due and is_settled({"images": self.entries})
        # Whoever waits for another try still says now and then that it lives.
        if not due and not self.jobs and not self.dirty and (settled or now - self.saved < 30):
            if settled:
                self._unlock()
            return settled
        if not self._take_lock():
            return False
        for name in due[: max(0, self.settings.parallel - len(self.jobs))]:
            self._begin(name)
        if (self.dirty and now - self.saved > 1) or now - self.saved > 30:
            self._save()
        if not self.jobs and not due:
            self._save()
        return False

    def _waits(self, name: str, entry: Entry) -> bool:
        """Say whether an image waits for its next try. The time is kept for people; the clock may be set meanwhile."""
        told, until = self.tries.get(name, (None, 0.0))
        if told != entry.get("next_try", 0):
            told = entry.get("next_try", 0)
            until = time.monotonic() + told - time.time()
            self.tries[name] = (told, until)
        return time.monotonic() < until

    # What is wanted

    def _refresh(self) -> None:
        """Read the lists again where they have changed, where it was asked for, and now and then."""
        asked = self.asked.is_set()
        self.asked.clear()
        read = (self.settings_path, self.settings.file, self.settings.credentials, program(self.settings))
        stamp = [_stamp(path) for path in read]
        if stamp == self.stamp and not asked and time.monotonic() - self.looked < self.settings.retry_interval:
            return
        if asked:
            self.seen["asked"] = time.time()
        first, changed = self.stamp is None, stamp != self.stamp
        self.stamp, self.looked = stamp, time.monotonic()
        try:
            self.settings = self._settings()
        except ImageError as error:
            self._tell_once(f"{error}; the settings from before go on")
        # Proxies, for this program's own requests too.
        environment = {**self.outside, **self.settings.environment}
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)
        self.seen.update(settings=digest_of(self.settings_path), file=digest_of(self.settings.file))
        listed, self.problems = read_list(self.settings.file)
        self.wanted = {**{str(parse(text)): parse(text) for text in self.settings.images}, **listed}
        self.logins = {}
        if self.settings.credentials:
            try:
                self.logins = read_credentials(self.settings.credentials)
            except ImageError as error:
                self.problems.append(str(error))
        before_warnings, self.warnings = self.warnings, self._warnings()
        new = [line for line in self.warnings if line not in before_warnings]
        for line in [*(self.problems if changed else ()), *new]:
            self.say(line)
        with self.guard:
            before = read_state(self.settings.directory)["images"] if first else self.entries
            self.entries = {
                name: self._entry(image, before.get(name), asked or changed) for name, image in self.wanted.items()
            }
            self.dirty = True

    def _warnings(self) -> list[str]:
        """Say which of the shared folders are not safe from others."""
        warnings, logs = [], self.settings.logs or os.path.dirname(self.settings.log)
        for what, path in (("images", self.settings.directory), *([("logs", logs)] if logs else [])):
            try:
                folder, flaw = enter(path, self.settings.user)
                os.close(folder)
                warnings += [f"others can replace the {what} in {path}: {flaw}"] if flaw else []
            except (OSError, ImageError) as error:
                warnings.append(f"{path}: {error}")
        return warnings

    def _entry(self, image: Image, before: Entry | None, anew: bool) -> Entry:
        """Say how far an image is, from its file and from what was known of it."""
        name, path = str(image), os.path.join(self.settings.directory, image.file)
        old = before or {}
        if name in self.jobs:
            return old
        entry: Entry = {"file": image.file, "state": "queued", "digest": None}
        with contextlib.suppress(OSError):
            status = os.stat(path)
            flaw = flaw_of(path)
            if not flaw:
                # A digest was noted before its file appeared. Another file under this name is somebody else's.
                mine = old.get("state") == "importing" or old.get("inode") == status.st_ino
                found: Entry = {"state": "present", "size": status.st_size, "inode": status.st_ino}
                kept: Entry = {key: old[key] for key in ("digest", "finished") if mine and key in old}
                return {**entry, **found, **kept}
            if time.time() - status.st_mtime < 600:
                return {**entry, "state": "failed", "why": f"{path} is being written by somebody else ({flaw})",
                        "next_try": time.time() + 60}  # fmt: skip
            return {**entry, "state": "failed", "why": f"{path} is no image of the importer's ({flaw}); remove it",
                    "next_try": time.time() + self.settings.retry_interval}  # fmt: skip
        if not anew and old.get("state") in ("failed", "retrying"):
            return old
        return entry

    # One image

    def _begin(self, name: str) -> None:
        # By now somebody may have put a file there, or taken a broken one away.
        entry = self.entries[name] = {**self.entries[name], **self._entry(self.wanted[name], self.entries[name], True)}
        self.dirty = True
        if entry["state"] != "queued":
            return
        entry.update(state="importing", since=time.time(), attempts=entry.get("attempts", 0) + 1)
        self.jobs[name] = threading.Thread(target=self._attempt, args=(self.wanted[name], entry))
        self.jobs[name].start()

    def _attempt(self, image: Image, entry: Entry) -> None:
        """Try to import one image, and note how that went."""
        try:
            self._import(image, entry)
            return
        except Trouble as error:
            trouble = error
        except (OSError, ImageError, subprocess.SubprocessError) as error:
            trouble = Trouble(str(error), again=True)
        except Exception as error:  # such as what nobody has thought a registry would answer
            trouble = Trouble(f"the importer has no answer to this error: {error!r}", again=True)
        finally:
            with self.guard:
                self.reserved.pop(str(image), None)
                with contextlib.suppress(OSError):
                    os.unlink(self._part(image))
        with self.guard:
            entry.pop("layers", None)
            self.dirty = True
            if self.stop.is_set():
                entry.update(state="queued", attempts=0)
                return
            wait, state = self.settings.retry_interval, "failed"
            if trouble.again and entry["attempts"] < self.settings.retries:
                wait = max(min(self.settings.retry_wait * 2 ** (entry["attempts"] - 1), 900), trouble.after)
                state = "retrying"
            tries = f", tried {entry['attempts']} times" if entry["attempts"] > 1 and state == "failed" else ""
            entry.update(state=state, why=str(trouble) + tries, next_try=time.time() + wait)
            if state == "failed":
                entry["attempts"] = 0
        self.say(f"{image}: {entry['why']}; next try in {wait:.0f} s")

    def _import(self, image: Image, entry: Entry) -> None:
        if not program(self.settings):
            raise Trouble("enroot is not on this node; needed: the component enroot")
        folder, flaw = enter(self.settings.directory, self.settings.user)
        os.close(folder)
        if flaw:  # a link in its place would have enroot, as root, write wherever somebody likes
            raise Trouble(f"{self.settings.directory} is not safe from others, and nothing is imported into it: {flaw}")
        manifest = Registry(self.settings, self.logins).manifest(image)
        with self.guard:
            entry.update(digest=manifest.digest, download=manifest.size, layers=[0, len(manifest.layers)])
            self.dirty = True
        self._require_space(image, manifest)
        self.say(f"{image}: importing {size(manifest.size)} in {len(manifest.layers)} layers, {manifest.digest}")
        begun, part = time.monotonic(), self._part(image)
        private(os.path.dirname(part))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        output, code = self._enroot(image, manifest, part, entry)
        if self.stop.is_set():
            raise Trouble("stopped")
        if code:
            raise trouble_in(output, code, image, bool(self.logins.get(image.host.partition(":")[0])))
        flaw = flaw_of(part)
        if flaw:
            raise Trouble(f"enroot made a file that cannot be used: {flaw}", again=True)
        os.chmod(part, 0o644)
        sync(part)
        final = os.path.join(self.settings.directory, image.file)
        with self.guard:
            self._save()  # the digest, before the file to which it belongs
            os.rename(part, final)
            sync(self.settings.directory)
            status = os.stat(final)
            for key in ("layers", "download", "why", "next_try", "attempts", "since"):
                entry.pop(key, None)
            entry.update(state="present", size=status.st_size, inode=status.st_ino, finished=time.time())
            self.dirty = True
        self.say(f"{image}: done, {final} has {size(status.st_size)}, after {time.monotonic() - begun:.0f} s")

    def _require_space(self, image: Image, manifest: Manifest) -> None:
        """Wait for the room that other imports take; refuse an image for which there is none without them either."""
        work, told = private(self.settings.work), False
        kind = kind_of(work)
        if kind in NETWORK or kind.startswith("fuse."):
            raise Trouble(
                f"container_images_work_dir: found {work}, which is on {kind}, where enroot cannot unpack an image; "
                "needed: a folder on a disk of this node's own"
            )
        while True:
            with self.guard:
                lack = self._lack(work, manifest)
                if not lack:
                    self.reserved[str(image)] = manifest.size
                    return
                if not self.reserved:
                    raise Trouble(lack)
            if not told:
                self.say(f"{image}: waits until other images are there, because {lack}")
                told = True
            if self.stop.wait(1):
                raise Trouble("stopped")

    def _lack(self, work: str, manifest: Manifest) -> str:
        """Say where an image has no room beside those that are being imported; nothing if it has."""
        others = sum(self.reserved.values())
        for path, factor in ((self.settings.directory, IMAGE_FACTOR), (work, WORK_FACTOR)):
            status = os.statvfs(path)
            free = status.f_bavail * status.f_frsize - others * factor
            if free < manifest.size * factor:
                needed = f"the image needs about {size(manifest.size * factor)}"
                advice = "make room there"
                if path == work:
                    needed += f" there, {factor} times its download"
                    advice += ", or set container_images_work_dir to a folder on a larger disk of this node's own"
                return f"{path} has {size(max(0, free))} free, and {needed}; {advice}"
        return ""

    def _enroot(self, image: Image, manifest: Manifest, part: str, entry: Entry) -> tuple[str, int]:
        """Let enroot import exactly what the manifest names; return what it said and its exit status."""
        enroot = Enroot(self.settings, self.logins)
        with self.guard:
            cache = enroot.prepare()
        told, deadline, count = time.monotonic(), time.monotonic() + self.settings.timeout, len(manifest.layers)

        def goes_on() -> bool:
            nonlocal told
            if self.stop.wait(0.2) or time.monotonic() > deadline:
                return False
            layers = [os.path.join(cache, layer.partition(":")[2]) for layer in manifest.layers]
            done = sum(map(os.path.exists, layers))
            if entry.get("layers") != [done, count]:
                entry["layers"], self.dirty = [done, count], True
            if time.monotonic() - told >= 30:
                told = time.monotonic()
                made = f", {size(os.path.getsize(part))} written" if os.path.exists(part) else ""
                self.say(f"{image}: {done} of {count} layers are here{made}")
            return True

        result = enroot.run(image, manifest.digest, part, self._log_of(image), goes_on)
        if time.monotonic() > deadline:
            raise Trouble(f"not imported within {self.settings.timeout:.0f} s (container_images_timeout)", again=True)
        return result

    def _log_of(self, image: Image) -> int:
        """Open the file for what enroot says of an image. No import fails for it."""
        if self.settings.logs:
            try:
                path = os.path.join(self.settings.logs, f"{image.file[: -len('.sqsh')]}.log")
                descriptor = open_log(path, self.settings.user)
                os.ftruncate(descriptor, 0)
                return descriptor
            except (OSError, ImageError) as error:
                self.say(f"{image}: what enroot says is not kept: {error}")
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def _part(self, image: Image) -> str:
        """Return where an image is made: beside the others, but where nobody else can put a link in its way."""
        return os.path.join(self.settings.directory, PARTS, f"{image.file}{PART}")

    # One importer at a time

    def _take_lock(self) -> bool:
        """Become the one that imports into this folder. What others have left is cleared away first."""
        if self.lock is not None:
            return True
        os.makedirs(self.settings.directory, mode=0o755, exist_ok=True)
        path = os.path.join(self.settings.directory, LOCK)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        require_own(descriptor, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 100).decode("utf-8", "replace").strip()
            os.close(descriptor)
            self._tell_once(f"another importer is at work ({holder or 'unknown'}): waiting for it")
            return False
        except OSError:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{socket.gethostname()}, process {os.getpid()}\n".encode(), 0)
        self.lock, self.told = descriptor, ""
        self._clear()
        return True

    def _unlock(self) -> None:
        if self.lock is not None:
            # Layers are kept for as long as an image that may share them is missing.
            self._clear(cache=all(entry["state"] == "present" for entry in self.entries.values()))
            os.close(self.lock)
            self.lock = None

    def _clear(self, cache: bool = False) -> None:
        """Remove what imports have left, and the layers too once nobody needs them for another try."""
        parts = os.path.join(self.settings.directory, PARTS)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(parts):
                if name.endswith(PART):
                    os.unlink(os.path.join(parts, name))
            os.rmdir(parts)
        work = private(self.settings.work)
        for kind in FOLDERS:
            if cache or kind != "cache":
                clear(private(os.path.join(work, kind)))

    # What it tells

    def _save(self) -> None:
        """Write how far everything is; only whoever has the lock does. Other images that are there stay known."""
        with self.guard:
            before, images = read_state(self.settings.directory), dict(self.entries)
            for name, entry in before["images"].items():
                if name not in images and os.path.exists(os.path.join(self.settings.directory, str(entry.get("file")))):
                    images[name] = entry
            state = {
                "images": images,
                "problems": self.problems,
                "warnings": [*self.warnings, *([self.mute] if self.mute else [])],
                # An importer of another list says nothing of what the usual one has read.
                "seen": before["seen"] if self.list_path else self.seen,
                "host": socket.gethostname(),
                "updated": time.time(),
            }
            put(os.path.join(self.settings.directory, STATE), json.dumps(state, indent=1, sort_keys=True) + "\n")
            self.dirty, self.saved = False, time.monotonic()

    def say(self, line: str) -> None:
        """Tell the journal, and the log that users read."""
        line = " ".join(line.split())
        print(visible(line), flush=True)
        if not self.settings.log:
            return
        try:
            with self.guard, open(open_log(self.settings.log, self.settings.user), "a", encoding="utf-8") as stream:
                stream.write(f"{when(time.time())} {visible(line)}\n")
            self.mute = ""
        except (OSError, ImageError) as error:
            if str(error) != self.mute:
                self.mute = str(error)
                print(visible(self.mute), flush=True)

    def _tell_once(self, line: str) -> None:
        if line != self.told:
            self.told = line
            self.say(line)


def _stamp(path: str) -> object:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode
