# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Finds why a node did not come up, or was not finished: the words of our own programs and of ParallelCluster's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose import logs
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import (
    CAUSE,
    FAULT,
    NOTE,
    Evidence,
    Finding,
    finding,
    last,
)
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document

PAGE, HEAD_PAGE = "node-does-not-come-up", "create-failed"
# The logs that ParallelCluster keeps of what a custom action prints, and a copy of them on the console.
_BOOT_LOGS = ("cloud-init-output", "cfn-init", "console")
# roles/pull/files: bootstrap.sh (note, die) and pull.py (Log.write).
_LOGGED = re.compile(r"^\S+Z (?:bootstrap\.sh\[\d+\]|pull): (?P<said>.*)$")
_TOLD = re.compile(rf"{logs.BOOT}pcluster-postboot: (?P<said>.*?)(?P<failed>; see \S*pull\.log)?$")
_BEGINS = re.compile(r"(?:site|bake) begins: ")
_DONE = re.compile(
    r"(?<!\d)\d+ components are as they should be|pcluster-postboot\.service goes on|--mode is none|check mode, "
)
_ENDED = re.compile(rf"^failed: |{_DONE.pattern}|asked to end while|ended by SIG")
_OTHER_BYTES = re.compile(
    r"no source delivered (?:(?!no source ).)*\bcame with sha\d+ |has the sha256 [0-9a-f]{64}; needed"
)

# What our line says, in which order it is asked for, and what to do.
RULES = (
    (
        r"is not what --sha256 says",
        "bundle-pin",
        "the bundle is not the one that --sha256 pins",
        "--bundle and --sha256 are of two bundles, or the object was changed: publish again, and take both as printed",
    ),
    (
        r"cannot be read: (?:(?!cannot be read: ).)*(?:\(403\)|Forbidden|AccessDenied)",
        "bundle-forbidden",
        "the node may not read the bundle",
        "give the role of the instance the rights of examples/iam/node-bundle.json (Iam/S3Access, as publish prints)",
    ),
    (
        r"cannot be read: (?:(?!cannot be read: ).)*(?:\(404\)|Not Found|NoSuchKey)",
        "bundle-gone",
        "the bundle is not in S3",
        "correct --bundle in CustomActions, or publish the bundle again",
    ),
    (
        r"(?:cannot be read: |could not be read within the budget)",
        "bundle-unreachable",
        "the bundle could not be fetched",
        "mend the way from the node to S3: route, gateway endpoint, proxy",
    ),
    (
        r"the budget of [\d.]+ s is used up",
        "boot-budget",
        "the node's time ran out in its boot",
        "give ComputeNodeBootstrapTimeout more seconds, a nearer mirror, or name the slow component in common_deferred",
    ),
    (
        r"No space left on device",
        "boot-disk",
        "the root volume has no room for the boot",
        "a larger root volume (LocalStorage/RootVolume/Size)",
    ),
    (
        r"no Python fits",
        "boot-python",
        "no Python of the node fits the bundle",
        "publish for one of the Pythons that the line names (publish_pythons)",
    ),
    (
        r"has no NVIDIA GPU",
        "boot-mode",
        "the queue expects GPUs, and the node has none",
        "replace the instance if it should have GPUs, or set --mode auto for the queue",
    ),
    (
        r"is no variable of |needed: ",
        "boot-variables",
        "the node refuses a variable or an argument",
        "correct the variable or argument that the line names, and publish again",
    ),
)


def failed_boot(evidence: Evidence) -> Iterator[Finding]:
    """Find why our own run failed, from its log, or else from what ParallelCluster has kept of it."""
    for name, said in _last_words(evidence):
        component = re.match(r"(?P<name>[a-z_0-9]+) failed: ", said)
        if component:
            yield _component(evidence, name, component["name"], said, CAUSE)
            return
        for pattern, kind, what, todo in RULES:
            if re.search(pattern, said):
                yield finding(kind, CAUSE, what, said, name, todo, _page(evidence))
                return
        yield finding(
            "boot-failed", CAUSE, "bootstrap.sh failed", said, name, "read the lines above it", _page(evidence)
        )
        return


