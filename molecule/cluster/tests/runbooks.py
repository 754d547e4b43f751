# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The pages of docs/runbooks/ as their test reads them: each page's commands, and what they print.

docs/runbooks/README.md says how a page is written. test_runbooks.py here runs the pages in the sandbox;
tests/unit/docs/test_runbooks.py looks at what needs no sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "docs/runbooks"
WORKSTATION = "workstation"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"(?:\[(?P<node>[a-z0-9-]+)\])?\$ (?P<command>.+)")
NOT_RUN = re.compile(r"\bNot run in the sandbox: \S.*\.")
WITHIN = re.compile(r"\bWithin (\d+) (second|minute)s?\b")
ANYTHING = "…"

# Example values: what a page may write, and what stands there in a cluster. One example is the same thing on all of a
# page, so that a command can use what an earlier command has printed.
EXAMPLES = (
    (r"(?P<kind>[a-z]+)-[0-9a-f]{17}", r"{kind}-[0-9a-f]{{8,17}}"),  # i-0123456789abcdef0
    (r"ip-10-0-\d+-\d+", r"ip-\d+-\d+-\d+-\d+"),
    (r"10\.0\.\d+\.\d+", r"\d+\.\d+\.\d+\.\d+"),
    (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}"),
    (r"(?=[0-9a-f]*\d)[0-9a-f]{12,64}", r"[0-9a-f]{{12,64}}"),
    (r"1234|5678", r"\d+"),  # a job, a process
)
# Times: each one stands for every other.
ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?"
TIMES = (
    (ISO, ISO),
    (r"\d{4}-\d\d-\d\d", r"\d{4}-\d\d-\d\d"),
    (r"\d\d:\d\d:\d\d(?:[.,]\d+)?", r"(?:\d+-)?\d\d:\d\d:\d\d(?:[.,]\d+)?"),
    (r"\d+:\d\d", r"(?:\d+-)?(?:\d+:)*\d+:\d\d"),
)
EDGE = r"(?<![\w.:])", r"(?![\w:]|\.\d)"


class Problem(Exception):
    """A page, or what a command of a page prints, is not as it should be."""


@dataclass(frozen=True)
class Step:
    """A command of a page, with what the page says of it."""

    command: str
    printed: list[str]
    node: str = WORKSTATION
    line: int = 0  # of the page
    run: bool = True
    patience: int = 0  # seconds within which the command prints this

    def __str__(self) -> str:
        return f"line {self.line}: {self.command}"


def steps(text: str) -> list[Step]:
    """Return the commands of a page, in their order."""
    found: list[Step] = []
    end = 0
    for block in BLOCK.finditer(text):
        before, end = text[end : block.start()], block.end()
        line = text.count("\n", 0, block.start()) + 1
        if block[1] in ("bash", "sh", "shell", "text", ""):
            raise Problem(f"line {line}: a block is {block[1] or 'without a language'!r}; needed: console")
        if block[1] == "console":
            found += commands(block[2], before.strip().rpartition("\n\n")[2], line)
    return found


def commands(block: str, words: str, start: int) -> Iterator[Step]:
    """Yield the commands of one block, below the words of its paragraph."""
    run, within = not NOT_RUN.search(words), WITHIN.search(words)
    patience = int(within[1]) * (60 if within[2] == "minute" else 1) if within else 0
    lines = list(enumerate(block.splitlines(), start + 1))
    while lines:
        number, line = lines.pop(0)
        prompt = PROMPT.fullmatch(line)
        if not prompt:
            raise Problem(f"line {number}: {line!r} stands before the block's first command")
        command = prompt["command"]
        while command.endswith("\\") and lines:
            command = f"{command[:-1].rstrip()} {lines.pop(0)[1].strip()}"
        printed = []
        while lines and not PROMPT.fullmatch(lines[0][1]):
            printed.append(lines.pop(0)[1].rstrip())
        kept = [one for one in printed if one]
        yield Step(command, kept, prompt["node"] or WORKSTATION, number, run, patience)


