#!/usr/bin/env python
# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a container's start reads of its image, unpacked by `enroot create` and mounted by squashfuse.

    python tests/bench/containers.py [--json FILE]

The image is a real squashfs of this machine's libraries and of this environment's Python and packages; the start is a
Python that imports some of them from it. What of the image comes from the disk for that, read-ahead included, is worked
out for one of 10 GB on many nodes. It needs squashfs-tools, squashfuse and a /dev/fuse that may be opened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import Figure, run

# As Enroot packs an image (ENROOT_SQUASH_OPTIONS, conf/enroot.conf.in of NVIDIA/enroot 4.1.2): its data as they are.
PACK = ("-comp", "lzo", "-noD", "-exit-on-error")
# As `enroot create` unpacks it, and `enroot start` mounts it (runtime::create and _mount_rootfs_shim, src/runtime.sh).
UNPACK = ("unsquashfs", "-no-progress", "-user-xattrs", "-d")
MOUNT = ("squashfuse", "-f")
PROGRAMS = ("mksquashfs", "unsquashfs", "squashfuse", "mountpoint", "umount", "fincore")
# What a script begins with, as far as this environment has it; and that all of it came from the image.
START = """
import argparse, asyncio, concurrent.futures, ctypes, json, logging, multiprocessing, os, pickle, random, socket, ssl
import subprocess, sys, threading, urllib.request
import boto3, jinja2, yaml
assert all(one.__file__.startswith(sys.argv[1]) for one in (json, ssl, boto3, jinja2, yaml))
"""
PATHS = {name: sysconfig.get_paths()[name] for name in ("stdlib", "purelib")}
IMAGE_GB = 10
# An FSx for Lustre of 12 TiB with 250 MB/s/TiB (its throughput: FSx for Lustre User Guide, "Performance").
GB_PER_SECOND = 12 * 0.25


class Missing(Exception):
    """What this machine lacks, on one line."""


def require() -> None:
    """Say what is missing before anything is made."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise Missing(f"{', '.join(missing)} not found; needed: squashfs-tools, squashfuse and util-linux")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        raise Missing(f"/dev/fuse cannot be opened ({error.strerror}); needed: root, or a kernel with FUSE") from error


def pack(image: Path, work: Path) -> None:
    """Make an image of the system's libraries, a Python and its packages; of Ansible's collections none, for time."""
    (work / "bin").mkdir()
    shutil.copy(os.path.realpath(sys.executable), work / "bin/python")
    sources = [str(work / "bin"), *PATHS.values(), f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"]
    line = ["mksquashfs", *sources, str(image), "-noappend", "-quiet", "-no-progress", "-all-root", *PACK]
    subprocess.run([*line, "-wildcards", "-e", "*/ansible_collections"], check=True, stdout=subprocess.DEVNULL)


def in_memory(image: Path) -> int:
    line = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(image)]
    return int(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)


def forget(image: Path) -> None:
    descriptor = os.open(image, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if in_memory(image):
        raise Missing(f"{image.parent} keeps files in memory; needed: a disk (TMPDIR)")


def unpacked(image: Path, work: Path) -> int:
    """Unpack an image as `enroot create` does; return what was read of it."""
    forget(image)
    subprocess.run([*UNPACK, str(work / "rootfs"), str(image)], check=True, stdout=subprocess.DEVNULL)
    found = in_memory(image)
    shutil.rmtree(work / "rootfs")
    return found


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[None]:
    """Mount an image as `enroot start` does."""
    at.mkdir()
    process = subprocess.Popen([*MOUNT, str(image), str(at)], stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 10
        while subprocess.run(["mountpoint", "--quiet", str(at)], check=False).returncode:
            if process.poll() is not None or time.monotonic() > end:
                process.kill()
                raise Missing(f"squashfuse mounts nothing here: {process.communicate()[1].strip()}")
            time.sleep(0.01)
        yield
    finally:
        if process.poll() is None:
            subprocess.run(["umount", str(at)], check=True)
            process.wait()


def started(image: Path, at: Path) -> int:
    """Start a Python from a mounted image; return what was read of the image for that."""
    forget(image)
    with mounted(image, at):
        library = at / Path(PATHS["stdlib"]).name
        places = [library, library / "lib-dynload", at / Path(PATHS["purelib"]).name]
        environment = {"PYTHONPATH": ":".join(map(str, places)), "PYTHONDONTWRITEBYTECODE": "1"}
        line = [str(at / "bin/python"), "-S", "-c", START, str(at)]
        subprocess.run(line, check=True, env=environment, cwd="/")
        return in_memory(image)


def measure() -> list[Figure]:
    require()
    with tempfile.TemporaryDirectory(prefix="postboot-bench-") as folder:
        work = Path(folder)
        image = work / "image.sqsh"
        pack(image, work)
        size = image.stat().st_size
        whole, touched = unpacked(image, work) / size, started(image, work / "mounted") / size
    figures = [
        Figure("the image that is measured", size / 1e6, "MB"),
        Figure("enroot create reads of it", 100 * whole, "%"),
        Figure("squashfuse reads of it until Python has its modules", 100 * touched, "%"),
    ]
    for nodes in (64, 1024):
        of = f"start of a {IMAGE_GB} GB image on {nodes:,} nodes"
        for how, share, bounds in (("unpacked", whole, {}), ("mounted", touched, {"at_most": float(nodes)})):
            read = IMAGE_GB * share * nodes
            figures += [
                Figure(f"{of}, {how}: read from the shared file system", read, "GB", **bounds),
                Figure(f"{of}, {how}: at {GB_PER_SECOND:g} GB/s", read / GB_PER_SECOND / 60, "minutes"),
            ]
    return figures


if __name__ == "__main__":
    try:
        raise SystemExit(run("Containers: what a start reads of its image", measure))
    except Missing as missing:
        sys.exit(f"containers: {missing}")
