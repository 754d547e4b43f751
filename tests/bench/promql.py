# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How many series a PromQL expression draws, and how many samples Prometheus holds for it at the most.

`--query.max-samples` (50,000,000 by default, cmd/prometheus/main.go) bounds what an evaluator holds at one moment. What
it counts is read from promql/engine.go of Prometheus 3.14.0: a selector holds a sample for each series and point
(evalSeries); a function of a range holds one for each of its results, and beside them the window of one series only
(eval, *parser.Call); an operator and a function of vectors hold their operands until each point of the result is there,
and those of one point twice (rangeEval, gatherVector); an aggregation its input, and then its result alone
(*parser.AggregateExpr); what does not depend on the time, such as all that is `@ end()`, is evaluated at one point, and
its result repeated (*parser.StepInvariantExpr).

Series are sets of labels that are there all the time, and a comparison drops none of them, so each number is the most.
A Prometheus 3.5.3 that had 16 nodes' series told the same `peakSamples` of nine queries out of ten (`stats=all`), and
fewer of the tenth, a subquery that began before its data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Labels = dict[str, str]
Node = tuple[Any, ...]

AGGREGATIONS = {
    *("sum", "avg", "min", "max", "count", "group", "stddev", "stdvar"),
    *("topk", "bottomk", "quantile", "count_values"),
}
BINDING = {
    **dict.fromkeys(["or"], 1),
    **dict.fromkeys(["and", "unless"], 2),
    **dict.fromkeys(["==", "!=", "<", ">", "<=", ">="], 3),
    **dict.fromkeys(["+", "-"], 4),
    **dict.fromkeys(["*", "/", "%"], 5),
}
TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<range>\[[^\]]*\])
    |(?P<duration>[0-9]+(?:ms|[smhdw])\b)
    |(?P<number>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?(?![\w:]))
    |(?P<name>[A-Za-z_:][\w:]*)
    |(?P<sign>=~|!~|==|!=|<=|>=|[-+*/%(){},=<>@]))""",
    re.VERBOSE,
)
UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def seconds(duration: str) -> float:
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[smhdw])", duration))


class Parser:
    """The part of PromQL that dashboards and rules use."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        place = 0
        while text[place:].strip():
            match = TOKEN.match(text, place)
            assert match, f"not understood: {text[place:]}"
            self.tokens.append((str(match.lastgroup), match[str(match.lastgroup)]))
            place = match.end()
        self.place = 0

    def peek(self) -> str:
        return self.tokens[self.place][1] if self.place < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        found = self.peek()
        assert found, f"the expression ends, expected {expected!r}"
        assert expected in ("", found), f"found {found!r}, expected {expected!r}"
        self.place += 1
        return found

    def listed(self, brackets: str, one: Callable[[], Any]) -> list[Any]:
        """What stands between brackets, separated by commas."""
        found = []
        self.take(brackets[0])
        while self.peek() != brackets[1]:
            found.append(one())
            if self.peek() == ",":
                self.take()
        self.take(brackets[1])
        return found

    def names(self) -> tuple[str, ...]:
        """A list of labels in parentheses."""
        return tuple(self.listed("()", self.take))

    def whole(self) -> Node:
        found = self.expression(0)
        assert not self.peek(), f"more than an expression: {self.peek()}"
        return found

    def expression(self, least: int) -> Node:
        left = self.unary()
        while BINDING.get(self.peek(), 0) > least:
            sign = self.take()
            how: dict[str, tuple[str, ...]] = {}
            while self.peek() in ("bool", "on", "ignoring", "group_left", "group_right"):
                word = self.take()
                how[word] = self.names() if word != "bool" and self.peek() == "(" else ()
            left = ("binary", sign, left, self.expression(BINDING[sign]), how)
        return left

    def unary(self) -> Node:
        if self.peek() in ("-", "+"):
            self.take()
            return ("same", self.unary())
        return self.suffixed(self.primary())

    def suffixed(self, found: Node) -> Node:
        while self.peek().startswith("[") or self.peek() in ("@", "offset"):
            if self.peek() == "@":
                self.take()
                self.take()
                self.names()
                found = (*found[:-1], True) if found[0] in ("selector", "range") else found
            elif self.peek() == "offset":
                self.take()
                self.take()
            else:
                span, again, step = self.take()[1:-1].partition(":")
                if again:
                    found = ("subquery", found, seconds(span), seconds(step))
                else:
                    found = ("range", found, seconds(span), False)
        return found

    def primary(self) -> Node:
        kind, text = self.tokens[self.place]
        if kind == "number":
            self.take()
            return ("number", float(text))
        if kind == "string":
            return ("string", self.take()[1:-1])
        if text == "(":
            self.take()
            found = self.expression(0)
            self.take(")")
            return ("same", found)
        if text == "{":
            return self.selector("")
        name = self.take()
        if name in AGGREGATIONS and self.peek() in ("by", "without", "("):
            return self.aggregation(name)
        if self.peek() == "(":
            return ("call", name, self.arguments())
        return self.selector(name)

    def arguments(self) -> list[Node]:
        return self.listed("()", lambda: self.expression(0))

    def aggregation(self, name: str) -> Node:
        grouping: tuple[str, tuple[str, ...]] = ("by", ())
        if self.peek() in ("by", "without"):
            grouping = (self.take(), self.names())
        given = self.arguments()
        if self.peek() in ("by", "without"):
            grouping = (self.take(), self.names())
        return ("aggregate", name, grouping, given)

    def matcher(self) -> tuple[str, str, str]:
        label, sign, value = self.take(), self.take(), self.take()
        return label, sign, value[1:-1].replace("\\\\", "\\")

    def selector(self, name: str) -> Node:
        matchers = [("__name__", "=", name)] if name else []
        if self.peek() == "{":
            matchers += self.listed("{}", self.matcher)
        return ("selector", tuple(matchers), False)


