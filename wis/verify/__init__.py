"""The verifier: nothing that it accepts can make a back end touch memory outside of the buffers it is given.

``verify`` returns a new value, ``Verified``, that back ends require; an unverified program cannot reach one. All findings are reported.

Rules (the names in findings are in brackets):

structure (``structure.py``)
 1. the version is known; instructions, buffers, scalars, ranks and operands are within the limits [version, limit, rank]
 2. every op code, element type, buffer kind, buffer index and scalar slot exists [op, dtype, buffer kind, buffer, scalar slot]
 3. operands are as many as the op has; immediates stand only where the op allows or demands them [arity, immediate]
 4. attributes are as many as the op has (starred ones: one for each of 1 to 3 spatial dimensions) and fit 32 bits [attrs]
 5. the dims have exactly the length that the structure needs [dims]
extents (``extents.py``)
 6. buffer sizes are 0..buffer_bytes_max [buffer size]
 7. sizes are not negative, elements counted with repeats at most elements_max, strides and offsets bounded [size, stride]
 8. every element of every operand lies inside of its buffer, also for negative strides; operands without elements may point anywhere
    [extent]
 9. no output writes an element twice, and no two outputs of one instruction share an element (decided exactly for small operands, by a
    sufficient condition for large ones) [overlap]
types (``types.py``)
10. element types follow the op's rule; ops that compare are not for complex types; an immediate beside f16 or bf16 operands may be f32
    [type]
shapes (``shapes.py``)
11. shapes follow the op's kind; there is no implicit broadcasting (stride 0 broadcasts) [shape]
12. attributes are in range: dimensions exist, modes and flags are known, strides and dilations are positive, pads are not negative (for
    pooling at most half a window), kernels have at most window_max positions, and one instruction does at most work_max
    element-instructions [attr range, limit]
13. extremes and windows are not taken over nothing [empty]
14. weights of layer_norm have row stride 0 [stride]
launches (``launches.py``)
15. every kernel that the program names is known, and every launch names one of them [kernel, reference]
16. block, shared memory, buffers and scalars of a launch are what its kernel accepts; regions are u8, have stride 1 and start where the
    kernel's accesses need it [limit, arity, type, stride, alignment]
lifetimes (``lifetimes.py``)
17. an instruction that reads elements of a TEMP buffer comes after one that writes to it [unwritten]

Not checked, because it cannot do harm: index values (the definition gives out-of-range ones a meaning and a trap), values of scalars (every
number converts to every type; a grid beyond the limits is refused when it runs), the time of a whole program (counted by wis.cost, watched
by the scheduler), inputs that overlap outputs (an instruction reads all of its inputs before it writes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from wis.cost import count_instr
from wis.encoding import digest, encode_program
from wis.errors import Finding, VerifyError
from wis.limits import LIMITS, Limits
from wis.ops import Kind
from wis.program import BoundInstr, BoundProgram, Imm, Program, Ref, bind, bind_instr, dims_layout
from wis.verify.extents import check_buffers, check_extents
from wis.verify.launches import check_launches, check_regions, find_kernels
from wis.verify.lifetimes import EarlyRead, check_early_reads, early_reads, find_zeroed, touches
from wis.verify.report import Report
from wis.verify.shapes import check_shapes
from wis.verify.structure import check_structure
from wis.verify.types import check_types

if TYPE_CHECKING:
    from wis.kernel.verify import VerifiedKernel  # a program without launches does without it

__all__ = ["Verified", "verify"]

_NO_KERNELS: Final[Mapping[bytes, VerifiedKernel]] = MappingProxyType({})
_HEAVY: Final = frozenset({Kind.MATMUL, Kind.CONV, Kind.POOL, Kind.COARSE})  # the others do no more than a little an element


@dataclass(frozen=True, slots=True)
class Verified:
    """A program and dims that keep every rule. Fields from ``layout`` on serve ``verify(like=)``."""

    bound: BoundProgram
    dims: bytes
    #: names the program, 32 bytes
    digest: bytes
    #: names ``dims``, 32 bytes
    dims_digest: bytes
    #: CREATED and TEMP buffers whose initial zeros can be seen; a back end need not clear the others
    zeroed: frozenset[int]
    #: where the dims of each instruction start
    layout: tuple[int, ...]
    #: by buffer: the instructions that touch it
    touched: dict[int, tuple[int, ...]]
    #: reads of unwritten TEMP buffers, all without elements
    early: tuple[EarlyRead, ...]
    #: that it was checked against
    limits: Limits
    #: of its launches, in the program's order
    kernels: tuple[VerifiedKernel, ...] = ()


def verify(
    program: Program,
    dims: bytes,
    limits: Limits = LIMITS,
    like: Verified | None = None,
    kernels: Mapping[bytes, VerifiedKernel] = _NO_KERNELS,
) -> Verified:
    """Check every rule. Raises VerifyError with all findings (up to ``limits.findings_max``).

    ``like``: the same program verified before, under other dims. Then only instructions whose dims changed are checked, and those that did
    not change are the very same objects in the result. ``kernels``: verified kernels by digest, all that the program names.
    """
    report = Report(limits.findings_max)
    if like is not None and like.limits == limits and (like.bound.program is program or like.bound.program == program):
        return _verify_changes(like, dims, report)
    check_structure(program, limits, report)
    named = find_kernels(program, kernels, report)
    _stop(report)
    check_launches(program, named, report)
    _stop(report)
    layout = dims_layout(program)
    _numbers(dims, layout, report)
    bound = bind(program, dims)
    check_buffers(bound, limits, report)
    for place, instr in enumerate(bound.code):
        if report.full:
            break
        report.at(place)
        check_types(instr, report)
        _check_dims(instr, bound.nbytes, limits, named, report)
    early = early_reads(program)
    check_early_reads(bound, early, report)
    _stop(report)
    touched = touches(program)
    name = digest(encode_program(program))
    return Verified(
        bound,
        dims,
        digest=name,
        dims_digest=digest(dims),
        zeroed=find_zeroed(bound, touched),
        layout=layout,
        touched=touched,
        early=early,
        limits=limits,
        kernels=named,
    )


def _verify_changes(like: Verified, dims: bytes, report: Report) -> Verified:
    """``like`` under new dims. Structure, element types and the order of writes do not depend on dims."""
    program, layout, limits = like.bound.program, like.layout, like.limits
    numbers = _numbers(dims, layout, report)
    values: list[int] = numbers.tolist()
    changed = np.flatnonzero(numbers != np.frombuffer(like.dims, "<i8"))
    n_buffers = len(program.buffers)
    nbytes = tuple(values[:n_buffers])
    places = set((np.searchsorted(layout, changed[changed >= n_buffers], side="right") - 1).tolist())
    shrunk = {b for b in changed[changed < n_buffers].tolist() if nbytes[b] < like.bound.nbytes[b]}
    if shrunk:
        places.update(place for place, instr in enumerate(program.code) if any(_uses(x, shrunk) for x in (*instr.outs, *instr.ins)))
    code = list(like.bound.code)
    for place in sorted(places):
        code[place] = bind_instr(program.code[place], values, layout[place])
    bound = BoundProgram(program, nbytes, tuple(code))
    check_buffers(bound, limits, report)
    for place in sorted(places):
        report.at(place)
        _check_dims(code[place], nbytes, limits, like.kernels, report)
    check_early_reads(bound, like.early, report)
    _stop(report)
    return replace(like, bound=bound, dims=dims, dims_digest=digest(dims), zeroed=find_zeroed(bound, like.touched))


def _check_dims(instr: BoundInstr, nbytes: tuple[int, ...], limits: Limits, kernels: tuple[VerifiedKernel, ...], report: Report) -> None:
    """What depends on the dims of one instruction."""
    before = len(report.findings)
    check_extents(instr, nbytes, limits, report)
    check_shapes(instr, limits, report)
    if instr.op.kind is Kind.LAUNCH and len(report.findings) == before:
        check_regions(instr, kernels, report)
    if instr.op.kind in _HEAVY and len(report.findings) == before and (work := count_instr(instr)) > limits.work_max:
        report.instr("limit", f"{work} element-instructions, at most {limits.work_max} are accepted in one instruction")


def _uses(x: Ref | Imm, buffers: set[int]) -> bool:
    return isinstance(x, Ref) and x.buffer in buffers


def _numbers(dims: bytes, layout: tuple[int, ...], report: Report) -> npt.NDArray[np.int64]:
    if len(dims) != 8 * layout[-1]:
        report.dims("dims", f"{len(dims)} bytes, this program needs {8 * layout[-1]}")
        _stop(report)
    return np.frombuffer(dims, "<i8")


def _stop(report: Report) -> None:
    """Later passes rely on what earlier ones checked."""
    if report.findings:
        raise VerifyError(sorted(report.findings, key=_place))


def _place(finding: Finding) -> tuple[int, int]:
    """Where a finding stands in the text of the program: buffers, then code (findings of one line keep their order)."""
    words = finding.place.split()
    return ("program", "dims", "buffer", "code").index(words[0]), int(words[1]) if len(words) > 1 else 0
