"""The definition of the tensor tier: every instruction, executed with NumPy on byte buffers.

``run`` executes a verified program, ``step`` one instruction; back ends are compared with them and may use ``step`` for what they do not
compile. Pure apart from the buffers it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from wis.dtypes import DType
from wis.kernel.verify import VerifiedKernel
from wis.ops import Dist, Kind, ScatterMode
from wis.program import BoundInstr, BoundProgram, BufferKind, Operand, Scalar
from wis.reference import coarse, index, philox, reduce
from wis.reference.access import Array, Buffers, Number, convert, immediate, load, store, view
from wis.reference.elementwise import function
from wis.traps import NO_TRAP, site_key
from wis.verify import Verified
from wis.windows import window_of

__all__ = ["Execution", "Kernels", "Traps", "run", "run_bound", "step"]


@dataclass(frozen=True, slots=True)
class Traps:
    """Traps of a run; true when anything trapped."""

    #: the first index that was out of bounds (``wis.traps``)
    key: int = NO_TRAP
    #: traps of kernels
    texts: tuple[str, ...] = ()
    #: thread-instructions of kernels
    instructions: int = 0
    #: the kernel that used up its fuel and ended the program
    out_of_fuel: str = ""

    def __bool__(self) -> bool:
        return self.key != NO_TRAP or bool(self.texts)


@dataclass(frozen=True, slots=True)
class Kernels:
    """What launches need: the program's verified kernels; ``fuel``, thread-instructions of one launch (None: no limit); ``addresses``, one
    a buffer of the program, for the space ARENA (None: ``(buffer + 1) << 40``)."""

    verified: tuple[VerifiedKernel, ...] = ()
    fuel: int | None = None
    addresses: Sequence[int] | None = None


_NO_KERNELS: Final = Kernels()


def run(
    verified: Verified,
    scalars: Sequence[Number],
    buffers: Sequence[Array | None],
    fuel: int | None = None,
    addresses: Sequence[int] | None = None,
) -> Traps:
    """Execute on ``buffers``: one 1-D u8 array a program buffer, at least ``nbytes`` long; TEMP ones may be None.

    CREATED buffers must be given and hold zeros. Raises ValueError when scalars or buffers do not fit the program, LaunchError when a
    launch's grid is beyond the limits. ``fuel``, ``addresses``: as in ``Kernels``.
    """
    return run_bound(verified.bound, scalars, buffers, Kernels(verified.kernels, fuel, addresses))


def run_bound(bound: BoundProgram, scalars: Sequence[Number], buffers: Sequence[Array | None], kernels: Kernels = _NO_KERNELS) -> Traps:
    """As ``run``, for what was derived from a verified program (a decomposition)."""
    if len(scalars) != bound.program.n_scalars:
        raise ValueError(f"the program has {bound.program.n_scalars} scalars, {len(scalars)} were given")
    if len(buffers) != len(bound.nbytes):
        raise ValueError(f"the program has {len(bound.nbytes)} buffers, {len(buffers)} were given")
    ready: list[Array] = []
    for number, (kind, nbytes, buffer) in enumerate(zip(bound.program.buffers, bound.nbytes, buffers, strict=True)):
        if buffer is None and kind == BufferKind.TEMP:
            buffer = np.zeros(nbytes, np.uint8)
        if buffer is None or buffer.dtype != np.uint8 or buffer.ndim != 1 or buffer.nbytes < nbytes:
            raise ValueError(f"buffer {number} must be a 1-D u8 array of at least {nbytes} bytes")
        ready.append(buffer)
    execution = Execution(bound, scalars, kernels)
    while not execution.over:
        execution.step(ready)
    return execution.traps


class Execution:
    """A program under way, instruction by instruction, for callers that stop between two of them."""

    def __init__(self, bound: BoundProgram, scalars: Sequence[Number], kernels: Kernels = _NO_KERNELS) -> None:
        self._bound, self._scalars, self._kernels = bound, scalars, kernels
        self._at = 0
        self._key = NO_TRAP
        self._texts: list[str] = []
        self._instructions = 0
        self._out_of_fuel = ""

    @property
    def over(self) -> bool:
        return self._at == len(self._bound.code)

    @property
    def traps(self) -> Traps:
        """What happened so far."""
        return Traps(self._key, tuple(self._texts), self._instructions, self._out_of_fuel)

    def step(self, buffers: Buffers) -> None:
        """The next instruction, on buffers as ``run`` takes them, temporaries included: the bytes that the step before left, wherever
        they are now."""
        instr = self._bound.code[self._at]
        if instr.op.kind is Kind.LAUNCH:
            self._launch(instr, buffers)
        else:
            key = step(instr, self._scalars, buffers)
            if key != NO_TRAP:
                self._key = min(self._key, key + site_key(self._at))
        self._at = len(self._bound.code) if self._out_of_fuel else self._at + 1

    def _launch(self, instr: BoundInstr, buffers: Buffers) -> None:
        from wis.kernel.traps import describe_trap
        from wis.launches import kernel_call, run_call  # which imports other modules of this package

        call = kernel_call(instr, self._kernels.verified, self._scalars)
        outcome = run_call(call, buffers, self._kernels.fuel, self._kernels.addresses)
        self._instructions += outcome.instructions
        if outcome.trap is not None:
            self._texts.append(describe_trap(call.kernel, call.grid, call.block, outcome.trap))
        if outcome.out_of_fuel:
            self._out_of_fuel = call.kernel.kernel.name


def step(instr: BoundInstr, scalars: Sequence[Number], buffers: Buffers) -> int:
    """Execute one instruction of a verified program; returns the key of its first trap within it (NO_TRAP: there was none)."""
    with np.errstate(all="ignore"):
        if instr.op.kind is Kind.MAP:
            _map(instr, scalars, buffers)
            return NO_TRAP
        if instr.op.name in _TRAPPING:
            return _TRAPPING[instr.op.name](_Operands(instr, scalars, buffers))
        results = _PLAIN[instr.op.name](_Operands(instr, scalars, buffers))
        for out, values in zip(instr.outs, results, strict=True):
            store(out, values, buffers)
        return NO_TRAP


def _map(instr: BoundInstr, scalars: Sequence[Number], buffers: Buffers) -> None:
    if instr.op.name == "cast":
        source = instr.ins[0]
        if isinstance(source, Scalar):
            store(instr.outs[0], convert(immediate(scalars[source.slot], source.dtype), source.dtype, instr.outs[0].dtype), buffers)
            return
        # Same type: bits are copied, so NaN payloads survive (and a bool byte becomes 0 or 1 as everywhere).
        values = load(source, scalars, buffers) if source.dtype is DType.BOOL else view(source, buffers)
        out = view(instr.outs[0], buffers)
        if out.size:
            out[...] = convert(values, source.dtype, instr.outs[0].dtype)
        return
    arrays = [load(x, scalars, buffers) for x in instr.ins]
    store(instr.outs[0], np.asarray(function(instr.op.name, instr.ins[-1].dtype)(*arrays)), buffers)


class _Operands:
    """One instruction's operands, as arrays."""

    __slots__ = ("buffers", "instr", "scalars")

    def __init__(self, instr: BoundInstr, scalars: Sequence[Number], buffers: Buffers) -> None:
        self.instr, self.scalars, self.buffers = instr, scalars, buffers

    def array(self, i: int) -> Array:
        return load(self.instr.ins[i], self.scalars, self.buffers)

    def number(self, i: int) -> np.float64:
        """Immediate ``i``, converted to its type, as f64: a NumPy number, so that dividing by 0 gives an infinity and no exception."""
        return np.float64(self.array(i))

    def out(self, i: int = 0) -> Operand:
        return self.instr.outs[i]

    def current(self, i: int = 0) -> Array:
        """What output ``i`` holds before the instruction."""
        return load(self.instr.outs[i], self.scalars, self.buffers)

    @property
    def attrs(self) -> tuple[int, ...]:
        return self.instr.attrs

    def optional(self, i: int) -> Array | None:
        return self.array(i) if i < len(self.instr.ins) else None


