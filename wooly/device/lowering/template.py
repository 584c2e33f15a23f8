"""Templates: what one call becomes, with the call's tensors as numbered slots and its numbers as parameters.

A template is made once per (operation, metadata of its arguments) and recorded again and again by its number. Slots: inputs first,
then one an expected output, then temporaries; the recorder renames them to the buffers of its program.

May live here: the finished form and its parameters. May not: how it is made (trace), what it means (wis).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wis.program import Instr
from wooly.device.lowering.values import Derived, Expected, Number, ScalarArg

__all__ = ["Seed", "Counter", "Source", "Template"]


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
    """``code`` over local slots; ``dims`` are its operands' shape, strides, offset in WIS layout (little-endian i64, no buffer sizes).

    ``outs[i]`` lives in slot ``n_ins + i`` (None: torch gives no tensor there); ``temps[i]`` (bytes) in ``n_ins + len(outs) + i``.
    ``rng_counters``: how far the generator's offset advances each time the template is used; 0 when it draws nothing.
    ``kernels``: digest and bytes of what its launches name by their place here.
    """

    n_ins: int
    outs: tuple[Expected | None, ...]
    temps: tuple[int, ...]
    code: tuple[Instr, ...]
    dims: bytes
    sources: tuple[Source, ...]
    rng_counters: int
    kernels: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def n_scalars(self) -> int:
        return len(self.sources)

    def scalars(self, args: Sequence[Number] = (), seed: int = 0, offset: int = 0) -> list[Number]:
        """The values of the scalar slots for one use: ``args`` are the values of the call's ScalarArgs by index."""
        return [_evaluate(source, args, seed, offset) for source in self.sources]


def _evaluate(source: Source, args: Sequence[Number], seed: int, offset: int) -> Number:
    if isinstance(source, ScalarArg):
        return args[source.index]
    if isinstance(source, Derived):
        return source.fn(*(_evaluate(arg, args, seed, offset) for arg in source.args))
    if isinstance(source, Counter):
        return offset + source.delta
    if isinstance(source, Seed):
        return seed
    return source
