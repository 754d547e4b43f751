#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether Sigstore vouches for a publisher's list of hashes, by the program cosign, version 3, which asks Sigstore.

scripts/pins.py asks it. Nodes cannot: the proof needs Sigstore's own keys, which change.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

SECONDS = 120


class Unvouched(Exception):
    """The list is not what the named workflow has signed."""


def verify(text: bytes, bundle: bytes, proof: Mapping[str, str]) -> str:
    """Return who vouches for a list, in words; Unvouched says why nobody does."""
    if not shutil.which("cosign"):
        return "Sigstore was not asked: cosign is not installed"
    with tempfile.TemporaryDirectory(prefix="postboot-pins-") as folder:
        files = {"list": text, "bundle": bundle}
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        argv = [
            *("cosign", "verify-blob", "--bundle", f"{folder}/bundle"),
            *("--certificate-identity", proof["identity"], "--certificate-oidc-issuer", proof["issuer"]),
            f"{folder}/list",
        ]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unvouched(f"cosign does not answer: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise Unvouched(f"cosign refuses the list for {proof['identity']}: {lines[-1]}")
    return f"{proof['identity']} has signed the list"
