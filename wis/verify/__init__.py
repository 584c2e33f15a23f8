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
shapes (``shapes.py``, ``coarse_shapes.py``)
11. shapes follow the op's kind; there is no implicit broadcasting (stride 0 broadcasts) [shape]
12. attributes are in range: dimensions exist, modes and flags are known, strides and dilations are positive, pads are not negative (for
    pooling at most half a window), kernels have at most window_max positions [attr range, limit]
13. extremes and windows are not taken over nothing [empty]
14. weights of layer_norm have row stride 0 [stride]
lifetimes (``lifetimes.py``)
15. a TEMP buffer is written, at least in part, before an instruction reads it [unwritten]

Not checked, because it cannot do harm: index values (the definition gives out-of-range ones a meaning and a trap), values of scalars (every
number converts to every type), time (an instruction's work is bounded by elements_max and counted by wis.cost), inputs that overlap
outputs (an instruction reads all of its inputs before it writes).

May live here: rules. May not: meaning (reference), bytes (encoding).
"""

from __future__ import annotations

from dataclasses import dataclass

from wis.encoding import digest, encode_program
from wis.errors import Finding, VerifyError
from wis.limits import LIMITS, Limits
from wis.program import BoundProgram, Program, bind, dims_length
from wis.verify.extents import check_buffers, check_extents
from wis.verify.lifetimes import check_lifetimes
from wis.verify.report import Report
from wis.verify.shapes import check_shapes
from wis.verify.structure import check_structure
from wis.verify.types import check_types

__all__ = ["Verified", "verify"]


@dataclass(frozen=True, slots=True)
class Verified:
    """A program and dims that keep every rule. ``digest`` names the program, ``dims_digest`` the ``dims`` (32 bytes each).

    ``zeroed``: CREATED and TEMP buffers whose initial zeros can be seen; a back end need not clear the others.
    """

    bound: BoundProgram
    dims: bytes
    digest: bytes
    dims_digest: bytes
    zeroed: frozenset[int]


def _place(finding: Finding) -> tuple[int, int]:
    """Where a finding stands in the text of the program: buffers, then code (findings of one line keep their order)."""
    words = finding.place.split()
    return ("program", "dims", "buffer", "code").index(words[0]), int(words[1]) if len(words) > 1 else 0


def verify(program: Program, dims: bytes, limits: Limits = LIMITS) -> Verified:
    """Check every rule. Raises VerifyError with all findings (up to ``limits.findings_max``)."""
    report = Report(limits.findings_max)
    check_structure(program, limits, report)
    if report.findings:
        raise VerifyError(report.findings)
    if len(dims) != 8 * dims_length(program):
        report.dims("dims", f"{len(dims)} bytes, this program needs {8 * dims_length(program)}")
        raise VerifyError(report.findings)
    bound = bind(program, dims)
    check_buffers(bound, limits, report)
    for place, instr in enumerate(bound.code):
        if report.full:
            break
        report.at(place)
        check_extents(instr, bound.nbytes, limits, report)
        check_types(instr, report)
        check_shapes(instr, limits, report)
    zeroed = check_lifetimes(bound, report)
    if report.findings:
        raise VerifyError(sorted(report.findings, key=_place))
    return Verified(bound, dims, digest(encode_program(program)), digest(dims), zeroed)
