"""Lexical elements of the text form: numbers, registers, types, names; and the attributes of an op, printed and parsed."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from wis.dtypes import DType
from wis.errors import ParseError
from wis.kernel.model import Atomic, Matrix, RegType, Rounding, Scope, Shuffle, Space, Special, Vote
from wis.kernel.ops import KernelOp, Sig

NUMBER: Final = r"-?[0-9]{1,20}"
NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*|\"(?:[^\"\\]|\\.)*\""
"""A name: an identifier, or a string as in JSON."""
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DTYPES: Final = {d.text: int(d) for d in DType}
_REG_TYPES: Final = {t.text: int(t) for t in RegType}


def dtype_text(code: int) -> str:
    return DType(code).text if code in DType._value2member_map_ else f"#{code}"


def reg_type_text(code: int) -> str:
    return RegType(code).text if code in RegType._value2member_map_ else f"#{code}"


def name_text(name: str) -> str:
    """``name`` as it is, or in quotes when it is no identifier."""
    return name if _IDENTIFIER.fullmatch(name) else json.dumps(name)


def registers_text(numbers: Sequence[int]) -> str:
    return ", ".join(f"r{n}" for n in numbers)


class Reader:
    """Reads words; ``line`` is the number of the line they are in, for errors."""

    def __init__(self) -> None:
        self.line = 0

    def fail(self, text: str) -> ParseError:
        return ParseError(self.line, text)

    def match(self, pattern: str, text: str, complaint: str) -> re.Match[str]:
        found = re.fullmatch(pattern, text)
        if found is None:
            raise self.fail(f"{text!r} {complaint}")
        return found

    def number(self, text: str) -> int:
        value = int(self.match(NUMBER, text, "is not a whole number")[0])
        if not -(1 << 63) <= value < 1 << 64:
            raise self.fail(f"{value} does not fit 64 bits")
        return value

    def code(self, text: str, names: dict[str, int], what: str) -> int:
        """One of ``names``, or a number behind #."""
        if text.startswith("#"):
            return self.number(text[1:])
        if text not in names:
            raise self.fail(f"{text!r} is not {what}")
        return names[text]

    def choice(self, text: str, choices: Sequence[str], what: str) -> int:
        """The place of ``text`` in ``choices``."""
        if text not in choices:
            raise self.fail(f"{text!r} is not {what}")
        return choices.index(text)

    def dtype(self, text: str) -> int:
        return self.code(text, _DTYPES, "an element type")

    def reg_type(self, text: str) -> int:
        return self.code(text, _REG_TYPES, "a register type")

    def register(self, text: str) -> int:
        return self.number(self.match(rf"r({NUMBER})", text, "is not a register")[1])

    def registers(self, text: str | None) -> tuple[int, ...]:
        """Registers with commas between them; none for None or nothing."""
        return tuple(self.register(part.strip()) for part in text.split(",")) if text else ()

    def name(self, text: str) -> str:
        if not text.startswith('"'):
            return text
        try:
            return str(json.loads(text))
        except ValueError:
            raise self.fail(f"{text} is not a name in quotes") from None

    def hex(self, text: str) -> bytes:
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise self.fail(f"{text[:40]!r} is not bytes in hex") from None


_FLOATS: Final = {RegType.F16: DType.F16, RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64}
_NAMED: Final = {Space.LOCAL: "local", Space.CONST: "const", Space.ARENA: "arena"}  # the others are numbered
_SPACES: Final = {text: int(space) for space, text in _NAMED.items()}


def _names(kind: type[Shuffle | Vote | Scope | Rounding | Atomic | Matrix]) -> tuple[str, ...]:
    return tuple(member.name.lower() for member in kind)


_MODES: Final = {"shfl": _names(Shuffle), "vote": _names(Vote), "prmt": ("plain", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")}
_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "which": tuple(special.text for special in Special),
    "rounding": _names(Rounding),
    "scope": _names(Scope),
    "function": _names(Atomic),
    "elements": _names(Matrix),
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
