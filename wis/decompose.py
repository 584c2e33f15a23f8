"""Decomposes coarse instructions into base ones, for back ends without an implementation of the coarse one.

A decomposition adds TEMP buffers and constants, and keeps every rule of the verifier (but for limits on counts). Outputs are written last,
because an instruction reads before it writes.
Sums are written with the base ``sum``, whose order is exact, so apart from matmul a decomposition has one meaning bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from wis.dtypes import ACCUMULATE, DType
from wis.ops import BY_NAME
from wis.program import BoundInstr, Operand, Scalar
from wis.views import contiguous_strides, expand, transpose, unsqueeze

__all__ = ["decompose_instr"]

Value = Operand | Scalar


class _Rewriter:
    """The code under construction, and where new temps and constants come from."""

    def __init__(self, new_temp: Callable[[int], int], new_constant: Callable[[float], int]) -> None:
        self.code: list[BoundInstr] = []
        self._new_temp = new_temp
        self._new_constant = new_constant

    def const(self, value: float, dtype: DType) -> Scalar:
        return Scalar(self._new_constant(value), dtype)

    def temp(self, dtype: DType, shape: Sequence[int]) -> Operand:
        return Operand(self._new_temp(math.prod(shape) * dtype.itemsize), dtype, tuple(shape), contiguous_strides(shape), 0)

    def emit(self, name: str, out: Operand, *ins: Value, attrs: tuple[int, ...] = ()) -> Operand:
        self.code.append(BoundInstr(BY_NAME[name], (out,), ins, attrs))
        return out

    def map(self, name: str, *ins: Value) -> Operand:
        """A MAP op into a new temp shaped like the first buffer input."""
        like = next(x for x in ins if isinstance(x, Operand))
        return self.emit(name, self.temp(like.dtype, like.shape), *ins)

    def mask(self, name: str, *ins: Value) -> Operand:
        """A comparison into a new bool temp."""
        like = next(x for x in ins if isinstance(x, Operand))
        return self.emit(name, self.temp(DType.BOOL, like.shape), *ins)

    def reduce(self, name: str, x: Operand, dim: int) -> Operand:
        """``x`` folded along ``dim``, which stays with size 1."""
        dim %= len(x.shape)
        return self.emit(name, self.temp(x.dtype, (*x.shape[:dim], 1, *x.shape[dim + 1 :])), x)

    def rows(self, name: str, x: Operand) -> Operand:
        """``x`` folded along the last dimension and broadcast back."""
        return expand(self.reduce(name, x, -1), x.shape)

    def matmul(self, a: Operand, b: Operand) -> Operand:
        return self.emit("matmul", self.temp(a.dtype, (*a.shape[:-1], b.shape[-1])), a, b)

    def wide(self, x: Value) -> Value:
        """``x`` in the type it accumulates in."""
        wide = ACCUMULATE.get(x.dtype)
        if wide is None:
            return x
        return self.emit("cast", self.temp(wide, x.shape), x) if isinstance(x, Operand) else replace(x, dtype=wide)

    def data(self, x: Value) -> Operand:
        """As ``wide``, for inputs that are never immediates."""
        x = self.wide(x)
        assert isinstance(x, Operand), "the structure pass saw to it"
        return x


def decompose_instr(instr: BoundInstr, new_temp: Callable[[int], int], new_constant: Callable[[float], int]) -> list[BoundInstr]:
    """One coarse instruction as base ones. ``new_temp(nbytes)`` gives a new TEMP buffer's number, ``new_constant(value)`` a scalar slot."""
    rewriter = _Rewriter(new_temp, new_constant)
    _BY_NAME[instr.op.name](rewriter, instr)
    return rewriter.code


def _shifted_exp(r: _Rewriter, x: Operand) -> tuple[Operand, Operand, Operand]:
    """x - max, its exponential, and the exponentials' sum [..., 1] (rows)."""
    shifted = r.map("sub", x, r.rows("reduce_max", x))
    e = r.map("exp", shifted)
    return shifted, e, r.reduce("sum", e, -1)


def _softmax(r: _Rewriter, i: BoundInstr) -> None:
    x = r.data(i.ins[0])
    if x.numel == 0:
        r.emit("cast", i.outs[0], r.const(0.0, x.dtype))  # writes nothing, but counts as the write that readers of a temp need
        return
    _, e, total = _shifted_exp(r, x)
    r.emit("cast", i.outs[0], r.map("div", e, expand(total, x.shape)))


