"""Affine analysis of accesses: places as affine forms in the thread's numbers, and accesses that can never be outside of their memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from wis.dtypes import DType
from wis.kernel.flow import Flow
from wis.kernel.model import Kernel, Op, RegType, Space
from wis.kernel.ops import BY_NAME, Sig, codes_of
from wis.kernel.values import THOROUGH, AffineForm, Effort, Facts, Value, Values, known_values

__all__ = ["AccessRange", "access_ranges", "statically_safe"]

_ELEMENTS: Final = codes_of(Sig.LOAD, Sig.STORE)
_COUNTED: Final = codes_of(Sig.BYTES_LOAD, Sig.BYTES_STORE)
_MEMORY: Final = _ELEMENTS | _COUNTED | codes_of(Sig.ATOM, Sig.RED)
_RAISE: Final = BY_NAME["raise"].code


class AccessRange(NamedTuple):
    """The bytes that a memory op may access."""

    #: number among the ops that may trap
    site: int
    op: Op
    space: int
    #: number of the memory in ``space``
    which: int
    #: bytes of one access
    size: int
    #: least byte offset
    low: int
    #: greatest byte offset
    high: int
    #: 2**zeros divides the offset
    zeros: int
    #: the offset, if it is affine
    form: AffineForm | None


def access_ranges(kernel: Kernel, flow: Flow, facts: Facts, effort: Effort = THOROUGH) -> list[AccessRange] | None:
    """Every memory op of a kernel without calls, in order of code; None when it takes more than ``effort`` to say."""
    values = known_values(kernel, flow, facts, effort)
    return None if values is None else list(_access_ranges(kernel, values))


def _access_ranges(kernel: Kernel, values: Values) -> Iterator[AccessRange]:
    site = 0
    for b, block in enumerate(kernel.blocks):
        state = dict(values.before[b])
        for i, op in enumerate(block.code):
            if op.op in _MEMORY:
                offset = values.get(state, op.ins[0], ((b, i), op.ins[0]))
                yield _place(kernel, site, op, offset)
            site += op.op in _MEMORY or op.op == _RAISE
            values.step(state, op, (b, i))


def _place(kernel: Kernel, site: int, op: Op, offset: Value) -> AccessRange:
    space, which, dtype = op.attrs[:3]
    itemsize = DType(dtype).itemsize
    low, high, zeros, form = offset.low, offset.high, offset.zeros, offset.form
    if op.op in _ELEMENTS:
        shift = itemsize.bit_length() - 1
        return AccessRange(
            site,
            op,
            space=space,
            which=which,
            size=itemsize,
            low=low << shift,
            high=high << shift,
            zeros=zeros + shift,
            form=form and form.times(itemsize),
        )
    if kernel.regs[op.ins[0]] == RegType.I32 and low < 0:  # an offset in 32 bits is zero-extended
        low, high, form = 0, (1 << 32) - 1, None
    count, displacement = (op.attrs[3], op.attrs[4]) if op.op in _COUNTED else (1, op.attrs[4])
    low, high = low + displacement, high + displacement
    if displacement:
        zeros = min(zeros, (displacement & -displacement).bit_length() - 1)
    if not -(1 << 63) <= low <= high < 1 << 63:
        low, high, form = -(1 << 63), (1 << 63) - 1, None
    return AccessRange(
        site,
        op,
        space=space,
        which=which,
        size=itemsize * count,
        low=low,
        high=high,
        zeros=zeros,
        form=form and form.plus(AffineForm(displacement, ())),
    )


def statically_safe(kernel: Kernel, flow: Flow, block: tuple[int, int, int]) -> frozenset[int]:
    """Sites of a kernel without calls (``VerifiedKernel.flat``) that can never trap when blocks of threads have the shape ``block``.

    Those are accesses to memory of known size: shared arrays, local memory and constants.
    """
    sizes = {(Space.LOCAL, 0): kernel.local_bytes, (Space.CONST, 0): len(kernel.constants)}
    sizes |= {(Space.SHARED, n): array.n * DType(array.dtype).itemsize for n, array in enumerate(kernel.shared)}
    found = access_ranges(kernel, flow, Facts(block)) or []
    return frozenset(p.site for p in found if _inside(p, sizes.get((Space(p.space), p.which), 0)))


def _inside(place: AccessRange, nbytes: int) -> bool:
    return place.low >= 0 and place.high + place.size <= nbytes and 1 << place.zeros >= place.size
