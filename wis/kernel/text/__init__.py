"""The text form of kernels and modules: prints any of them, also broken ones with findings beside the lines; parses what it prints.

::

    kernel 2 vadd
    math strict
    threads 256
    param buf f32 r
    param i64
    shared f32[256]
    shared u8[0]
    dynamic 1
    local 64
    constants 0000803f00000040
    file "vadd.cu"
    regs i32 i64 f32 f32 pred
    block 0
      r0 = special(tid.x) @4
      r1 = sext r0
      r2 = ld(p0 f32) r1
      r2, r3 = load(p0 f32x2 +16 volatile) r0
      st(s0 f32) r1, r2
      sync 1, 0
    block 1
      call 0 (r2) -> (r3), 2
    block 2
      ret
    function 0 twice (r0) -> (r1)
    regs f32 f32
    block 0
      r1 = add r0, r0
      ret

Parameters are p0, p1, ... and shared arrays s0, s1, ... in order of their lines; registers r0, r1, ... have the types of the ``regs`` line
above. Memory in an access is ``pN``, ``sN``, ``local``, ``const`` or ``arena``; ``x2``: elements side by side; ``+16``: bytes added to the
offset. ``@4``: the line of the source file. A block ends in ``br B``, ``cbr rP, YES, NO``, ``switch rI, [B, ...], DEFAULT``, ``bar B``,
``sync B, BARRIER[, rCOUNT]``, ``arrive B, BARRIER, rCOUNT``, ``call F (rA, ...) -> (rR, ...), B`` or ``ret``. Constants are written as
values of their register's type, or as ``bits:0x..``. Names that are no identifiers stand in quotes, as in JSON. ``;`` starts a comment.
What cannot be said so is written in numbers, behind ``#``.

A module has its variables and entries around its kernels::

    module 1
    variable table 16 constant
      data 0000803f00000040
    entry vadd
      argument buffer a param=0
      argument scalar n param=1 dtype=i32
      argument variable table param=2 variable=0
      kernel 2 vadd
      ...
"""

from __future__ import annotations

from typing import Final

from wis.kernel.model import Kernel
from wis.kernel.module import ArgKind, Argument, Entry, Field, Module, Variable
from wis.kernel.text.parser import HEX_LINE, meaningful, parse_kernel, print_kernel, read_kernel
from wis.kernel.text.words import NAME, NUMBER, Reader, dtype_text, name_text

__all__ = ["parse_kernel", "parse_module", "print_kernel", "print_module"]

_KINDS: Final = {kind.name.lower(): int(kind) for kind in ArgKind}
_NUMBERS: Final = ("param", "nbytes", "variable")
_DEFAULT: Final = Argument(0, "")


def print_module(module: Module) -> str:
    """The text of ``module``. Works on modules that break rules."""
    lines = [f"module {module.version}"]
    for variable in module.variables:
        kind = {0: "device", 1: "constant"}.get(variable.constant, f"#{variable.constant}")
        lines.append(f"variable {name_text(variable.name)} {variable.nbytes} {kind}")
        lines += [f"  data {variable.data[first : first + HEX_LINE].hex()}" for first in range(0, len(variable.data), HEX_LINE)]
    for entry in module.entries:
        lines.append(f"entry {name_text(entry.name)}")
        lines += [f"  {_argument_text(argument)}" for argument in entry.arguments]
        lines += [f"  {line}" for line in print_kernel(entry.kernel).splitlines()]
    return "\n".join(lines) + "\n"


def _argument_text(argument: Argument) -> str:
    kind = ArgKind(argument.kind).name.lower() if argument.kind in ArgKind._value2member_map_ else f"#{argument.kind}"
    words = ["argument", kind, name_text(argument.name)]
    words += [f"{name}={getattr(argument, name)}" for name in _NUMBERS if getattr(argument, name) != getattr(_DEFAULT, name)]
    if argument.dtype != _DEFAULT.dtype:
        words.append(f"dtype={dtype_text(argument.dtype)}")
    words += [f"field={f.offset}:{dtype_text(f.dtype)}:{f.param}" for f in argument.fields]
    return " ".join(words)


def parse_module(text: str) -> Module:
    """The module. Raises ParseError naming the line."""
    parser = _Parser()
    for parser.line, line in meaningful(text):
        parser.read(line)
    parser.line = len(text.splitlines())
    return parser.module()


class _Parser(Reader):
    def __init__(self) -> None:
        super().__init__()
        self._version: int | None = None
        self._variables: list[tuple[str, int, int, bytearray]] = []  # name, nbytes, constant, data
        self._entries: list[Entry] = []
        self._name: str | None = None  # of the open entry
        self._arguments: list[Argument] = []
        self._kernel: list[tuple[int, str]] = []

    def read(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "module" and self._version is None:
            self._version = self.number(rest)
        elif self._version is None:
            raise self.fail("a module starts with its version: module 1")
        elif word == "entry":
            self._close()
            self._name = self.name(self.match(NAME, rest, "is not a name")[0])
        elif self._name is not None and word == "argument" and not self._kernel:
            self._arguments.append(self._argument(rest))
        elif self._name is not None and (self._kernel or word == "kernel"):
            self._kernel.append((self.line, line))
        elif self._name is None and word == "variable":
            found = self.match(rf"({NAME}) ({NUMBER}) (\S+)", rest, "is not 'NAME NBYTES device' or '... constant'")
            kind = self.code(found[3], {"device": 0, "constant": 1}, "device or constant")
            self._variables.append((self.name(found[1]), self.number(found[2]), kind, bytearray()))
        elif self._name is None and word == "data" and self._variables:
            self._variables[-1][3].extend(self.hex(rest))
        else:
            raise self.fail(f"{line!r} is not expected here")

    def _argument(self, text: str) -> Argument:
        found = self.match(rf"(\S+) ({NAME})((?: [a-z]+=\S+)*)", text, "is not 'KIND NAME WORD=VALUE ...'")
        values: dict[str, int] = {}
        fields: list[Field] = []
        for word in found[3].split():
            name, _, value = word.partition("=")
            if name == "field":
                parts = self.match(rf"({NUMBER}):([^:]+):({NUMBER})", value, "is not OFFSET:TYPE:PARAM")
                fields.append(Field(self.number(parts[1]), self.dtype(parts[2]), self.number(parts[3])))
            elif name in values or name not in (*_NUMBERS, "dtype"):
                raise self.fail(f"{word!r} is not expected here")
            else:
                values[name] = self.dtype(value) if name == "dtype" else self.number(value)
        return Argument(self.code(found[1], _KINDS, "a kind of argument"), self.name(found[2]), fields=tuple(fields), **values)

    def _close(self) -> None:
        """The open entry, if any, is complete."""
        if self._name is not None:
            kernel: Kernel = read_kernel(self._kernel, self.line)
            self._entries.append(Entry(self._name, kernel, tuple(self._arguments)))
        self._name, self._arguments, self._kernel = None, [], []

    def module(self) -> Module:
        """What was read."""
        if self._version is None:
            raise self.fail("a module starts with its version: module 1")
        self._close()
        variables = tuple(Variable(name, nbytes, constant, bytes(data)) for name, nbytes, constant, data in self._variables)
        return Module(self._version, tuple(self._entries), variables)
