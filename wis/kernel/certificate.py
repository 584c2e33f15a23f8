"""Slice certificates: whether the blocks of a grid may run in pieces, by an affine analysis of accesses: places as affine forms in the
thread's numbers, and accesses that can never be outside of their memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from wis.dtypes import DType
from wis.kernel.flow import Flow
from wis.kernel.model import Atomic, Call, Cbr, Kernel, Op, RegType, Space, Special, Switch, Sync
from wis.kernel.ops import BY_NAME, Sig, codes_of
from wis.kernel.values import QUICK, THOROUGH, AffineForm, Effort, Facts, Value, Values, known_values

__all__ = ["ROW_THREADS_MAX", "Certificate", "certify", "statically_safe"]

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


ROW_THREADS_MAX: Final = 1 << 31
"""Threads of a grid of one row for which a proof about places speaks: their numbers do not wrap in an i32."""

_LOADS: Final = codes_of(Sig.LOAD, Sig.BYTES_LOAD)
_STORES: Final = codes_of(Sig.STORE, Sig.BYTES_STORE)
_ATOMICS: Final = codes_of(Sig.ATOM, Sig.RED)
_ACCESSES: Final = _LOADS | _STORES | _ATOMICS
_COMMUTES: Final = frozenset({Atomic.ADD, Atomic.MIN, Atomic.MAX, Atomic.AND, Atomic.OR, Atomic.XOR})
_FLOATS: Final = frozenset({DType.F32, DType.F64})


@dataclass(frozen=True, slots=True)
class Certificate:
    """Whether the blocks of a grid may run in pieces, in any order, with one result. ``reason``: why not, in a sentence; "" when they may.

    They may when no block can see what another did. So every buffer is one of these: only loaded; only stored to (which of several stores
    to one place stays is not defined); changed only by one atomic function of integers that commutes, at one element type, whose result
    is unused; or loaded and stored only at places that belong to the thread, a window of c bytes at c times its number in a grid of one
    row. With the last kind ``one_row`` is set: the certificate then speaks only of grids (x, 1, 1) of at most ROW_THREADS_MAX threads;
    ``allows`` asks for a launch. Stores and atomics by address, and loads by address beside any store, rule a certificate out.

    ``in_out``: buffers that are both loaded from and stored to. A certificate is about a launch whose buffer arguments do not overlap.
    """

    sliceable: bool
    in_out: tuple[int, ...]
    reason: str = ""
    one_row: bool = False

    def allows(self, grid: tuple[int, int, int], block: tuple[int, int, int]) -> bool:
        """Whether a launch of this shape may run in pieces."""
        if not self.sliceable or not self.one_row:
            return self.sliceable
        return grid[1] == grid[2] == 1 and grid[0] * block[0] <= ROW_THREADS_MAX


def certify(flat: Kernel, flow: Flow) -> Certificate:
    """The certificate of a kernel that keeps the rules and has no calls."""
    touched: dict[int, list[Op]] = defaultdict(list)  # by buffer
    by_address: set[int] = set()
    for block in flat.blocks:
        for op in block.code:
            if op.op in _ACCESSES:
                if op.attrs[0] == Space.GLOBAL:
                    touched[op.attrs[1]].append(op)
                elif op.attrs[0] == Space.ARENA:
                    by_address.add(op.op)
    codes = {buffer: {op.op for op in ops} for buffer, ops in touched.items()}
    in_out = tuple(sorted(b for b, used in codes.items() if used & _LOADS and used & _STORES))
    changed = any(used & (_STORES | _ATOMICS) for used in codes.values())
    if by_address & (_STORES | _ATOMICS):
        return Certificate(False, in_out, "it stores by address, to whatever memory that is")
    if by_address and changed:
        return Certificate(False, in_out, "it loads by address, perhaps from a buffer that it stores to")
    read = _read_registers(flat)
    for buffer, ops in sorted(touched.items()):
        if codes[buffer] & _ATOMICS and (reason := _not_commuting(buffer, ops, read)):
            return Certificate(False, in_out, reason)
    if not in_out:
        return Certificate(True, ())
    found = access_ranges(flat, flow, Facts(row_threads_max=ROW_THREADS_MAX), QUICK) or []
    for buffer in in_out:
        own = [p for p in found if p.space == Space.GLOBAL and p.which == buffer]
        if not _thread_owns(own):
            return Certificate(False, in_out, f"buffer parameter {buffer} is loaded from and stored to, not provably by one thread a place")
    return Certificate(True, in_out, one_row=True)


def _read_registers(flat: Kernel) -> set[int]:
    read: set[int] = set()
    for block in flat.blocks:
        for op in block.code:
            read.update(op.ins)
        match block.end:
            case Cbr(register, _, _) | Switch(register, _, _) | Sync(_, _, register, _):
                read.add(register)
            case Call(_, ins, _, _):
                read.update(ins)
    return read


def _not_commuting(buffer: int, ops: Sequence[Op], read: set[int]) -> str:
    """Why the order of the atomics on a buffer can be seen, "" when it cannot."""
    if any(op.op not in _ATOMICS for op in ops):
        return f"buffer parameter {buffer} is changed by atomics and loaded from or stored to"
    if any(not read.isdisjoint(op.outs) for op in ops):
        return f"what atomics on buffer parameter {buffer} find there is used"
    kinds = {(op.attrs[3], op.attrs[2]) for op in ops}
    if any(dtype in _FLOATS for _, dtype in kinds):
        return f"sums of floats in buffer parameter {buffer} depend on their order"
    if len(kinds) > 1 or any(function not in _COMMUTES for function, _ in kinds):
        return f"atomics on buffer parameter {buffer} do not commute"
    return ""


def _thread_owns(own: Sequence[AccessRange]) -> bool:
    """Whether all accesses to a buffer are in windows that the threads of a grid of one row have for themselves."""
    number = (("special", int(Special.TID_X)), ("start", 0))
    windows = set()
    for place in own:
        terms = dict(place.form.terms) if place.form is not None else {}
        if set(terms) != set(number) or len(set(terms.values())) > 1:
            return False
        windows.add(next(iter(terms.values())))
    if not own or len(windows) > 1:
        return False
    starts = [p.form.constant for p in own if p.form is not None]
    ends = [p.form.constant + p.size for p in own if p.form is not None]
    return max(ends) - min(starts) <= abs(windows.pop())
