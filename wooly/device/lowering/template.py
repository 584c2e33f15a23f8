"""Templates: the instructions of one call, with its tensors as numbered slots and its numbers as parameters.

A template is made once per (operation, metadata of its arguments) and recorded again and again by its number. Slots: inputs first,
then one an expected output, then temporaries; the recorder renames them to the buffers of its program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from wis.program import Instr
from wooly.device.lowering.values import Derived, Expected, Number, ScalarArg, wire_number


@dataclass(frozen=True, slots=True)
class Seed:
    """The scalar is the generator's seed."""


@dataclass(frozen=True, slots=True)
class Counter:
    """The scalar is the generator's offset plus ``delta`` (in Philox counters)."""

    delta: int


Source = ScalarArg | Derived | Seed | Counter | Number


@dataclass(frozen=True, slots=True)
class Template:
    """The instructions of one operation for one signature."""

    #: input slots; they come first
    n_ins: int
    #: output i has slot ``n_ins + i``; None: torch gives no tensor there
    outs: tuple[Expected | None, ...]
    #: bytes of temporary i, in slot ``n_ins + len(outs) + i``
    temps: tuple[int, ...]
    #: instructions over the slots
    code: tuple[Instr, ...]
    #: shape, strides and offset of the operands, in the order of WIS (no buffer sizes)
    dims: tuple[int, ...]
    sources: tuple[Source, ...]
    #: by how much the generator's offset advances with each use; 0: no random numbers
    rng_counters: int
    #: digest and bytes of the kernels that launches name by their place here
    kernels: tuple[tuple[bytes, bytes], ...] = ()
    #: by place in ``code``: the meaning of a trap of an instruction that checks values (``Trace.check``)
    checks: tuple[tuple[int, str], ...] = ()
    #: by place in ``code``: the dimensions that its indices select along
    along: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def n_scalars(self) -> int:
        return len(self.sources)

    def scalars(self, args: Sequence[Number] = (), seed: int = 0, offset: int = 0) -> list[Number]:
        """The values of the scalar slots for one use, as a batch carries them. ``args``: the values of the call's ScalarArgs by index."""
        return [wire_number(_evaluate(source, args, seed, offset), _kind(source)) for source in self.sources]


def _kind(source: Source) -> type:
    return source.kind if isinstance(source, ScalarArg | Derived) else int


def _evaluate(source: Source, args: Sequence[Number], seed: int, offset: int) -> Number:
    if isinstance(source, ScalarArg):
        return args[source.index]
    if isinstance(source, Derived):
        return _computed(source.fn, [_evaluate(arg, args, seed, offset) for arg in source.args])
    if isinstance(source, Counter):
        return offset + source.delta
    if isinstance(source, Seed):
        return seed
    return source


def _nearest(value: Number) -> float | complex:
    number = wire_number(value)
    return number if isinstance(number, complex) else float(number)


def _computed(fn: Callable[..., Number], values: Sequence[Number]) -> Number:
    """``fn(*values)``; where Python raises (1.0 / 0, an int beyond float times a float), what IEEE arithmetic gives. This is computed when
    the batch is made, after the call returned: it must not fail."""
    try:
        return fn(*values)
    except (ArithmeticError, ValueError):
        with np.errstate(all="ignore"):
            return fn(*(np.complex128(value) if isinstance(value, complex) else np.float64(value) for value in map(_nearest, values)))
