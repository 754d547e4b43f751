# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The regular expressions of this repository, hostile text for each, and how their time grows with that text."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ansible_collections.pcluster.postboot.tests import programs

if sys.version_info >= (3, 11):
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_parse as parser

REPO = Path(__file__).resolve().parents[1]
DOCUMENTS = ("DOCUMENTATION", "EXAMPLES", "RETURN")
FUNCTIONS = ("compile", "search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split")
AT_START = ("match", "fullmatch")  # these try one place of a text; all others each place


# --- Collecting ---


@dataclass
class Found:
    """A regular expression, and how it is applied."""

    file: str
    line: int
    pattern: str
    flags: int = 0
    uses: set[str] = field(default_factory=set)

    @property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern, self.flags)


@dataclass
class Source:
    """A Python file, with what it defines when it is imported."""

    file: str
    tree: ast.Module
    names: dict[str, Any]
    lines: list[str]


def sources() -> list[Source]:
    """Return the Python files that run on nodes and controllers: plugins, playbooks, programs that roles install."""
    files = [*REPO.glob("plugins/**/*.py"), *REPO.glob("playbooks/**/*.py"), *REPO.glob("roles/*/files/**/*")]
    found = []
    for path in sorted(file for file in files if file.is_file()):
        text = path.read_text(errors="replace")
        if path.suffix == ".py" or "python" in text.partition("\n")[0]:
            found.append(Source(str(path.relative_to(REPO)), ast.parse(text), vars(_module(path)), text.split("\n")))
    return found


def _module(path: Path) -> ModuleType:
    relative = path.relative_to(REPO)
    if relative.parts[0] == "plugins" or (path.parent / "__init__.py").exists():
        return importlib.import_module(
            ".".join(("ansible_collections.pcluster.postboot", *relative.with_suffix("").parts))
        )
    return programs.load(str(relative)) if path.suffix == ".py" else ModuleType(path.name)


def collect(
    files: Sequence[Source], dynamic: Mapping[tuple[str, str], str]
) -> tuple[list[Found], list[str], set[tuple[str, str]]]:
    """Return all patterns of these files, where one could not be worked out, and which of `dynamic` there are.

    dynamic: places whose pattern is known at run time alone, by file and expression, with where it comes from
    """
    found: dict[tuple[str, str, int], Found] = {}
    unknown: list[str] = []
    used: set[tuple[str, str]] = set()

    def add(file: str, line: int, pattern: str, flags: int, uses: Iterable[str]) -> None:
        try:
            compiled = re.compile(pattern, flags)
        except re.error:
            return  # a raw string that is no pattern
        one = found.setdefault((file, pattern, compiled.flags), Found(file, line, pattern, compiled.flags))
        one.uses |= set(uses)

    for source in files:
        direct: set[int] = set()
        uses = _Uses(source.tree)
        for call in _calls(source.tree):
            direct |= {id(node) for node in ast.walk(call.args[0])}
            value = _text(_value(call.args[0], source.names))
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if not isinstance(value, str):
                if isinstance(value, re.Pattern):
                    continue
                place = (source.file, ast.unparse(call.args[0]))
                if place in dynamic:
                    used.add(place)
                else:
                    unknown.append(f"{source.file}:{call.lineno}: {ast.unparse(call)[:100]}")
                continue
            more = call.args[{"compile": 1, "split": 3, "sub": 4, "subn": 4}.get(name, 2) :]
            more += [keyword.value for keyword in call.keywords if keyword.arg == "flags"]
            flags = _value(more[0], source.names) if more else 0
            add(source.file, call.lineno, value, int(flags or 0), uses.of(call) if name == "compile" else {name})
        for node in ast.walk(source.tree):
            # Patterns of tables, which are compiled elsewhere: raw strings.
            if not isinstance(node, (ast.Constant, ast.JoinedStr)) or id(node) in direct | uses.documents:
                continue
            value = _value(node, source.names)
            if isinstance(value, str) and re.match(r"[fF]?[rR]", source.lines[node.lineno - 1][node.col_offset :]):
                add(source.file, node.lineno, value, 0, {"search"})
    known = {(pattern, flags) for _file, pattern, flags in found}
    for source in files:
        for live in _live(source.names, set()):
            pattern = _text(live.pattern)
            if (pattern, live.flags) not in known and (pattern, live.flags | re.UNICODE) not in known:
                add(source.file, 0, pattern, live.flags, {"search"})
    return list(found.values()), unknown, used


