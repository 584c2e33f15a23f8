"""Third pass, shapes and attributes: one rule a kind of op. Operands are already known to exist and to stay inside of their buffers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

from wis.limits import Limits
from wis.ops import Dist, Kind, ScatterMode
from wis.program import BoundInstr, Operand
from wis.verify.report import Report
from wis.windows import Window, window_of

__all__ = ["check_shapes"]

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


def check_shapes(instr: BoundInstr, limits: Limits, report: Report) -> None:
    """Report operands of ``instr`` whose shape, and attributes whose value, its op does not take."""
    kind = instr.op.kind
    if kind is Kind.CONV:
        _conv(instr, limits, report)
    elif kind is Kind.POOL:
        _pool(instr, limits, report)
    elif kind is Kind.INDEX or kind is Kind.SORT or kind is Kind.COARSE:
        _BY_NAME[instr.op.name](instr, report)
    else:
        _BY_KIND[kind](instr, report)


def _in(instr: BoundInstr, number: int) -> Operand:
    x = instr.ins[number]
    assert isinstance(x, Operand), "the structure pass saw to it"
    return x


def _dim(instr: BoundInstr, report: Report, rank: int) -> int | None:
    """Attribute ``dim`` (always the first) when it names one of ``rank`` dimensions."""
    dim = instr.attrs[0]
    if 0 <= dim < rank:
        return dim
    report.attr("dim", "attr range", f"{dim} is not one of {rank} dimensions")
    return None


def _choice(instr: BoundInstr, report: Report, name: str, n_values: int) -> None:
    value = instr.attrs[instr.op.attrs.index(name)]
    if not 0 <= value < n_values:
        report.attr(name, "attr range", f"{value}, accepted is 0 to {n_values - 1}")


def _want(report: Report, number: int, x: Operand, shape: tuple[int, ...], *, is_out: bool = False) -> None:
    if x.shape != shape:
        (report.out if is_out else report.ins)(number, "shape", f"{x.shape}, expected {shape}")


def _map(instr: BoundInstr, report: Report) -> None:
    shape = instr.outs[0].shape
    for number, x in enumerate(instr.ins):
        if isinstance(x, Operand):
            _want(report, number, x, shape)


def _iota(instr: BoundInstr, report: Report) -> None:
    _dim(instr, report, len(instr.outs[0].shape))


def _random(instr: BoundInstr, report: Report) -> None:
    _choice(instr, report, "dist", len(Dist))


def _reduce(instr: BoundInstr, report: Report) -> None:
    out, x = instr.outs[0], _in(instr, 0)
    if instr.op.attrs:
        dim = _dim(instr, report, len(x.shape))
        if dim is None:
            return
        _want(report, 0, out, (*x.shape[:dim], 1, *x.shape[dim + 1 :]), is_out=True)
    elif len(out.shape) != len(x.shape) or any(o not in (1, n) for o, n in zip(out.shape, x.shape, strict=True)):
        report.out(0, "shape", f"{out.shape} is not {x.shape} with size 1 where reduced")
        return
    if instr.op.name not in ("sum", "prod") and x.numel == 0 and out.numel > 0:
        report.ins(0, "empty", f"{instr.op.name} of no elements has no value")


def _scan(instr: BoundInstr, report: Report) -> None:
    x = _in(instr, 0)
    _dim(instr, report, len(x.shape))
    for number, out in enumerate(instr.outs):
        _want(report, number, out, x.shape, is_out=True)


def _matmul(instr: BoundInstr, report: Report) -> None:
    a, b, out = _in(instr, 0), _in(instr, 1), instr.outs[0]
    if len(a.shape) < 2 or len(b.shape) != len(a.shape):
        report.instr("shape", f"matmul takes two operands of one rank of at least 2, not {a.shape} and {b.shape}")
        return
    *batch, m, k = a.shape
    n = b.shape[-1]
    _want(report, 1, b, (*batch, k, n))
    _want(report, 0, out, (*batch, m, n), is_out=True)


def _window(instr: BoundInstr, limits: Limits, report: Report) -> Window | None:
    window = window_of(instr)
    good = True
    for name, values, least in (
        ("kernel", window.kernel, 1), ("stride", window.stride, 1), ("pad", window.pad, 0), ("dilation", window.dilation, 1),
    ):  # fmt: skip
        if any(value < least for value in values):
            report.attr(name, "attr range", f"{values} must be at least {least}")
            good = False
    if good and window.n_positions > limits.window_max:
        report.attr("kernel", "limit", f"{window.kernel} has more than {limits.window_max} positions")
        good = False
    return window if good else None


def _conv(instr: BoundInstr, limits: Limits, report: Report) -> None:
    first, second, out = _in(instr, 0), _in(instr, 1), instr.outs[0]
    x, w, y = {"conv": (first, second, out), "conv_dx": (out, second, first), "conv_dw": (second, out, first)}[instr.op.name]
    rank = (len(instr.attrs) - 1) // 3 + 2
    if not len(x.shape) == len(w.shape) == len(y.shape) == rank:
        report.instr("shape", f"attributes for {rank - 2} spatial dimensions beside shapes {x.shape}, {w.shape} and {y.shape}")
        return
    window = _window(instr, limits, report)
    groups = instr.attrs[0]
    if groups < 1:
        report.attr("groups", "attr range", f"{groups} must be at least 1")
        return
    n, c = x.shape[:2]
    o = w.shape[0]
    if w.shape[1] * groups != c or o % groups:
        report.instr("shape", f"{groups} groups do not cut {c} channels for weights {w.shape}")
    if y.shape[:2] != (n, o):
        report.instr("shape", f"{y.shape} beside input {x.shape} and weights {w.shape}, expected ({n}, {o}, ...)")
    if window is not None:
        counts = tuple(window.count(d, size) for d, size in enumerate(x.shape[2:]))
        if y.shape[2:] != counts:
            report.instr("shape", f"spatial size {y.shape[2:]} of the result of the convolution, expected {counts}")


def _pool(instr: BoundInstr, limits: Limits, report: Report) -> None:
    x, y = _in(instr, 0), instr.outs[0]
    if instr.op.name == "avg_pool_dx":
        x, y = y, x
    window = _window(instr, limits, report)
    if window is None:
        return
    rank = len(window.kernel) + 2
    if len(x.shape) != rank or len(y.shape) != rank or x.shape[:2] != y.shape[:2]:
        report.instr("shape", f"attributes for {rank - 2} spatial dimensions beside shapes {x.shape} and {y.shape}")
        return
    if instr.op.name == "max_pool":
        _want(report, 1, instr.outs[1], y.shape, is_out=True)
    else:
        _choice(instr, report, "count_pad", 2)
    for d, (size, count) in enumerate(zip(x.shape[2:], y.shape[2:], strict=True)):
        if 2 * window.pad[d] > window.reach(d):
            report.attr("pad", "attr range", f"{window.pad[d]} is more than half a window of {window.reach(d)}")
        elif size < 1:
            report.instr("empty", f"pooling over spatial size {size}")
        elif count not in (window.count(d, size), window.count_ceil(d, size)):
            accepted = f"{window.count(d, size)} or {window.count_ceil(d, size)}"
            report.instr("shape", f"{count} windows along spatial dimension {d}, expected {accepted}")


def _fits_beside(index: tuple[int, ...], data: tuple[int, ...], dim: int) -> bool:
    return len(index) == len(data) and all(d == dim or n <= m for d, (n, m) in enumerate(zip(index, data, strict=True)))


def _gather(instr: BoundInstr, report: Report) -> None:
    x, index = _in(instr, 0), _in(instr, 1)
    _want(report, 0, instr.outs[0], index.shape, is_out=True)
    dim = _dim(instr, report, len(x.shape))
    if dim is not None and not _fits_beside(index.shape, x.shape, dim):
        report.ins(1, "shape", f"{index.shape} exceeds {x.shape} beside dimension {dim}")


def _scatter(instr: BoundInstr, report: Report) -> None:
    out, src, index = instr.outs[0], instr.ins[0], _in(instr, 1)
    _choice(instr, report, "mode", len(ScatterMode))
    _mode_fits(instr, report)
    if isinstance(src, Operand):
        _want(report, 0, src, index.shape)
    dim = _dim(instr, report, len(out.shape))
    if dim is not None and not _fits_beside(index.shape, out.shape, dim):
        report.ins(1, "shape", f"{index.shape} exceeds {out.shape} beside dimension {dim}")


def _mode_fits(instr: BoundInstr, report: Report) -> None:
    mode = instr.attrs[instr.op.attrs.index("mode")]
    if mode in (ScatterMode.MAX, ScatterMode.MIN) and instr.outs[0].dtype.is_complex:
        report.attr("mode", "type", f"mode {mode} is not defined for {instr.outs[0].dtype.text}, which has no order")


def _indices(instr: BoundInstr, report: Report, data: Operand) -> tuple[int, ...] | None:
    """The common shape of the index operands, when they are at most as many as ``data`` has dimensions."""
    indices = [_in(instr, number) for number in range(1, len(instr.ins))]
    if len(indices) > len(data.shape):
        report.instr("shape", f"{len(indices)} indices for {len(data.shape)} dimensions")
        return None
    for number, index in enumerate(indices[1:], start=2):
        _want(report, number, index, indices[0].shape)
    return (*indices[0].shape, *data.shape[len(indices) :])


def _index(instr: BoundInstr, report: Report) -> None:
    shape = _indices(instr, report, _in(instr, 0))
    if shape is not None:
        _want(report, 0, instr.outs[0], shape, is_out=True)


def _index_put(instr: BoundInstr, report: Report) -> None:
    _choice(instr, report, "mode", len(ScatterMode))
    _mode_fits(instr, report)
    shape = _indices(instr, report, instr.outs[0])
    if shape is not None:
        _want(report, 0, _in(instr, 0), shape)


def _sort(instr: BoundInstr, report: Report) -> None:
    _scan(instr, report)
    _choice(instr, report, "descending", 2)


def _topk(instr: BoundInstr, report: Report) -> None:
    x, out = _in(instr, 0), instr.outs[0]
    _choice(instr, report, "largest", 2)
    _want(report, 1, instr.outs[1], out.shape, is_out=True)
    dim = _dim(instr, report, len(x.shape))
    if dim is None:
        return
    if len(out.shape) != len(x.shape) or not 0 <= out.shape[dim] <= x.shape[dim]:
        report.out(0, "shape", f"{out.shape} is not {x.shape} cut along dimension {dim}")
    else:
        _want(report, 0, out, (*x.shape[:dim], out.shape[dim], *x.shape[dim + 1 :]), is_out=True)


def _search_sorted(instr: BoundInstr, report: Report) -> None:
    line, values = _in(instr, 0), _in(instr, 1)
    _choice(instr, report, "right", 2)
    _want(report, 0, instr.outs[0], values.shape, is_out=True)
    if not line.shape or line.shape[:-1] != values.shape[:-1] or len(line.shape) != len(values.shape):
        report.ins(1, "shape", f"{values.shape} beside {line.shape}: all but the last dimension must agree")


def _nonzero(instr: BoundInstr, report: Report) -> None:
    x = _in(instr, 0)
    _want(report, 0, instr.outs[0], (prod(x.shape), len(x.shape)), is_out=True)
    _want(report, 1, instr.outs[1], (1,), is_out=True)


_BY_KIND: Final[dict[Kind, Callable[[BoundInstr, Report], None]]] = {
    Kind.MAP: _map,
    Kind.IOTA: _iota,
    Kind.RANDOM: _random,
    Kind.REDUCE: _reduce,
    Kind.SCAN: _scan,
    Kind.MATMUL: _matmul,
    Kind.LAUNCH: lambda instr, report: None,  # by its kernel: launches
}
_BY_NAME: Final[dict[str, Callable[[BoundInstr, Report], None]]] = {
    "gather": _gather,
    "scatter": _scatter,
    "index": _index,
    "index_put": _index_put,
    "sort": _sort,
    "topk": _topk,
    "search_sorted": _search_sorted,
    "nonzero": _nonzero,
    **COARSE,
}
