"""Environment of one kernel's code: the variables and functions it names, and the signatures of calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from wis.frontends.ptx.classes import BITS, FIXED, INTEGER
from wis.frontends.ptx.syntax import Address, Name, Param, PtxError, Routine, Source
from wis.kernel.model import RegType

_FLOATS: Final = {"f32": RegType.F32, "f64": RegType.F64, "f16": RegType.F16, "bf16": RegType.BF16}


class Symbol(NamedTuple):
    """A variable that the kernel's code names. ``space``: global, const, shared, local; ``nbytes`` -1: the launch's shared memory."""

    name: str
    space: str
    nbytes: int
    align: int
    data: bytes
    own: bool  # not visible from outside of the file
    line: int
    argument: int = -1  # a copy of this argument of the kernel


class Slot(NamedTuple):
    """A value of a call. ``type`` None: bytes in local memory, at ``symbol``."""

    name: str
    type: RegType | None
    symbol: int
    nbytes: int


class Signature(NamedTuple):
    number: int
    ins: tuple[Slot, ...]
    outs: tuple[Slot, ...]


@dataclass(slots=True)
class Scene:
    """One kernel of ``source`` with what it needs. ``functions``: those it calls, directly or not, in order of discovery.
    ``drops_prints``: whether printing does nothing instead of being refused; ``whole_words``: whether shared variables fill their last 32
    bits, because atomics on 16 bits change the word around them."""

    source: Source
    kernel: Routine
    drops_prints: bool = False
    whole_words: bool = False
    symbols: list[Symbol] = field(default_factory=list)
    functions: list[Routine] = field(default_factory=list)
    _by_name: dict[tuple[str, str], int] = field(default_factory=dict)
    _signatures: dict[str, Signature] = field(default_factory=dict)

    def symbol(self, routine: Routine, name: str) -> int | None:
        """The number of a variable, as ``routine`` sees the name; None when there is none."""
        owner, variable = routine.name, routine.variables.get(name)
        if variable is None:
            owner, variable = "", self.source.variables.get(name)
        key = (owner, name)
        if key in self._by_name:
            return self._by_name[key]
        if variable is None:
            return self._argument(routine, name)
        if variable.addresses:
            raise PtxError(variable.line, f"{name} is initialised with addresses, which are known only when a kernel runs",
                           hint="fill it from the host")  # fmt: skip
        dynamic = variable.space == "shared" and variable.nbytes == -1
        if variable.extern and not dynamic:
            raise PtxError(variable.line, f"{name} is declared but not defined in this file", hint="link the files into one")
        nbytes = variable.nbytes if variable.nbytes >= 0 or dynamic else 0
        return self._add(
            key, Symbol(name, variable.space, nbytes, variable.align, variable.data or b"", not variable.visible, variable.line)
        )

    def _argument(self, routine: Routine, name: str) -> int | None:
        """A parameter whose address is taken: a copy in local memory."""
        if routine is not self.kernel:
            return None
        for number, param in enumerate(routine.params):
            if param.name == name:
                size = param.nbytes if param.nbytes >= 0 else BITS[param.type] // 8
                return self._add((routine.name, name), Symbol(name, "local", size, max(param.align, 16), b"", True, param.line, number))
        return None

    def _add(self, key: tuple[str, str], symbol: Symbol) -> int:
        self._by_name[key] = len(self.symbols)
        self.symbols.append(symbol)
        return len(self.symbols) - 1

    def scratch(self, name: str, space: str, nbytes: int) -> int:
        """A variable of our own."""
        key = ("", f"%{name}")
        return self._by_name[key] if key in self._by_name else self._add(key, Symbol(name, space, nbytes, 16, b"", True, 0))

    def signature(self, name: str) -> Signature:
        """How function ``name``, which is defined, is called. Finding it makes it one of the kernel's functions."""
        known = self._signatures.get(name)
        if known is None:
            routine = self.source.routines[name]
            number = len(self.functions)
            self.functions.append(routine)
            loads = _types(routine, "ld", 1)
            stores = _types(routine, "st", 0)
            ins = tuple(self._slot(routine, param, loads) for param in routine.params)
            outs = tuple(self._slot(routine, param, stores) for param in routine.results)
            known = self._signatures[routine.name] = self._signatures[name] = Signature(number, ins, outs)
        return known

    def _slot(self, routine: Routine, param: Param, used: dict[str, set[str]]) -> Slot:
        if param.nbytes >= 0:
            symbol = Symbol(f"{routine.name}.{param.name}", "local", param.nbytes, max(param.align, 16), b"", True, param.line)
            return Slot(param.name, None, self._add((routine.name, f"%{param.name}"), symbol), param.nbytes)
        bits = BITS[param.type]
        type_ = FIXED.get(param.type)
        if type_ is None:
            kinds = used.get(param.name, set())
            one = next(iter(kinds)) if len(kinds) == 1 else ""
            type_ = _FLOATS[one] if one in _FLOATS and BITS[one] == bits else INTEGER[bits]
        return Slot(param.name, type_, -1, bits // 8)


def _types(routine: Routine, op: str, position: int) -> dict[str, set[str]]:
    """The types as which each ``.param`` is loaded or stored."""
    found: dict[str, set[str]] = {}
    for ins in routine.code:
        if ins.op == op and "param" in ins.mods and len(ins.args) > position:
            arg = ins.args[position]
            if isinstance(arg, Address) and isinstance(arg.base, Name):
                found.setdefault(arg.base.text, set()).add(ins.mods[-1])
    return found
