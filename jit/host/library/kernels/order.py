"""Sorting, and the k first.

Sorting works on *keys*: unsigned numbers in the wanted order (NaN greatest, both zeros equal; inverted when descending) with the index
in their low half, so no two are equal and any method is stable. Short lines are sorted by insertion, long ones by bytes, low to high.
"""

from __future__ import annotations

from jit.host.library.elements import ELEMENTS, Element
from jit.host.library.emit import I64, U8, U32, U64, U128, Fn, Type, Value
from jit.host.library.nest import rows

__all__ = ["HISTOGRAM_BYTES", "INSERTION", "key_bytes", "sort", "topk"]

INSERTION = 48
"""Lines up to this length are sorted by insertion."""

HISTOGRAM_BYTES = 256 * 8


def key_bytes(dtype: str) -> int:
    """Size of a key with its index."""
    return 16 if ELEMENTS[dtype].compute.bits == 64 else 8


def _key_type(element: Element) -> Type:
    return U128 if element.compute.bits == 64 else U64


def _key(element: Element, value: Value, index: Value, descending: bool) -> Value:
    """The key of a value with its index."""
    wide = U64 if element.compute.bits == 64 else U32
    bits, top = wide.bits, 1 << (wide.bits - 1)
    if element.is_float:
        raw = (value + 0.0).bits(wide)  # -0 + 0 is 0
        negative = raw >= top
        order = negative.select(~raw, raw | top)
        order = value.is_nan().select(value.fn.const(wide, (1 << bits) - 1), order)
    else:
        order = value.to(wide)
        if element.compute.kind == "i":
            order = order ^ top
    if descending:
        order = ~order
    both = _key_type(element)
    return (order.to(both) << bits) | index.to(both)


def _index_of(element: Element, key: Value) -> Value:
    bits = 64 if element.compute.bits == 64 else 32
    return (key & ((1 << bits) - 1)).to(U64).to(I64)


def _insert(f: Fn, type: Type, line: Value, end: Value, key: Value) -> None:
    """Put ``key`` into the ascending keys line[0..end), which grow by one."""
    at = f.var(end)

    def moves() -> Value:
        place = at.get()
        before = line.at((place - 1).max(0), type).load(type)
        return (place > 0) & (before > key)

    with f.loop_while(moves):
        place = at.get()
        line.at(place, type).store(line.at(place - 1, type).load(type))
        at.set(place - 1)
    line.at(at.get(), type).store(key)


def _sort_by_bytes(f: Fn, element: Element, first: Value, second: Value, counts: Value, n: Value) -> Value:
    """Sort n keys in ``first`` with the help of ``second``; returns where they lie sorted. Keys start in the order of their indices."""
    type = _key_type(element)
    half = type.bits // 2
    here, there = f.var(first), f.var(second)
    with f.loop(half, 2 * half, 8) as shift:
        by = shift.to(type)

        def digit(key: Value, by: Value = by) -> Value:
            return ((key >> by) & 0xFF).to(U8).to(U64).to(I64)

        f.zero(counts, f.const(I64, HISTOGRAM_BYTES))
        with f.loop(0, n) as i:
            slot = counts.at(digit(here.get().at(i, type).load(type)), I64)
            slot.store(slot.load(I64) + 1)
        common = counts.at(digit(here.get().load(type)), I64).load(I64).eq(n)
        with f.when(~common):
            start = f.var(f.const(I64, 0))
            with f.loop(0, 256) as d:
                slot = counts.at(d, I64)
                size = slot.load(I64)
                slot.store(start.get())
                start.set(start.get() + size)
            with f.loop(0, n) as i:
                key = here.get().at(i, type).load(type)
                slot = counts.at(digit(key), I64)
                target = slot.load(I64)
                there.get().at(target, type).store(key)
                slot.store(target + 1)
            old = here.get()
            here.set(there.get())
            there.set(old)
    return here.get()


def _emit_line(
    f: Fn, element: Element, keys: Value, k: Value, *, x: Value, x_dim: Value, y: Value, y_dim: Value, index: Value, index_dim: Value
) -> None:
    """Write the first k keys' elements and indices."""
    type = _key_type(element)
    with f.loop(0, k) as i:
        at = _index_of(element, keys.at(i, type).load(type))
        y.at(i * y_dim, element.storage).store(x.at(at * x_dim, element.storage).load(element.storage))
        index.at(i * index_dim, I64).store(at)


def sort(f: Fn, dtype: str, descending: str, rank: str) -> None:
    """y, index = the first k of x sorted along the dimension. Scratch: counts, then twice n keys."""
    element = ELEMENTS[dtype]
    type = _key_type(element)
    n, k = f.i64("n"), f.i64("k")
    x_dim, y_dim, index_dim = f.i64("x_dim"), f.i64("y_dim"), f.i64("index_dim")
    counts, first = f.scratch, f.scratch.at(HISTOGRAM_BYTES, U8)
    operands = {"x": element.storage, "y": element.storage, "index": I64}
    with rows(f, int(rank), operands) as r, f.loop(r.start, r.stop) as line:
        x, y, index = (r.base[name].at(line * r.step[name], of) for name, of in operands.items())
        sorted_at = f.var(first)
        with f.when(n <= INSERTION), f.loop(0, n) as i:
            _insert(f, type, first, i, _key(element, element.load(x.at(i * x_dim, element.storage)), i, descending == "1"))
        with f.when(n > INSERTION):
            with f.loop(0, n) as i:
                first.at(i, type).store(_key(element, element.load(x.at(i * x_dim, element.storage)), i, descending == "1"))
            sorted_at.set(_sort_by_bytes(f, element, first, first.at(n, type), counts, n))
        _emit_line(f, element, sorted_at.get(), k, x=x, x_dim=x_dim, y=y, y_dim=y_dim, index=index, index_dim=index_dim)


def topk(f: Fn, dtype: str, descending: str, rank: str) -> None:
    """y, index = the first k of x in sorted order, k > 0 small: the best so far are kept sorted in scratch."""
    element = ELEMENTS[dtype]
    type = _key_type(element)
    n, k = f.i64("n"), f.i64("k")
    x_dim, y_dim, index_dim = f.i64("x_dim"), f.i64("y_dim"), f.i64("index_dim")
    keys = f.scratch
    operands = {"x": element.storage, "y": element.storage, "index": I64}
    with rows(f, int(rank), operands) as r, f.loop(r.start, r.stop) as line:
        x, y, index = (r.base[name].at(line * r.step[name], of) for name, of in operands.items())
        with f.loop(0, k) as i:
            _insert(f, type, keys, i, _key(element, element.load(x.at(i * x_dim, element.storage)), i, descending == "1"))
        worst = f.var(keys.at(k - 1, type).load(type))
        with f.loop(k, n) as i:
            key = _key(element, element.load(x.at(i * x_dim, element.storage)), i, descending == "1")
            with f.when(key < worst.get()):
                _insert(f, type, keys, k - 1, key)
                worst.set(keys.at(k - 1, type).load(type))
        _emit_line(f, element, keys, k, x=x, x_dim=x_dim, y=y, y_dim=y_dim, index=index, index_dim=index_dim)
