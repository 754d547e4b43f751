# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The image of containers: the one that is named, or one that is imported, or one of the node's own files.

The last has no more than is needed here, is made in some seconds by a job of the user's, and is gone after the run.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.cluster import Context, Node

# Writes an image as a tar archive: a shell, Python, and the libraries of both and of nvidia-smi. That itself and CUDA's
# library come to the container from outside. So do the files that the arguments are patterns for, and what lies beside
# them: the image has what they need of the rest of the system. A file of several names is there once, or libefa would
# be two libraries: libfabric knows it by one name, and libibverbs by the other.
PACK = """
import ctypes, glob, os, re, subprocess, sys, tarfile
paths = {"/bin/sh", sys.executable, "/etc/os-release", "/etc/debian_version", "/etc/nsswitch.conf"}
paths |= {module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)}
for pattern in ("ld.so.c*", "ld.so.conf.d/*", "libibverbs.d/efa*"):
    paths |= set(glob.glob("/etc/" + pattern))
outside = [path for pattern in sys.argv[1:] for path in glob.glob(pattern)]
folders = {os.path.dirname(path) for path in outside}
programs = [path for path in (*paths, "/usr/bin/nvidia-smi", *outside) if not path.startswith("/etc/")]
told = subprocess.run(["ldd", *programs], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True)
for path in set(re.findall(r"(/\\S+) \\(0x", told.stdout)):
    folder, name = os.path.split(path)
    if folder not in folders:
        paths.add(path)
    if name.startswith("libibverbs.so"):
        paths |= set(glob.glob(folder + "/libibverbs/libefa*"))
first = {}
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as tar:
    for top in filter(os.path.islink, ("/bin", "/lib", "/lib64")):
        tar.add(top)
        paths = {os.path.realpath(top) + path[len(top):] if path.startswith(top + "/") else path for path in paths}
    for path in sorted(filter(os.path.isfile, paths)):
        real = os.path.realpath(path)
        entry = tar.gettarinfo(real, path)
        if first.setdefault(real, entry.name) != entry.name:
            entry.type, entry.linkname, entry.size = tarfile.LNKTYPE, first[real], 0
        with open(real, "rb") as file:
            tar.addfile(entry, file)
"""
# Older mksquashfs read no archives. What tar makes of an archive that breaks off says nothing of the reason.
MAKE = f"""
umask 022
python=$(command -v python3) || {{ say problem 'there is no python3'; exit; }}
command -v mksquashfs > /dev/null || {{ say problem 'there is no mksquashfs; run site with --tags enroot'; exit; }}
work=$(mktemp -d) || {{ say problem 'mktemp failed'; exit; }}
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
[ ! -r "$environment" ] || . "$environment"
set -- "$tests/*_perf" '/opt/amazon/*/lib*/*.so*' '/opt/amazon/*/lib*/*/*.so*'
for folder in $(echo "${{LD_LIBRARY_PATH-}}" | tr : ' '); do set -- "$@" "$folder/*.so*"; done
told=$({{ "$python" -IS -c '{PACK}' "$@" | tar -x -C "$work" &&
  mksquashfs "$work" "$image" -noappend -all-root -no-xattrs -noD -noF -no-progress; }} 2>&1) ||
  {{ say problem "$(echo "$told" | grep -v '^tar: [ETU]' | tail -n 1 | cut -c 1-600)"; exit; }}
say image "$image"
"""
_WHAT_TO_DO = "name one in container_images_list, or set verify_container_image"


class Image(NamedTuple):
    """What a container is started from."""

    path: str  # as srun --container-image takes it; nothing where there is none
    name: str  # as people are told of it
    problem: str = ""  # why there is none
    busy: bool = False  # whether that is because no node had room


def find(context: Context, partition: str, nodes: Sequence[Node], pytorch: bool = False) -> Image:
    """Return the image for containers on nodes of a partition that are all with GPUs, or all without."""
    directory = context.options.images_dir
    path = context.options.image or (newest_pytorch(directory) if pytorch else "") or smallest(directory)
    return Image(path, path) if path else own(context, partition, nodes)


def own(context: Context, partition: str, nodes: Sequence[Node]) -> Image:
    """Return an image of the own files of nodes of a partition that are all with GPUs, or all without."""
    key = (partition, bool(nodes[0].gpus))
    if key not in context.images:
        # Nodes of one partition are alike.
        context.images[key] = _make(context, partition, nodes[0])
    image: Image = context.images[key]
    if image.busy:
        del context.images[key]
    return image


def script(image: str, nccl: cluster.Nccl) -> str:
    """Return what makes an image on a node, with what NCCL's tests need in a container."""
    values = {"image": image, "environment": nccl.environment, "tests": nccl.tests_dir}
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + MAKE


def _make(context: Context, partition: str, node: Node) -> Image:
    """Make an image of a node's own files."""
    options, name = context.options, "an image of the node's own files"
    none = f"there is no image in {options.images_dir}, and none was made of the node's own files"
    try:
        folder = context.images_folder()
    except Problem as error:
        return Image("", name, f"{none}: {error}; {_WHAT_TO_DO}")
    path = os.path.join(folder, f"{partition}-{node.name}.sqsh")
    # No GPUs: a node whose job has them all can still do it.
    seen = context.srun(partition, [node], script(path, options.nccl), gpus=False)
    if cluster.is_busy(seen):
        return Image("", name, context.no_room([node]), busy=True)
    told = seen.values.get(node.name, {})
    if told.get("image"):
        return Image(path, name)
    why = told.get("problem", [""])[-1] or "; ".join(seen.errors) or "the job said nothing"
    return Image("", name, f"{none}, as {node.name} says: {why}; {_WHAT_TO_DO}")


def smallest(directory: str) -> str:
    """Return the smallest image of a folder that everybody can read; nothing if there is none."""
    found = []
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        path = os.path.join(directory, name)
        if name.endswith(".sqsh") and not name.startswith("."):
            try:
                status = os.stat(path)
            except OSError:  # a link that leads nowhere, or what has just been removed
                continue
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o004:
                found.append((status.st_size, path))
    return min(found)[1] if found else ""


def newest_pytorch(directory: str) -> str:
    """Return the image that has most likely what the tests need: CUDA and MPI. The phase*.sbatch files take it, too."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    found = [name for name in names if "pytorch" in name and name.endswith(".sqsh") and not name.startswith(".")]
    found.sort(key=lambda name: [document.whole(part) or 0 for part in re.split(r"(\d+)", name)])
    return os.path.join(directory, found[-1]) if found else ""
