# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stage `containers`: srun --container-image works on every partition, and a container sees what it should.

On nodes with GPUs where Docker is enabled, one of its containers does, too. Only root may ask Docker for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import shown
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import image as verify_image
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.cluster import Context, Node, Output
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.report import Check

# Nothing but the shell: it must run in the smallest of images too.
SEES = """
while read -r a b device root point rest; do [ "$point" = / ] && say root "$device $root"; done < /proc/self/mountinfo
(. /etc/os-release && say os "$PRETTY_NAME")
nvidia-smi -L 2> /dev/null | while read -r gpu; do say gpu "$gpu"; done
"""
HOST = """
say enroot "$(enroot version 2>&1)"
! systemctl is-enabled --quiet docker.service 2> /dev/null || say docker enabled
! PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2> /dev/null | grep -qF 'libcuda.so.1 ' || say libcuda yes
"""
HOST += SEES

# How many GPUs CUDA has once it has started.
_CUDA = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    print("none")
else:
    count = ctypes.c_int()
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    print(f"error {code}" if code else count.value)
"""
# The same in a container, where the image may have no Python, and besides that nothing but the shell.
CUDA = f"""
cuda='{_CUDA}'
if python=$(command -v python3); then
  told=$("$python" -IS -c "$cuda" 2>&1)
  say cuda "${{told##*
}}"
else
  say cuda untried
fi
"""
# The first start of CUDA on a node may make /dev/nvidia-uvm, without which it does not start in a container: libcuda
# has nvidia-modprobe make that on the host. So CUDA starts in containers first: in Enroot's, because Docker's hook may
# make the device as well, then in Docker's, and then on the host.
DOCKER = f"""
cuda='{_CUDA}'
python=$(command -v python3) || {{ say problem 'there is no python3'; exit; }}
image=postboot-verify:$SLURM_JOB_ID
run() {{ timeout 120 docker run --rm --network none --gpus all "$image" "$@" 2>&1; }}
told=$("$python" -IS -c '{verify_image.PACK}' | docker import - "$image" 2>&1) ||
  {{ say problem "docker import failed: $(echo "$told" | tail -n 1)"; exit; }}
trap 'docker rmi --force "$image" > /dev/null 2>&1' EXIT
# Docker has the reason first, and after it how to get help.
seen=$(run nvidia-smi -L) || {{ say problem "$(echo "$seen" | head -n 1 | cut -c 1-600)"; exit; }}
echo "$seen" | while read -r gpu; do say gpu "$gpu"; done
say cuda "$(run "$python" -IS -c "$cuda" | tail -n 1 | cut -c 1-600)"
say cuda_host "$("$python" -IS -c "$cuda" 2>&1 | tail -n 1)"
"""


def run(context: Context) -> Iterator[Check]:
    """Yield what becomes of each check."""
    if "--container-image" not in context.slurm("srun", "--help"):
        yield Check("pyxis", "cluster", "failed", "srun knows no --container-image; run site with --tags enroot,pyxis")
        return
    yield Check("pyxis", "cluster", "ok", "srun knows --container-image")
    for partition, nodes, skipped in context.selected("container"):
        if skipped:
            yield skipped
            continue
        kinds = cluster.kinds(nodes)
        for kind in kinds:
            which = f" {'with' if kind[0].gpus else 'without'} GPUs" if len(kinds) > 1 else ""
            yield from _nodes(context, partition, partition + which, kind)


def _nodes(context: Context, partition: str, subject: str, nodes: Sequence[Node]) -> Iterator[Check]:
    """Yield the checks of some nodes of a partition, which are all with GPUs or all without."""
    names = [node.name for node in nodes]
    host = context.srun(partition, nodes, HOST)
    if cluster.is_busy(host):
        yield Check("container", subject, "skipped", f"its nodes had no room within {context.options.wait} s")
        return
    if host.code or set(names) - set(host.values):
        yield Check("job", subject, "failed", _why(host, names, "srun"), {"nodes": names})
        return
    yield _enroot(subject, host, names)
    yield from _container(context, partition, subject, nodes, host)
    yield from _docker(context, partition, subject, nodes, host)


def _container(context: Context, partition: str, subject: str, nodes: Sequence[Node], host: Output) -> Iterator[Check]:
    """Yield the checks of a container of Enroot's on these nodes."""
    names = [node.name for node in nodes]
    image = verify_image.find(context, partition, nodes)
    if not image.path:
        yield Check("container", subject, "skipped" if image.busy else "failed", image.problem)
        return
    script = SEES + CUDA if nodes[0].gpus else SEES
    inside = context.srun(partition, nodes, script, f"--container-image={image.path}")
    details = {"nodes": names, "image": image.name, "host": host.values, "container": inside.values}
    if cluster.is_busy(inside):
        yield Check("container", subject, "skipped", f"its nodes had no room within {context.options.wait} s")
        return
    problem = _why(inside, names, f"srun --container-image={image.path}") if inside.code else ""
    for name in names if not problem else ():
        seen, outside = inside.values.get(name, {}), host.values[name]
        if not seen.get("root"):
            problem = f"the container on {name} said nothing"
        elif seen["root"][-1] == outside.get("root", [""])[-1]:
            problem = f"the job on {name} ran on the host, and not in {image.name}"
        elif not seen.get("os"):
            problem = f"the container on {name} has no /etc/os-release"
    if problem:
        yield Check("container", subject, "failed", problem, details)
        return
    systems = sorted({inside.values[name]["os"][-1] for name in names})
    yield Check("container", subject, "ok", f"{', '.join(systems)} on {shown(names)}, from {image.name}", details)
    if nodes[0].gpus:
        cuda, untried = _cuda(context, partition, nodes, host, inside, image)
        yield _gpus(subject, host, inside, {node.name: node.gpus for node in nodes}, cuda, untried)


