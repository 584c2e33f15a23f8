"""Registers of a kernel as LLVM values: constants, numbers of the thread, variables of lane 0, or vectors.

Variables are stack slots that LLVM turns into values. A register is kept as its shape says (see shape): its value in lane 0, or in all.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from jit.host.emit.code import Code, Lanes
from jit.host.simt.analysis import Analysis
from jit.host.simt.shape import Fact, Gang, Same, Steps, Vector, Wide
from wis.kernel.model import Kernel, RegType

__all__ = ["LLVM", "Registers", "literal_bits", "vector_constant"]

LLVM = {
    RegType.PRED: "i1", RegType.I16: "i16", RegType.I32: "i32", RegType.I64: "i64", RegType.F16: "i16", RegType.BF16: "i16",
    RegType.F32: "float", RegType.F64: "double",
}  # fmt: skip
"""How a register of each type is held; f16 and bf16 by their bits."""


def literal_bits(kind: RegType, bits: int) -> str:
    """The constant whose bits these are, as LLVM spells it."""
    if kind is RegType.PRED:
        return "true" if bits else "false"
    if kind is RegType.F32:
        value = struct.unpack("<f", struct.pack("<i", bits))[0]
        if value != value:  # a double cannot carry the payload through Python
            quiet = bits & 0x7FFFFF
            return f"0x{(bits >> 31 & 1) << 63 | 0x7FF << 52 | quiet << 29:016X}"
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if kind is RegType.F64:
        return f"0x{bits & (1 << 64) - 1:016X}"
    return str(bits)


def vector_constant(scalar: str, values: Sequence[int]) -> str:
    return "<" + ", ".join(f"{scalar} {value}" for value in values) + ">"


@dataclass(slots=True)
class Slot:
    """Where a register is between barriers: byte offset in a gang's record and size."""

    offset: int
    nbytes: int


