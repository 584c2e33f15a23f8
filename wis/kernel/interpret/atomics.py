"""Atomics of the interpreter: threads with the same address take their turns in order of their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from wis.kernel.interpret.memory import AccessSite, BatchMemory, Typed
from wis.kernel.interpret.scalar import Array
from wis.kernel.model import Access as Rights
from wis.kernel.model import Atomic

__all__ = ["FOLDS", "atomic"]

FOLDS: Final[dict[int, Any]] = {
    Atomic.ADD: np.add,
    Atomic.MIN: np.minimum,
    Atomic.MAX: np.maximum,
    Atomic.AND: np.bitwise_and,
    Atomic.OR: np.bitwise_or,
    Atomic.XOR: np.bitwise_xor,
}
"""Functions whose order does not matter on integers, as NumPy ufuncs."""


def atomic(
    memory: BatchMemory,
    access: AccessSite,
    typed: Typed,
    offset: Array,
    displacement: int,
    function: int,
    operands: Sequence[Array],
    wants_old: bool,
) -> Array | None:
    """Change memory; the old values as registers (0 where nothing was done) when they are wanted."""
    result = np.zeros(len(offset), operands[0].dtype) if wants_old else None
    for region, chosen, index in memory.parts(access, typed, offset, displacement, 1, int(Rights.READ_WRITE)):
        elements = region.elements(typed[2])
        given = [(x if chosen is None else x[chosen]).view(elements.dtype) for x in operands]
        if function in FOLDS and not wants_old:
            FOLDS[function].at(elements, index, given[0])
            continue
        old = _in_turn(elements, index, function, given)
        if result is not None:
            result[slice(None) if chosen is None else chosen] = old.view(result.dtype)
    return result


def _in_turn(elements: Array, index: Array, function: int, given: Sequence[Array]) -> Array:
    """The value each thread found; ``elements`` hold the last ones afterwards."""
    order = np.argsort(index, kind="stable")
    alone = np.diff(index[order], prepend=-1, append=-1) != 0
    if alone.all():
        old = elements[index]
        elements[index] = _new(function, old, given)
        return old
    if function in FOLDS and elements.dtype.kind in "iu":
        return _scanned(elements, index, order, FOLDS[function], given[0])
    return _one_by_one(elements, index, function, given)


def _new(function: int, old: Array, given: Sequence[Array]) -> Array:
    value = given[0]
    if function in FOLDS:
        return np.asarray(FOLDS[function](old, value))
    if function == Atomic.CAS:
        return np.where(old == value, given[1], old)
    if function == Atomic.INC:
        return np.where(old >= value, np.zeros((), old.dtype), old + np.ones((), old.dtype))
    if function == Atomic.DEC:
        return np.where((old == 0) | (old > value), value, old - np.ones((), old.dtype))
    return value  # EXCH


def _scanned(elements: Array, index: Array, order: Array, fold: Any, value: Array) -> Array:
    """Integer folds are associative: a running fold over the threads of each place, by doubling distances."""
    place, running = index[order], value[order]
    distance = 1
    first = np.flatnonzero(np.diff(place, prepend=-1))
    longest = int(np.diff(first, append=len(place)).max())
    while distance < longest:
        same = place[distance:] == place[:-distance]
        running[distance:] = np.where(same, fold(running[:-distance], running[distance:]), running[distance:])
        distance *= 2
    start = elements[place]
    found = start.copy()
    later = np.ones(len(place), np.bool_)
    later[first] = False
    behind = np.flatnonzero(later)
    found[behind] = fold(start[behind], running[behind - 1])
    last = np.append(first[1:] - 1, len(place) - 1)
    elements[place[last]] = fold(start[last], running[last])
    old = np.empty_like(found)
    old[order] = found
    return old


def _one_by_one(elements: Array, index: Array, function: int, given: Sequence[Array]) -> Array:
    step = _step(function, elements.dtype)
    current: dict[int, Any] = dict(zip(index.tolist(), elements[index].tolist(), strict=True))
    operands = [x.tolist() for x in given]
    found = []
    for place, *values in zip(index.tolist(), *operands, strict=True):
        old = current[place]
        found.append(old)
        current[place] = step(old, *values)
    elements[list(current)] = np.array(list(current.values()), elements.dtype)
    return np.array(found, elements.dtype)


def _step(function: int, dtype: np.dtype[Any]) -> Callable[..., Any]:
    if function == Atomic.ADD:  # a float sum; that of two f32 rounds from f64 as if rounded once
        return _add_f32 if dtype == np.float32 else lambda old, x: old + x
    return _STEPS[function]


def _add_f32(old: float, x: float) -> float:
    return float(np.float32(old + x))


_STEPS: Final[dict[int, Callable[..., Any]]] = {
    Atomic.EXCH: lambda old, x: x,
    Atomic.CAS: lambda old, expected, new: new if old == expected else old,
    Atomic.INC: lambda old, x: 0 if old >= x else old + 1,
    Atomic.DEC: lambda old, x: x if old == 0 or old > x else old - 1,
}
