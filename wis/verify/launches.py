"""Verifies launches: the arguments of an instruction match its kernel's parameters. Needs the kernels, which are verified on their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from wis.dtypes import DType
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import Access, BufferParam, RegType
from wis.ops import BY_NAME
from wis.program import BoundInstr, Imm, Instr, Operand, Program, Ref
from wis.verify.report import Report

if TYPE_CHECKING:
    from wis.kernel.verify import VerifiedKernel  # a program without launches does without it

SCALAR_TYPES: Final[dict[RegType, DType]] = {
    RegType.PRED: DType.BOOL, RegType.I16: DType.I16, RegType.I32: DType.I32, RegType.I64: DType.I64, RegType.F16: DType.F16,
    RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64,
}  # fmt: skip
"""The type of the immediate that a scalar parameter takes."""

_LAUNCH: Final = BY_NAME["launch"].code


def find_kernels(program: Program, known: Mapping[bytes, VerifiedKernel], report: Report) -> tuple[VerifiedKernel, ...]:
    """The program's kernels in order; reports digests that are not known."""
    found = [known.get(name) for name in program.kernels]
    for number, kernel in enumerate(found):
        if kernel is None:
            report.program("kernel", f"kernel {number}, {program.kernels[number][:8].hex()}..., is not known here")
    return tuple(kernel for kernel in found if kernel is not None)


def check_launches(program: Program, kernels: tuple[VerifiedKernel, ...], report: Report) -> None:
    """Report launches whose operands or block do not fit their kernel. References exist, and kernels are as many as the program names."""
    for place, instr in enumerate(program.code):
        if instr.op == _LAUNCH:
            report.at(place)
            _check(instr, kernels, report)


def _check(instr: Instr, kernels: tuple[VerifiedKernel, ...], report: Report) -> None:
    number, x, y, z, dynamic = instr.attrs
    if not 0 <= number < len(kernels):
        report.attr("kernel", "reference", f"kernel {number} of {len(kernels)}")
        return
    kernel = kernels[number].kernel
    if min(x, y, z) < 1 or x * y * z > kernel.threads_max:
        report.attr("x", "limit", f"{x} x {y} x {z} threads a block, {kernel.name} accepts 1 to {kernel.threads_max}")
    if dynamic and not kernel.dynamic:
        report.attr("dynamic", "limit", f"{kernel.name} has no dynamic shared memory")
    total = dynamic + sum(array.n * DType(array.dtype).itemsize for array in kernel.shared)
    if dynamic < 0 or total > KERNEL_LIMITS.dynamic_shared_bytes_max:
        most = KERNEL_LIMITS.dynamic_shared_bytes_max
        report.attr("dynamic", "limit", f"{total} bytes of shared memory, at most {most} are accepted")
    writable = [p for p in kernel.params if isinstance(p, BufferParam) and p.access & Access.WRITE]
    rest = [p for p in kernel.params if not (isinstance(p, BufferParam) and p.access & Access.WRITE)]
    if (len(instr.outs), len(instr.ins) - 3) != (len(writable), len(rest)):
        report.instr("arity", f"{kernel.name} takes {len(writable)} writable buffers and {len(rest)} other arguments, given are "
                     f"{len(instr.outs)} and {len(instr.ins) - 3}")  # fmt: skip
        return
    for i, out in enumerate(instr.outs):
        if (out.dtype, out.rank) != (DType.U8, 1):
            report.out(i, "type", "a buffer parameter takes a region: u8, rank 1")
    for i, (param, given) in enumerate(zip(rest, instr.ins[3:], strict=True), start=3):
        if isinstance(param, BufferParam):
            if not isinstance(given, Ref) or (given.dtype, given.rank) != (DType.U8, 1):
                report.ins(i, "type", "a buffer parameter takes a region: u8, rank 1")
        elif not isinstance(given, Imm) or given.dtype != SCALAR_TYPES[RegType(param.reg_type)]:
            report.ins(i, "type", f"a scalar parameter takes an immediate of type {SCALAR_TYPES[RegType(param.reg_type)].text} here")


def check_regions(instr: BoundInstr, kernels: tuple[VerifiedKernel, ...], report: Report) -> None:
    """Report regions that have gaps, or do not start where the kernel's accesses need it."""
    verified = kernels[instr.attrs[0]]
    outs, ins = iter(enumerate(instr.outs)), iter(list(enumerate(instr.ins))[3:])
    for param, align in zip(verified.kernel.params, verified.aligns, strict=True):
        writable = isinstance(param, BufferParam) and param.access & Access.WRITE
        place, x = next(outs if writable else ins)
        if not isinstance(x, Operand) or 0 in x.shape:
            continue
        say = report.out if writable else report.ins
        if x.strides != (1,):
            say(place, "stride", f"stride {x.strides[0]}: a region has stride 1")
        if x.offset % align:
            say(place, "alignment", f"the region starts at byte {x.offset}, {verified.kernel.name} needs a multiple of {align} here")
