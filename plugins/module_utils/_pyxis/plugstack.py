# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Slurm's plugstack: the one file that loads Pyxis, and whatever else lies beside it.

Slurm loads every file that plugstack.conf includes, in every job. So a file appears there by a rename, and what is not
finished has a name with a dot, which no pattern of an include takes.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import glob
import os
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, files
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import NotRun, run
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import load
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.ask import scontrol
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import ranges
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.nodes import freed, stranded

HEADER = "# Written by pcluster.postboot on the head node; changes are lost."
RECONFIGURE_TIMEOUT = 120
PROC = "/proc"
_ALWAYS = ((0,), ())
# Since which version of Pyxis an option is known, and from which on it is not any more.
OPTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "runtime_path": _ALWAYS,
    "execute_entrypoint": _ALWAYS,
    "remap_root": ((0,), (0, 12)),
    "container_scope": ((0, 9), ()),
    "sbatch_support": ((0, 12), ()),
    "use_enroot_load": ((0, 21), ()),
    "importer": ((0, 21), ()),
    "use_squashfuse": ((0, 22), ()),
}


class Request(NamedTuple):
    """The module's options."""

    prefix: str
    plugin: str
    version: str = ""
    options: Mapping[str, Any] = {}
    others: tuple[str, ...] = ()
    prune: bool = False
    check: bool = False


class Outcome(NamedTuple):
    """What was done, or in check mode would be."""

    actions: list[str]
    entry: str
    warnings: list[str]
    diff: list[dict[str, str]]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(number for part in version.split(".") if (number := document.whole(part)) is not None)


def knows(option: str, version: str) -> bool:
    """Tell whether a version has an option. One that does not tell its version has what all have."""
    since, until = OPTIONS[option]
    if not version:
        return OPTIONS[option] == _ALWAYS
    return _numbers(version) >= since and (not until or _numbers(version) < until)


def arguments_of(options: Mapping[str, Any], version: str) -> tuple[list[str], list[str]]:
    """Return the arguments that this version knows, and the names of the options that it does not."""
    known, unknown = [], []
    for name, value in options.items():
        if name not in OPTIONS:
            raise Problem(f"pyxis_options has {name!r}; known are {', '.join(sorted(OPTIONS))}")
        if value is None:
            continue
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if not text or text.split() != [text] or "#" in text:
            raise Problem(f"{name} of Pyxis is {text!r}; needed is one word, which Slurm does not split")
        if knows(name, version):
            known.append(f"{name}={text}")
        else:
            unknown.append(name)
    return known, unknown


def includes(conf: str) -> list[str]:
    """Return the patterns that plugstack.conf includes, absolute."""
    try:
        with open(conf, encoding="utf-8", errors="replace") as stream:
            lines = [line.split("#")[0].split() for line in stream if "\0" not in line]
    except FileNotFoundError:
        return []
    return [os.path.join(os.path.dirname(conf), words[1]) for words in lines if words[:1] == ["include"] and words[1:]]


def strays(prefix: str) -> list[str]:
    """Return the other files that Slurm loads, and those that lie beside Pyxis' file unused."""
    own = load.entry_path(prefix)
    found = {path for pattern in includes(_conf(prefix)) for path in glob.glob(pattern)}
    # As glob(3), which takes no name that begins with a dot.
    found.update(glob.glob(os.path.join(os.path.dirname(own), "*")))
    return sorted(path for path in found - {own} if os.path.lexists(path))


def _conf(prefix: str) -> str:
    return os.path.join(prefix, "etc/plugstack.conf")


def _judge_strays(request: Request) -> list[str]:
    """Refuse a file that stops jobs, and return a warning for each that nobody has declared."""
    warnings = []
    for path in strays(request.prefix):
        why = load.refusal_of_lines(request.prefix, [f"include {path}"])
        if why:
            raise Problem(
                f"{path} is included by {_conf(request.prefix)}, and no job starts while it is there ({why}): "
                "move it to another folder, or correct it"
            )
        if any(entry.plugin.endswith(load.PLUGIN) for entry in load.read_entries(path)):
            warnings.append(f"{path} loads Pyxis too, which pyxis.conf does already: move it to another folder")
        elif not any(fnmatch.fnmatchcase(os.path.basename(path), pattern) for pattern in request.others):
            warnings.append(
                f"{path} is not of this collection, and Slurm reads it for every job: move it to another folder, or "
                "name it in pyxis_plugstack_others"
            )
    return warnings


