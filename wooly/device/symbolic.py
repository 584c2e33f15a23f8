"""Sizes as symbols: code that computes with them leaves expressions behind, and what it asks about them becomes conditions.

A trace with symbols holds for every sizes that meet the conditions. Where code needs a value (an index, a hash, a text), ``Concrete`` is
raised: what such code makes holds for one size only.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Final, NoReturn

_SOURCE_MAX: Final = 1 << 15
"""Characters of the expressions of one trace."""
_NAME: Final = re.compile(r"[a-z]\w*")


class Concrete(Exception):
    """Only the value of a size will do."""


@dataclass(slots=True)
class Conditions:
    """What a trace found out about its symbols, as Python expressions, each once."""

    #: used as an ordered set
    texts: dict[str, None] = field(default_factory=dict)
    #: pairs of expressions that were found to be equal
    equal: list[tuple[str, str]] = field(default_factory=list)

    def hold(self, a: str, sign: str, b: str, holds: bool) -> bool:
        """Note whether the comparison holds; returns ``holds``."""
        self.texts[f"{a} {sign} {b}" if holds else f"not {a} {sign} {b}"] = None
        if (sign == "==" and holds) or (sign == "!=" and not holds):
            self.equal.append((a, b))
        return holds

    def solved(self, unknown: Sequence[str]) -> dict[str, str]:
        """Each of the ``unknown`` symbols by an expression that it was found equal to, in an order in which they can be computed; raises
        Concrete for one that was compared with nothing."""
        left, found = dict.fromkeys(unknown), dict[str, str]()
        sides = [*self.equal, *((b, a) for a, b in self.equal)]
        while left:
            known = [(symbol, text) for symbol, text in sides if symbol in left and left.keys().isdisjoint(_NAME.findall(text))]
            if not known:
                raise Concrete(f"{', '.join(left)} is not known")
            symbol, found[symbol] = known[0]
            del left[symbol]
        return found


class Size:
    """An integer that is not negative, by an expression over symbols; ``value`` is what it is in this trace."""

    __slots__ = ("conditions", "text", "value")

    def __init__(self, value: int, text: str, conditions: Conditions) -> None:
        self.value, self.text, self.conditions = value, text, conditions

    # --- arithmetic

    def _with(self, sign: str, fn: Callable[[int, int], int], other: Any, *, swapped: bool = False) -> Any:
        if not isinstance(other, int | Size):
            return NotImplemented
        a, b = (other, self) if swapped else (self, other)
        x, y = _value(a), _value(b)
        if sign == "*" and type(other) is int and other == 0:
            return 0
        if (sign in "+-" and type(b) is int and y == 0) or (sign in ("*", "//") and type(b) is int and y == 1):
            return a
        if (sign == "+" and type(a) is int and x == 0) or (sign == "*" and type(a) is int and x == 1):
            return b
        text = f"({_text(a)} {sign} {_text(b)})"
        if len(text) > _SOURCE_MAX:
            raise Concrete(text[:80])
        return Size(fn(x, y), text, self.conditions)

    def __add__(self, other: Any) -> Any:
        return self._with("+", operator.add, other)

    def __radd__(self, other: Any) -> Any:
        return self._with("+", operator.add, other, swapped=True)

    def __sub__(self, other: Any) -> Any:
        return self._with("-", operator.sub, other)

    def __rsub__(self, other: Any) -> Any:
        return self._with("-", operator.sub, other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._with("*", operator.mul, other)

    def __rmul__(self, other: Any) -> Any:
        return self._with("*", operator.mul, other, swapped=True)

    def __floordiv__(self, other: Any) -> Any:
        return self._with("//", operator.floordiv, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with("//", operator.floordiv, other, swapped=True)

    def __mod__(self, other: Any) -> Any:
        return self._with("%", operator.mod, other)

    def __rmod__(self, other: Any) -> Any:
        return self._with("%", operator.mod, other, swapped=True)

    def __neg__(self) -> Any:
        return 0 - self

    # --- questions

    def _is(self, sign: str, fn: Callable[[int, int], bool], other: Any) -> Any:
        if not isinstance(other, int | Size):
            return NotImplemented
        if self.text == _text(other):
            return fn(0, 0)
        return self.conditions.hold(self.text, sign, _text(other), fn(self.value, _value(other)))

    def __eq__(self, other: object) -> Any:
        return self._is("==", operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._is("!=", operator.ne, other)

    def __lt__(self, other: Any) -> Any:
        return self._is("<", operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._is("<=", operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._is(">", operator.gt, other)

    def __ge__(self, other: Any) -> Any:
        return self._is(">=", operator.ge, other)

    def __bool__(self) -> bool:
        return bool(self._is("!=", operator.ne, 0))

    # --- what needs a value

    def __repr__(self) -> str:
        return self.text

    def _refuse(self, *_: Any) -> NoReturn:
        raise Concrete(self.text)

    __hash__ = __index__ = __int__ = __float__ = __str__ = __format__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _refuse


def _value(x: int | Size) -> int:
    return x.value if isinstance(x, Size) else x


def _text(x: int | Size) -> str:
    return x.text if isinstance(x, Size) else str(x)


# --- compiled


def compiled(symbols: Sequence[str], unknown: Sequence[str], conditions: Conditions, result: Any) -> Callable[..., Any]:
    """A function of the values of ``symbols``: ``result`` for them, or None where a condition does not hold.

    ``unknown``: symbols that follow from the conditions. ``result``: of tuples, lists, sizes and integers; anything else is the same for
    all sizes.
    """
    constants: dict[str, Any] = {}
    lines = [f"{symbol} = {text}" for symbol, text in conditions.solved(unknown).items()]
    lines.append(f"return {_written(result, constants)} if {' and '.join(conditions.texts) or 'True'} else None")
    source = "\n    ".join([f"def sized({', '.join(symbols)}):", *lines])
    if len(source) > _SOURCE_MAX:
        raise Concrete(f"{len(source)} characters of expressions")
    module = compile(source, f"{os.path.abspath(__file__)}: generated", "exec")  # in our folder, where dynamo compiles nothing
    code = next(c for c in module.co_consts if isinstance(c, CodeType))
    return FunctionType(code, constants)


def _written(x: Any, constants: dict[str, Any]) -> str:
    if isinstance(x, Size):
        return x.text
    if type(x) is int or x is None:
        return repr(x)
    if type(x) is tuple:
        return f"({''.join(f'{_written(part, constants)}, ' for part in x)})"
    if type(x) is list:
        return f"[{', '.join(_written(part, constants) for part in x)}]"
    name = f"c{len(constants)}"
    constants[name] = x
    return name
