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
_NAMED = re.compile(
    rf"""(?P<name>(?:{_NAMES})[\w.-]{{0,60}})      # the name, whose beginning does not matter
    (?P<between>\\*["']?[ \t]*[:=][ \t]*)
    (?!\w+\][ ]-[ ])                               # a logger's name, as in [botocore.credentials:load] - INFO
    (?P<value>
      (?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote)).)*)(?P=quote)  # in quotes
      | (?P<escaped>\\+["'])(?P<inner>.*?)(?P=escaped)             # in those of JSON within JSON
      | [^\s,}}\]](?:(?!,[\s"'])[^\n])*                            # or up to what ends it
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_OPTION = re.compile(rf"(?P<before>--[\w-]{{0,40}}?(?:{_NAMES})[ \t]+)(?P<value>[^\s\"'-][^\s\"']*)", re.IGNORECASE)
# YAML's text of several lines: all that is indented further than its name.
_BLOCK = re.compile(
    rf"^(?P<indent>[ \t]*)(?P<before>[\w.-]{{0,60}}?(?:{_NAMES})[\w.-]{{0,60}}[\"']?:[ \t]*[|>][-+\d]*[ \t]*\n)"
    r"(?P<value>(?:(?P=indent)[ \t]+[^\n]*\n|[ \t]*\n)+)",
    re.IGNORECASE | re.MULTILINE,
)
# A variable of an environment, as a list of names and values has it.
_LISTED = re.compile(
    rf"(?P<before>name\"?:[ \t]*\"?[\w.-]{{0,60}}?(?:{_NAMES})[\w.-]{{0,60}}\"?,?\s+\"?value\"?:[ \t]*)"
    r"(?P<value>[^\s,}]+)",
    re.IGNORECASE,
)

# By form alone. The group `secret` is what goes.
_FORMS = {
    "private key": re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<secret>.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    # The file was cut, and has the end of a key alone.
    "end of a private key": re.compile(
        r"(?P<secret>(?:^[A-Za-z0-9+/=]{16,}\n)+)-----END [A-Z ]*PRIVATE KEY-----", re.MULTILINE
    ),
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
    "JSON web token": re.compile(r"\b(?P<secret>eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"),
    "token of a service": re.compile(
        r"\b(?P<secret>nvapi-[\w-]{20,}|hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{22,}|glsa_\w{32,}"
        r"|glc_[\w=]{32,}|xox[abprs]-[\w-]{10,}|sk-[\w-]{20,})"
    ),
    "web hook": re.compile(r"hooks\.slack\.com/services/(?P<secret>[\w/]+)"),
    "hash of a password": re.compile(r"(?P<secret>\$(?:6|5|2[aby]|y|argon2id?)\$[\w./$=,+-]{20,})"),
}
NAMED, KNOWN = "value of a name such as password", "value that was told beside such a name elsewhere"


class Redactor:
    """Cleans texts. Values that it has met beside a name go from every text that `known` gets afterwards."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self.values = {value for value in values if _telling(value)}

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

        for kind, pattern in _FORMS.items():
            text = pattern.sub(form(kind), text)

        def plain(match: re.Match[str]) -> str:
            counts[NAMED] += 1
            self._learn(match["value"])
            return match["before"] + MARK

        def block(match: re.Match[str]) -> str:
            counts[NAMED] += 1
            for line in match["value"].splitlines():
                self._learn(line)
            return f"{match['indent']}{match['before']}{match['indent']}  {MARK}\n"

        def named(match: re.Match[str]) -> str:
            quote = match["quote"] or match["escaped"] or ""
            value = (match["quoted"] or match["inner"] or "") if quote else match["value"].strip()
            if not value or _PLAIN.match(value.rstrip("}])")) or MARK in value or _PLACES.search(match["name"]):
                return match[0]
            counts[NAMED] += 1
            self._learn(value)
            return f"{match['name']}{match['between']}{quote}{MARK}{quote}"

        text = _BLOCK.sub(block, text)
        text = _LISTED.sub(plain, text)
        text = _NAMED.sub(named, text)
        text = _OPTION.sub(plain, text)
        return text, counts

    def known(self, text: str) -> tuple[str, int]:
        """Return a text without the values that are known, and how many went."""
        count = 0
        for value in sorted(self.values, key=len, reverse=True):
            if value in text:
                count += text.count(value)
                text = text.replace(value, MARK)
        return text, count

    def _learn(self, value: str) -> None:
        value = value.strip().strip("\"'")
        if _telling(value):
            self.values.add(value)


def _telling(value: str) -> bool:
    """Say whether a value is a secret wherever it stands: long, and no plain word or path."""
    if len(value) < SHORTEST or MARK in value or " " in value:
        return False
    return not re.fullmatch(r"[a-z_-]+|/[\w./-]*|[\d.:T-]+Z?|\$?\{.*\}|\$\w+|s3://\S*|https?://\S*", value)
