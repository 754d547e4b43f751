# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which line of a failed program's output states the reason.

Most programs state the reason first, and then their usage (mksquashfs, gpg), the consequence (tar, dpkg, parallel) or
a stack (Go). Python states the reason last.
"""

from __future__ import annotations

import re

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
# A line that states progress, a warning or advice, by its beginning; logrus has the level in each line.
_ASIDE = re.compile(
    r"""(?ix) \[(?:info|warn|debug)\] | (?:time="[^"]*"[ ])?level=(?:info|debug|trace|warning)\b | W: | warning\b
    | (?:see|try|usage|syntax|options|please|note|hint|ignoring)\b
    | (?:get|hit|ign|fetched|reading|building|selecting|preparing|unpacking|setting[ ]up|processing|installing
      |downloading|extracting|creating|verifying|running|added|last[ ]metadata)\b
    | gpgv?:[ ](?:keybox|signature[ ]made|[ ]*using|[ ]*issuer|directory)\b"""
)
# A line that states that something failed, and not why.
_CONSEQUENCE = re.compile(
    r"""(?i)\A(?:error:?|problem:?)\Z|previous errors|exiting now|this job failed|errors? (?:were|was) encountered"""
    r"""|errors during downloading|sub-process|subprocess|held broken packages|exit(?:ed)? (?:with|status|code)"""
    r"""|ended with|returned an error code|process returned|control process exited|\Ajob for |could not be verified"""
    r"""|cannot install (?:the best|both|package)|conflicting requests|couldn't start container"""
)
_REASON = re.compile(
    r"""(?i)\berror\b|\bfatal\b|\bfail(?:ed|ure|s)?\b|\bcurl: \(|supported|\binvalid\b|\bunknown\b|\bmismatch"""
    r"""|\bno such\b|\bnot found\b|\bdenied\b|\bno space\b|\bcannot\b|n't\b|\bcould not\b|\bunable to\b"""
    r"""|\bdoes not\b|\bis not\b|\brefused\b|\btimed out\b|\bexpired\b|\bcorrupt|\bunexpected\b|\bbad signature\b"""
    r"""|\bmissing\b|\bno valid\b|\bno public\b|\bnone of\b|\bunresolvable\b|\brevoked\b|\balready exists\b"""
)
# apt and dnf name the dependency that cannot be met below a line that says that one cannot.
_DEPENDENCY = re.compile(
    r"\A\S+ : (?:Pre-?)?(?:Depends|Breaks|Conflicts): |but none of the providers|nothing provides |but it is not inst"
)


def reason(output: str) -> str:
    """Return the line of a failed program's output that states the reason, with the next one if it ends with a colon.

    Without any line, return nothing.
    """
    lines = [_COLOR.sub("", line).rstrip() for line in output.splitlines()]
    lines = [line for line in lines if line.strip()]
    if "Traceback (most recent call last):" in lines:
        after = lines[lines.index("Traceback (most recent call last):") + 1 :]
        ends = [line for line in after if line[0] not in " \t"]
        if ends:
            return ends[-1]
    lines = [line.strip().removeprefix("- ") for line in lines]
    telling = [line for line in lines if not _ASIDE.match(line)]
    for chosen in (
        [line for line in telling if line.startswith("panic:")],
        [line for line in telling if _DEPENDENCY.search(line)],
        [line for line in telling if _REASON.search(line) and not _CONSEQUENCE.search(line)],
        [line for line in telling if _REASON.search(line) or _CONSEQUENCE.search(line)],
        telling[:1],
        lines[-1:],
    ):
        if chosen:
            more = lines[lines.index(chosen[0]) + 1 :][:1] if chosen[0].endswith(":") else []
            return " ".join([chosen[0], *more])
    return ""