def _iota(c: _Operands) -> list[Array]:
    out, (dim,) = c.out(), c.attrs
    lead = [-1 if d == dim else 1 for d in range(len(out.shape))]
    if out.dtype.is_integer:
        start, step_by = (convert(c.array(i), c.instr.ins[i].dtype, DType.I64) for i in (0, 1))
        return [(start + step_by * np.arange(out.shape[dim], dtype=np.int64)).reshape(lead)]
    return [(c.number(0) + c.number(1) * np.arange(out.shape[dim], dtype=np.float64)).reshape(lead)]


def _random(c: _Operands) -> list[Array]:
    out = c.out()
    seed, offset = int(c.array(0)), int(c.array(1))
    return [philox.draw(Dist(c.attrs[0]), out.dtype, seed, offset, out.numel).reshape(out.shape)]


def _adamw(c: _Operands) -> list[Array]:
    h = coarse.AdamW(*(c.number(i) for i in range(1, 8)))
    return list(coarse.adamw(c.current(0), c.current(1), c.current(2), c.array(0), h, bool(c.attrs[0]), bool(c.attrs[1])))


def _sdpa_dx(c: _Operands) -> list[Array]:
    arrays = coarse.Attention(*(c.array(i) for i in range(6)))
    return list(coarse.sdpa_dx(arrays, c.number(6), c.optional(7), bool(c.attrs[0])))


