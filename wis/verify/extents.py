"""Second pass: sizes are sane and nothing reaches outside of its buffer; outputs do not overlap. All arithmetic is on Python ints."""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import Final

import numpy as np

from wis.limits import Limits
from wis.ops import Kind
from wis.program import BoundInstr, BoundProgram, Operand
from wis.verify.report import Report
from wis.views import is_contiguous

_ENUMERATE_MAX: Final = 1 << 16  # overlap is decided exactly up to this many elements, by a sufficient condition above


def check_buffers(bound: BoundProgram, limits: Limits, report: Report) -> None:
    """Sizes of the buffers themselves."""
    if 0 <= min(bound.nbytes, default=0) and max(bound.nbytes, default=0) <= limits.buffer_bytes_max:
        return
    for number, nbytes in enumerate(bound.nbytes):
        if not 0 <= nbytes <= limits.buffer_bytes_max:
            report.buffer(number, "buffer size", f"{nbytes} bytes, accepted is 0 to {limits.buffer_bytes_max}")


def check_extents(instr: BoundInstr, nbytes: tuple[int, ...], limits: Limits, report: Report) -> bool:
    """Whether every operand of ``instr`` stays inside of its buffer and outputs are written without overlap."""
    before = len(report.findings)
    for number, out in enumerate(instr.outs):
        if not _fits(out, nbytes[out.buffer], limits):
            _explain(out, nbytes, limits, report, number, is_out=True)
    for number, operand in enumerate(instr.ins):
        if isinstance(operand, Operand) and not _fits(operand, nbytes[operand.buffer], limits):
            _explain(operand, nbytes, limits, report, number, is_out=False)
    if len(report.findings) > before:
        return False
    if instr.op.kind is Kind.LAUNCH:
        return True  # regions are memory as it is
    for number, out in enumerate(instr.outs):
        if _overlaps_itself(out):
            report.out(number, "overlap", f"shape {out.shape} with strides {out.strides} writes an element twice")
    if len(instr.outs) > 1:
        for (i, a), (j, b) in combinations(enumerate(instr.outs), 2):
            if _overlap(a, b):
                report.out(j, "overlap", f"shares elements with output {i}")
    return len(report.findings) == before


def _fits(x: Operand, nbytes: int, limits: Limits) -> bool:
    """Whether ``_explain`` would find nothing: one pass over the dimensions, because every operand of every program comes through here."""
    stride_max = limits.stride_max
    low = high = x.offset
    if not -stride_max <= low <= stride_max:
        return False
    counted, empty = 1, False
    for size, stride in zip(x.shape, x.strides, strict=True):
        if size < 0 or not -stride_max <= stride <= stride_max:
            return False
        if size == 0:
            empty = True
            continue
        counted *= size
        if counted > limits.elements_max:
            return False
        if stride >= 0:
            high += (size - 1) * stride
        else:
            low += (size - 1) * stride
    return empty or (low >= 0 and (high + 1) * x.dtype.itemsize <= nbytes)


def _explain(x: Operand, nbytes: tuple[int, ...], limits: Limits, report: Report, number: int, *, is_out: bool) -> None:
    """Report what is wrong with ``x``."""
    say = report.out if is_out else report.ins
    if any(size < 0 for size in x.shape):
        say(number, "size", f"shape {x.shape} has a negative size")
        return
    if any(abs(stride) > limits.stride_max for stride in x.strides) or abs(x.offset) > limits.stride_max:
        say(number, "stride", f"strides {x.strides} and offset {x.offset} must not exceed {limits.stride_max}")
        return
    if prod(size for size in x.shape if size) > limits.elements_max:  # also beside a size of 0, so that no product ever overflows
        say(number, "size", f"shape {x.shape} has more than {limits.elements_max} elements")
        return
    if 0 in x.shape:
        return  # touches nothing, wherever it points
    low, high = x.span()
    size = x.dtype.itemsize
    if low < 0 or high * size > nbytes[x.buffer]:
        say(number, "extent", f"reaches bytes {low * size}..{high * size} of buffer {x.buffer}, which has {nbytes[x.buffer]}")


def byte_span(x: Operand) -> tuple[int, int]:
    """First and one-past-last byte touched."""
    low, high = x.span()
    return low * x.dtype.itemsize, high * x.dtype.itemsize


def _overlaps_itself(x: Operand) -> bool:
    if is_contiguous(x):
        return False
    steps = sorted((abs(stride), size) for size, stride in zip(x.shape, x.strides, strict=True) if size != 1)
    if 0 in x.shape:
        return False
    # Each stride jumps over everything that the smaller ones reach: no two elements meet.
    reach = 0
    for stride, size in steps:
        if stride <= reach:
            break
        reach += (size - 1) * stride
    else:
        return False
    if x.numel > _ENUMERATE_MAX or any(stride == 0 for stride, _ in steps):
        return True
    return len(np.unique(_positions(x))) < x.numel


def _positions(x: Operand) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Every element position touched (with repeats), for an operand inside of a buffer."""
    total = np.array([x.offset], np.int64)
    for size, stride in zip(x.shape, x.strides, strict=True):
        total = (total[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return total


def _overlap(a: Operand, b: Operand) -> bool:
    if a.buffer != b.buffer or 0 in a.shape or 0 in b.shape:
        return False
    (a_low, a_high), (b_low, b_high) = byte_span(a), byte_span(b)
    if a_high <= b_low or b_high <= a_low:
        return False
    if a.dtype.itemsize != b.dtype.itemsize or max(a.numel, b.numel) > _ENUMERATE_MAX:
        return True  # sharing a range of bytes; only equal elements are told apart exactly
    return bool(np.isin(_positions(a), _positions(b)).any())
