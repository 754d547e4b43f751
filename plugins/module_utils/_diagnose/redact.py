# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Takes secrets out of the texts of an archive, and counts what was taken out.

A secret is known by its form (an AWS key, a private key), by the name before it (`password: …`), or by its value where
a name has told the value once. A value too much is redacted rather than one too few.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Callable

MARK = "[redacted]"
SHORTEST = 8  # a shorter value is redacted beside its name alone: elsewhere the same letters may mean anything

# What a name has in it whose value is a secret. Nothing stands before it, so that long words cost no time.
_NAMES = (
    r"passw(?:or)?d|passwd|passphrase|storagepass|secret|token|api[_-]?key|apikey|access[_-]?key|private[_-]?key"
    r"|credential|auth[_-]?key|signing[_-]?key|webhook"
)
# Such names with these ends tell where a secret is, and not what it is.
_PLACES = re.compile(r"(?:file|path|dir|arn|name|type|id|ttl|version|enabled|required)s?\Z", re.IGNORECASE)
_PLAIN = re.compile(
    r"(?:true|false|yes|no|none|null|required|optional|enabled|disabled|default|always|never|~|\{\}|\[\]|\||>|\|-|>-"
    r"|arn:aws[\w-]*:\S*|\[redacted\])\Z",
    re.IGNORECASE,
)
# A name and what is between it and its value. The name's beginning does not matter.
_NAMED = re.compile(
    rf"""(?P<name>(?:{_NAMES})[\w.-]{{0,60}})
    (?P<between>\\*["']?[ \t]*[:=][ \t]*)
    (?!\w+\][ ]-[ ])                               # a logger's name, as in [botocore.credentials:load] - INFO
    (?P<quote>\\{{0,63}}["'])?                       # a quote, or that of JSON within JSON
    """,
    re.IGNORECASE | re.VERBOSE,
)
# Ends of values. A value is read by a loop: a pattern of all of it needs memory for each character.
_QUOTED = {quote: re.compile(rf"\\.|{quote}|\n") for quote in "\"'"}
_PLAIN_END = re.compile(r",(?=[\s\"'])|\n")
_OPTION = re.compile(rf"(?P<before>--[\w-]{{0,40}}?(?:{_NAMES})[ \t]+)(?P<value>[^\s\"'-][^\s\"']*)", re.IGNORECASE)
# YAML's text of several lines: all that is indented further than its name.
_BLOCK = re.compile(
    rf"^(?P<indent>[ \t]*)[\w.-]{{0,60}}?(?:{_NAMES})[\w.-]{{0,60}}[\"']?:[ \t]*[|>][-+\d]*[ \t]*\n",
    re.IGNORECASE | re.MULTILINE,
)
# A variable of an environment, as a list of names and values has it.
_LISTED = re.compile(
    rf"(?P<before>name\"?:[ \t]*\"?[\w.-]{{0,60}}?(?:{_NAMES})[\w.-]{{0,60}}\"?,?\s+\"?value\"?:[ \t]*)"
    r"(?P<value>[^\s,}]+)",
    re.IGNORECASE,
)

_KEY_BEGIN, _KEY_END = (re.compile(rf"-----{edge} [A-Z ]*PRIVATE KEY-----") for edge in ("BEGIN", "END"))
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{16,}")
# A line of a key without an end, also behind a log's prefix. Any user may log the beginning of a key: it must not hide
# all lines that follow.
_KEY_LOGGED = re.compile(r"\s*\Z|(?:Proc-Type|DEK-Info): |.*(?<![A-Za-z0-9+/=])[A-Za-z0-9+/=]{16,}\s*\Z")
_LONGEST_KEY = 32_000  # characters; of RSA with 16384 bits it has 13,000, and each line of a log more of its own