def _wanted(request: Request) -> tuple[dict[str, str], list[str]]:
    """Return the content of both files, the entry's last, and what is not written."""
    arguments, unknown = arguments_of(request.options, request.version)
    entry, conf = load.entry_path(request.prefix), _conf(request.prefix)
    if not request.check or os.path.exists(request.plugin):
        why = load.refusal(request.prefix, request.plugin, arguments)
        if why:
            raise Problem(
                f"{request.plugin} does not load with {' '.join(arguments) or 'no option'} ({why}); see pyxis_options; "
                f"{entry} was not written"
            )
    text = files.read(conf) or ""
    if not any(fnmatch.fnmatchcase(entry, pattern) for pattern in includes(conf)):
        text = f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}include {os.path.dirname(entry)}/*.conf\n"
    line = " ".join(["required", request.plugin, *arguments])
    return {conf: text, entry: f"{HEADER}\n{line}\n"}, unknown


def prunable(prefix: str, plugin: str) -> list[str]:
    """Return the directories of builds that neither a plugstack file nor this run names."""
    top = load.store(prefix)
    named = [
        entry.plugin
        for path in [_conf(prefix), load.entry_path(prefix), *strays(prefix)]
        for entry in load.read_entries(path)
    ]
    kept = {os.path.realpath(os.path.dirname(path)) for path in [plugin, *named]}
    folders = [os.path.join(top, name) for name in sorted(os.listdir(top))] if os.path.isdir(top) else []
    return [path for path in folders if os.path.isdir(path) and "-slurm" in path and os.path.realpath(path) not in kept]


def controller_runs() -> bool:
    """Tell whether slurmctld runs here. One that does not reads its files when it starts."""
    for name in os.listdir(PROC):
        if name.isdigit():
            try:
                with open(f"{PROC}/{name}/comm", encoding="utf-8", errors="replace") as stream:
                    if stream.read().strip() == "slurmctld":
                        return True
            except OSError:
                continue
    return False


def _stranded(prefix: str) -> list[str]:
    """Return a warning if a reconfiguration leaves nodes behind, to which Slurm then gives no job.

    If slurmctld does not answer here, the reconfiguration fails as well, and has the reason.
    """
    try:
        names = stranded(scontrol(prefix, "-o", "show", "nodes", seconds=RECONFIGURE_TIMEOUT).out)
    except NotRun:
        return []
    if not names:
        return []
    lost = ranges(names)
    return [
        f"{lost}: powered down, and Slurm waits for the slurmd there. After 'scontrol reconfigure', which this run "
        f"does, no job starts on these nodes until you run '{freed(lost)}'"
    ]


def _reconfigure(prefix: str) -> None:
    """Have slurmctld, and by it every slurmd, read the plugstack again."""
    program = os.path.join(prefix, "bin/scontrol")
    advice = "see the log of slurmctld; the next run does it again"
    said = run([program, "reconfigure"], RECONFIGURE_TIMEOUT, merged=True, hint=advice)
    if said.code:
        raise Problem(f"'{said.command}' failed ({said.first}); {advice}")


def _prove(prefix: str) -> None:
    """Check that an ordinary user's srun has the option; otherwise remove the entry again."""
    printed, why = load.complaint(prefix, "srun", os.path.join(prefix, "etc/slurm.conf"))
    if load.OPTION in printed and not why:
        return
    entry = load.entry_path(prefix)
    os.rename(entry, load.withdrawn_path(prefix))
    why = (
        why
        or f"it has no option {load.OPTION}: does PlugStackConfig in slurm.conf name another file than {_conf(prefix)}?"
    )
    raise Problem(f"srun did not take {entry}, which was withdrawn again: {why}")


def apply(request: Request) -> Outcome:
    """Write the entry of Pyxis with the options that its version knows; refuse another file that stops jobs."""
    warnings = _judge_strays(request)
    wanted, unknown = _wanted(request)
    warnings += [
        f"Pyxis {request.version or '(which tells no version)'} does not know {name}: not written; see pyxis_options"
        for name in unknown
    ]
    # It is made before anything changes, so that a run that was killed leaves word of what it still owed.
    owed = os.path.join(load.store(request.prefix), "reconfigure-owed")
    due = {path: text for path, text in wanted.items() if files.read(path) != text or _mode(path) != 0o644}
    diff = [_difference(path, text) for path, text in due.items()]
    actions = ["wrote"] if due else []
    if due and not request.check:
        os.makedirs(os.path.dirname(load.entry_path(request.prefix)), mode=0o755, exist_ok=True)
        os.makedirs(load.store(request.prefix), mode=0o755, exist_ok=True)
        with open(owed, "w", encoding="utf-8"):
            pass
        for path, text in due.items():
            files.write(path, text)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(load.withdrawn_path(request.prefix))
    if not request.check:
        _prove(request.prefix)
    if due or os.path.exists(owed):
        if controller_runs():
            actions.append("reconfigured")
            warnings += _stranded(request.prefix)
            if not request.check:
                _reconfigure(request.prefix)
        if not request.check:
            os.unlink(owed)
    if request.prune:
        old = prunable(request.prefix, request.plugin)
        actions += ["pruned"] if old else []
        diff += [files.diff(path, "there\n", "") for path in old]
        for path in () if request.check else old:
            shutil.rmtree(path)
    return Outcome(actions, load.entry_path(request.prefix), warnings, diff)


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode & 0o7777
    except FileNotFoundError:
        return 0


def _difference(path: str, text: str) -> dict[str, str]:
    lines = difflib.unified_diff((files.read(path) or "").splitlines(True), text.splitlines(True), path, path)
    return {"prepared": "".join(lines)}
