# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The registry's images: small ones made from busybox, of which some pose as NGC's.

They differ where clients do: library/tiny has a plain manifest, and a layer that removes files of the one below;
nvidia/pytorch is a manifest list, and has an entry point and an environment as NGC's images have, and the C library
with what programs of the cluster need beside it; nvidia/nemo has an OCI manifest.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

BUSYBOX = "/srv/sandbox/busybox.tar"
DOCKER, OCI = "application/vnd.docker.distribution.manifest.", "application/vnd.oci.image."
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
APPLETS = """
awk basename chmod cp cut date df dirname env expr find grep head hostname id kill ln mkdir mount mv nproc printenv
printf ps pwd readlink rm sed seq sort stat tail tar tee test touch tr true false umount wc which whoami
"""
# What programs that come from outside find in NGC's images, and NCCL and the plugin for EFA need.
LIBRARIES = "libc libm libpthread librt libdl libgcc_s libstdc++ libatomic libnuma libuuid"
LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
FOLDERS = ("dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "sys", "tmp", "usr", "usr/bin", "var")
ENTRYPOINT = '#!/bin/sh\necho "== Sandbox image, posing as NVIDIA\'s ==" >&2\nexec "$@"\n'
NGC_ENVIRONMENT = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"]


class Registry:
    """Pushes to a registry's HTTP API."""

    def __init__(self, address: str) -> None:
        self.address = address

    def call(self, method: str, path: str, data: bytes | None = None, kind: str = "application/octet-stream") -> Any:
        url = path if path.startswith("http") else f"{self.address}/v2/{path}"
        request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": kind})
        return urllib.request.urlopen(request, timeout=30)

    def blob(self, name: str, data: bytes, kind: str) -> dict[str, Any]:
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        location = self.call("POST", f"{name}/blobs/uploads/", b"").headers["Location"]
        self.call("PUT", f"{location}{'&' if '?' in location else '?'}digest={digest}", data)
        return {"mediaType": kind, "size": len(data), "digest": digest}

    def manifest(self, name: str, reference: str, manifest: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(manifest).encode()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.call("PUT", f"{name}/manifests/{reference or digest}", data, manifest["mediaType"])
        return {"mediaType": manifest["mediaType"], "size": len(data), "digest": digest}


def layer(files: dict[str, str | bytes], folders: list[str], links: dict[str, str]) -> bytes:
    """An uncompressed layer, the same each time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in folders:
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755
            tar.addfile(entry)
        for path, content in files.items():
            data = content if isinstance(content, bytes) else content.encode()
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755 if data[:2] in (b"#!", b"\x7fE") else 0o644
            tar.addfile(entry, io.BytesIO(data))
        for path, target in links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return buffer.getvalue()


def base_layer() -> bytes:
    with tarfile.open(BUSYBOX) as tar:
        names = [member.name.removeprefix("./bin/") for member in tar if member.issym()]
        program = tar.extractfile("./bin/busybox")
        assert program
        busybox = program.read()
    return layer(
        {
            "bin/busybox": busybox,
            "etc/os-release": 'PRETTY_NAME="Sandbox base"\n',
            "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
            "etc/group": "root:x:0:\n",
            "etc/removed": "a later layer removes this\n",
            "opt/replaced/old": "a later layer replaces this directory\n",
        },
        [*FOLDERS, "bin", "opt/replaced"],
        {f"bin/{name}": "busybox" for name in (*names, *APPLETS.split())},
    )


def libraries_layer() -> bytes:
    """The C library and its like, from this very machine."""
    loader, folder = Path("/", LOADERS[platform.machine()]), Path(f"/lib/{platform.machine()}-linux-gnu")
    found = [path for name in LIBRARIES.split() for path in folder.glob(f"{name}.so.*") if len(path.suffixes) == 2]
    files: dict[str, str | bytes] = {str(path)[1:]: path.read_bytes() for path in [loader, *found]}
    return layer(files, ["lib", str(loader.parent)[1:], str(folder)[1:]], {})


def top_layer(title: str, **files: str) -> bytes:
    """What sets an image apart, with a whiteout of a file and of what a directory held."""
    content: dict[str, str | bytes] = {
        "etc/os-release": f'NAME="{title}"\nID=sandbox\nVERSION_ID="1.0"\nPRETTY_NAME="{title}"\n',
        "etc/.wh.removed": b"",
        "opt/replaced/.wh..wh..opq": b"",
        "opt/replaced/new": "here\n",
        **files,
    }
    return layer(content, ["opt/replaced"], {})


def push(registry: Registry, name: str, tag: str, layers: list[bytes], style: str, **config: Any) -> None:
    """Push one image, in one of the styles "docker", "list" and "oci"."""
    oci = style == "oci"
    layer_kind = f"{OCI}layer.v1.tar+gzip" if oci else "application/vnd.docker.image.rootfs.diff.tar.gzip"
    blobs = [registry.blob(name, gzip.compress(data, 1, mtime=0), layer_kind) for data in layers]

    def manifest(architecture: str, reference: str) -> dict[str, Any]:
        image = {
            "architecture": architecture,
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["/bin/sh"], **config},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(data).hexdigest() for data in layers]},
            "history": [{"created": "2026-01-01T00:00:00Z", "created_by": "sandbox"} for _ in layers],
        }
        kind = f"{OCI}config.v1+json" if oci else "application/vnd.docker.container.image.v1+json"
        described = registry.blob(name, json.dumps(image).encode(), kind)
        content = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}manifest.v1+json" if oci else f"{DOCKER}v2+json",
            "config": described,
            "layers": blobs,
        }
        return registry.manifest(name, reference, content)

    if style != "list":
        manifest(ARCHITECTURE, tag)
        return
    several = [
        {**manifest(architecture, ""), "platform": {"architecture": architecture, "os": "linux"}}
        for architecture in ("amd64", "arm64")
    ]
    registry.manifest(name, tag, {"schemaVersion": 2, "mediaType": f"{DOCKER}list.v2+json", "manifests": several})


def fill(address: str) -> None:
    registry, base = Registry(address), base_layer()
    push(registry, "library/tiny", "1.0", [base, top_layer("Sandbox tiny")], "docker")
    for name, tag, style in (("nvidia/pytorch", "24.01-py3", "list"), ("nvidia/nemo", "24.01", "oci")):
        title = name.partition("/")[2]
        top = top_layer(f"Sandbox {title}", **{"opt/nvidia/nvidia_entrypoint.sh": ENTRYPOINT})
        environment = ["PATH=/usr/local/bin:/usr/bin:/bin", *NGC_ENVIRONMENT, f"SANDBOX_IMAGE={title}"]
        entry = {"Env": environment, "Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"], "WorkingDir": "/opt"}
        middle = libraries_layer() if title == "pytorch" else layer({}, ["workspace"], {})
        push(registry, name, tag, [base, middle, top], style, **entry)