def parsed(expr: str) -> Node:
    return Parser(expr).whole()


def constant(node: Node) -> bool:
    """Whether an expression has the same value at every point (PreprocessExpr)."""
    kind = node[0]
    if kind in ("number", "string"):
        return True
    if kind == "selector":
        return bool(node[2])
    if kind == "range":
        return bool(node[3]) or constant(node[1])
    if kind == "same":
        return constant(node[1])
    if kind == "binary":
        return constant(node[2]) and constant(node[3])
    if kind == "call":
        return node[1] not in ("time", "timestamp") and all(map(constant, node[2]))
    if kind == "aggregate":
        return all(map(constant, node[3]))
    return False


def selectors(node: Any) -> Iterator[Node]:
    if isinstance(node, tuple) and node and node[0] == "selector":
        yield node
    elif isinstance(node, (tuple, list)):
        for one in node:
            yield from selectors(one)


@dataclass
class Store:
    """The series that there are, by the names of their metrics."""

    series: dict[str, list[Labels]] = field(default_factory=dict)

    def add(self, name: str, found: Iterable[Mapping[str, str]]) -> None:
        self.series.setdefault(name, []).extend({**one, "__name__": name} for one in found)

    def select(self, matchers: Iterable[tuple[str, str, str]]) -> list[Labels]:
        matchers = list(matchers)
        names = [value for label, sign, value in matchers if (label, sign) == ("__name__", "=")]
        found = [one for name in names or list(self.series) for one in self.series.get(name, [])]
        for label, sign, value in matchers:
            if sign in ("=", "!="):
                found = [one for one in found if (one.get(label, "") == value) == (sign == "=")]
            else:
                pattern = re.compile(value)
                fits: dict[str, bool] = {}
                for one in found:
                    text = one.get(label, "")
                    if text not in fits:
                        fits[text] = bool(pattern.fullmatch(text)) == (sign == "=~")
                found = [one for one in found if fits[one.get(label, "")]]
        return found