def _text(pattern: Any) -> Any:
    """Return a pattern of bytes as one of text, whose time is the same."""
    return pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if owner == "re" and node.func.attr in FUNCTIONS:
                yield node


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return what an expression is with a module's names; a part of an f-string that is not known there is `a`."""
    if isinstance(node, ast.JoinedStr):
        parts = []
        for part in node.values:
            value = part.value if isinstance(part, ast.Constant) else _value(part.value, names)  # type: ignore[attr-defined]
            parts.append("a" if value is None else str(value))
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _value(node.left, names), _value(node.right, names)
        return f"{'a' if left is None else left}{'a' if right is None else right}"
    try:
        return eval(compile(ast.Expression(node), "pattern", "eval"), dict(names))
    except Exception:
        return None


def _live(value: Any, seen: set[int], deep: int = 0) -> Iterator[re.Pattern[Any]]:
    """Yield compiled patterns of a module's names, its own classes and containers included."""
    if id(value) in seen or deep > 4:
        return
    seen.add(id(value))
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        own = value.get("__name__")
        for one in list(value.values()):
            if not isinstance(one, ModuleType):
                yield from _live(vars(one) if isinstance(one, type) and one.__module__ == own else one, seen, deep + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for one in value:
            yield from _live(one, seen, deep + 1)


class _Uses:
    """By which methods a file applies the patterns that it compiles."""

    def __init__(self, tree: ast.Module) -> None:
        self.names: dict[int, str] = {}  # the name that a call's result gets, itself or within a container
        self.methods: dict[str, set[str]] = {}
        self.documents: set[int] = set()
        loops: list[tuple[str, str]] = []
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                name = target.id if isinstance(target, ast.Name) else ""
                for inner in ast.walk(node.value):
                    if name in DOCUMENTS:
                        self.documents.add(id(inner))
                    if isinstance(inner, ast.Call):
                        self.names.setdefault(id(inner), name)
            elif isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
                owner = node.value
                while isinstance(owner, ast.Subscript):
                    owner = owner.value
                name = (
                    owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
                )
                self.methods.setdefault(name, set()).add(node.attr)
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                self.documents.add(id(node.value))
            if isinstance(node, (ast.For, ast.comprehension)):
                over = {one.id for one in ast.walk(node.iter) if isinstance(one, ast.Name)}
                over |= {one.attr for one in ast.walk(node.iter) if isinstance(one, ast.Attribute)}
                into = {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)}
                loops += itertools.product(over, into)
        for container, name in loops:
            self.methods.setdefault(container, set()).update(self.methods.get(name, set()))

    def of(self, call: ast.Call) -> set[str]:
        """Return the methods; that of the worst where none is seen."""
        return self.methods.get(self.names.get(id(call), ""), set()) & set(FUNCTIONS) - {"compile"} or {"search"}


# --- Attacking ---

_FILL = "a0 x"
_END = "\0 \0"  # what hardly any part matches: neither a letter nor a digit nor a blank alone
_NEAR = 40  # a repeat of no more is not tried
_MOST = 80
_CATEGORIES = {"DIGIT": "0", "SPACE": " ", "WORD": "a0_", "NOT_DIGIT": "a", "NOT_SPACE": "a0", "NOT_WORD": " "}


def _chars(op: str, arg: Any) -> str:
    """Return a few characters that a node of one character matches."""
    if op == "LITERAL":
        return chr(arg)
    if op == "NOT_LITERAL":
        return "".join(char for char in _FILL if ord(char) != arg)
    if op == "ANY":
        return _FILL
    found, refused = "", any(str(one) == "NEGATE" for one, _value in arg)
    for kind, value in arg:
        if str(kind) == "LITERAL":
            found += chr(value)
        elif str(kind) == "RANGE":
            found += chr(value[0])
        elif str(kind) == "CATEGORY":
            found += _CATEGORIES[str(value).replace("CATEGORY_", "")]
    if not refused:
        return found
    return "".join(char for char in "a0 x\n-\"'!" if not _in(arg, char)) or "é"


def _in(items: Any, char: str) -> bool:
    for kind, value in items:
        kind = str(kind)
        if (kind == "LITERAL" and value == ord(char)) or (kind == "RANGE" and value[0] <= ord(char) <= value[1]):
            return True
        if kind == "CATEGORY":
            tests: dict[str, Callable[[str], bool]] = {"DIGIT": str.isdigit, "SPACE": str.isspace}
            name = str(value).replace("CATEGORY_", "")
            positive = name.replace("NOT_", "")
            hit = tests.get(positive, lambda one: one.isalnum() or one == "_")(char)
            if hit != name.startswith("NOT_"):
                return True
    return False


