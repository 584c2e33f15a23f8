"""The part of PromQL that our rules and dashboards use, evaluated over series in memory. Semantics as in Prometheus' documentation
("Querying": basics, operators, functions); anything beyond the part is refused with its place, so that no query goes by untested.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["QueryError", "Series", "Uses", "evaluate", "uses"]

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = Vector | float

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)(?![\w.])|(?P<name>[A-Za-z_:][\w:]*)|(?P<text>"[^"]*")
    |(?P<range>\[\d+[smhd]\])|(?P<op>==|!=|>=|<=|=~|!~|[-+*/(){},><=]))""",
    re.VERBOSE,
)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGGREGATES: Final[dict[str, Callable[[list[float]], float]]] = {
    "sum": math.fsum, "min": min, "max": max, "avg": lambda values: math.fsum(values) / len(values),
    "count": lambda values: float(len(values)),
}  # fmt: skip
_LEVELS: Final = (("or",), ("and", "unless"), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/"))
_OVER_TIME: Final[dict[str, Callable[[list[float]], float]]] = {
    "max_over_time": max, "min_over_time": min, "avg_over_time": lambda values: math.fsum(values) / len(values),
}  # fmt: skip
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, ">": lambda a, b: a > b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}  # fmt: skip
_COMPUTE: Final[dict[str, Callable[[float, float], float]]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b if b else math.nan,
}  # fmt: skip


class QueryError(ValueError):
    """Not PromQL, or beyond the part of it that is understood here."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series: ``points`` (seconds, value) in order of time. The last at or before the moment of a query counts, for five minutes."""

    name: str
    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @staticmethod
    def flat(name: str, value: float, **labels: str) -> Series:
        """The same value for a day, every half minute."""
        return Series(name, labels, tuple((at, value) for at in range(0, 86_401, 30)))

    @staticmethod
    def growing(name: str, per_second: float, **labels: str) -> Series:
        """A counter that grows evenly for a day."""
        return Series(name, labels, tuple((at, at * per_second) for at in range(0, 86_401, 30)))


@dataclass(frozen=True, slots=True)
class Uses:
    """What a query asks of one metric: labels that it matches (``label -> value``, empty: any) or groups by."""

    metric: str
    matched: tuple[tuple[str, str], ...]
    grouped: tuple[str, ...]


@dataclass(slots=True)
class _Node:
    kind: str
    value: str = ""
    parts: tuple[Any, ...] = ()
    matchers: tuple[tuple[str, str, str], ...] = ()
    labels: tuple[str, ...] | None = None
    seconds: int = 0


def evaluate(query: str, series: list[Series], at_s: float = 86_400) -> Value:
    """The value of ``query`` at a moment; a vector is by labels without the name. Raises QueryError."""
    return _value(_Parser(query).whole(), series, at_s)


def uses(query: str) -> list[Uses]:
    """Every metric that the query looks at, with its labels; those that results are grouped or joined by count for all metrics below."""
    return [*_uses(_Parser(query).whole(), ())]


class _Parser:
    def __init__(self, query: str) -> None:
        self._query = query
        self._tokens: list[tuple[str, str]] = []
        at = 0
        query = query.strip()
        while at < len(query):
            match = _TOKEN.match(query, at)
            if match is None or match.lastgroup is None:
                raise QueryError(f"{query!r}: not understood from {query[at : at + 20]!r} on")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
            while at < len(query) and query[at].isspace():
                at += 1
        self._at = 0

    def whole(self) -> _Node:
        node = self._binary(0)
        if self._at != len(self._tokens):
            raise QueryError(f"{self._query!r}: {self._tokens[self._at][1]!r} is left over")
        return node

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> tuple[str, str]:
        if self._at >= len(self._tokens) or (wanted and self._peek() != wanted):
            raise QueryError(f"{self._query!r}: {wanted or 'more'} is missing")
        self._at += 1
        return self._tokens[self._at - 1]

    def _binary(self, level: int) -> _Node:
        if level == len(_LEVELS):
            return self._single()
        left = self._binary(level + 1)
        while self._peek() in _LEVELS[level]:
            operator = self._take()[1]
            on = self._list("on")
            left = _Node("binary", operator, (left, self._binary(level + 1)), labels=on)
        return left

    def _list(self, word: str) -> tuple[str, ...] | None:
        """``by (a, b)`` or ``on (a)``; None when it is not there."""
        if self._peek() != word:
            return None
        self._take()
        self._take("(")
        names = []
        while self._peek() != ")":
            names.append(self._take()[1])
            if self._peek() == ",":
                self._take()
        self._take(")")
        return tuple(names)

    def _single(self) -> _Node:
        kind, text = self._take()
        if text == "(":
            inner = self._binary(0)
            self._take(")")
            return inner
        if kind == "number":
            return _Node("number", text)
        if kind != "name":
            raise QueryError(f"{self._query!r}: {text!r} is no beginning")
        if text in _AGGREGATES:
            by = self._list("by")
            self._take("(")
            inner = self._binary(0)
            self._take(")")
            by = by if by is not None else self._list("by")
            return _Node("aggregate", text, (inner,), labels=by or ())
        if text in ("absent", "rate", "increase", *_OVER_TIME):
            self._take("(")
            inner = self._binary(0)
            self._take(")")
            if text != "absent" and not inner.seconds:
                raise QueryError(f"{self._query!r}: {text} takes a range")
            return _Node("call", text, (inner,))
        return self._selector(text)

    def _selector(self, name: str) -> _Node:
        matchers: list[tuple[str, str, str]] = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                label, operator, (kind, text) = self._take()[1], self._take()[1], self._take()
                if kind != "text" or operator not in ("=", "!=", "=~", "!~"):
                    raise QueryError(f"{self._query!r}: {label}{operator}{text} is no matcher")
                matchers.append((label, operator, text[1:-1]))
                if self._peek() == ",":
                    self._take()
            self._take("}")
        seconds = 0
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "range":
            text = self._take()[1]
            seconds = int(text[1:-2]) * _SECONDS[text[-2]]
        return _Node("select", name, matchers=tuple(matchers), seconds=seconds)