def _why(output: Output, names: Sequence[str], what: str) -> str:
    silent = [name for name in names if name not in output.values]
    where = f" (no word from {shown(silent)})" if silent and len(silent) < len(names) else ""
    return f"{what} ended with {output.code}{where}: {'; '.join(output.errors) or 'it said nothing'}"


def _enroot(subject: str, host: Output, names: Sequence[str]) -> Check:
    found = {name: host.values[name].get("enroot", [""])[-1] for name in names}
    wrong = [name for name, version in found.items() if not version[:1].isdigit()]
    if wrong:
        return Check("enroot", subject, "failed", f"{wrong[0]} has no Enroot: {found[wrong[0]] or 'it said nothing'}")
    of: dict[str, list[str]] = {}
    for name, version in found.items():
        of.setdefault(version, []).append(name)
    if len(of) > 1:
        differ = ", ".join(f"{shown(some)} {'has' if len(some) == 1 else 'have'} {one}" for one, some in of.items())
        return Check("enroot", subject, "failed", f"its nodes have different versions: {differ}", {"versions": found})
    return Check("enroot", subject, "ok", f"Enroot {found[names[0]]}", {"versions": found})


def _docker(context: Context, partition: str, subject: str, nodes: Sequence[Node], host: Output) -> Iterator[Check]:
    nodes = [node for node in nodes if node.gpus and {"docker", "gpu"} <= set(host.values[node.name])]
    if not nodes:
        return
    seen = context.srun(partition, nodes, DOCKER, root=True)
    if cluster.is_busy(seen):
        yield Check("docker", subject, "skipped", context.no_room(nodes))
        return
    refused = [error for error in seen.errors if "Unable to allocate resources" in error]
    if refused:
        why = f"Slurm takes no job of root's, who alone may use Docker: {refused[0]}"
        yield Check("docker", subject, "skipped", why)
        return
    details = {"host": {node.name: host.values[node.name] for node in nodes}, "container": seen.values}
    for node in nodes:
        told = seen.values.get(node.name, {})
        problem = _docker_problem(told, len(host.values[node.name]["gpu"]), seen.errors)
        if problem:
            why = f"{node.name}: {problem}; run site with --tags docker,nvidia_container_toolkit"
            yield Check("docker", subject, "failed", why, details)
            return
    without = [node.name for node in nodes if seen.values[node.name]["cuda_host"] == ["none"]]
    verb = "has" if len(without) == 1 else "have"
    more = f"; CUDA was not tried, as {shown(without)} {verb} no libcuda.so.1" if without else ", and CUDA starts there"
    count = len(host.values[nodes[0].name]["gpu"])
    yield Check("docker", subject, "ok", f"{count} GPUs in a container of Docker's{more}", details)


