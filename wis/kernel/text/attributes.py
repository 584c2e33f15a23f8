"""Prints and parses the attributes of an op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from wis.dtypes import DType
from wis.kernel.model import Atomic, RegType, Rounding, Scope, Shuffle, Space, Special, Vote
from wis.kernel.ops import KernelOp, Sig
from wis.kernel.text.words import Reader, dtype_text

__all__ = ["attributes_text", "read_attributes"]

_FLOATS: Final = {RegType.F16: DType.F16, RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64}
_NAMED: Final = {Space.LOCAL: "local", Space.CONST: "const", Space.ARENA: "arena"}  # the others are numbered
_SPACES: Final = {text: int(space) for space, text in _NAMED.items()}


def _names(kind: type[Shuffle | Vote | Scope | Rounding | Atomic]) -> tuple[str, ...]:
    return tuple(member.name.lower() for member in kind)


_MODES: Final = {"shfl": _names(Shuffle), "vote": _names(Vote), "prmt": ("plain", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")}
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "which": tuple(special.text for special in Special),
    "rounding": _names(Rounding),
    "scope": _names(Scope),
    "function": _names(Atomic),
    "signed": ("unsigned", "signed"),
    "wrap": ("clamp", "wrap"),
}


def _choices(row: KernelOp, attribute: str) -> tuple[str, ...]:
    """The words of an attribute that is one of a list; its code is the place in it."""
    return _MODES[row.name] if attribute == "mode" else _WORDS[attribute]


def _order(row: KernelOp) -> list[str]:
    """Attributes in the order of their words: an atomic's function first; ``pN`` says space and which, ``f32x2`` dtype and count."""
    joined = {"which"} & set(row.attrs) if "space" in row.attrs else set()
    rest = [a for a in row.attrs if a not in joined and a not in ("function", "count")]
    return ["function", *rest] if "function" in row.attrs else rest


def attributes_text(row: KernelOp, attrs: Sequence[int], kind: RegType | None) -> str | None:
    """The words for ``attrs``, as many as ``row`` names; ``kind`` is the type of a constant. None when these have no words."""
    if row.sig is Sig.CONST:
        return _constant_text(attrs[0], kind) if kind is not None else None
    values = dict(zip(row.attrs, attrs, strict=True))
    words = [_word(row, attribute, values) for attribute in _order(row)]
    return " ".join(word for word in words if word) if None not in words else None


def _word(row: KernelOp, attribute: str, values: dict[str, int]) -> str | None:
    """The word for an attribute, "" for one that is left out; None when there is none."""
    value = values[attribute]
    match attribute:
        case "space":
            return _place_text(value, values["which"])
        case "dtype":
            count = values.get("count", 1)
            return dtype_text(value) + (f"x{count}" if count != 1 else "") if value in DType._value2member_map_ and count >= 0 else None
        case "displacement":
            return f"{value:+d}" if value else ""
        case "flags":
            return ("", "volatile")[value] if value in (0, 1) else None
        case "number":
            return f"p{value}" if value >= 0 else None
        case "table":
            return hex(value) if value >= 0 else None
    choices = _choices(row, attribute)
    return choices[value] if 0 <= value < len(choices) else None


def _place_text(space: int, which: int) -> str | None:
    if space in (Space.GLOBAL, Space.SHARED):
        return f"{'p' if space == Space.GLOBAL else 's'}{which}" if which >= 0 else None
    return _NAMED[Space(space)] if which == 0 and space in Space._value2member_map_ else None


def read_attributes(reader: Reader, row: KernelOp, kind: RegType | None, text: str) -> tuple[int, ...]:
    """What ``attributes_text`` wrote."""
    if row.sig is Sig.CONST:
        if kind is None:
            raise reader.fail("a constant needs one register of a known type")
        return (_constant_bits(reader, text, kind),)
    words = text.split()[::-1]
    values: dict[str, int] = {}
    for attribute in _order(row):
        _read(reader, row, attribute, words, values)
    if words or not row.attrs:
        raise reader.fail(f"({text}) are no attributes of this op")
    return tuple(values[attribute] for attribute in row.attrs)


def _read(reader: Reader, row: KernelOp, attribute: str, words: list[str], values: dict[str, int]) -> None:
    """Take the word of an attribute from the end of ``words``."""
    word = words[-1] if words else ""
    if attribute == "displacement" and word[:1] not in ("+", "-"):
        values[attribute] = 0
        return
    if attribute == "flags" and not word:
        values[attribute] = 0
        return
    if not word:
        raise reader.fail(f"{row.name} lacks an attribute: {attribute}")
    words.pop()
    match attribute:
        case "space":
            values["space"], values["which"] = _read_place(reader, word)
        case "dtype":
            found = reader.match(r"([a-z]+?[0-9]*?)(?:x([0-9]{1,20}))?", word, "is not an element type")
            values["dtype"] = reader.dtype(found[1])
            if found[2] is not None and "count" not in row.attrs:
                raise reader.fail(f"{row.name} takes one element")
            values["count"] = reader.number(found[2] or "1")
        case "displacement":
            values[attribute] = reader.number(word.removeprefix("+"))
        case "flags":
            values[attribute] = 1 + reader.choice(word, ("volatile",), "volatile")
        case "number":
            values[attribute] = reader.number(reader.match(r"p([0-9]{1,20})", word, "is not a parameter")[1])
        case "table":
            values[attribute] = int(reader.match(r"0x([0-9a-f]{1,16})", word, "is not a truth table")[1], 16)
        case _:
            what = "a special value" if row.sig is Sig.SPECIAL else f"a {attribute} of {row.name}"
            values[attribute] = reader.choice(word, _choices(row, attribute), what)


def _read_place(reader: Reader, word: str) -> tuple[int, int]:
    if word in _SPACES:
        return _SPACES[word], 0
    found = reader.match(r"([ps])([0-9]{1,20})", word, "is not pN, sN, local, const or arena")
    return int(Space.GLOBAL if found[1] == "p" else Space.SHARED), reader.number(found[2])


def _constant_text(bits: int, kind: RegType) -> str:
    dtype = _FLOATS.get(kind)
    if dtype is None:
        return str(bits)
    if not -(1 << kind.bits - 1) <= bits < 1 << kind.bits - 1:
        return f"#{bits}"
    value = float(np.array([bits], f"i{kind.bits // 8}").view(dtype.numpy)[0])
    return repr(value) if value == value else f"bits:{hex(bits & ((1 << kind.bits) - 1))}"


def _constant_bits(reader: Reader, text: str, kind: RegType) -> int:
    dtype = _FLOATS.get(kind)
    width = kind.bits
    if text.startswith("bits:"):
        value = int(reader.match(r"bits:(0x[0-9a-f]{1,16})", text, "is not bits")[1], 16)
        return value - (1 << width) if value >> width - 1 & 1 and width > 1 else value
    if dtype is None:
        return reader.number(text)
    try:
        value_f = float(text)
    except ValueError:
        raise reader.fail(f"{text!r} is not a number") from None
    with np.errstate(over="ignore"):
        return int(np.array([value_f]).astype(np.float64).astype(dtype.numpy).view(f"i{width // 8}")[0])
