# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An earlier version of the collection, built from git and installed beside this one, for test_upgrade.py.

UPGRADE_FROM names the version, as any revision that git knows. Without it the version is the last release that has a
tag, and the baseline below where no release has one yet.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
# The last commit before modules, options of playbooks, and task names were made anew; nodes boot from bundles and share
# builds there already, and 0.1.0, the first version of the changelog, knew neither. The next tag takes its place.
BASELINE = "5780b744c02c082868c440a03197b7f9ab1b8486"
RELEASE = re.compile(r"\d+\.\d+\.\d+")


def git(*arguments: str, root: Path = ROOT) -> bytes:
    """What git says; a checkout may belong to another user than root, who runs the sandbox's tests."""
    return subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", str(root), *arguments], check=True, capture_output=True
    ).stdout


def tags(root: Path = ROOT) -> list[str]:
    """The releases before this commit, the newest first."""
    found = git("tag", "--merged", "HEAD", "--sort=-version:refname", root=root).decode().split()
    here = set(git("tag", "--points-at", "HEAD", root=root).decode().split())
    return [name for name in found if RELEASE.fullmatch(name) and name not in here]


def revision(root: Path = ROOT) -> str:
    """The commit to upgrade from."""
    name = os.environ.get("UPGRADE_FROM") or next(iter(tags(root)), BASELINE)
    try:
        return git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", root=root).decode().strip()
    except subprocess.CalledProcessError:
        raise RuntimeError(
            f"{name} is no commit of this clone; needed: UPGRADE_FROM=<a tag or commit of this clone>, or "
            "`git fetch --unshallow --tags`"
        ) from None


def install(commit: str, folder: Path) -> Path:
    """Build the collection of a commit as a release is built, and install it below a folder of its own."""
    source = folder / "source"
    source.mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", str(source)], input=git("archive", commit), check=True)
    galaxy = str(Path(sys.executable).parent / "ansible-galaxy")
    (folder / "empty.cfg").write_text("")
    environment = {**os.environ, "ANSIBLE_CONFIG": str(folder / "empty.cfg")}
    build = [galaxy, "collection", "build", str(source), "--output-path", str(folder)]
    subprocess.run(build, check=True, capture_output=True, env=environment)
    (archive,) = folder.glob("pcluster-postboot-*.tar.gz")
    line = [galaxy, "collection", "install", str(archive), "--no-deps", "--offline", "-p", str(folder / "collections")]
    subprocess.run(line, check=True, capture_output=True, env=environment)
    return folder / "collections"


def variables_of(collection: Path) -> set[str]:
    """The public variables of an installed collection, or of a checkout."""
    files = collection.glob("roles/*/defaults/main.yml")
    return {name for file in files for name in yaml.safe_load(file.read_text()) or {}}