def _uses(node: _Node, grouped: tuple[str, ...]) -> Iterator[Uses]:
    if node.kind == "select":
        yield Uses(node.value, tuple((label, text if operator == "=" else "") for label, operator, text in node.matchers), grouped)
        return
    inner = (*grouped, *(node.labels or ())) if node.kind == "binary" else node.labels if node.kind == "aggregate" else grouped
    for part in node.parts:
        yield from _uses(part, tuple(dict.fromkeys(inner or ())))


def _value(node: _Node, series: list[Series], at_s: float) -> Value:
    match node.kind:
        case "number":
            return float(node.value)
        case "select":
            if node.seconds:
                raise QueryError(f"{node.value}[...] stands alone")
            return {_key(s): points[-1][1] for s in _matching(node, series) if (points := _within(s, at_s, 300))}
        case "aggregate":
            return _aggregate(node, _vector(node.parts[0], series, at_s))
        case "call" if node.value == "absent":
            inner = node.parts[0]
            labels = frozenset((label, text) for label, operator, text in inner.matchers if operator == "=")
            return {} if _vector(inner, series, at_s) else {labels: 1.0}
        case "call":
            return _over_time(node, series, at_s)
        case _:
            return _binary(node, _value(node.parts[0], series, at_s), _value(node.parts[1], series, at_s))


def _vector(node: _Node, series: list[Series], at_s: float) -> Vector:
    value = _value(node, series, at_s)
    if isinstance(value, float):
        raise QueryError(f"{node.value}: a number where series are wanted")
    return value


def _matching(node: _Node, series: list[Series]) -> Iterator[Series]:
    test: dict[str, Callable[[str, str], bool]] = {
        "=": lambda have, want: have == want,
        "!=": lambda have, want: have != want,
        "=~": lambda have, want: re.fullmatch(want, have) is not None,
        "!~": lambda have, want: re.fullmatch(want, have) is None,
    }
    for s in series:
        if s.name == node.value and all(test[operator](s.labels.get(label, ""), text) for label, operator, text in node.matchers):
            yield s


def _key(series: Series) -> Labels:
    return frozenset(series.labels.items())


def _within(series: Series, at_s: float, seconds: float) -> list[tuple[float, float]]:
    return [point for point in series.points if at_s - seconds < point[0] <= at_s]


def _over_time(node: _Node, series: list[Series], at_s: float) -> Vector:
    inner = node.parts[0]
    out: Vector = {}
    for s in _matching(inner, series):
        points = _within(s, at_s, inner.seconds)
        if node.value in _OVER_TIME and points:
            out[_key(s)] = _OVER_TIME[node.value]([value for _, value in points])
        elif node.value not in _OVER_TIME and len(points) > 1:
            grown = math.fsum(b - a if b >= a else b for (_, a), (_, b) in itertools.pairwise(points))
            per_second = grown / (points[-1][0] - points[0][0])  # extrapolated to the whole range, as Prometheus does for even series
            out[_key(s)] = per_second if node.value == "rate" else per_second * inner.seconds
    return out


def _aggregate(node: _Node, vector: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for key, value in vector.items():
        groups.setdefault(_only(key, node.labels or ()), []).append(value)
    return {key: _AGGREGATES[node.value](values) for key, values in groups.items()}


def _only(key: Labels, names: tuple[str, ...]) -> Labels:
    return frozenset((name, value) for name, value in key if name in names)


def _binary(node: _Node, left: Value, right: Value) -> Value:
    operator, on = node.value, node.labels
    if isinstance(left, float) and isinstance(right, float):
        if operator not in _COMPUTE:
            raise QueryError(f"{operator} between two numbers")
        return _COMPUTE[operator](left, right)
    if operator in ("and", "or", "unless"):
        if isinstance(left, float) or isinstance(right, float):
            raise QueryError(f"{operator} is for series")
        there = {key if on is None else _only(key, on) for key in right}
        if operator == "or":
            have = {key if on is None else _only(key, on) for key in left}
            return left | {key: value for key, value in right.items() if (key if on is None else _only(key, on)) not in have}
        return {key: value for key, value in left.items() if ((key if on is None else _only(key, on)) in there) == (operator == "and")}
    if isinstance(right, float):
        pairs = [(key, value, right) for key, value in (left.items() if not isinstance(left, float) else ())]
    elif isinstance(left, float):
        pairs = [(key, left, value) for key, value in right.items()]
    else:
        other = {key if on is None else _only(key, on): value for key, value in right.items()}
        if len(other) != len(right):
            raise QueryError(f"{operator}: several series on the right match one on the left")
        pairs = [(key, value, other[at]) for key, value in left.items() if (at := key if on is None else _only(key, on)) in other]
    if operator in _COMPARE:
        return {key: a if not isinstance(left, float) else b for key, a, b in pairs if _COMPARE[operator](a, b)}
    return {key: _COMPUTE[operator](a, b) for key, a, b in pairs}