class Evaluator:
    """Evaluates expressions over `points` points; `peak` is the most samples that were held, `read` the series."""

    def __init__(self, store: Store, points: int, scrape: float = 60) -> None:
        self.store, self.points, self.scrape = store, points, scrape
        self.held = self.peak = self.read = 0

    def hold(self, samples: int) -> None:
        self.held = samples
        self.peak = max(self.peak, samples)

    def run(self, node: Node) -> list[Labels]:
        """The labels of what an expression returns."""
        if self.points > 1 and node[0] in ("call", "aggregate", "binary", "selector") and constant(node):
            points, self.points = self.points, 1
            found = self.run(node)
            self.points = points
            self.hold(self.held + len(found) * (points - 1))
            return found
        return list(getattr(self, f"run_{node[0]}")(*node[1:]))

    def run_number(self, _value: float) -> list[Labels]:
        self.hold(self.held + self.points)
        return [{}]

    def run_same(self, inner: Node) -> list[Labels]:
        return self.run(inner)

    def run_selector(self, matchers: Any, _at: bool) -> list[Labels]:
        found = self.store.select(matchers)
        self.read += len(found)
        self.hold(self.held + len(found) * self.points)
        return found

    def run_call(self, name: str, given: list[Node]) -> list[Labels]:
        before = self.held
        if name == "time":
            self.hold(before + self.points)
            return [{}]
        if name == "label_replace":
            return self.replaced(*given)
        for one in given:
            if one[0] == "range":
                found = self.store.select(one[1][1])
                self.read += len(found)
                held = len(found) * self.points
                self.hold(before + held + int(one[2] / self.scrape))  # of one series at a time, the window
                self.held = before + held
                return [nameless(each) if name != "last_over_time" else each for each in found]
            if one[0] == "subquery":
                points, self.points = self.points, int(one[2] / one[3]) + self.points
                found = self.run(one[1])
                self.points = points
                self.hold(self.held + len(found) * points)
                self.held = before + len(found) * points
                return [nameless(each) for each in found]
        results = [self.run(one) for one in given]
        self.hold(self.held + max(map(len, results)) * self.points + sum(map(len, results)))
        self.held = before + len(results[0]) * self.points
        return [nameless(one) for one in results[0]]

    def replaced(self, inner: Node, target: Node, text: Node, source: Node, pattern: Node) -> list[Labels]:
        found = []
        for one in self.run(inner):
            match = re.fullmatch(pattern[1], one.get(source[1], ""))
            if match:
                one = {**one, target[1]: match.expand(re.sub(r"\$(\d)", r"\\\1", text[1]))}
            found.append({label: value for label, value in one.items() if value})
        return found

    def run_aggregate(self, name: str, grouping: tuple[str, tuple[str, ...]], given: list[Node]) -> list[Labels]:
        before = self.held
        for parameter in given[:-1]:
            self.run(parameter)
        found = self.run(given[-1])
        how, labels = grouping
        groups: dict[tuple[tuple[str, str], ...], list[Labels]] = {}
        for one in found:
            groups.setdefault(key(one, labels, how == "by"), []).append(one)
        if name in ("topk", "bottomk"):
            result = [one for group in groups.values() for one in group[: int(given[0][1])]]
        else:
            result = [dict(group) for group in groups]
        self.hold(before + len(result) * self.points)
        return result

    def run_binary(self, sign: str, left: Node, right: Node, how: dict[str, tuple[str, ...]]) -> list[Labels]:
        before = self.held
        one, other = self.run(left), self.run(right)
        result = joined(sign, one, other, how, scalar(left), scalar(right))
        self.hold(self.held + len(result) * self.points + len(one) + len(other))
        self.hold(before + len(result) * self.points)
        return result


def scalar(node: Node) -> bool:
    if node[0] == "same":
        return scalar(node[1])
    if node[0] == "binary":
        return scalar(node[2]) and scalar(node[3])
    return node[0] == "number" or node[:2] == ("call", "time")


def nameless(labels: Labels) -> Labels:
    return {label: value for label, value in labels.items() if label != "__name__"}


def key(labels: Labels, names: tuple[str, ...], among: bool) -> tuple[tuple[str, str], ...]:
    """What series are grouped or matched by: these labels, or all others but the name."""
    if among:
        return tuple((name, labels[name]) for name in names if labels.get(name))
    return tuple(sorted(item for item in labels.items() if item[0] not in names and item[0] != "__name__"))


def joined(
    sign: str, left: list[Labels], right: list[Labels], how: dict[str, tuple[str, ...]], *scalars: bool
) -> list[Labels]:
    """What is left of two operands."""
    if any(scalars):
        return [nameless(one) for one in (right if scalars[0] else left)]
    names, among = (how["on"], True) if "on" in how else (how.get("ignoring", ()), False)
    theirs = {key(one, names, among) for one in right}
    if sign == "or":
        ours = {key(one, names, among) for one in left}
        return left + [one for one in right if key(one, names, among) not in ours]
    if sign == "unless":
        return [one for one in left if key(one, names, among) not in theirs]
    matched = [one for one in left if key(one, names, among) in theirs]
    if sign == "and":
        return matched
    if "group_left" in how or not among:
        return [nameless(one) for one in matched]
    return [dict(key(one, names, among)) for one in matched]