# By form alone. The group `secret` is what goes.
_FORMS = {
    "AWS access key": re.compile(r"\b(?P<secret>(?:AKIA|ASIA)[A-Z0-9]{16})\b"),
    "AWS session token": re.compile(r"\b(?P<secret>(?:IQoJb3JpZ2lu|FwoGZXIvYXdz|FQoGZXIvYXdz)[A-Za-z0-9+/=%]{20,})"),
    "signature of a URL": re.compile(
        r"(?:X-Amz-(?:Signature|Credential|Security-Token)|[?&](?:Signature|AWSAccessKeyId|sig))(?:=|%3D)"
        r"(?P<secret>[^&\s\"'<>\\]+)",
        re.IGNORECASE,
    ),
    "authorization": re.compile(
        r"\bAuthorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?P<secret>(?:(?:Bearer|Basic|Token|Digest|AWS4-HMAC-SHA256)\s+)?"
        r"[^\n\"'\\]+)",
        re.IGNORECASE,
    ),
    "bearer": re.compile(r"\bBearer\s+(?P<secret>[A-Za-z0-9._~+/=-]{16,})"),
    "password of a URL": re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s/:@\"']{0,100}:(?P<secret>[^\s/@\"']{1,200})@"),
    # Whether there is a token is asked once for each word, wherever in the word the token begins.
    "JSON web token": re.compile(
        r"(?<![\w-])(?=[\w-]{13,}\.[\w-]{10,}\.)[\w-]*?\b(?P<secret>eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
    ),
    "token of a service": re.compile(
        r"\b(?P<secret>nvapi-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glsa_\w{32,}"
        r"|glc_[\w=]{32,}|xox[abprs]-[\w-]{10,}|sk-[\w-]{20,})"
    ),
    "web hook": re.compile(r"hooks\.slack\.com/services/(?P<secret>[\w/]+)"),
    "hash of a password": re.compile(r"(?P<secret>\$(?:6|5|2[aby]|y|argon2id?)\$[\w./$=,+-]{20,})"),
}
KEY, END_OF_KEY = "private key", "end of a private key"
NAMED, KNOWN = "value of a name such as password", "value that was told beside such a name elsewhere"


