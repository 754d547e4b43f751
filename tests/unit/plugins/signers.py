# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Publishers who sign with keys of their own, made by gpg in a folder."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

needs_gpg = pytest.mark.skipif(not shutil.which("gpg") or not shutil.which("gpgv"), reason="gpg is not there")


class Signer:
    def __init__(self, home: Path) -> None:
        home.mkdir(mode=0o700)
        self.home = home
        self.gpg("--passphrase", "", "--quick-generate-key", "Tester <t@example.org>", "ed25519", "sign", "never")
        self.key = self.gpg("--armor", "--export")
        listing = self.gpg("--with-colons", "--list-keys").decode()
        self.fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr"))

    def gpg(self, *words: str, data: bytes = b"") -> bytes:
        argv = ["gpg", "--homedir", str(self.home), "--batch", "--quiet", "--pinentry-mode", "loopback", *words]
        return subprocess.run(argv, input=data, capture_output=True, check=True).stdout

    def sign(self, data: bytes) -> bytes:
        return self.gpg("--detach-sign", data=data)


def make(top: Path) -> Iterator[tuple[Signer, Signer]]:
    """Yield two publishers, and end their agents."""
    made = Signer(top / "a"), Signer(top / "b")
    yield made
    for signer in made:
        subprocess.run(["gpgconf", "--homedir", str(signer.home), "--kill", "all"], check=True)
