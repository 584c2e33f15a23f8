"""Verifies shapes and attributes of the coarse ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wis.program import BoundInstr, Operand
from wis.verify.report import Report

__all__ = ["COARSE"]

Rule = Callable[[BoundInstr, Report], None]


def _ins(instr: BoundInstr, report: Report, numbers: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Buffer inputs ``numbers`` have ``shape`` (immediates among them have none)."""
    for number in numbers:
        x = instr.ins[number]
        if isinstance(x, Operand) and x.shape != shape:
            report.ins(number, "shape", f"{x.shape}, expected {shape}")


def _outs(instr: BoundInstr, report: Report, *shapes: tuple[int, ...]) -> None:
    for number, (out, shape) in enumerate(zip(instr.outs, shapes, strict=True)):
        if out.shape != shape:
            report.out(number, "shape", f"{out.shape}, expected {shape}")


def _flags(instr: BoundInstr, report: Report) -> None:
    for name, value in zip(instr.op.attrs, instr.attrs, strict=True):
        if value not in (0, 1):
            report.attr(name, "attr range", f"{value}, accepted is 0 or 1")


def _shape(instr: BoundInstr, number: int) -> tuple[int, ...]:
    x = instr.ins[number]
    assert isinstance(x, Operand), "the structure pass saw to it"
    return x.shape


def _same(instr: BoundInstr, report: Report) -> None:
    shape = instr.outs[0].shape
    _flags(instr, report)
    _ins(instr, report, tuple(range(len(instr.ins))), shape)


def _rows(instr: BoundInstr, report: Report) -> None:
    _same(instr, report)
    if not instr.outs[0].shape:
        report.out(0, "shape", f"{instr.op.name} works over the last dimension; there is none")


def _matrix(instr: BoundInstr, report: Report) -> tuple[int, int] | None:
    shape = _shape(instr, 0)
    if len(shape) != 2:
        report.ins(0, "shape", f"{shape}, expected two dimensions")
        return None
    return shape[0], shape[1]


def _weight(instr: BoundInstr, report: Report, number: int, shape: tuple[int, int]) -> None:
    x = instr.ins[number]
    _ins(instr, report, (number,), shape)
    if isinstance(x, Operand) and x.shape == shape and shape[0] > 1 and x.strides[0] != 0:
        report.ins(number, "stride", f"row stride {x.strides[0]}, expected 0: one row serves all")


def _layer_norm(instr: BoundInstr, report: Report) -> None:
    shape = _matrix(instr, report)
    if shape is not None:
        _weight(instr, report, 1, shape)
        _weight(instr, report, 2, shape)
        _outs(instr, report, shape, (shape[0], 1), (shape[0], 1))


def _layer_norm_dx(instr: BoundInstr, report: Report) -> None:
    shape = _matrix(instr, report)
    if shape is not None:
        _ins(instr, report, (1,), shape)
        _ins(instr, report, (2, 3), (shape[0], 1))
        _weight(instr, report, 4, shape)
        _outs(instr, report, shape)


def _layer_norm_dwb(instr: BoundInstr, report: Report) -> None:
    shape = _matrix(instr, report)
    if shape is not None:
        _ins(instr, report, (1,), shape)
        _ins(instr, report, (2, 3), (shape[0], 1))
        _outs(instr, report, (1, shape[1]), (1, shape[1]))


def _attention(instr: BoundInstr, report: Report, first: int) -> tuple[tuple[int, int, int], int, int, int] | None:
    """(b, h, m), d, n, e from q, k, v at inputs ``first``...; None when they do not fit each other."""
    q, k, v = (_shape(instr, first + i) for i in range(3))
    if not len(q) == len(k) == len(v) == 4 or q[:2] != k[:2] or q[3] != k[3] or v[:3] != k[:3]:
        report.instr("shape", f"q {q}, k {k}, v {v} do not fit [b, h, m, d], [b, h, n, d], [b, h, n, e]")
        return None
    return (q[0], q[1], q[2]), q[3], k[2], v[3]


def _sdpa(instr: BoundInstr, report: Report) -> None:
    _flags(instr, report)
    sizes = _attention(instr, report, 0)
    if sizes is not None:
        rows, _, n, e = sizes
        _ins(instr, report, tuple(range(4, len(instr.ins))), (*rows, n))
        _outs(instr, report, (*rows, e), rows)


def _sdpa_dx(instr: BoundInstr, report: Report) -> None:
    _flags(instr, report)
    sizes = _attention(instr, report, 1)
    if sizes is not None:
        rows, _, n, e = sizes
        _ins(instr, report, (0, 4), (*rows, e))
        _ins(instr, report, (5,), rows)
        _ins(instr, report, tuple(range(7, len(instr.ins))), (*rows, n))
        _outs(instr, report, _shape(instr, 1), _shape(instr, 2), _shape(instr, 3))


def _adamw(instr: BoundInstr, report: Report) -> None:
    _flags(instr, report)
    shape = _shape(instr, 0)
    _outs(instr, report, shape, shape, shape)


COARSE: Final[dict[str, Rule]] = {
    "softmax": _rows,
    "log_softmax": _rows,
    "softmax_dx": _rows,
    "log_softmax_dx": _rows,
    "layer_norm": _layer_norm,
    "layer_norm_dx": _layer_norm_dx,
    "layer_norm_dwb": _layer_norm_dwb,
    "gelu": _same,
    "gelu_dx": _same,
    "silu": _same,
    "silu_dx": _same,
    "sdpa": _sdpa,
    "sdpa_dx": _sdpa_dx,
    "adamw": _adamw,
}
