# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which components a node has, read from files where possible."""

from __future__ import annotations

import re
from typing import Callable, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._node.tree import Tree
from ansible_collections.pcluster.postboot.plugins.module_utils._packages import records

RECEIPTS = "/var/lib/pcluster-postboot/receipts"
UNKNOWN = "unknown"
# Runs a program and returns what it printed, whatever its exit status; None when it could not run.
Run = Callable[[list[str]], "str | None"]


class _Component(NamedTuple):
    packages: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


COMPONENTS = {
    # begin components: written by scripts/render_role_docs.py
    "docker": _Component(("docker-ce", "docker.io", "docker", "moby-engine"), ("/usr/bin/dockerd",)),
    "nvidia_container_toolkit": _Component(("nvidia-container-toolkit",), ("/usr/bin/nvidia-ctk",)),
    "enroot": _Component(("enroot", "enroot-hardened"), ("/usr/bin/enroot", "/usr/local/bin/enroot")),
    "pyxis": _Component(
        ("nvslurm-plugin-pyxis",),
        ("/usr/local/lib/slurm/spank_pyxis.so", "/opt/slurm/lib/slurm/spank_pyxis.so"),
    ),
    "efa": _Component((), ("/opt/amazon/efa/bin/fi_info",)),
    "aws_ofi_nccl": _Component(
        ("libnccl-ofi", "libnccl-ofi-ngc"),
        ("/opt/amazon/ofi-nccl", "/etc/ld.so.conf.d/100_ofinccl.conf"),
    ),
    "nccl": _Component(("libnccl2", "libnccl"), ()),
    "nccl_tests": _Component(("nccl-tests",), ()),
    "dcgm": _Component(
        ("datacenter-gpu-manager-4-core", "datacenter-gpu-manager"),
        ("/usr/bin/dcgmi", "/usr/local/bin/dcgmi"),
    ),
    "dcgm_exporter": _Component(
        ("datacenter-gpu-manager-exporter", "dcgm-exporter"),
        ("/usr/bin/dcgm-exporter", "/usr/local/bin/dcgm-exporter"),
    ),
    "neuron": _Component(("aws-neuronx-tools",), ("/opt/aws/neuron/bin/neuron-ls",)),
    "neuron_exporter": _Component((), ("/usr/local/libexec/pcluster-postboot/neuron-exporter",)),
    "node_exporter": _Component(
        ("prometheus-node-exporter", "node_exporter", "golang-github-prometheus-node-exporter"),
        ("/usr/local/bin/node_exporter",),
    ),
    "slurm_exporter": _Component(("prometheus-slurm-exporter",), ("/usr/local/bin/slurm_exporter",)),
    "prometheus": _Component(("prometheus", "golang-github-prometheus"), ("/usr/local/bin/prometheus",)),
    "alertmanager": _Component(
        ("prometheus-alertmanager", "golang-github-prometheus-alertmanager"),
        ("/usr/local/bin/alertmanager",),
    ),
    "grafana": _Component(("grafana", "grafana-enterprise"), ("/usr/sbin/grafana-server",)),
    "cloudwatch_agent": _Component(
        ("amazon-cloudwatch-agent",),
        ("/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent",),
    ),
    # end components
    # What the AMI brings and no role installs.
    "containerd": _Component(("containerd.io", "containerd"), ("/usr/bin/containerd",)),
    "ssm_agent": _Component(("amazon-ssm-agent",), ("/usr/bin/amazon-ssm-agent",)),
    "gdrcopy": _Component(("gdrcopy", "libgdrapi", "gdrdrv-dkms"), ("/usr/local/lib/libgdrapi.so",)),
    "lustre_client": _Component(("lustre-client", "lustre-client-utils", "lustre-utils"), ("/usr/sbin/mount.lustre",)),
    "cuda": _Component((), ("/usr/local/cuda/bin/nvcc",)),
}


def _receipt(tree: Tree, name: str) -> str | None:
    for spelling in dict.fromkeys((name, name.replace("_", "-"))):
        receipt = tree.mapping(f"{RECEIPTS}/{spelling}.json")
        if receipt is not None:
            version = receipt.get("version")
            return str(version) if version else UNKNOWN
    return None


