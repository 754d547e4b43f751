# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""No regular expression of the collection takes more than twice as long for twice as much hostile text."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from ansible_collections.pcluster.postboot.tests import patterns

# Patterns that are no literals, by file and expression, and what they are.
LITERAL_STRINGS = "raw strings of the same file, each of which is tested"
DYNAMIC = {
    ("plugins/filter/as_files.py", "endings"): "an argument that roles give as a literal",
    ("plugins/filter/problems.py", "rule['pattern']"): "rules of roles, for the administrator's variables",
    ("plugins/lookup/variables.py", "self.get_option('pattern')"): "an argument that roles give as a literal",
    ("plugins/module_utils/_bundle/archive.py", "pattern"): "the administrator's names of groups",
    ("plugins/module_utils/_cloudwatch/config.py", "pattern"): "the administrator's; it is compiled and never applied",
    ("plugins/module_utils/_diagnose/boot.py", "pattern"): LITERAL_STRINGS,
    ("plugins/module_utils/_diagnose/evidence.py", "pattern"): "raw strings of the finders, each of which is tested",
    ("plugins/module_utils/_diagnose/node.py", "either"): "names of nodes and instances",
    ("plugins/module_utils/_diagnose/redact.py", "either"): "at most 64 texts of 8 characters",
    ("plugins/module_utils/_diagnose/storage.py", "pattern"): LITERAL_STRINGS,
    ("plugins/module_utils/_efa/installer.py", "pattern"): LITERAL_STRINGS,
    ("plugins/module_utils/_node/monitoring.py", "pattern"): LITERAL_STRINGS,
    ("plugins/module_utils/_packages/repository.py", "pattern"): LITERAL_STRINGS,
    ("plugins/module_utils/_systemd/files.py", "'|'.join(marks)"): "names of the role's units",
    ("plugins/module_utils/_verify/cluster.py", "before"): LITERAL_STRINGS,
    ("plugins/plugin_utils/_cluster_config/slurm.py", "pattern"): LITERAL_STRINGS,
    ("plugins/plugin_utils/_cluster_config/storage.py", "self.pattern"): LITERAL_STRINGS,
    ("plugins/plugin_utils/_site/parsers.py", "_NCCL_TEXT[name]"): LITERAL_STRINGS,
    ("plugins/plugin_utils/_site/parsers.py", "self.pattern"): LITERAL_STRINGS,
    ("plugins/plugin_utils/_publish/rights.py", "_regex(str(pattern))"): "policies of the administrator's account",
    ("plugins/plugin_utils/_publish/rights.py", "_regex(beginning)"): "policies of the administrator's account",
}
# Folders that are tested one by one; the rest together.
PARTS = ("plugins/module_utils/_diagnose", "plugins/module_utils/_verify", "plugins/module_utils", "plugins", "")


@functools.cache
def collected() -> tuple[list[patterns.Found], list[str], set[tuple[str, str]]]:
    return patterns.collect(patterns.sources(), DYNAMIC)


def of(part: str) -> list[patterns.Found]:
    others = PARTS[: PARTS.index(part)]
    return [one for one in collected()[0] if one.file.startswith(part) and not one.file.startswith(others)]


@pytest.mark.parametrize("part", PARTS)
def test_time_grows_as_the_text_does(part: str) -> None:
    found = of(part)
    assert len(found) > 10
    assert [line for one in found for line in patterns.slow(one)] == []


def test_each_pattern_is_known() -> None:
    """Each is a literal, or its expression stands above with what it is."""
    _found, unknown, used = collected()
    assert unknown == []
    assert used == set(DYNAMIC)


SLOW = [
    ("search", r"(a|aa)+b"),
    ("search", r"([\w.]+)*!"),
    ("match", r"\"(?:\\.|[^\"])*\""),
    ("search", r"\s+x"),
    ("search", r"[\w.]+@"),
    ("search", r"begin .* end"),
    ("search", r"\beyJ[\w-]{10,}\.x"),
    ("match", r"(.*?)([0-9]+)\Z"),
    ("match", r"prefix: \d+\d*;"),
    ("fullmatch", r"[a-z0-9-]+-(?:st|dy)-[a-z0-9-]+-\d+"),
    ("sub", r"(?P<all>(?:^[A-Z]{16,}\n)+)END"),
    ("findall", r"<m>(.*?)</m>"),
]
FAST = [
    ("match", r"\s*(\w+)\s*=\s*(.*)"),
    ("search", r"(?<!\s)\s+x"),
    ("search", r"begin (?:(?!begin ).)* end"),
    ("sub", r"\"(?:\\.|[^\"\\])*\""),
    ("search", r"[a-z]{1,64}-[a-z]{1,64}-\d+"),
    ("fullmatch", r"[a-z][a-z0-9-]*"),
]


@pytest.mark.parametrize(("use", "pattern"), SLOW)
def test_a_slow_pattern_is_seen(use: str, pattern: str) -> None:
    flags = re.MULTILINE if "^" in pattern else 0
    (line,) = patterns.slow(patterns.Found("a.py", 1, pattern, flags, {use}))
    assert line.startswith("a.py:1: ")


@pytest.mark.parametrize(("use", "pattern"), FAST)
def test_a_fast_pattern_is_not_blamed(use: str, pattern: str) -> None:
    assert patterns.slow(patterns.Found("a.py", 1, pattern, 0, {use})) == []


def test_patterns_are_found_wherever_they_are() -> None:
    text = '''
import re
PART = r"[ab]+c"
_FIRST = re.compile(rf"x{PART}", re.IGNORECASE)
_TABLE = {"one": re.compile("b+")}
RULES = ((r"d+e", "what"),)
DOCUMENTATION = r"""no+ pattern"""
def function(text, name, given):
    """A document of .* words."""
    for key, pattern in _TABLE.items():
        pattern.fullmatch(text)
    if re.search(rf"{name}f+", text, flags=re.M) or re.sub(given, "", text):
        return _FIRST.match(text)
    return re.split("g+" + name, text)
'''
    names: dict[str, object] = {}
    exec(text, names)
    source = patterns.Source("a.py", ast.parse(text), names, text.split("\n"))
    found, unknown, _used = patterns.collect([source], {})
    assert {(one.pattern, *sorted(one.uses)) for one in found} == {
        ("[ab]+c", "search"),
        ("x[ab]+c", "match"),
        ("b+", "fullmatch"),
        ("d+e", "search"),
        ("af+", "search"),
        ("g+a", "split"),
    }
    assert [line.partition(": ")[2] for line in unknown] == ["re.sub(given, '', text)"]