def _log_softmax(r: _Rewriter, i: BoundInstr) -> None:
    x = r.data(i.ins[0])
    if x.numel == 0:
        r.emit("cast", i.outs[0], r.const(0.0, x.dtype))  # writes nothing, but counts as the write that readers of a temp need
        return
    shifted, _, total = _shifted_exp(r, x)
    r.emit("cast", i.outs[0], r.map("sub", shifted, expand(r.map("log", total), x.shape)))


def _softmax_dx(r: _Rewriter, i: BoundInstr) -> None:
    dy, y = r.data(i.ins[0]), r.data(i.ins[1])
    inner = r.rows("sum", r.map("mul", dy, y))
    r.emit("cast", i.outs[0], r.map("mul", r.map("sub", dy, inner), y))


def _log_softmax_dx(r: _Rewriter, i: BoundInstr) -> None:
    dy, y = r.data(i.ins[0]), r.data(i.ins[1])
    r.emit("cast", i.outs[0], r.map("sub", dy, r.map("mul", r.map("exp", y), r.rows("sum", dy))))


def _row_mean(r: _Rewriter, x: Operand) -> Operand:
    """[r, 1]; a mean of nothing is NaN, as 0 / 0 is."""
    return r.map("div", r.reduce("sum", x, -1), r.const(float(x.shape[-1]), x.dtype))


def _layer_norm(r: _Rewriter, i: BoundInstr) -> None:
    x, w, b = r.data(i.ins[0]), r.wide(i.ins[1]), r.wide(i.ins[2])
    eps = i.ins[3]
    assert isinstance(eps, Scalar)
    mean = _row_mean(r, x)
    centred = r.map("sub", x, expand(mean, x.shape))
    variance = _row_mean(r, r.map("mul", centred, centred))
    rstd = r.map("rsqrt", r.map("add", variance, replace(eps, dtype=x.dtype)))
    normed = r.map("mul", centred, expand(rstd, x.shape))
    y = r.map("add", r.map("mul", normed, w), b)
    for out, value in zip(i.outs, (y, mean, rstd), strict=True):
        r.emit("cast", out, value)


def _normed(r: _Rewriter, x: Operand, mean: Operand, rstd: Operand) -> Operand:
    return r.map("mul", r.map("sub", x, expand(mean, x.shape)), expand(rstd, x.shape))


def _layer_norm_dx(r: _Rewriter, i: BoundInstr) -> None:
    dy, x, mean, rstd = (r.data(i.ins[n]) for n in range(4))
    normed = _normed(r, x, mean, rstd)
    g = r.map("mul", dy, r.wide(i.ins[4]))
    along = r.map("mul", normed, expand(_row_mean(r, r.map("mul", g, normed)), x.shape))
    rest = r.map("sub", r.map("sub", g, expand(_row_mean(r, g), x.shape)), along)
    r.emit("cast", i.outs[0], r.map("mul", rest, expand(rstd, x.shape)))


def _layer_norm_dwb(r: _Rewriter, i: BoundInstr) -> None:
    dy, x, mean, rstd = (r.data(i.ins[n]) for n in range(4))
    dw = r.reduce("sum", r.map("mul", dy, _normed(r, x, mean, rstd)), 0)
    db = r.reduce("sum", dy, 0)
    r.emit("cast", i.outs[0], dw)
    r.emit("cast", i.outs[1], db)


_SQRT_HALF: Final = math.sqrt(0.5)
_TANH_SCALE: Final = math.sqrt(2 / math.pi)
_TANH_CUBE: Final = 0.044715


def _tanh_argument(r: _Rewriter, x: Operand) -> Operand:
    """sqrt(2/pi) * (x + 0.044715 * x**3)."""
    cube = r.map("mul", r.map("mul", r.map("mul", x, x), x), r.const(_TANH_CUBE, x.dtype))
    return r.map("mul", r.map("add", x, cube), r.const(_TANH_SCALE, x.dtype))


def _normal_cdf(r: _Rewriter, x: Operand) -> Operand:
    """0.5 * erfc(-x / sqrt(2)): keeps its relative accuracy for very negative x."""
    return r.map("mul", r.map("erfc", r.map("mul", x, r.const(-_SQRT_HALF, x.dtype))), r.const(0.5, x.dtype))


