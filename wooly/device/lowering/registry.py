"""Registry of lowerings; ``lower`` makes the template of one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Final, TypeVar

from wooly.device.lowering.template import Template
from wooly.device.lowering.trace import Results, Trace
from wooly.device.lowering.values import Expected, Meta, Number

__all__ = ["Entry", "LOWERINGS", "COMPOSITES", "lowers", "composite", "find", "lower", "tensor_places"]

Lowering = Callable[..., Results]
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Entry:
    """A lowering and what its caller must know.

    Arguments whose schema type is Scalar or float (also optional, also lists) arrive as ScalarArg, with the exceptions below.
    """

    name: str
    fn: Lowering
    #: names of arguments that arrive as plain values, which are part of the template's key
    concrete: frozenset[str] = frozenset()
    #: by name: values that arrive plain (``alpha`` 1 costs no multiplication); others as ScalarArg
    special: Mapping[str, tuple[Number, ...]] = field(default_factory=dict)
    #: positions of arguments that the lowering itself writes; they arrive with torch's lazy bits still set
    mutates: tuple[int, ...] = ()


LOWERINGS: Final[dict[str, Entry]] = {}
"""Lowerings by overload name, for example ``aten::add.Tensor`` (``.default`` is not written)."""

COMPOSITES: Final[dict[str, Callable[..., Any]]] = {}
"""Operations written as Python over other torch operations, by overload name; for those whose output sizes depend on data."""


def lowers(
    *names: str, concrete: Sequence[str] = (), special: Mapping[str, tuple[Number, ...]] | None = None, mutates: Sequence[int] = ()
) -> Callable[[_F], _F]:
    """Register the decorated function as the lowering of every overload in ``names``."""

    def register(fn: _F) -> _F:
        for name in names:
            assert name not in LOWERINGS, f"{name} has two lowerings"
            LOWERINGS[name] = Entry(name, fn, frozenset(concrete), special or {}, tuple(mutates))
        return fn

    return register


def composite(*names: str) -> Callable[[_F], _F]:
    """Register the decorated function (over device tensors) as the implementation of every overload in ``names``."""

    def register(fn: _F) -> _F:
        for name in names:
            assert name not in COMPOSITES, f"{name} has two composites"
            COMPOSITES[name] = fn
        return fn

    return register


def tensor_places(entry: Entry) -> list[bool]:
    """Which positional arguments the lowering takes as tensors only, by its annotations."""
    code = entry.fn.__code__
    return [entry.fn.__annotations__.get(name) == Meta.__name__ for name in code.co_varnames[1 : code.co_argcount]]


def find(name: str) -> Entry | None:
    """The lowering of an overload, or None."""
    return LOWERINGS.get(name)


def lower(
    entry: Entry,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    n_ins: int,
    expected: Sequence[Expected | None] = (),
    targets: Sequence[Meta] = (),
) -> Template:
    """The template of one call. Raises Unsupported when this call has no lowering.

    ``args``/``kwargs``: tensors as Meta, numbers as ScalarArg or plain (see Entry), torch dtypes, devices and the like as they are.
    ``expected``: the outputs that torch would make (None where it makes none). ``targets``: tensors that take the results instead
    (in-place and out= variants of a functional lowering); then no output is made and ``expected`` is empty. A lowering that is itself the
    mutating overload needs neither.
    """
    trace = Trace(n_ins, expected, targets)
    resolved = [arg if i in entry.mutates else _resolved(trace, arg) for i, arg in enumerate(args)]
    options = {name: _resolved(trace, arg) for name, arg in kwargs.items()}
    count, names = _positional(entry.fn)
    options.update(zip(names, resolved[count:], strict=False))
    results = entry.fn(trace, *resolved[:count], **options)
    return trace.finish(results if targets or expected else None)


def _positional(fn: Lowering) -> tuple[int | None, tuple[str, ...]]:
    """How many arguments ``fn`` takes by position after the trace (None: all), and the names of those that follow in torch's schema: a
    lowering takes at most seven by position."""
    code: CodeType | None = getattr(fn, "__code__", None)
    if code is None or not code.co_kwonlyargcount or code.co_flags & inspect.CO_VARARGS:
        return None, ()
    return code.co_argcount - 1, code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]


def _resolved(trace: Trace, value: Any) -> Any:
    """Arguments with torch's lazy conjugate and negative bits applied, so that lowerings never see them."""
    if isinstance(value, Meta):
        negated = value.neg
        if value.conj:
            value = trace.map("conj", replace(value, conj=False, neg=False))
        return trace.map("neg", replace(value, neg=False)) if negated else value
    if isinstance(value, list | tuple) and any(isinstance(v, Meta) for v in value):
        return [_resolved(trace, v) for v in value]
    return value
