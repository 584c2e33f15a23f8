"""Expands bit fields, tables, byte permutations and funnel shifts to shifts and masks. Shifts past the width give 0, which most of it
relies on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wis.kernel.model import RegType
from wis.kernel.strict.trace import Value, sel

__all__ = ["RULES"]


def _amount(x: Value, like: Value) -> Value:
    """An i32 position or length, mod 256, as an amount for values of ``like``'s type."""
    low = x & 255
    return low if like.type is RegType.I32 else low.to("zext", like.type)


def _ones(like: Value, count: Value) -> Value:
    """So many low bits set; all from the width on."""
    return ~(like.like(-1) << count)


def _bfe_u(x: Value, position: Value, length: Value) -> Value:
    return x.shr(_amount(position, x)) & _ones(x, _amount(length, x))


def _bfe_s(x: Value, position: Value, length: Value) -> Value:
    """The field's top end to the top of the register, then arithmetic right; a field that reaches beyond the register stays where it is."""
    width = x.type.bits
    by, count = _amount(position, x), _amount(length, x)
    above = x.like(width) - x.trace.op("min_s", x.type, by + count, x.like(width))
    return sel(count.equals(0), x.like(0), (x << above) >> (above + by))


def _bfi(field: Value, into: Value, position: Value, length: Value) -> Value:
    by = _amount(position, field)
    place = _ones(field, _amount(length, field)) << by
    return ((field << by) & place) | (into & ~place)


def _lop2(table: int, b: Value, c: Value) -> Value:
    """The function of two bits whose result for (b, c) is bit 2b + c of ``table``."""
    if table in (0, 15):
        return b.like(-(table & 1))
    first = (
        lambda: ~(b | c), lambda: c & ~b, lambda: ~b, lambda: b & ~c, lambda: ~c, lambda: b ^ c, lambda: ~(b & c),
        lambda: b & c, lambda: ~(b ^ c), lambda: c, lambda: c | ~b, lambda: b, lambda: b | ~c, lambda: b | c,
    )  # fmt: skip
    return first[table - 1]()


def _lop3(table: int) -> Callable[..., Value]:
    """Chosen by a between two functions of (b, c)."""

    def rule(a: Value, b: Value, c: Value) -> Value:
        low, high = table & 15, table >> 4
        if low == high:
            return _lop2(low, b, c)
        chosen = a & _lop2(low ^ high, b, c)
        return chosen if low == 0 else _lop2(low, b, c) ^ chosen

    return rule


_BYTES: Final = {  # of modes 1 to 6: for byte k of the result, hexadecimal digit c tells which byte of (b:a) it is
    1: (0x3210, 0x4321, 0x5432, 0x6543),
    2: (0x3210, 0x2107, 0x1076, 0x0765),
    3: (0x3210, 0x3210, 0x3210, 0x3210),
    4: (0x3210, 0x3211, 0x3222, 0x3333),
    5: (0x0000, 0x1110, 0x2210, 0x3210),
    6: (0x2020, 0x3131, 0x2020, 0x3131),
}


def _pair(a: Value, b: Value) -> Value:
    """(b:a) as 64 bits."""
    return (b.to("zext", RegType.I64) << 32) | a.to("zext", RegType.I64)


def _prmt(mode: int) -> Callable[..., Value]:
    def rule(a: Value, b: Value, c: Value) -> Value:
        both, result = _pair(a, b), a.like(0)
        for k in range(4):
            if mode:
                chosen = c.like(_BYTES[mode][k]).shr((c & 3) << 2) & 7
            else:
                chosen = c.shr(4 * k) & 7
            byte = both.shr((chosen << 3).to("zext", RegType.I64)).to("narrow", RegType.I32)
            if not mode:
                byte = sel((c & (8 << 4 * k)).equals(0), byte, (byte << 24) >> 31)
            result = result | ((byte & 255) << 8 * k)
        return result

    return rule


def _turn(wrap: int, c: Value) -> Value:
    low = c & 31 if wrap else c.trace.op("min_u", c.type, c, c.like(32))
    return low.to("zext", RegType.I64)


def _shf_l(wrap: int) -> Callable[..., Value]:
    return lambda a, b, c: (_pair(a, b) << _turn(wrap, c)).shr(32).to("narrow", RegType.I32)


def _shf_r(wrap: int) -> Callable[..., Value]:
    return lambda a, b, c: _pair(a, b).shr(_turn(wrap, c)).to("narrow", RegType.I32)


def _highest(x: Value) -> Value:
    leading = x.trace.op("clz", RegType.I32, x)
    return leading.like(x.type.bits - 1) - leading


RULES: Final[dict[str, Callable[..., Callable[..., Value]]]] = {
    "bfe_s": lambda: _bfe_s,
    "bfe_u": lambda: _bfe_u,
    "bfi": lambda: _bfi,
    "lop3": _lop3,
    "prmt": _prmt,
    "shf_l": _shf_l,
    "shf_r": _shf_r,
    "bfind_s": lambda: lambda x: _highest(x ^ (x >> (x.type.bits - 1))),
    "bfind_u": lambda: _highest,
}
"""By name: the rule for these attributes."""