def _efa(tree: Tree) -> tuple[str | None, str | None]:
    """Return the versions of the EFA installer and of the aws-ofi-nccl that came with it."""
    path = "/opt/amazon/efa_installed_packages"
    text = tree.read(path)
    if text is None:
        return None, None
    installer = re.search(r"EFA installer version:\s*(\d[\w.]*)", text)
    if not installer:
        tree.problem(f"{path} names no 'EFA installer version'")
    plugin = re.search(r"\blibnccl-ofi[a-z-]{0,40}[_-](\d+(?:\.\d+)+)", text)
    return (installer[1] if installer else UNKNOWN), (plugin[1] if plugin else None)


def _cuda(tree: Tree) -> str | None:
    folders = [name for name in tree.names("/usr/local") if re.fullmatch(r"cuda-\d+(\.\d+)?", name)]
    folders.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)], reverse=True)
    for folder in ("cuda", *folders):
        # A link that leads out of a tree which is not the running system would tell of another machine.
        if not tree.live and tree.link_name(f"/usr/local/{folder}"):
            continue
        versions = tree.mapping(f"/usr/local/{folder}/version.json")
        cuda = versions.get("cuda") if versions else None
        if isinstance(cuda, dict) and cuda.get("version"):
            return str(cuda["version"])
    return folders[0].partition("-")[2] if folders else None


def _from_files(tree: Tree) -> dict[str, str | None]:
    """Return what version files say, which outranks everything else."""
    found: dict[str, str | None] = {}
    found["efa"], found["aws_ofi_nccl"] = _efa(tree)
    found["cuda"] = _cuda(tree)
    agent = tree.line("/opt/aws/amazon-cloudwatch-agent/bin/CWAGENT_VERSION")
    found["cloudwatch_agent"] = re.split(r"b\d+$", agent)[0] if agent else None
    snap = tree.read("/snap/amazon-ssm-agent/current/meta/snap.yaml", quiet=True)
    match = re.search(r"^version:\s*['\"]?([\w.]+)", snap or "", re.MULTILINE)
    found["ssm_agent"] = match[1] if match else None
    found["gdrcopy"] = tree.line("/sys/module/gdrdrv/version")
    lustre = re.search(r"(?<!\d)\d+\.\d+[\w.]*", tree.line("/sys/fs/lustre/version") or "")
    found["lustre_client"] = lustre[0] if lustre else None
    return found


def read_components(tree: Tree, run: Run | None) -> dict[str, str | None]:
    """Return every component's version: None where it is absent, "unknown" where it is there without telling."""
    names = {name for component in COMPONENTS.values() for name in component.packages}
    packages: dict[str, str] = {}
    status = tree.read_bytes("/var/lib/dpkg/status")
    if status:
        packages = records.dpkg_packages([status], names).installed
    elif run and (tree.is_dir("/usr/lib/sysimage/rpm") or tree.is_dir("/var/lib/rpm")):
        packages = records.rpm_packages(run(records.rpm_question(names)) or "", names).installed
    told = _from_files(tree)
    components: dict[str, str | None] = {}
    for name, component in COMPONENTS.items():
        version = told.get(name) or _receipt(tree, name)
        if version is None or version == UNKNOWN:
            version = next((packages[package] for package in component.packages if package in packages), version)
        if version is None and any(tree.exists(place) for place in component.places):
            version = UNKNOWN
        components[name] = version
    return components


def slurm_version(tree: Tree, prefix: str, run: Run | None) -> str | None:
    """Return Slurm's version from its header; only where there is none is a program asked."""
    header = tree.read(f"{prefix}/include/slurm/slurm_version.h", quiet=True) or ""
    header += tree.read(f"{prefix}/include/slurm/slurm.h", quiet=True) or ""
    match = re.search(r"#\s*define\s+SLURM_VERSION_NUMBER\s+0x([0-9a-fA-F]{1,6})\b", header)
    if match:
        number = int(match[1], 16)
        return f"{number >> 16}.{number >> 8 & 255:02d}.{number & 255}"
    for program in ("scontrol", "sinfo"):
        path = f"{prefix}/bin/{program}"
        if run and tree.exists(path):
            match = re.search(r"(?<!\S)slurm\S*\s+(\d+\.\d+[\w.]*)", run([path, "--version"]) or "")
            if match:
                return match[1]
    return None