def _gelu(r: _Rewriter, i: BoundInstr) -> None:
    x = r.data(i.ins[0])
    if i.attrs[0]:
        gate = r.map("add", r.map("tanh", _tanh_argument(r, x)), r.const(1.0, x.dtype))
        r.emit("cast", i.outs[0], r.map("mul", r.map("mul", x, r.const(0.5, x.dtype)), gate))
    else:
        r.emit("cast", i.outs[0], r.map("mul", x, _normal_cdf(r, x)))


def _gelu_dx(r: _Rewriter, i: BoundInstr) -> None:
    dy, x = r.data(i.ins[0]), r.data(i.ins[1])
    one = r.const(1.0, x.dtype)
    half = r.const(0.5, x.dtype)
    if i.attrs[0]:
        t = r.map("tanh", _tanh_argument(r, x))
        inner = r.map("add", r.map("mul", r.map("mul", x, x), r.const(3 * _TANH_CUBE, x.dtype)), one)
        slope = r.map("mul", r.map("mul", r.map("sub", one, r.map("mul", t, t)), inner), r.const(_TANH_SCALE, x.dtype))
        total = r.map("mul", r.map("add", r.map("add", t, one), r.map("mul", x, slope)), half)
    else:
        density = r.map("exp", r.map("mul", r.map("mul", x, x), r.const(-0.5, x.dtype)))
        scaled = r.map("mul", r.map("mul", x, density), r.const(1 / math.sqrt(2 * math.pi), x.dtype))
        total = r.map("add", _normal_cdf(r, x), scaled)
    r.emit("cast", i.outs[0], r.map("mul", dy, total))


def _silu(r: _Rewriter, i: BoundInstr) -> None:
    x = r.data(i.ins[0])
    r.emit("cast", i.outs[0], r.map("mul", x, r.map("sigmoid", x)))


def _silu_dx(r: _Rewriter, i: BoundInstr) -> None:
    dy, x = r.data(i.ins[0]), r.data(i.ins[1])
    one = r.const(1.0, x.dtype)
    s = r.map("sigmoid", x)
    slope = r.map("add", r.map("mul", x, r.map("sub", one, s)), one)
    r.emit("cast", i.outs[0], r.map("mul", r.map("mul", dy, s), slope))


def _scores(r: _Rewriter, q: Operand, k: Operand, scale: Value, mask: Value | None, causal: bool) -> Operand:
    """[b, h, m, n]: q k^T scaled, masked."""
    assert isinstance(scale, Scalar)
    scores = r.map("mul", r.matmul(q, transpose(k, -1, -2)), replace(scale, dtype=q.dtype))
    if mask is not None:
        scores = r.map("add", scores, r.data(mask))
    if causal and scores.numel:
        m, n = scores.shape[-2:]
        zero, one = r.const(0.0, DType.I64), r.const(1.0, DType.I64)
        rows = r.emit("iota", r.temp(DType.I64, (m, 1)), zero, one, attrs=(0,))
        columns = r.emit("iota", r.temp(DType.I64, (1, n)), zero, one, attrs=(1,))
        seen = r.mask("le", expand(columns, (m, n)), expand(rows, (m, n)))
        scores = r.emit("where", r.temp(q.dtype, scores.shape), expand(seen, scores.shape), scores, r.const(-math.inf, q.dtype))
    return scores


def _sdpa(r: _Rewriter, i: BoundInstr) -> None:
    q, k, v = (r.data(i.ins[n]) for n in range(3))
    scores = _scores(r, q, k, i.ins[3], i.ins[4] if len(i.ins) > 4 else None, bool(i.attrs[0]))
    o, lse = i.outs
    zero, never = r.const(0.0, q.dtype), r.const(-math.inf, q.dtype)
    if scores.numel == 0:  # no keys: every row is fully masked
        r.emit("cast", o, zero)
        r.emit("cast", lse, never)
        return
    top = r.reduce("reduce_max", scores, -1)
    empty = r.mask("eq", top, never)
    safe = r.emit("where", r.temp(q.dtype, top.shape), empty, zero, top)
    e = r.map("exp", r.map("sub", scores, expand(safe, scores.shape)))
    total = r.reduce("sum", e, -1)
    divisor = r.emit("where", r.temp(q.dtype, total.shape), empty, r.const(1.0, q.dtype), total)
    value = r.matmul(r.map("div", e, expand(divisor, e.shape)), v)
    r.emit("add", unsqueeze(lse, 3), safe, r.map("log", total))  # log 0 = -inf is what a fully masked row shall have
    r.emit("cast", o, value)


