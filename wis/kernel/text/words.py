"""Lexical elements of the text form: numbers, registers, types, names."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from wis.dtypes import DType
from wis.errors import ParseError
from wis.kernel.model import RegType

__all__ = ["Reader", "NUMBER", "NAME", "dtype_text", "reg_type_text", "name_text", "registers_text"]

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