_PLAIN: Final[dict[str, Callable[[_Operands], Sequence[Array]]]] = {
    "iota": _iota,
    "random": _random,
    **{n: lambda c: [reduce.fold(c.instr.op.name, c.array(0), c.out().shape)] for n in ("sum", "prod", "reduce_max", "reduce_min")},
    **{n: lambda c: [reduce.arg(c.instr.op.name, c.array(0), c.attrs[0])] for n in ("argmax", "argmin")},
    **{n: lambda c: [reduce.accumulate(c.instr.op.name, c.array(0), c.attrs[0])] for n in ("cumsum", "cumprod")},
    **{n: lambda c: reduce.running_extreme(c.instr.op.name, c.array(0), c.attrs[0]) for n in ("cummax", "cummin")},
    "matmul": lambda c: [coarse.matmul(c.array(0), c.array(1))],
    "conv": lambda c: [coarse.conv(c.array(0), c.array(1), c.attrs[0], window_of(c.instr), c.out().shape[2:])],
    "conv_dx": lambda c: [coarse.conv_dx(c.array(0), c.array(1), c.attrs[0], window_of(c.instr), c.out().shape[2:])],
    "conv_dw": lambda c: [coarse.conv_dw(c.array(0), c.array(1), c.attrs[0], window_of(c.instr))],
    "max_pool": lambda c: coarse.max_pool(c.array(0), window_of(c.instr), c.out().shape[2:]),
    "avg_pool": lambda c: [coarse.avg_pool(c.array(0), window_of(c.instr), c.out().shape[2:], bool(c.attrs[0]), c.attrs[1])],
    "avg_pool_dx": lambda c: [coarse.avg_pool_dx(c.array(0), window_of(c.instr), c.out().shape[2:], bool(c.attrs[0]), c.attrs[1])],
    "sort": lambda c: index.sort(c.array(0), c.attrs[0], bool(c.attrs[1])),
    "topk": lambda c: index.top(c.array(0), c.attrs[0], bool(c.attrs[1]), c.out().shape[c.attrs[0]]),
    "search_sorted": lambda c: [index.search_sorted(c.array(0), c.array(1), bool(c.attrs[0]))],
    "nonzero": lambda c: index.nonzero(c.array(0)),
    "softmax": lambda c: [coarse.softmax(c.array(0))],
    "log_softmax": lambda c: [coarse.log_softmax(c.array(0))],
    "softmax_dx": lambda c: [coarse.softmax_dx(c.array(0), c.array(1))],
    "log_softmax_dx": lambda c: [coarse.log_softmax_dx(c.array(0), c.array(1))],
    "layer_norm": lambda c: coarse.layer_norm(c.array(0), c.array(1), c.array(2), c.number(3)),
    "layer_norm_dx": lambda c: [coarse.layer_norm_dx(*(c.array(i) for i in range(5)))],
    "layer_norm_dwb": lambda c: coarse.layer_norm_dwb(*(c.array(i) for i in range(4))),
    "gelu": lambda c: [coarse.gelu(c.array(0), bool(c.attrs[0]))],
    "gelu_dx": lambda c: [coarse.gelu_dx(c.array(0), c.array(1), bool(c.attrs[0]))],
    "silu": lambda c: [coarse.silu(c.array(0))],
    "silu_dx": lambda c: [coarse.silu_dx(c.array(0), c.array(1))],
    "sdpa": lambda c: coarse.sdpa(c.array(0), c.array(1), c.array(2), c.number(3), c.optional(4), bool(c.attrs[0])),
    "sdpa_dx": _sdpa_dx,
    "adamw": _adamw,
}


def _stored(c: _Operands, result: tuple[Array, int]) -> int:
    store(c.out(), result[0], c.buffers)
    return result[1]


def _scatter(c: _Operands) -> int:
    return _stored(c, index.scatter(c.current(), c.array(0), c.array(1), c.attrs[0], ScatterMode(c.attrs[1])))


def _index_put(c: _Operands) -> int:
    indices = [c.array(i) for i in range(1, len(c.instr.ins))]
    return _stored(c, index.put(c.current(), c.array(0), indices, ScatterMode(c.attrs[0])))


_TRAPPING: Final[dict[str, Callable[[_Operands], int]]] = {
    "gather": lambda c: _stored(c, index.gather(c.array(0), c.array(1), c.attrs[0])),
    "scatter": _scatter,
    "index": lambda c: _stored(c, index.take(c.array(0), [c.array(i) for i in range(1, len(c.instr.ins))])),
    "index_put": _index_put,
}