class Attack:
    """Texts that may make a pattern slow, worked out of its own parts."""

    def __init__(self, pattern: str, flags: int) -> None:
        self.groups: dict[int, str] = {}
        self.fragments: set[str] = set()  # what parts of the pattern match
        self.heads: set[str] = set()  # those of the pattern's beginning
        self.prefixes: dict[str, set[str]] = {"": set()}  # what leads to a repeat: the characters that it repeats
        self.alphabet: set[str] = set()
        self.unbounded = 0
        tree = parser.parse(pattern, flags)
        for variant in range(min(5, max(2, _choices(tree)))):
            for node in tree:
                self._sample(node, variant)  # the groups, for references to them
            self._walk(list(tree), "", variant)

    def texts(self) -> list[tuple[str, str, str]]:
        """Return beginnings, what is repeated, and ends."""
        if not self.unbounded:
            return []
        # What a word's beginning is looked for in may have one after each sign.
        heads = {sign + head for head in sorted(self.heads, key=len)[:4] for sign in ("-", " ")}
        found = {("", pump) for pump in {*self.alphabet, *heads, *sorted(self.fragments, key=len)[:_MOST]}}
        for prefix, pumps in sorted(self.prefixes.items(), key=lambda one: len(one[0]))[:_MOST]:
            found |= {(prefix, pump) for pump in pumps if pump}
        return [(prefix, pump, _END) for prefix, pump in sorted(found)]

    def _walk(self, nodes: list[Any], prefix: str, variant: int) -> None:
        nodes = list(_flat(nodes, variant))
        samples = [self._sample(node, variant) for node in nodes]
        starts = [i for i in range(len(nodes)) if i == 0 or not (_literal(nodes[i]) and _literal(nodes[i - 1]))]
        many = {i for i, node in enumerate(nodes) if _endless(node)}
        for i, j in itertools.combinations([*starts, len(nodes)], 2):
            if i and j != len(nodes) and not {j - 1, j} & many:
                continue
            fragment = "".join(samples[i:j])
            if 0 < len(fragment) <= 200:
                self.fragments.add(fragment)
                if not i and not prefix:
                    self.heads.add(fragment)
        for index, (op, arg) in enumerate(nodes):
            name, before = str(op), prefix + "".join(samples[:index])
            if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
                self.alphabet |= set(_chars(name, arg)[:6])
            for inner in _children(name, arg):
                self._walk(list(inner), before, variant)
            if "REPEAT" in name and arg[1] > _NEAR:
                self.unbounded += 1
                pumps = self.prefixes.setdefault(before, set())
                pumps.update(self._many(arg[2], variant))
                # What a repeat swallows may also begin what comes after it, again and again.
                ends = [j for j in (*starts, len(nodes)) if j > index + 1]
                pumps.update("".join(samples[index + 1 : j]) for j in ends[:_NEAR])

    def _many(self, body: Any, variant: int) -> list[str]:
        nodes = list(body)
        if len(nodes) == 1 and str(nodes[0][0]) in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return list(_chars(str(nodes[0][0]), nodes[0][1])[:6])
        found = ["".join(self._sample(node, variant) for node in nodes)]
        for op, arg in nodes:
            for inner in _children(str(op), arg):
                found += self._many(inner, variant)
        return [one for one in dict.fromkeys(found) if one][:10]

    def _sample(self, node: Any, variant: int) -> str:
        """Return a short text that a node matches."""
        op, arg = str(node[0]), node[1]
        if op in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            chars = _chars(op, arg)
            return chars[variant % len(chars)] if chars else "a"
        if op == "SUBPATTERN":
            text = "".join(self._sample(one, variant) for one in arg[3])
            if arg[0]:
                self.groups[arg[0]] = text
            return text
        if op == "ATOMIC_GROUP":
            return "".join(self._sample(one, variant) for one in arg)
        if op == "BRANCH":
            return "".join(self._sample(one, variant) for one in arg[1][variant % len(arg[1])])
        if "REPEAT" in op:
            return "".join(self._sample(one, variant) for one in arg[2]) * max(arg[0], min(variant, arg[1]))
        return self.groups.get(arg, "") if op == "GROUPREF" else ""


