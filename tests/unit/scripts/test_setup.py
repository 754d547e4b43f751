# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""scripts/setup.sh installs what is missing, and takes nothing away from a machine that somebody uses."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

REPO = Path(__file__).resolve().parents[3]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine whose dpkg knows of no package but git, with an apt-get and a sudo that note how they are called."""
    for name in ("cut", "dirname", "env", "grep", "id", "cat", "sha256sum"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    lab.program(
        tmp_path / "bin/dpkg-query",
        '#!/bin/sh\nfor last; do :; done\n[ $last != git ] || echo "install ok installed"\n',
    )
    lab.program(tmp_path / "bin/apt-get", f'#!/bin/sh\necho "$@" >> {tmp_path}/apt\n')
    lab.program(tmp_path / "bin/sudo", '#!/bin/sh\nexec "$@"\n')
    (tmp_path / "scripts").mkdir()
    shutil.copy(REPO / "scripts/setup.sh", tmp_path / "scripts")
    return tmp_path


def installed(machine: Path, *options: str) -> tuple[list[str], list[str]]:
    """Run the script to where it would make an environment; return the options and packages that apt-get was given."""
    environment = {"PATH": str(machine / "bin"), "PYTHON": str(shutil.which("false"))}
    line = [str(shutil.which("bash")), machine / "scripts/setup.sh", *options]
    subprocess.run(line, env=environment, check=False, capture_output=True)
    (install,) = [call.split() for call in lab.lines(machine / "apt") if call.startswith("install ")]
    words = install[1:]
    return [word for word in words if word.startswith("-")], [word for word in words if not word.startswith("-")]


def test_what_is_missing_is_installed_and_nothing_is_removed(machine: Path) -> None:
    options, packages = installed(machine)
    assert "squashfs-tools" in packages
    assert {"git", "podman"}.isdisjoint(packages)
    assert "--no-remove" in options


@pytest.mark.parametrize("docker", [False, True], ids=["without Docker", "with Docker"])
def test_the_runc_of_docker_stays(machine: Path, docker: bool) -> None:
    """Docker's containerd.io has a runc of its own, and conflicts with the package runc, which would remove Docker."""
    if docker:
        lab.program(machine / "bin/runc", "#!/bin/sh\n")
    _options, packages = installed(machine, "--sandbox")
    assert "podman" in packages
    assert ("runc" in packages) is not docker
