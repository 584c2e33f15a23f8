"""sdpa and sdpa_dx -> records."""

from __future__ import annotations

from dataclasses import replace

from jit.host.library import blas
from jit.host.library.build import Build, View, view
from jit.host.library.matmul import BLAS_LETTER
from jit.host.record import Arg, Record, ScalarArg, Symbol
from jit.plan.access import overlaps
from wis.dtypes import ACCUMULATE, DType
from wis.program import BoundInstr, Operand, Scalar

_TILE_BYTES = 256 << 10  # of scores: with keys and values of a head they stay in a core's L2
_LINE_BYTES = 64
_SHARE = 256  # queries of a unit, for which keys and values are packed once


def sdpa(instr: BoundInstr) -> list[Record] | None:
    """o and lse from q, k, v, scale and perhaps a mask."""
    if not _supported(instr):
        return None
    build, wide = Build(), _wide(instr)
    q, k, v = (_matrix(build, view(x), wide) for x in instr.ins[:3])
    o, lse = (view(x) for x in instr.outs)
    if o.numel == 0 and lse.numel == 0:
        return []
    if 0 in (*k.shape, *v.shape, *q.shape):
        return None
    heads, (m, n, d, e) = q.shape[1], (q.shape[2], k.shape[2], q.shape[3], v.shape[3])
    rows, width = _tile(m, n, wide)
    share = min(m, max(rows, _SHARE // rows * rows))
    shares = -(-m // share)
    result = _target(build, o, wide)
    reads, args = [q, k, v], _common(instr, 3)
    mask = _mask(build, instr, 4, wide, args, reads)
    for name, x in (("q", q), ("k", k), ("v", v), ("o", result)):
        args |= _matrix_args(name, x)
    args |= _lse_args(lse) | {
        "heads": heads,
        "m": m,
        "n": n,
        "d": d,
        "e": e,
        "rows": rows,
        "share": share,
        "shares": shares,
        "width": width,
    }
    args["gemv"] = Symbol(BLAS_LETTER[wide] + "gemv") if m == 1 and blas.available() else 0
    grain = share * n * ((d + e) / 50.0 + 1.0)
    scratch = (rows * width + rows + _panels(d, n) + _panels(n, e)) * wide.itemsize
    units = q.shape[0] * heads * shares
    family = f"sdpa.{wide.text}.{mask}"
    build.call(family, units=units, grain=grain, reads=reads, writes=(result, lse), args=args, scratch_bytes=scratch)
    if result is not o:
        build.copy(result, o)
    return build.records


def sdpa_dx(instr: BoundInstr) -> list[Record] | None:
    """dq, dk, dv from do, q, k, v, o, lse, scale and perhaps a mask."""
    if not _supported(instr):
        return None
    build, wide = Build(), _wide(instr)
    do, q, k, v, o = (_matrix(build, view(x), wide) for x in instr.ins[:5])
    lse = view(instr.ins[5])
    outs = [view(x) for x in instr.outs]
    if 0 in (*q.shape, *k.shape, *v.shape):
        for out in outs:
            build.zero(out)
        return build.records
    heads, (m, n, d, e) = q.shape[1], (q.shape[2], k.shape[2], q.shape[3], v.shape[3])
    rows, width = _tile(m, n, wide)
    targets = [_target(build, out, wide) for out in outs]
    reads, args = [do, q, k, v, o, lse], _common(instr, 6)
    mask = _mask(build, instr, 7, wide, args, reads)
    for name, x in zip(("do", "q", "k", "v", "o", "dq", "dk", "dv"), (do, q, k, v, o, *targets), strict=True):
        args |= _matrix_args(name, x)
    args |= _lse_args(lse) | {"heads": heads, "m": m, "n": n, "d": d, "e": e, "rows": rows, "width": width}
    grain = m * n * ((3 * d + 2 * e) / 50.0 + 1.0)
    panels = _panels(d, n) + _panels(e, n) + _panels(n, d) + _panels(rows, d) + _panels(rows, e)
    scratch = (2 * rows * width + panels) * wide.itemsize
    units = q.shape[0] * heads
    family = f"sdpa_dx.{wide.text}.{mask}"
    build.call(family, units=units, grain=grain, reads=reads, writes=targets, args=args, scratch_bytes=scratch)
    for target, out in zip(targets, outs, strict=True):
        if target is not out:
            build.copy(target, out)
    return build.records


def _wide(instr: BoundInstr) -> DType:
    """The type to compute in."""
    dtype = instr.ins[0].dtype
    return ACCUMULATE.get(dtype, dtype)


def _supported(instr: BoundInstr) -> bool:
    return not overlaps(instr) and _wide(instr) in (DType.F32, DType.F64)


def _matrix(build: Build, x: View, wide: DType) -> View:
    """``x`` as matrices that products can read: of type ``wide``, with neighbouring columns; packed when it is not."""
    return x if x.dtype is wide and _readable(x) else build.packed(x, wide)


def _readable(x: View) -> bool:
    rows, columns = x.shape[-2:]
    return (x.strides[-1] == 1 or columns == 1) and (x.strides[-2] >= columns or rows == 1)


def _target(build: Build, out: View, wide: DType) -> View:
    return out if out.dtype is wide and _readable(out) else build.temp(wide, out.shape)


def _tile(m: int, n: int, wide: DType) -> tuple[int, int]:
    """(queries of a tile, elements of a row of scores)."""
    lanes = _LINE_BYTES // wide.itemsize
    width = (-(-n // lanes) | 1) * lanes  # an odd number of cache lines: rows spread over all sets
    fitting = _TILE_BYTES // (width * wide.itemsize) // 8 * 8
    return min(m, max(16, min(128, fitting))), width


def _panels(k: int, n: int) -> int:
    """Elements of [k, n] packed into panels, whatever their width."""
    return k * (-(-n // 64) * 64)


def _common(instr: BoundInstr, scale: int) -> dict[str, Arg]:
    factor = instr.ins[scale]
    assert isinstance(factor, Scalar)
    return {"scale": ScalarArg(factor.slot, factor.dtype), "causal": instr.attrs[0]}


def _mask(build: Build, instr: BoundInstr, at: int, wide: DType, args: dict[str, Arg], reads: list[View]) -> str:
    """Add the mask's arguments, if there is one; returns the kernel's variant."""
    if at >= len(instr.ins):
        return "none"
    operand = instr.ins[at]
    assert isinstance(operand, Operand)
    mask = view(operand)
    if mask.dtype is not wide:
        # dimensions repeated by stride 0 are converted once
        kept = tuple(1 if stride == 0 else size for size, stride in zip(mask.shape, mask.strides, strict=True))
        small = build.packed(replace(mask, shape=kept), wide)
        mask = replace(small, shape=mask.shape, strides=tuple(s if size > 1 else 0 for s, size in zip(small.strides, kept, strict=True)))
    reads.append(mask)
    args |= {
        "mask": mask.ptr(), "mask_b": mask.strides[0], "mask_h": mask.strides[1], "mask_r": mask.strides[2], "mask_step": mask.strides[3],
    }  # fmt: skip
    return "unit" if mask.strides[3] == 1 else "strided"


def _matrix_args(name: str, x: View) -> dict[str, Arg]:
    row = max(x.strides[2] if x.shape[2] > 1 else 0, x.shape[3])
    return {name: x.ptr(), f"{name}_b": x.strides[0], f"{name}_h": x.strides[1], f"{name}_r": row}


def _lse_args(lse: View) -> dict[str, Arg]:
    return {"lse": lse.ptr(), "lse_b": lse.strides[0], "lse_h": lse.strides[1], "lse_r": lse.strides[2]}
