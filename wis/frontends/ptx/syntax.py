"""Tokens and syntax tree of PTX: what the parser reads and what it produces; and the error of this front end."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wis.errors import ParseError


class PtxError(ParseError):
    """PTX that cannot become kernels: not PTX at all, of a version or with an instruction that is not known, or not portable.

    ``line`` counts from 1 in the PTX, ``ptx`` is that line, ``hint`` says what to do instead ("" when there is nothing to say).
    """

    def __init__(self, line: int, text: str, *, hint: str = "", ptx: str = "") -> None:
        self.hint, self.ptx, self.reason = hint, ptx, text
        where = f"\n    {ptx}" if ptx else ""
        super().__init__(line, f"{text}{f' ({hint})' if hint else ''}{where}")

    def within(self, lines: list[str]) -> PtxError:
        """The same with the text of its line, out of all lines of the source."""
        known = 0 < self.line <= len(lines)
        return PtxError(self.line, self.reason, hint=self.hint, ptx=lines[self.line - 1].strip()[:200] if known else "")

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self.line, self.reason, self.hint, self.ptx)


def _again(line: int, text: str, hint: str, ptx: str) -> PtxError:
    return PtxError(line, text, hint=hint, ptx=ptx)


class Register:
    """A register as declared; compared by identity. ``type`` as written: ``b32``, ``pred``, ``f16x2``, ..."""

    __slots__ = ("name", "number", "type")

    def __init__(self, name: str, type_: str, number: int) -> None:
        self.name, self.type, self.number = name, type_, number


class Number(NamedTuple):
    """A literal. ``kind``: ``i`` an integer, ``f`` the bits of an f32, ``d`` the bits of an f64."""

    value: int
    kind: str


class Name(NamedTuple):
    """A variable, function, label, special register or ``_``; with a distance for ``name+4``. ``scope``: the braces it stands in."""

    text: str
    offset: int = 0
    scope: int = 0


class Address(NamedTuple):
    """``[base + offset]``; base None: an absolute address."""

    base: Register | Name | None
    offset: int


class Vector(NamedTuple):
    items: tuple[Operand, ...]


class Not(NamedTuple):
    """``!%p``"""

    register: Register


class Pair(NamedTuple):
    """``d|p``"""

    first: Operand
    second: Operand


Operand = Register | Number | Name | Address | Vector | Not | Pair


class Instruction:
    """``op`` without its modifiers; ``source``: line in the CUDA source (0: unknown); ``lists``: the operands in parentheses of a call.

    ``used``: a bit for each byte that the pragma ``used_bytes_mask`` says is used of what a load loads; -1: all of them.
    """

    __slots__ = ("args", "guard", "line", "lists", "mods", "negated", "op", "source", "used")

    def __init__(
        self,
        line: int,
        source: int,
        guard: Register | None,
        negated: bool,
        op: str,
        *,
        mods: tuple[str, ...],
        args: list[Operand],
        lists: tuple[list[Operand], list[Operand]] | None = None,
        used: int = -1,
    ) -> None:
        self.line, self.source, self.guard, self.negated = line, source, guard, negated
        self.op, self.mods, self.args, self.lists = op, mods, args, lists
        self.used = used

    @property
    def text(self) -> str:
        return ".".join((self.op, *self.mods))


class Param(NamedTuple):
    """A parameter of a kernel or function. ``nbytes``: size of an array (a struct by value), else -1; ``register``: ``.reg`` parameters."""

    name: str
    type: str
    nbytes: int
    align: int
    pointer: bool
    register: Register | None
    line: int


class Variable(NamedTuple):
    """A module, shared or local variable. ``nbytes`` -1: an array without a size; ``data``: its initialiser's bytes or None."""

    name: str
    space: str
    nbytes: int
    align: int
    data: bytes | None
    addresses: bool  # the initialiser holds addresses
    visible: bool
    extern: bool
    line: int


@dataclass(slots=True)
class Routine:
    """A ``.entry`` or ``.func``. ``labels``: (scope, name) to the instruction that follows; ``scopes``: the parent of each."""

    name: str
    kernel: bool
    line: int
    params: list[Param] = field(default_factory=list)
    results: list[Param] = field(default_factory=list)
    defined: bool = False
    code: list[Instruction] = field(default_factory=list)
    labels: dict[tuple[int, str], int] = field(default_factory=dict)
    tables: dict[tuple[int, str], list[Operand]] = field(default_factory=dict)
    scopes: list[int] = field(default_factory=lambda: [-1])
    variables: dict[str, Variable] = field(default_factory=dict)
    locals: dict[str, Param] = field(default_factory=dict)
    threads: int = 0  # .maxntid or .reqntid, 0: not said


@dataclass(slots=True)
class Source:
    """One PTX file."""

    version: tuple[int, int] = (0, 0)
    target: str = ""
    variables: dict[str, Variable] = field(default_factory=dict)
    routines: dict[str, Routine] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)
    located: bool = False  # there are .loc lines


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


def single(bits: int) -> int:
    """The bits of an f64 as those of the nearest f32."""
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    try:
        return int.from_bytes(struct.pack("<f", value), "little")
    except OverflowError:
        return 0xFF800000 if value < 0 else 0x7F800000
