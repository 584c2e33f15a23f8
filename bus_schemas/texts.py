"""Texts for people that another party chose (titles, names, reasons): they command no terminal and reorder no line. Pure."""

from __future__ import annotations

import re
from typing import Final

from bus_schemas.limits import TITLE_CHARS_MAX

_FORBIDDEN: Final = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""C0 and C1, line separators, marks of writing direction, surrogates."""

TITLE_PATTERN: Final = rf"\A[^{_FORBIDDEN}]*\Z"
"""What a title in a request must match."""

_BAD: Final = re.compile(f"[{_FORBIDDEN}]")


def printable(text: str) -> str:
    """``text`` for a terminal: what does not print is escaped; line breaks and tabs stay."""
    if text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(char if char in "\n\t\u00a0" or char.isprintable() else char.encode("unicode_escape").decode() for char in lines)


def title_of(text: str) -> str:
    """``text`` as one line of at most ``TITLE_CHARS_MAX`` characters, without those that do not belong into one."""
    return _BAD.sub("", text)[:TITLE_CHARS_MAX]