class Registers:
    """Reads and writes. ``mask``: the lanes that run now (None: all that there may be); ``kept``: registers that other lanes still need."""

    def __init__(self, code: Code, kernel: Kernel, gang: Gang, analysis: Analysis) -> None:
        self.code, self.kernel, self.gang, self.analysis = code, kernel, gang, analysis
        self.v, self.one = Lanes(code, gang.lanes), Lanes(code, 1)
        self.facts = analysis.facts
        self.entry: list[str] = []
        self.given: dict[int, str] = {}  # registers that are values from the start: parameters and numbers of the thread
        self.mask: str | None = None
        self.kept = 0
        self.sums: dict[int, tuple[str, str]] = {}  # registers that are a scalar plus a vector: found in this block
        self._cache: dict[tuple[int, str], str] = {}
        self._declared: set[str] = set()

    # --- kinds
    def kind(self, r: int) -> RegType:
        return RegType(self.kernel.regs[r])

    def llvm(self, r: int) -> str:
        return LLVM[self.kind(r)]

    def fact(self, r: int) -> Fact:
        return self.facts[r]

    def is_vector(self, r: int) -> bool:
        return isinstance(self.facts[r].shape, Vector)

    def is_same(self, r: int) -> bool:
        return isinstance(self.facts[r].shape, Same)

    # --- variables
    def start_block(self) -> None:
        """Forget values found in the block before."""
        self._cache.clear()
        self.sums.clear()

    def variable(self, name: str, kind: str, initial: str = "zeroinitializer") -> str:
        """A stack slot, made (and set) once at the function's start."""
        if name not in self._declared:
            self._declared.add(name)
            self.entry.append(f"  {name} = alloca {kind}")
            if not kind.startswith("["):  # room that is written before it is read
                self.entry.append(f"  store {kind} {initial}, ptr {name}")
        return name

    def parts(self, r: int) -> list[tuple[str, str]]:
        """The variables of a register: (name, LLVM type)."""
        if r in self.given or self.facts[r].value is not None:
            return []
        shape = self.facts[r].shape
        if isinstance(shape, Wide):
            return [(self.variable(f"%r{r}.root", "i32"), "i32"), (self.variable(f"%r{r}.rest", "i64"), "i64")]
        kind = self.v.type(self.llvm(r)) if isinstance(shape, Vector) else self.llvm(r)
        return [(self.variable(f"%r{r}", kind), kind)]

    # --- reading
    def _read(self, r: int, part: int = 0) -> str:
        key = (r, f"read{part}")
        if key not in self._cache:
            name, kind = self.parts(r)[part]
            self._cache[key] = self.code.value(f"load {kind}, ptr {name}")
        return self._cache[key]

    def scalar(self, r: int) -> str:
        """The value in lane 0 of a register that is no vector."""
        fact = self.facts[r]
        if fact.value is not None:
            return literal_bits(self.kind(r), fact.value)
        if r in self.given:
            return self.given[r]
        if isinstance(fact.shape, Wide):
            key = (r, "lane0")
            if key not in self._cache:
                root, rest = self.wide(r)
                scaled = self._scaled(self.one, fact.shape, root)
                self._cache[key] = self.code.add(scaled, rest)
            return self._cache[key]
        assert not isinstance(fact.shape, Vector)
        return self._read(r)

    def wide(self, r: int) -> tuple[str, str]:
        """Root and rest of a Wide register."""
        return self._read(r, 0), self._read(r, 1)

    def _scaled(self, v: Lanes, shape: Wide, root: str) -> str:
        widened = v.convert("sext" if shape.signed else "zext", "i32", root, "i64")
        return widened if shape.scale == 1 else v.op("mul", "i64", widened, v.const("i64", shape.scale))

    def vector(self, r: int) -> str:
        """The value in every lane."""
        if self.gang.lanes == 1:
            return self.scalar(r)
        fact = self.facts[r]
        kind = self.llvm(r)
        if isinstance(fact.shape, Vector) and fact.value is None:
            return self._read(r)
        if fact.value is not None:
            return f"splat ({kind} {literal_bits(self.kind(r), fact.value)})"
        key = (r, "vector")
        if key not in self._cache:
            self._cache[key] = self._spread(r, fact, kind)
        return self._cache[key]

    def _spread(self, r: int, fact: Fact, kind: str) -> str:
        if isinstance(fact.shape, Wide):
            root, rest = self.wide(r)
            roots = self.v.op("add", "i32", self.v.splat("i32", root), vector_constant("i32", fact.shape.offsets))
            return self.v.op("add", "i64", self._scaled(self.v, fact.shape, roots), self.v.splat("i64", rest))
        wide = self.v.splat(kind, self.scalar(r))
        if isinstance(fact.shape, Steps):
            wide = self.v.op("add", kind, wide, vector_constant(kind, fact.shape.offsets))
        return wide

    def narrow(self, r: int) -> str | None:
        """The numbers of 32 bits in every lane that a vector of offsets was extended from: unsigned for a register of 32 bits."""
        return self.vector(r) if self.kind(r) is RegType.I32 else self._cache.get((r, "narrow"))

    def put_narrow(self, r: int, value: str) -> None:
        """``r`` was written with ``value``, signed numbers of 32 bits, extended."""
        self._cache[r, "narrow"] = value

    # --- writing
    def put_scalar(self, r: int, value: str) -> None:
        """Lane 0's value of a register that is no vector, or the value in all lanes of one that is."""
        if self.facts[r].value is not None or r in self.given:
            return
        if isinstance(self.facts[r].shape, Vector):
            self.put_vector(r, self.v.splat(self.llvm(r), value))
            return
        ((name, kind),) = self.parts(r)
        self._put(r, 0, name, kind, value)

    def put_wide(self, r: int, root: str, rest: str) -> None:
        self.forget(r)
        for (name, kind), value in zip(self.parts(r), (root, rest), strict=True):
            self.code.do(f"store {kind} {value}, ptr {name}")

    def put_vector(self, r: int, value: str) -> None:
        """Of the running lanes; the others keep theirs where they need it. The value of the one lane where there is one."""
        if self.gang.lanes == 1:
            self.put_scalar(r, value)
            return
        if self.facts[r].value is not None:
            return
        assert isinstance(self.facts[r].shape, Vector), r
        ((name, kind),) = self.parts(r)
        if self.kept >> r & 1:
            assert self.mask is not None, "lanes elsewhere need it, so not all run"
            old = self._read(r)
            value = self.code.value(f"select {self.v.type('i1')} {self.mask}, {kind} {value}, {kind} {old}")
        self._put(r, 0, name, kind, value)

    def _put(self, r: int, part: int, name: str, kind: str, value: str) -> None:
        self.forget(r)
        self.code.do(f"store {kind} {value}, ptr {name}")
        self._cache[r, f"read{part}"] = value

    def forget(self, r: int) -> None:
        """The register was written: what was read from it before is not its value any more."""
        self.sums.pop(r, None)
        for what in ("read0", "read1", "lane0", "vector", "narrow"):
            self._cache.pop((r, what), None)

    # --- cold paths
    def saved(self) -> dict[tuple[int, str], str]:
        """What is known here, to be given to ``back_to`` behind code that does not always run."""
        return dict(self._cache)

    def back_to(self, saved: dict[tuple[int, str], str]) -> None:
        self._cache = saved