def _page(evidence: Evidence) -> str:
    """Return the runbook: a head node whose custom action fails ends the creation of its cluster."""
    failed = any("Failed to execute" in text for _name, text in evidence.named("cfn-init"))
    return HEAD_PAGE if evidence.node_type == "head" and failed else PAGE


def _last_words(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield the line with which our last run has failed; none where it went well or goes on."""
    for name, text in evidence.named("pull"):
        said = [match["said"] for match in map(_LOGGED.match, logs.lines(text)) if match]
        ends = [line for line in said if line.startswith("failed: ") or _DONE.search(line)]
        if ends and ends[-1].startswith("failed: "):
            yield name, ends[-1][len("failed: ") :]
        if ends:
            return
    for name, text in evidence.named(*_BOOT_LOGS):
        told = [match for match in map(_TOLD.match, logs.lines(text)) if match]
        marks = [match for match in told if match["failed"] or _DONE.search(match["said"])]
        if marks and marks[-1]["failed"]:
            yield name, marks[-1]["said"]
    for name, stderr in _error_messages(evidence):
        told = [match for match in map(_TOLD.match, logs.lines(stderr)) if match]
        if told:
            yield name, told[-1]["said"]


def _error_messages(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield what failing custom actions wrote to their standard error, as compute and login nodes keep it."""
    for name, text in evidence.named("bootstrap_error_msg"):
        for line in (text, *logs.lines(text)):
            try:
                yield name, str(document.parse(line)["detail"]["error"]["stderr"])
            except (ValueError, KeyError, TypeError):
                continue


def _actions(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield the lines that may name a custom action; on compute and login nodes that is the message of JSON."""
    for name, line in evidence.lines("bootstrap_error_msg", *_BOOT_LOGS):
        try:
            yield name, str(document.parse(line)["message"]) if line.startswith("{") else line
        except (ValueError, KeyError, TypeError):
            continue


def _component(evidence: Evidence, file: str, name: str, said: str, level: str) -> Finding:
    if _OTHER_BYTES.search(said):
        what = f"the pin of component {name} is wrong: its file has another sha256"
        todo = f"compare the hash with the publisher's, and set the variable ({name}_sha256, or as the line says)"
        return finding(f"pin-{name}", level, what, said, file, todo, _page(evidence))
    what = f"component {name} failed" + (", and ended the run" if level == CAUSE else "; the node goes on without it")
    todo = f"roles/{name}/README.md explains the variable or file that the line names"
    return finding(f"component-{name}", level, what, said, file, todo, _page(evidence))


def _report(evidence: Evidence) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """Return the report's name in the archive, what stopped the run, and its components."""
    name, report = evidence.mapping("report")
    stopped, entries = report.get("stopped"), report.get("components")
    found = [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
    return name, stopped if isinstance(stopped, dict) else {}, found


def failed_components(evidence: Evidence) -> Iterator[Finding]:
    """Find components that failed in the last run, which the report names."""
    name, stopped, entries = _report(evidence)
    failed = []
    for entry in entries:
        if entry.get("status") == "failed":
            component = str(entry.get("name"))
            failed.append(component)
            level = CAUSE if stopped.get("component") == component else FAULT
            yield _component(evidence, name, component, f"{component} failed: {entry.get('why')}", level)
    if stopped and stopped.get("component") not in failed:
        said = str(stopped.get("message"))
        for pattern, kind, what, todo in RULES:
            if re.search(pattern, said):
                yield finding(kind, CAUSE, what, said, name, todo, _page(evidence))
                return
        yield finding(
            "boot-failed", CAUSE, "the last run stopped", said, name, "correct what the line names", _page(evidence)
        )


def killed_run(evidence: Evidence) -> Iterator[Finding]:
    """Find a run of the node itself that has begun, has not ended, and lives no more."""
    if evidence.running:
        return
    for name, text in evidence.named("pull"):
        said = [(match["said"], line) for line in logs.lines(text) for match in [_LOGGED.match(line)] if match]
        begun = [index for index, (words, _line) in enumerate(said) if _BEGINS.match(words)]
        after = [words for words, _line in said[begun[-1] :]] if begun else []
        if not begun or any(map(_ENDED.search, after)):
            return
        progress = evidence.mapping("progress")[1]
        component = progress.get("component") if not progress.get("ended") else None
        while_ = f" while {component} was running" if component else ""
        what = f"the last run was killed{while_}"
        todo = "sudo /opt/pcluster-postboot/current/bootstrap.sh --installed finishes what it left"
        yield finding("killed-run", CAUSE, what, said[begun[-1]][1], name, todo, _page(evidence))
        return


def dead_holder(evidence: Evidence) -> Iterator[Finding]:
    """Find a lock whose run is dead; the next run takes the lock by itself."""
    name, lock = evidence.mapping("lock")
    if lock and evidence.running is False:
        progress = evidence.mapping("progress")[1]
        component = "" if progress.get("ended") else progress.get("component") or ""
        what = "a run was killed" + (f" while {component} was running" if component else "") + ", and left its lock"
        said = f"held by {lock.get('mode')} from {lock.get('user')}@{lock.get('controller')} (pid {lock.get('pid')})"
        todo = "run site again, or bootstrap.sh --installed on the node: the next run takes over"
        yield finding("killed-run", CAUSE, what, said, name, todo, _page(evidence))


def failed_action(evidence: Evidence) -> Iterator[Finding]:
    """Find a custom action that failed, of ours or of others: ParallelCluster ends the node for it."""
    # custom_action_executor.py of aws-parallelcluster-cookbook, 3.13.0.
    where, match = last(
        _actions(evidence),
        rf"{logs.BOOT}(?:fetch_and_run - )?Failed to (?:execute|download|run) (On\w+ script(?:(?!Failed to )[^\",])*?)"
        r"(?:,(?:(?!Failed to )[^\"])*?)?return code: (\d+)",
    )
    if not match or list(failed_boot(evidence)):
        return
    said = next((stderr for _name, stderr in _error_messages(evidence)), "") or match.string
    what = f"custom action {match[1]} ended with {match[2]}"
    todo = "correct that script; what it wrote to standard output is in the same log"
    yield finding("custom-action", CAUSE, what, said, where, todo, _page(evidence))


def boot_timeout(evidence: Evidence) -> Iterator[Finding]:
    """Find a boot that ParallelCluster has ended because it took longer than ComputeNodeBootstrapTimeout."""
    # aws-parallelcluster 3.16.1, resources/compute_node/user_data.sh.
    where, match = last(evidence.lines(*_BOOT_LOGS), rf"{logs.BOOT}Timed-out when bootstrapping instance")
    if match:
        todo = "a longer DevSettings/Timeouts/ComputeNodeBootstrapTimeout; the lines before tell where the time went"
        what = "ParallelCluster ended a boot that took too long"
        yield finding("boot-timeout", CAUSE, what, match.string, where, todo, _page(evidence))


def failed_recipe(evidence: Evidence) -> Iterator[Finding]:
    """Find a recipe of ParallelCluster that failed."""
    # cinc's mixlib-log, "[%s] %s: %s"; error_exit() of the user data above.
    lines = evidence.lines("chef-client", "cloud-init-output", "console")
    said = r"(?:\[[\dT:+.-]{19,40}\] FATAL: |Bootstrap failed with error: This AMI was (?:created|not baked))"
    where, match = last(lines, logs.BOOT + said)
    if match:
        todo = "the lines before it name the recipe; compare the AMI's version with the cluster's"
        yield finding("recipe", CAUSE, "a recipe of ParallelCluster failed", match.string, where, todo, _page(evidence))


def deferred(evidence: Evidence) -> Iterator[Finding]:
    """Tell what a later run still has to do, which is no fault yet."""
    name, stopped, entries = _report(evidence)
    waiting = [one for one in entries if one.get("status") == "deferred"]
    if waiting and not stopped:
        said = "; ".join(f"{one.get('name')}: {one.get('why')}" for one in waiting)
        todo = "pcluster-postboot.service goes on; journalctl -u pcluster-postboot tells how far it is"
        yield finding("deferred", NOTE, "components wait for a later run", said, name, todo, _page(evidence))


FINDERS = (
    failed_boot,
    failed_components,
    killed_run,
    dead_holder,
    failed_action,
    boot_timeout,
    failed_recipe,
    deferred,
)
