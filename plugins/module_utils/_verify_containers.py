# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stage `containers`: srun --container-image works on every partition, and a container sees what it should."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from ansible_collections.pcluster.postboot.plugins.module_utils import _verify
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import Check, Context, Node, Output

# Nothing but the shell: it must run in the smallest of images too.
SEES = """
while read -r a b device root point rest; do [ "$point" = / ] && say root "$device $root"; done < /proc/self/mountinfo
(. /etc/os-release && say os "$PRETTY_NAME")
nvidia-smi -L 2> /dev/null | while read -r gpu; do say gpu "$gpu"; done
"""
HOST = 'say enroot "$(enroot version 2>&1)"\n' + SEES


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


def run(context: Context) -> Iterator[Check]:
    """Yield what becomes of each check."""
    if "--container-image" not in context.slurm("srun", "--help"):
        yield Check("pyxis", "cluster", "failed", "srun knows no --container-image; run site with --tags enroot,pyxis")
        return
    yield Check("pyxis", "cluster", "ok", "srun knows --container-image")
    image = context.options.image or smallest(context.options.images_dir)
    if not image:
        why = f"there is no image in {context.options.images_dir}; wait for one, or set verify_container_image"
        yield Check("image", "cluster", "failed", why)
        return
    for partition, nodes, skipped in context.selected("container"):
        if skipped:
            yield skipped
            continue
        yield from _partition(context, partition, nodes, image)


def _partition(context: Context, partition: str, nodes: Sequence[Node], image: str) -> Iterator[Check]:
    names = [node.name for node in nodes]
    host = context.srun(partition, nodes, HOST)
    if _verify.is_busy(host):
        yield Check("container", partition, "skipped", f"its nodes had no room within {context.options.wait} s")
        return
    if host.code or set(names) - set(host.values):
        yield Check("job", partition, "failed", _why(host, names, "srun"), {"nodes": names})
        return
    yield _enroot(partition, host, names)
    inside = context.srun(partition, nodes, SEES, f"--container-image={image}")
    details = {"nodes": names, "image": image, "host": host.values, "container": inside.values}
    if _verify.is_busy(inside):
        yield Check("container", partition, "skipped", f"its nodes had no room within {context.options.wait} s")
        return
    problem = _why(inside, names, f"srun --container-image={image}") if inside.code else ""
    for name in names if not problem else ():
        seen, outside = inside.values.get(name, {}), host.values[name]
        if not seen.get("root"):
            problem = f"the container on {name} said nothing"
        elif seen["root"][-1] == outside.get("root", [""])[-1]:
            problem = f"the job on {name} ran on the host, and not in {image}"
        elif not seen.get("os"):
            problem = f"the container on {name} has no /etc/os-release"
    if problem:
        yield Check("container", partition, "failed", problem, details)
        return
    systems = sorted({inside.values[name]["os"][-1] for name in names})
    yield Check("container", partition, "ok", f"{', '.join(systems)} on {', '.join(names)}", details)
    if all(node.gpus for node in nodes):
        yield _gpus(partition, host, inside, names)


def _why(output: Output, names: Sequence[str], what: str) -> str:
    silent = [name for name in names if name not in output.values]
    where = f" (no word from {', '.join(silent)})" if silent and len(silent) < len(names) else ""
    return f"{what} ended with {output.code}{where}: {'; '.join(output.errors) or 'it said nothing'}"


def _enroot(partition: str, host: Output, names: Sequence[str]) -> Check:
    found = {name: host.values[name].get("enroot", [""])[-1] for name in names}
    wrong = [name for name, version in found.items() if not version[:1].isdigit()]
    if wrong:
        return Check("enroot", partition, "failed", f"{wrong[0]} has none: {found[wrong[0]] or 'it said nothing'}")
    versions = sorted(set(found.values()))
    if len(versions) > 1:
        differ = ", ".join(f"{name} has {version}" for name, version in found.items())
        return Check("enroot", partition, "failed", f"its nodes have different versions: {differ}", {"versions": found})
    return Check("enroot", partition, "ok", f"Enroot {versions[0]}", {"versions": found})


def _gpus(partition: str, host: Output, inside: Output, names: Sequence[str]) -> Check:
    counts = {name: (len(inside.values[name].get("gpu", [])), len(host.values[name].get("gpu", []))) for name in names}
    details = {"container_and_host": counts}
    for name, (seen, there) in counts.items():
        if not there:
            return Check("gpus", partition, "skipped", f"nvidia-smi shows none on {name}: no driver", details)
        if seen != there:
            why = f"the container on {name} sees {seen} of {there} GPUs; see enroot's hook 98-nvidia.sh there"
            return Check("gpus", partition, "failed", why, details)
    return Check("gpus", partition, "ok", f"{counts[names[0]][0]} GPUs in the container", details)