def _sdpa_dx(r: _Rewriter, i: BoundInstr) -> None:
    do, q, k, v, o, lse = (r.data(i.ins[n]) for n in range(6))
    scores = _scores(r, q, k, i.ins[6], i.ins[7] if len(i.ins) > 7 else None, bool(i.attrs[0]))
    zero = r.const(0.0, q.dtype)
    rows = unsqueeze(lse, 3)
    empty = r.mask("eq", rows, r.const(-math.inf, q.dtype))
    # A fully masked row would be exp(-inf - -inf); its probabilities are 0.
    raw = r.map("exp", r.map("sub", scores, expand(rows, scores.shape)))
    p = r.emit("where", r.temp(q.dtype, scores.shape), expand(empty, scores.shape), zero, raw)
    dp = r.matmul(do, transpose(v, -1, -2))
    delta = r.reduce("sum", r.map("mul", do, o), -1)
    scale = i.ins[6]
    assert isinstance(scale, Scalar)
    ds = r.map("mul", r.map("mul", p, r.map("sub", dp, expand(delta, dp.shape))), replace(scale, dtype=q.dtype))
    dq, dk, dv = r.matmul(ds, k), r.matmul(transpose(ds, -1, -2), q), r.matmul(transpose(p, -1, -2), do)
    for out, value in zip(i.outs, (dq, dk, dv), strict=True):
        r.emit("cast", out, value)


def _adamw(r: _Rewriter, i: BoundInstr) -> None:
    """Coefficients are formed in f64 on one element and rounded once, as the reference does."""
    dtype = ACCUMULATE.get(i.outs[0].dtype, i.outs[0].dtype)
    lr, beta1, beta2, weight_decay, eps, bias1, bias2_sqrt = i.ins[1:]
    shape = i.outs[0].shape
    f64 = DType.F64
    one = r.const(1.0, f64)

    def small(name: str, *ins: Value) -> Operand:
        return r.emit(name, r.temp(f64, (1,)), *ins)

    def coefficient(x: Value) -> Operand:
        """[1] in the computing type, broadcast to the parameter's shape."""
        narrow = r.emit("cast", r.temp(dtype, (1,)), x)
        return Operand(narrow.buffer, dtype, shape, (0,) * len(shape), 0)

    p, m, v = (r.data(out) for out in i.outs)
    g = r.data(i.ins[0])
    if i.attrs[1]:
        g = r.map("neg", g)
    if i.attrs[0]:
        p = r.map("mul", p, coefficient(small("sub", one, small("mul", lr, weight_decay))))
    else:
        g = r.map("add", g, r.map("mul", p, coefficient(weight_decay)))
    m = r.map("add", r.map("mul", m, coefficient(beta1)), r.map("mul", g, coefficient(small("sub", one, beta1))))
    square = r.map("mul", r.map("mul", g, g), coefficient(small("sub", one, beta2)))
    v = r.map("add", r.map("mul", v, coefficient(beta2)), square)
    root = r.map("div", r.map("sqrt", v), coefficient(bias2_sqrt))
    step = r.map("mul", r.map("div", m, r.map("add", root, coefficient(eps))), coefficient(small("div", lr, bias1)))
    p = r.map("sub", p, step)
    for out, value in zip(i.outs, (p, m, v), strict=True):
        r.emit("cast", out, value)


_BY_NAME: Final[dict[str, Callable[[_Rewriter, BoundInstr], None]]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "softmax_dx": _softmax_dx,
    "log_softmax_dx": _log_softmax_dx,
    "layer_norm": _layer_norm,
    "layer_norm_dx": _layer_norm_dx,
    "layer_norm_dwb": _layer_norm_dwb,
    "gelu": _gelu,
    "gelu_dx": _gelu_dx,
    "silu": _silu,
    "silu_dx": _silu_dx,
    "sdpa": _sdpa,
    "sdpa_dx": _sdpa_dx,
    "adamw": _adamw,
}
