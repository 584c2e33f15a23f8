"""Splits PTX text into tokens."""

from __future__ import annotations

import re
import struct
from typing import Final

from wis.frontends.ptx.errors import PtxError

__all__ = ["tokens", "number"]

_TOKEN: Final = re.compile(
    r"""[^\S\n]+|(
    \n
  | //[^\n]* | /\*.*?\*/
  | [A-Za-z_$%][\w$]*(?:\.[\w$]+(?:::[\w$]+)*)*
  | \.[A-Za-z_][\w$]*(?:::[\w$]+)*
  | 0[fF][0-9a-fA-F]{8}\b | 0[dD][0-9a-fA-F]{16}\b | 0[xX][0-9a-fA-F]+U?\b | 0[bB][01]+U?\b
  | \d+(?:\.\d*(?:[eE][-+]?\d+)?|[eE][-+]?\d+|U)?
  | "(?:\\.|[^"\\\n])*"
  | .
  )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_SINGLES: Final = frozenset("{}()[],;:@!|<>=+-*")


def tokens(text: str) -> tuple[list[str], list[int]]:
    """The tokens without comments, and the line of each (from 1). Raises PtxError on a character that PTX has no use for."""
    words: list[str] = []
    lines: list[int] = []
    line = 1
    for word in _TOKEN.findall(text):
        if not word:
            continue
        first = word[0]
        if first == "\n":
            line += 1
        elif first == "/":
            if len(word) == 1:
                raise PtxError(line, "'/' cannot stand here")
            line += word.count("\n")
        else:
            if len(word) == 1 and not (word.isalnum() or word in _SINGLES or word in "_%$"):
                raise PtxError(line, f"{word!r} cannot stand here")
            words.append(word)
            lines.append(line)
    return words, lines


def number(word: str) -> tuple[int, str] | None:
    """The value and kind (``i``, ``f``, ``d``) of a literal, or None when it is none."""
    if not word[0].isdigit():
        return None
    head = word[:2].lower()
    if head == "0f" and len(word) == 10:
        return int(word[2:], 16), "f"
    if head == "0d" and len(word) == 18:
        return int(word[2:], 16), "d"
    digits = word.rstrip("U")
    try:
        if head == "0x":
            return int(digits, 16), "i"
        if head == "0b":
            return int(digits, 2), "i"
        if digits.isdigit():
            return int(digits, 8 if digits[0] == "0" and len(digits) > 1 else 10), "i"
        return _double(float(digits)), "d"
    except ValueError:
        return None


def _double(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")