@dataclass
class Names:
    """What a page's example values are here. A value that a command prints for the first time is learnt."""

    known: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known["123456789012"] = "123456789012"  # an account, here and there

    def fill(self, command: str) -> str:
        """Return a page's command with the values of this cluster."""
        for pattern, _ in EXAMPLES:
            for example in re.finditer(f"{EDGE[0]}(?:{pattern}){EDGE[1]}", command):
                if not any(example[0] in name for name in self.known):
                    raise Problem(f"{example[0]} is in a command, and no earlier command has printed it: {command}")
        return self.tokens().sub(lambda found: self.known.get(found[0], found[0]), command)

    def tokens(self) -> re.Pattern[str]:
        """Every name that is known; of two that begin alike the longer one."""
        names = sorted(map(re.escape, self.known), key=len, reverse=True)
        return re.compile("|".join([f"(?<![A-Za-z0-9]){name}(?![A-Za-z0-9])" for name in names] or [r"(?!)"]))

    def compare(self, wanted: list[str], printed: str) -> None:
        """Compare what a command has printed with the lines of the page, and learn the values; or raise a Problem."""
        lines = "".join(f"{line.rstrip()}\n" for line in printed.splitlines() if line.strip())
        learnt: dict[str, str] = {}
        pattern = ""
        for number, line in enumerate(wanted):
            pattern += self.pattern(line, learnt)
            if not re.match(pattern, lines):
                missing = f"not printed, or not there: {line!r} (line {number + 1} of {len(wanted)})"
                raise Problem(f"{missing}; printed was:\n{printed}")
        match = re.fullmatch(pattern, lines)
        if not match:
            raise Problem(f"more is printed than the page has; printed was:\n{printed}")
        self.learn({example: match[group] for example, group in learnt.items()})

    def learn(self, values: dict[str, str]) -> None:
        """Note what example values are here. Who knows an address knows the host name that EC2 makes of it."""
        self.known |= values
        for example, value in values.items():
            if re.fullmatch(r"10\.0\.\d+\.\d+", example):
                self.known[f"ip-{example.replace('.', '-')}"] = f"ip-{value.replace('.', '-')}"

    def pattern(self, line: str, learnt: dict[str, str]) -> str:
        """Return the pattern of one line of a page; a value that is new gets a group, which is noted in `learnt`."""
        if line.strip() == ANYTHING:
            return r"(?:.*\n)*?"
        found, rest = "", line
        while rest:
            word, part = self.next(rest, line[: len(line) - len(rest)], learnt)
            found, rest = found + part, rest[len(word) :]
        return f"{found}\n"

    def next(self, rest: str, before: str, learnt: dict[str, str]) -> tuple[str, str]:
        """Return the next word of a line of a page, and its pattern."""
        whole = before + rest
        for shape, part in ((ANYTHING, ".*?"), (r"\s+", r"\s+")):
            if space := re.match(shape, rest):
                return space[0], part
        if name := self.tokens().match(whole, len(before)):
            return name[0], re.escape(self.known[name[0]])
        for shape, here in EXAMPLES:
            example = re.compile(f"{EDGE[0]}(?:{shape}){EDGE[1]}").match(whole, len(before))
            if not example:
                continue
            if example[0] in learnt:
                return example[0], f"(?P={learnt[example[0]]})"
            learnt[example[0]] = group = f"value{len(learnt)}"
            return example[0], f"(?P<{group}>{here.format(**example.groupdict())})"
        for shape, here in TIMES:
            if clock := re.compile(f"{EDGE[0]}(?:{shape})").match(whole, len(before)):
                return clock[0], here
        return rest[0], re.escape(rest[0])


def pages() -> list[Path]:
    """Return the runbooks, without the page that lists them."""
    return sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