class Redactor:
    """Cleans texts. Values that it has met beside a name go from every text that `known` gets afterwards."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.values = {value for value in values if _telling(value)}
        self._index = _Index(())

    def clean(self, text: str) -> tuple[str, Counter[str]]:
        """Return a text without what its form or its name tells to be secret, and how much of each kind went."""
        counts: Counter[str] = Counter()

        def form(kind: str) -> Callable[[re.Match[str]], str]:
            def replace(match: re.Match[str]) -> str:
                if match["secret"].strip() == MARK:
                    return match[0]
                counts[kind] += 1
                start, end = match.span("secret")
                return match[0][: start - match.start()] + MARK + match[0][end - match.start() :]

            return replace

        text = _without_keys(text, counts)
        text = _without_ends_of_keys(text, counts)
        for kind, pattern in _FORMS.items():
            text = pattern.sub(form(kind), text)

        def plain(match: re.Match[str]) -> str:
            counts[NAMED] += 1
            self._learn(match["value"])
            return match["before"] + MARK

        text = self._without_blocks(text, counts)
        text = _LISTED.sub(plain, text)
        text = self._without_named(text, counts)
        text = _OPTION.sub(plain, text)
        return text, counts

    def _without_blocks(self, text: str, counts: Counter[str]) -> str:
        done, parts = 0, []
        match = _BLOCK.search(text)
        while match:
            at, lines = match.end(), []
            while at < len(text):
                end = text.find("\n", at) + 1 or len(text)
                line = text[at:end]
                deeper = line.startswith(match["indent"]) and line[len(match["indent"]) :][:1] in (" ", "\t")
                if line.strip(" \t\n") and not deeper:
                    break
                lines.append(line)
                at = end
            if lines:
                counts[NAMED] += 1
                for line in lines:
                    self._learn(line)
                parts.append(f"{text[done : match.end()]}{match['indent']}  {MARK}\n")
                done = at
            match = _BLOCK.search(text, at)
        return "".join([*parts, text[done:]])

    def _without_named(self, text: str, counts: Counter[str]) -> str:
        done, parts = 0, []
        match = _NAMED.search(text)
        while match:
            quote, begin, end = _value(text, match)
            if not end:
                match = _NAMED.search(text, match.start() + 1)
                continue
            value = text[begin:end] if quote else text[begin:end].strip()
            place = not value or MARK in value or _PLACES.search(match["name"])
            if not place and not _PLAIN.match(value.rstrip("}])")):
                counts[NAMED] += 1
                self._learn(value)
                parts += [text[done:begin], MARK]
                done = end
            match = _NAMED.search(text, end + len(quote))
        return "".join([*parts, text[done:]])

    def known(self, text: str) -> tuple[str, int]:
        """Return a text without the values that are known, and how many went."""
        if self._index.values != len(self.values):
            self._index = _Index(self.values)
        at = done = count = 0
        parts: list[str] = []
        while True:
            start = self._index.next(text, at)
            if start < 0:
                return "".join([*parts, text[done:]]), count
            end = self._index.end(text, start)
            if end:
                count += 1
                parts += [text[done:start], MARK]
                done = end
            at = end or start + 1

    def _learn(self, value: str) -> None:
        value = value.strip().strip("\"'")
        if _telling(value):
            self.values.add(value)


class _Index:
    """Finds values in texts in a time that hardly grows with their number, which other people may choose."""

    FEW = 64  # beginnings that one pattern looks for
    LONGEST = 64  # characters that are compared; behind those of a longer value, the rest of the line is removed, too

    def __init__(self, values: Iterable[str]) -> None:
        self.values = 0
        self._of: dict[str, dict[int, set[str]]] = {}  # by their beginnings and lengths, the longest first
        for value in sorted(values, key=len, reverse=True):
            self.values += 1
            key = value[: self.LONGEST]
            self._of.setdefault(value[:SHORTEST], {}).setdefault(len(key), set()).add(key)
        either = "|".join(map(re.escape, self._of))
        self._pattern = re.compile(either) if 0 < len(self._of) <= self.FEW else None

    def next(self, text: str, at: int) -> int:
        """Return where a value may begin next; -1 where none does."""
        if not self._of:
            return -1
        if self._pattern:
            match = self._pattern.search(text, at)
            return match.start() if match else -1
        of = self._of
        return next((i for i in range(at, len(text) - SHORTEST + 1) if text[i : i + SHORTEST] in of), -1)

    def end(self, text: str, start: int) -> int:
        """Return where the longest value ends that begins here; 0 where none does."""
        for length, alike in self._of[text[start : start + SHORTEST]].items():
            if text[start : start + length] in alike:
                line = text.find("\n", start)
                return start + length if length < self.LONGEST else line if line >= 0 else len(text)
        return 0


def _without_keys(text: str, counts: Counter[str]) -> str:
    done, parts = 0, []
    key, stop = _KEY_BEGIN.search(text), _KEY_END.search(text)
    while key:
        begin = end = key.end()
        while stop and stop.start() < begin:
            stop = _KEY_END.search(text, stop.end())
        if stop and stop.start() - begin <= _LONGEST_KEY:
            end = stop.start()
        else:
            line = text.find("\n", end)
            while line >= 0:
                end = line
                line = text.find("\n", end + 1)
                if not _KEY_LOGGED.match(text, end + 1, line if line >= 0 else len(text)):
                    break
            else:
                end = len(text)
        if text[begin:end].strip() != MARK:
            counts[KEY] += 1
            parts += [text[done:begin], MARK]
            done = end
        key = _KEY_BEGIN.search(text, end)
    return "".join([*parts, text[done:]])


def _without_ends_of_keys(text: str, counts: Counter[str]) -> str:
    """Take out the end of a key whose beginning was cut off with that of the file."""
    done, parts = 0, []
    for match in _KEY_END.finditer(text):
        if match.start() and text[match.start() - 1] != "\n":
            continue
        begin = match.start()
        while begin > done:
            line = text.rfind("\n", done, begin - 1) + 1 or done
            if not _KEY_LINE.fullmatch(text, line, begin - 1):
                break
            begin = line
        if begin < match.start():
            counts[END_OF_KEY] += 1
            parts += [text[done:begin], MARK, match[0]]
        else:
            parts.append(text[done : match.end()])
        done = match.end()
    return "".join([*parts, text[done:]])


def _value(text: str, name: re.Match[str]) -> tuple[str, int, int]:
    """Return the quote of the value after a name, where the value begins, and where it ends: at 0 if there is none."""
    quote, begin = name["quote"] or "", name.end()
    if len(quote) == 1:
        last = 0  # a quote after a backslash, which ends the value where no other one does
        for match in _QUOTED[quote].finditer(text, begin):
            if match[0] == quote:
                return quote, begin, match.start()
            if match[0] == "\n":
                break
            last = match.end() - 1 if match[0][1] == quote else last
        if last:
            return quote, begin, last
    elif quote:
        line = text.find("\n", begin)
        end = text.find(quote, begin, line if line >= 0 else len(text))
        if end >= 0:
            return quote, begin, end
    begin -= len(quote)
    if begin >= len(text) or text[begin].isspace() or text[begin] in ",}]":
        return "", begin, 0
    found = _PLAIN_END.search(text, begin + 1)
    return "", begin, found.start() if found else len(text)


def _telling(value: str) -> bool:
    """Say whether a value is a secret wherever it stands: long, and no plain word or path."""
    if len(value) < SHORTEST or MARK in value or " " in value:
        return False
    return not re.fullmatch(r"[a-z_-]+|/[\w./-]*|[\d.:T-]+Z?|\$?\{.*\}|\$\w+|s3://\S*|https?://\S*", value)