def _flat(nodes: Iterable[Any], variant: int) -> Iterator[Any]:
    """Yield nodes with what groups hold in the groups' places, and one branch of each choice."""
    for node in nodes:
        op, arg = str(node[0]), node[1]
        if op == "SUBPATTERN":
            yield from _flat(arg[3], variant)
        elif op == "BRANCH":
            yield from _flat(arg[1][variant % len(arg[1])], variant)
        else:
            yield node


def _literal(node: Any) -> bool:
    return str(node[0]) == "LITERAL"


def _endless(node: Any) -> bool:
    """Say whether there is a repeat in a node that has no near end."""
    op, arg = str(node[0]), node[1]
    return ("REPEAT" in op and arg[1] > _NEAR) or any(map(_endless, itertools.chain(*_children(op, arg))))


def _choices(nodes: Iterable[Any]) -> int:
    """Return of how many branches the widest choice is."""
    found = [1]
    for node in nodes:
        op, arg = str(node[0]), node[1]
        found += [len(arg[1])] if op == "BRANCH" else []
        found += [_choices(inner) for inner in _children(op, arg)]
    return max(found)


def _children(op: str, arg: Any) -> list[Any]:
    if op == "SUBPATTERN":
        return [arg[3]]
    if op in ("ASSERT", "ASSERT_NOT"):
        return [arg[1]]
    if op == "BRANCH":
        return list(arg[1])
    if op == "ATOMIC_GROUP":
        return [arg]
    return [arg[2]] if "REPEAT" in op else []


# --- Measuring ---

# All times are those of this process, because others may use the machine.
CAP = 1.0  # seconds, after which a pattern is not waited for
INFINITY = float("inf")
GROWTH = 3.2  # linear is 2, quadratic is 4
_CERTAIN = 2.5
_SMALL, _LARGEST = 1024, 1 << 17
_LONG = 0.01  # seconds that are measured well


class Endless(Exception):
    """A pattern took longer than CAP."""


def _alarm(_signal: int, _frame: Any) -> None:
    raise Endless


def seconds(work: Callable[[str], object], text: str, times: int = 1) -> float:
    """Return the shortest time of this work. Raises Endless."""
    best = CAP
    before = signal.signal(signal.SIGVTALRM, _alarm)
    try:
        for _time in range(times):
            signal.setitimer(signal.ITIMER_VIRTUAL, CAP)
            begin = time.thread_time()
            work(text)
            best = min(best, time.thread_time() - begin)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    return best


def growth(work: Callable[[str], object], parts: tuple[str, str, str]) -> float:
    """Return by how much the time grows with a text of twice the length; infinity where it does not end."""
    begin, pump, end = parts

    def text(size: int) -> str:
        return begin + pump * max(4, size // len(pump)) + end

    try:
        few, many = seconds(work, text(_SMALL)), seconds(work, text(4 * _SMALL))
        if many < 6 * few or many < 6 * min(few, seconds(work, text(_SMALL), 2)):
            return 2.0
        size = 4 * _SMALL
        while seconds(work, text(size)) < _LONG:
            size *= 2
            if size > _LARGEST:
                return 2.0
        one = two = CAP
        # Other programs make a measurement longer, and never shorter.
        for round_ in range(5):
            one, two = min(one, seconds(work, text(size))), min(two, seconds(work, text(2 * size)))
            if round_ and two / one < _CERTAIN:
                return two / one
        # Memory costs more from some size on: growth that is real goes on.
        return min(two / one, (seconds(work, text(8 * size), 2) / one) ** (1 / 3))
    except Endless:
        return INFINITY


def slow(found: Found) -> list[str]:
    """Return a line about a pattern whose time grows faster than its text; none where it does not."""
    compiled = found.compiled
    works: list[Callable[[str], object]] = []
    if found.uses - set(AT_START):
        works.append(lambda text: sum(1 for _match in compiled.finditer(text)))
    works += [getattr(compiled, name) for name in found.uses & set(AT_START)]
    for parts in Attack(found.pattern, found.flags).texts():
        for work in works:
            grown = growth(work, parts)
            if grown >= GROWTH:
                begin, pump, end = parts
                times = "takes too long" if grown == INFINITY else f"grows {grown:.1f} times as twice as long"
                return [f"{found.file}:{found.line}: {found.pattern!r} {times}: {begin!r} + {pump!r} * n + {end!r}"]
    return []
