"""Writing kernels of the kernel tier: registers, ops and basic blocks in the order they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wis.dtypes import DType
from wis.kernel.model import (
    KERNEL_VERSION,
    WARP,
    Block,
    Br,
    BufferParam,
    Cbr,
    Kernel,
    Math,
    Op,
    RegType,
    Ret,
    ScalarParam,
    Shared,
    Shuffle,
    Space,
    Special,
    Terminator,
)
from wis.kernel.ops import BY_NAME

_FLOATS = {RegType.F16: DType.F16, RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64}


class Assembler:
    """A kernel under construction. Ops go to the open block; ``end`` closes it, ``start`` opens another one."""

    def __init__(self) -> None:
        self.params: list[BufferParam | ScalarParam] = []
        self._shared: list[Shared] = []
        self._regs: list[RegType] = []
        self._code: list[list[Op]] = [[]]
        self._ends: list[Terminator] = [Ret()]
        self._open = 0
        self._constants: dict[tuple[int, RegType, int], int] = {}

    # --- registers and ops
    def register(self, kind: RegType) -> int:
        self._regs.append(kind)
        return len(self._regs) - 1

    def kind(self, register: int) -> RegType:
        return self._regs[register]

    def op(self, name: str, kind: RegType, *ins: int, attrs: tuple[int, ...] = (), into: int | None = None) -> int:
        """One op with a result of ``kind`` in a new register (or in ``into``), which is returned."""
        out = self.register(kind) if into is None else into
        self._code[self._open].append(Op(BY_NAME[name].code, (out,), ins, attrs))
        return out

    def do(self, op: Op) -> None:
        """An op put together elsewhere."""
        self._code[self._open].append(op)

    def same(self, name: str, *ins: int) -> int:
        """An op whose result is of the type of its last operand."""
        return self.op(name, self.kind(ins[-1]), *ins)

    def test(self, name: str, a: int, b: int) -> int:
        """A comparison."""
        return self.op(name, RegType.PRED, a, b)

    def const(self, kind: RegType, value: float) -> int:
        """A constant, once a block of code. Integers are given in the signed or unsigned reading."""
        if kind in _FLOATS:
            bits = int(np.asarray(value).astype(_FLOATS[kind].numpy).view(f"i{kind.bits // 8}"))
        elif kind is RegType.PRED:
            bits = int(bool(value))
        else:
            bits = int(value) & (1 << kind.bits) - 1
            bits -= (bits >> kind.bits - 1) << kind.bits
        key = (self._open, kind, bits)
        if key not in self._constants:
            self._constants[key] = self.op("const", kind, attrs=(bits,))
        return self._constants[key]

    def special(self, which: Special) -> int:
        """A number of the thread, as i64."""
        return self.op("sext", RegType.I64, self.op("special", RegType.I32, attrs=(which,)))

    def shuffled(self, mode: Shuffle, x: int, by: int) -> int:
        """What another lane of the warp has in ``x``; registers that shuffles do not take go as numbers of 32 bits."""
        kind, narrow, wide = self.kind(x), RegType.I32, RegType.I64
        if kind in (wide, RegType.F64):
            whole = x if kind is wide else self.op("reinterpret", wide, x)
            low = self.shuffled(mode, self.op("narrow", narrow, whole), by)
            high = self.shuffled(mode, self.op("narrow", narrow, self.same("shr_u", whole, self.const(wide, 32))), by)
            both = self.same("or", self.op("zext", wide, low), self.same("shl", self.op("zext", wide, high), self.const(wide, 32)))
            return both if kind is wide else self.op("reinterpret", RegType.F64, both)
        if kind is RegType.PRED:
            one = self.op("sel", narrow, x, self.const(narrow, 1), self.const(narrow, 0))
            return self.test("ne", self.shuffled(mode, one, by), self.const(narrow, 0))
        if kind is RegType.I16:
            return self.op("narrow", RegType.I16, self.shuffled(mode, self.op("sext", narrow, x), by))
        out, found = self.register(kind), self.register(RegType.PRED)
        last = self.const(narrow, WARP - 1)
        self.do(Op(BY_NAME["shfl"].code, (out, found), (x, self.const(narrow, by), last, self.const(narrow, -1)), (int(mode),)))
        return out

    # --- parameters and memory
    def buffer(self, dtype: DType, access: int) -> int:
        self.params.append(BufferParam(dtype, access))
        return len(self.params) - 1

    def scalar(self, kind: RegType) -> int:
        """A new scalar parameter, in a register."""
        self.params.append(ScalarParam(kind))
        return self.op("param", kind, attrs=(len(self.params) - 1,))

    def shared(self, dtype: DType, n: int) -> int:
        self._shared.append(Shared(dtype, n))
        return len(self._shared) - 1

    def load(self, space: Space, which: int, dtype: DType, index: int, kind: RegType) -> int:
        return self.op("ld", kind, index, attrs=(space, which, dtype))

    def store(self, space: Space, which: int, dtype: DType, index: int, value: int) -> None:
        self._code[self._open].append(Op(BY_NAME["st"].code, (), (index, value), (space, which, dtype)))

    # --- blocks
    def block(self) -> int:
        """A new, empty block."""
        self._code.append([])
        self._ends.append(Ret())
        return len(self._code) - 1

    def end(self, terminator: Terminator) -> None:
        self._ends[self._open] = terminator

    def start(self, block: int) -> None:
        self._open = block

    def fork(self, pred: int) -> tuple[int, int]:
        """End the block with a branch to two new ones: where ``pred`` holds, where it does not."""
        yes, no = self.block(), self.block()
        self.end(Cbr(pred, yes, no))
        return yes, no

    def jump(self, target: int) -> None:
        self.end(Br(target))

    def kernel(self, name: str, math: Math, threads: int) -> Kernel:
        blocks = tuple(Block(tuple(code), end) for code, end in zip(self._code, self._ends, strict=True))
        return Kernel(KERNEL_VERSION, name, math, threads, tuple(self.params), tuple(self._shared), _ints(self._regs), blocks)


def _ints(kinds: Sequence[RegType]) -> tuple[int, ...]:
    return tuple(int(kind) for kind in kinds)
