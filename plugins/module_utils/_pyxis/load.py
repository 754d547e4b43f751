# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Proves that a SPANK plugin loads in the Slurm that is installed, and withdraws Pyxis' entry where it does not.

Modules import this file, and the role installs it as the program that slurmctld runs before it starts. So it imports
nothing but Python's own library.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PLUGIN = "spank_pyxis.so"
OPTION = "--container-image"
TIMEOUT = 20
NOBODY = 65534


class UndecidedError(OSError):
    """Whether a plugin loads can not be told now. That is no reason to take it away."""


class Entry(NamedTuple):
    """What a line of plugstack.conf loads."""

    plugin: str
    arguments: tuple[str, ...]


# A copy of visible() of module_utils/_host/text.py, which is not there where this runs; a unit test compares both.
def visible(line: str) -> str:
    """Return one line with each character that a terminal or browser obeys written out, as in \\x1b[2J or \\u202e.

    These are control characters (C0, DEL and C1, so line breaks too), separators of lines and paragraphs, overrides of
    the writing direction and other characters of no width.
    """
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def store(prefix: str) -> str:
    """Return where builds are, and whatever else must stay out of plugstack.conf.d. It is on the same file system."""
    return os.path.join(prefix, "pyxis")


def entry_path(prefix: str) -> str:
    """Return the file in plugstack.conf.d that loads Pyxis."""
    return os.path.join(prefix, "etc/plugstack.conf.d/pyxis.conf")


def withdrawn_path(prefix: str) -> str:
    """Return where that file goes when what it names does not load."""
    return os.path.join(store(prefix), "withdrawn.conf")


def read_entries(path: str) -> list[Entry]:
    """Return what a plugstack file loads; nothing where there is no such file, or where it can not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = [line.split("#")[0].split() for line in stream if "\0" not in line]
    except OSError:
        return []
    return [
        Entry(words[1], tuple(words[2:])) for words in lines if words[:1] in (["required"], ["optional"]) and words[1:]
    ]


def version_of(plugin: str) -> str:
    """Return the version that a Pyxis carries in it; empty where it does not tell (before 0.20)."""
    try:
        with open(plugin, "rb") as stream:
            found = re.search(rb"pyxis: version v(\d+(?:\.\d+)+)", stream.read())
    except OSError:
        return ""
    return found[1].decode() if found else ""


def missing_mounters() -> list[str]:
    """Return what Enroot mounts images with and this node has not; nothing where there is no Enroot, nor any container.

    From 4.1 on Enroot knows a variable for the kernel's own overlay, which it uses unless told otherwise.
    """
    enroot = shutil.which("enroot")
    if enroot is None:
        return []
    with open(enroot, "rb") as stream:
        native = b"ENROOT_NATIVE_OVERLAYFS" in stream.read()
    wanted = ("squashfuse",) if native else ("squashfuse", "fuse-overlayfs")
    return [name for name in wanted if shutil.which(name) is None]


def complaint(prefix: str, program: str, conf: str) -> tuple[str, str]:
    """Let a program of Slurm print its help; return what it printed, and why it refused to.

    To do so it loads the plugins of plugstack.conf, and it asks no other machine. Where root asks, an ordinary user's
    process does it, because a file that this user can not read stops the user's jobs alone.
    """
    path = os.path.join(prefix, "bin", program)
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "SLURM_CONF": conf}
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        done = subprocess.run(
            [path, "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=TIMEOUT,
            check=False,
            env=environment,
            cwd="/",
            **user,  # type: ignore[call-overload]
        )
    except subprocess.TimeoutExpired as error:
        raise UndecidedError(f"{path} --help did not end within {TIMEOUT} s") from error
    except OSError as error:
        raise UndecidedError(f"{path} --help could not be run: {error}") from error
    if done.returncode == 0:
        return done.stdout, ""
    lines = [re.sub(rf"^{program}: (error: )?", "", line) for line in done.stderr.splitlines() if line.strip()]
    return done.stdout, (lines or [f"{path} --help ended with {done.returncode}"])[0]


def refusal_of_lines(prefix: str, lines: Sequence[str], option: str = "") -> str:
    """Return why Slurm does not take these lines of plugstack.conf, or nothing when it does and shows the option.

    srun loads the plugins as a job does; sbatch makes Pyxis read its arguments too.
    """
    # Root's TMPDIR may be a folder that nobody else can enter.
    with tempfile.TemporaryDirectory(prefix="postboot-spank-", dir="/run" if os.geteuid() == 0 else None) as folder:
        os.chmod(folder, 0o755)
        settings = {"ClusterName": "check", "SlurmctldHost": "localhost", "PlugStackConfig": f"{folder}/plugstack.conf"}
        plugins = os.path.join(prefix, "lib/slurm")
        if os.path.isdir(plugins):
            settings["PluginDir"] = plugins
        _write(f"{folder}/slurm.conf", "".join(f"{key}={value}\n" for key, value in settings.items()))
        _write(f"{folder}/plugstack.conf", "".join(f"{line}\n" for line in lines))
        for program in ("srun", "sbatch"):
            printed, why = complaint(prefix, program, f"{folder}/slurm.conf")
            if why:
                return why
            if program == "srun" and option not in printed:
                return f"srun loads it, and has no option {option} afterwards"
    return ""


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.chmod(path, 0o644)


def refusal(prefix: str, plugin: str, arguments: Sequence[str] = ()) -> str:
    """Return why a Pyxis does not load in the Slurm that is installed, or nothing when it does."""
    if not os.path.isfile(plugin):
        return f"{plugin} is not there"
    return refusal_of_lines(prefix, [" ".join(["required", plugin, *arguments])], OPTION)


def entry_refusal(prefix: str) -> str:
    """Return why what the entry names does not load; nothing when it does, or when there is no entry."""
    for entry in read_entries(entry_path(prefix)):
        why = refusal(prefix, entry.plugin, entry.arguments)
        if why:
            return f"{entry.plugin} does not load in the Slurm that is installed ({why})"
    return ""


def withdraw(prefix: str) -> str:
    """Remove an entry whose plugin does not load, because every job would fail; return why."""
    why = entry_refusal(prefix)
    if why:
        os.makedirs(store(prefix), mode=0o755, exist_ok=True)
        os.rename(entry_path(prefix), withdrawn_path(prefix))
    return why


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run before slurmctld starts. The program never fails, because Slurm has to start in any case."""
    parser = argparse.ArgumentParser(description="Withdraw Pyxis from Slurm's plugstack where it does not load.")
    parser.add_argument("prefix", help="where Slurm is installed, such as /opt/slurm")
    prefix = parser.parse_args(arguments).prefix
    os.umask(0o022)
    mark = "<4>" if environment.get("JOURNAL_STREAM") else ""  # how the journal knows a warning
    try:
        why = withdraw(prefix)
    except OSError as error:
        print(visible(f"{mark}pyxis-check: {error}"))
        return 0
    if why:
        todo = "run the playbook pcluster.postboot.site on the head node to build it anew"
        print(visible(f"{mark}pyxis-check: {why}: Pyxis is withdrawn, and jobs without containers run; {todo}"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], os.environ))
