"""Context of every lowering: views of operands and temporaries, and the list of calls under construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from jit.accel.calls import Arg, Buf, Call, KernelCall, ProductCall, block_of
from jit.accel.device import Facts
from jit.accel.library.writer import Made
from jit.errors import Inexpressible
from jit.plan.access import access
from jit.plan.calls import ArgBlock
from wis.dtypes import DType
from wis.kernel.model import RegType, ScalarParam
from wis.program import Operand, Scalar
from wis.views import contiguous_strides

__all__ = ["Args", "Build", "Grid", "operand", "parts", "raw", "merged", "places"]


Args = dict[str, Arg]
"""Parameters of a kernel by name."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A merged index space: sizes from the slowest to the fastest, and one stride a size for every operand, in elements."""

    sizes: tuple[int, ...]
    strides: Mapping[str, tuple[int, ...]]

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def numel(self) -> int:
        return prod(self.sizes)

    def args(self) -> Args:
        """Under the names that kernels over an index space declare: n0.., and for an operand x: x_s0.."""
        found: Args = {f"n{d}": size for d, size in enumerate(self.sizes)}
        for name, strides in self.strides.items():
            found |= {f"{name}_s{d}": stride for d, stride in enumerate(strides)}
        return found


def merged(shape: Sequence[int], strides: Mapping[str, Sequence[int]]) -> Grid:
    """The index space ``shape`` with neighbours merged that are one run in every operand. Row-major order stays."""
    sizes: list[int] = []
    steps: dict[str, list[int]] = {name: [] for name in strides}
    for d, size in enumerate(shape):
        if size == 1:
            continue
        if sizes and all(steps[name][-1] == s[d] * size for name, s in strides.items()):
            sizes[-1] *= size
            for name, s in strides.items():
                steps[name][-1] = s[d]
            continue
        sizes.append(size)
        for name, s in strides.items():
            steps[name].append(s[d])
    if not sizes:
        sizes = [1]
        steps = {name: [0] for name in strides}
    return Grid(tuple(sizes), {name: tuple(s) for name, s in steps.items()})


def operand(x: Operand | Scalar) -> Operand:
    """A buffer operand; an immediate is not supported where this is asked."""
    if isinstance(x, Scalar):
        raise Inexpressible("an immediate where a buffer is needed")
    return x


_PARTS = {DType.C64: DType.F32, DType.C128: DType.F64}


def parts(x: Operand) -> Operand:
    """A complex operand as its real and imaginary parts along a new last dimension."""
    return Operand(x.buffer, _PARTS[x.dtype], (*x.shape, 2), (*(2 * s for s in x.strides), 1), 2 * x.offset)


_WORDS = {1: DType.U8, 2: DType.U16, 4: DType.U32, 8: DType.U64}


def raw(x: Operand) -> Operand:
    """An operand whose elements are only moved, as integers of their size. Raises Inexpressible for elements of 16 bytes."""
    if x.dtype.itemsize not in _WORDS:
        raise Inexpressible("elements of 16 bytes")
    return replace(x, dtype=_WORDS[x.dtype.itemsize])


class Build:
    """Collects the calls of one instruction. ``new_temp(nbytes)`` gives the number of a new TEMP buffer; ``name_of`` registers a kernel."""

    def __init__(self, new_temp: Callable[[int], int], name_of: Callable[[Made], str], facts: Facts) -> None:
        self.calls: list[Call] = []
        self.facts = facts
        self._new_temp = new_temp
        self._name_of = name_of

    def temp(self, dtype: DType, shape: Sequence[int]) -> Operand:
        """A contiguous temporary, not initialised."""
        buffer = self._new_temp(max(prod(shape), 1) * dtype.itemsize)
        return Operand(buffer, dtype, tuple(shape), contiguous_strides(shape), 0)

    def call(self, made: Made, blocks: int, *, reads: Sequence[Operand], writes: Sequence[Operand], args: Mapping[str, Arg]) -> None:
        """Add a launch of ``blocks`` blocks; ``args`` must name each parameter, no more and no less."""
        if blocks == 0:
            return
        assert set(args) == set(made.params), (made.kernel.name, set(args) ^ set(made.params))
        kinds = [RegType(p.reg_type) if isinstance(p, ScalarParam) else None for p in made.kernel.params]
        block = block_of(kinds, [args[name] for name in made.params])
        touched = tuple(access(x) for x in reads), tuple(access(x) for x in writes)
        self.calls.append(KernelCall(block, *touched, self._name_of(made), blocks, made.threads))

    def walk(self, made: Made, over: Grid, *, reads: Mapping[str, Operand], writes: Mapping[str, Operand], **extra: Arg) -> None:
        """Add a launch with a thread for every point of an index space. Operand x is buffer ``x`` at offset ``x_at``."""
        args: Args = {**over.args(), **extra, **places({**reads, **writes})}
        blocks = -(-over.numel // made.threads)
        self.call(made, blocks, reads=list(reads.values()), writes=list(writes.values()), args=args)

    def product(self, out: Operand, a: Operand, b: Operand) -> None:
        """Add a matrix product [.., m, k] x [.., k, n] for the device's own library."""
        x = (out, a, b)
        pointers = np.array([(at, v.buffer, 0) for at, v in enumerate(x)], np.int64)
        block = ArgBlock(np.zeros(0, np.int64), pointers, (), ())
        self.calls.append(
            ProductCall(
                block, (access(a), access(b)), (access(out),), out.dtype, tuple(v.shape for v in x), tuple(v.strides for v in x),
                tuple(v.offset for v in x),
            )
        )  # fmt: skip


def places(operands: Mapping[str, Operand]) -> Args:
    """Buffers and offsets of operands, under the names that kernels declare."""
    found: Args = {}
    for name, x in operands.items():
        found[name] = Buf(x.buffer)
        found[f"{name}_at"] = x.offset
    return found