def _docker_problem(told: Mapping[str, Sequence[str]], gpus: int, errors: Sequence[str]) -> str:
    """Return what a container of Docker's lacks on a node, on one line; nothing where it is well."""
    outside, inside = told.get("cuda_host", [""])[-1], told.get("cuda", [""])[-1]
    seen, where = len(told.get("gpu", [])), "in a container of Docker's"
    if told.get("problem"):
        return told["problem"][-1]
    if not outside or not inside:
        return f"the job said nothing{': ' if errors else ''}{'; '.join(errors)}"
    if seen != gpus:
        return f"nvidia-smi sees {seen} of {gpus} GPUs {where}"
    if outside == "none":
        return ""
    if not outside.isdigit():
        return f"CUDA does not start on the node itself: {outside}"
    if not inside.isdigit():
        return f"CUDA does not start {where}: {'no libcuda.so.1' if inside == 'none' else inside}"
    return f"CUDA sees {inside} GPUs {where}, and {outside} outside of it" if inside != outside else ""


def _cuda(
    context: Context,
    partition: str,
    nodes: Sequence[Node],
    host: Output,
    inside: Output,
    image: verify_image.Image,
) -> tuple[dict[str, str], str]:
    """Return what CUDA said in a container of each node, or why it was not tried."""
    names = [node.name for node in nodes]
    without = [name for name in names if "libcuda" not in host.values[name]]
    if without:
        return {}, f"{shown(without)} {'has' if len(without) == 1 else 'have'} no libcuda.so.1"
    if not any(inside.values[name].get("cuda") == ["untried"] for name in names):
        return {name: inside.values[name].get("cuda", [""])[-1] for name in names}, ""
    own = verify_image.own(context, partition, nodes)
    if not own.path:
        return {}, f"{image.name} has no python3, and {own.problem}"
    again = context.srun(partition, nodes, CUDA, f"--container-image={own.path}")
    if cluster.is_busy(again):
        return {}, f"{image.name} has no python3, and then {context.no_room(nodes)}"
    return {name: again.values.get(name, {}).get("cuda", [""])[-1] for name in names}, ""


def _gpus(
    subject: str, host: Output, inside: Output, gpus: Mapping[str, int], cuda: Mapping[str, str], untried: str
) -> Check:
    names = list(gpus)
    counts = {name: (len(inside.values[name].get("gpu", [])), len(host.values[name].get("gpu", []))) for name in names}
    details = {"container_and_host": counts, "cuda": dict(cuda)}
    for name, (seen, there) in counts.items():
        if not there:
            why = f"nvidia-smi shows no GPU on {name}, and Slurm has {gpus[name]} there; see 'nvidia-smi' there"
            return Check("gpus", subject, "failed", why, details)
        if seen != there:
            why = f"the container on {name} sees {seen} of {there} GPUs; see enroot's hook 98-nvidia.sh there"
            return Check("gpus", subject, "failed", why, details)
    for name, told in cuda.items():
        if not re.fullmatch(r"[1-9][0-9]{0,3}", told):
            why = {"none": "no libcuda.so.1", "0": "it sees no GPU", "": "it said nothing"}.get(told, told[:600])
            hint = "see 'ls -l /dev/nvidia-uvm' there, and run site with --tags nvidia_container_toolkit,enroot"
            line = f"CUDA does not start in the container on {name}: {why}; {hint}"
            return Check("gpus", subject, "failed", line, details)
    more = f"; CUDA was not tried, as {untried}" if untried else ", and CUDA starts there"
    return Check("gpus", subject, "ok", f"{counts[names[0]][0]} GPUs in the container{more}", details)
