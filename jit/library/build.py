"""Context of every lowering: views of operands and temporaries, the list of calls under construction, and copies of operands into other
layouts and element types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from jit.errors import Inexpressible
from jit.kernels.launch import Dim3
from jit.library.writer import Made, Points, Walk, Writer
from jit.plan.access import Access, access
from jit.plan.calls import Arg, Buf
from wis.dtypes import DType
from wis.kernel.model import Access as BufferAccess
from wis.program import Operand, Scalar
from wis.views import contiguous_strides

Args = dict[str, Arg]
"""Parameters of a kernel by name."""
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of ``grid`` blocks; ``args`` are in the order of the kernel's parameters. ``block_ns``: about what a block costs
    a core."""

    made: Made
    grid: Dim3
    args: tuple[Arg, ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    block_ns: float


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


def merged(shape: Sequence[int], strides: Mapping[str, Sequence[int]], order_by: str | None = None) -> Grid:
    """The index space ``shape`` with neighbours merged that are one run in every operand. Row-major order stays, or ``order_by`` names the
    operand whose strides give the order of the dimensions, the widest first."""
    sizes: list[int] = []
    steps: dict[str, list[int]] = {name: [] for name in strides}
    order = range(len(shape)) if order_by is None else sorted(range(len(shape)), key=lambda d: -abs(strides[order_by][d]))
    for d in order:
        size = shape[d]
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


class Build(Generic[C]):
    """Collects the calls of one instruction, as ``make`` makes them of launches. ``new_temp(nbytes)`` gives the number of a new TEMP
    buffer.

    ``gangs``: blocks run as ``jit.host.simt`` runs them, whose coordinates are scalars and where one thread is scalar code.
    """

    def __init__(self, new_temp: Callable[[int], int], make: Callable[[Launch], C], *, gangs: bool) -> None:
        self.calls: list[C] = []
        self.gangs = gangs
        self._new_temp = new_temp
        self._make = make

    @property
    def runs(self) -> Walk:
        """The walk of kernels that have no use for lanes."""
        return Walk.RUNS if self.gangs else Walk.POINTS

    def unit(self, over: Grid) -> bool:
        """Whether the last stride of every operand is 1, and a kernel of its own is worth it: vectors are made of its loops."""
        return self.gangs and all(strides[-1] == 1 for strides in over.strides.values())

    def temp(self, dtype: DType, shape: Sequence[int]) -> Operand:
        """A contiguous temporary, not initialised."""
        buffer = self._new_temp(max(prod(shape), 1) * dtype.itemsize)
        return Operand(buffer, dtype, tuple(shape), contiguous_strides(shape), 0)

    def call(self, made: Made, grid: int | Dim3, *, reads: Sequence[Operand], writes: Sequence[Operand], args: Mapping[str, Arg],
             block_ns: float = 0.0) -> None:  # fmt: skip
        """Add a launch of ``grid`` blocks (a number: along x); ``args`` has every parameter, and maybe more."""
        grid = (grid, 1, 1) if isinstance(grid, int) else grid
        if prod(grid) == 0:
            return
        given = tuple(args[name] for name in made.params)
        touched = tuple(access(x) for x in reads), tuple(access(x) for x in writes)
        self.calls.append(self._make(Launch(made, grid, given, *touched, block_ns)))

    def walk(self, made: Made, over: Grid, *, reads: Mapping[str, Operand], writes: Mapping[str, Operand], point_ns: float = 1.0,
             run: int = 8192, extra: Mapping[str, Arg] = MappingProxyType({})) -> None:  # fmt: skip
        """Add a launch for the points of an index space. Operand x is buffer ``x`` at offset ``x_at``; ``run``: how many points a thread
        takes where threads take runs (``Walk``); ``point_ns``: about what one costs a core."""
        args: Args = {**over.args(), **extra, **places({**reads, **writes})}
        if made.walk is Walk.RUNS:
            args["run"] = run
        else:
            run = made.threads
        sizes = [-(-over.sizes[-1] // run), *reversed(over.sizes[:-1]), 1, 1]
        grid = -(-over.numel // run) if made.walk is Walk.POINTS else (sizes[0], sizes[1], prod(sizes[2:]))
        cost = 5 + point_ns * min(run, over.sizes[-1])
        self.call(made, grid, reads=list(reads.values()), writes=list(writes.values()), args=args, block_ns=cost)


def places(operands: Mapping[str, Operand]) -> Args:
    """Buffers and offsets of operands, under the names that kernels declare."""
    found: Args = {}
    for name, x in operands.items():
        found[name] = Buf(x.buffer)
        found[f"{name}_at"] = x.offset
    return found


@cache
def _copy(walk: Walk, source: DType, target: DType, rank: int, unit: bool) -> Made:
    w = Writer(walk)
    w.buffer("x", source)
    w.buffer("y", target, BufferAccess.WRITE)
    n, x_s, y_s = w.numbers("n", rank), w.strides("x_s", rank, unit), w.strides("y_s", rank, unit)
    x_at, y_at = w.number("x_at"), w.number("y_at")
    with Points(w, n).each() as at:
        value = w.load("x", w.place(x_at, at, x_s))
        if source is not target:
            value = w.operation("cast", target, (source,), value)
        w.store("y", w.place(y_at, at, y_s), value)
    return w.made(f"copy_{source.text}_{target.text}_{rank}" + "_unit" * unit)


def copy(build: Build[Any], x: Operand, y: Operand) -> None:
    """y = x (one shape), converted as ``cast`` says."""
    assert x.shape == y.shape
    over = merged(x.shape, {"x": x.strides, "y": y.strides}, "y")
    made = _copy(build.runs, x.dtype, y.dtype, over.rank, build.unit(over))
    build.walk(made, over, reads={"x": x}, writes={"y": y}, point_ns=0.3)
