"""Losses and their gradients."""

from __future__ import annotations

from typing import Final

from wis.dtypes import DType
from wis.ops import ScatterMode
from wooly.device.lowering.dtypes import accumulate, result_type
from wooly.device.lowering.index import positions, take_rows
from wooly.device.lowering.reduce import mean_over, sum_over
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Value

__all__: list[str] = []

_NONE: Final = 0
_MEAN: Final = 1


def _reduced(t: Trace, loss: Meta, reduction: int) -> Meta:
    if reduction == _NONE:
        return loss
    return mean_over(t, loss, None) if reduction == _MEAN else sum_over(t, loss, None)


def _spread(t: Trace, dy: Meta, count: int, reduction: int) -> Meta:
    """The gradient of one element's loss."""
    return t.map("div", dy, float(count)) if reduction == _MEAN else dy


def _wide(t: Trace, *xs: Meta) -> list[Meta]:
    dtype = accumulate(result_type(xs))
    return [t.cast(x, dtype) for x in xs]


# --- negative log likelihood


def _picked(t: Trace, x: Meta, target: Meta, ignore_index: int) -> tuple[Meta, Meta]:
    """(class dimension kept as size 1) class indices, with 0 for ignored ones, and which are ignored."""
    classes = target.unsqueeze(1 if x.ndim > 1 else 0)
    classes = t.cast(classes, DType.I64)
    ignored = t.map("eq", classes, ignore_index, dtype=DType.I64)
    return t.where(ignored, 0, classes, dtype=DType.I64), ignored


def _class_weight(t: Trace, weight: Meta | None, safe: Meta, ignored: Meta, dtype: DType) -> Meta:
    given: Value = 1 if weight is None else t.cast(take_rows(t, weight, safe), dtype)
    return t.where(ignored, 0, given, dtype=dtype)


@lowers("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def nll_loss_forward(t: Trace, x: Meta, target: Meta, weight: Meta | None, reduction: int, ignore_index: int) -> list[Meta]:
    dim = 1 if x.ndim > 1 else 0
    safe, ignored = _picked(t, x, target, ignore_index)
    wide = accumulate(x.dtype)
    share = _class_weight(t, weight, safe, ignored, wide)
    likelihood = t.temp(x.dtype, safe.shape)
    t.emit("gather", [likelihood], [x, positions(t, safe)], (dim,))
    loss = t.map("neg", t.map("mul", likelihood, share, dtype=wide))
    loss = t.where(ignored, 0, loss, dtype=wide)
    dims = list(range(loss.ndim))
    total_weight = t.reduce("sum", share, dims)
    if reduction == _NONE:
        return [loss.squeeze(dim), total_weight if x.ndim == 1 else t.full((), 0, wide)]
    total = t.reduce("sum", loss, dims)
    return [t.map("div", total, total_weight) if reduction == _MEAN else total, total_weight]


@lowers("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def nll_loss_backward(
    t: Trace, dy: Meta, x: Meta, target: Meta, weight: Meta | None, reduction: int, ignore_index: int, total_weight: Meta
) -> Meta:
    """-weight * dy at the target class, 0 elsewhere."""
    dim = 1 if x.ndim > 1 else 0
    safe, ignored = _picked(t, x, target, ignore_index)
    wide = accumulate(x.dtype)
    share = _class_weight(t, weight, safe, ignored, wide)
    dy = t.cast(dy, wide)
    dy = dy.unsqueeze(dim) if reduction == _NONE and dy.ndim == x.ndim - 1 else dy
    if reduction == _MEAN:
        dy = t.map("div", dy, total_weight, dtype=wide)
    slope = t.where(ignored, 0, t.map("neg", t.map("mul", share, dy)), dtype=wide)
    out = t.full(x.shape, 0, wide)
    t.emit("scatter", [out], [slope.expand(safe.shape), positions(t, safe)], (dim, ScatterMode.SET))
    return out


# --- elementwise losses


def _smooth_l1(t: Trace, gap: Meta, beta: Value) -> Meta:
    size = t.map("abs", gap)
    near = t.map("div", t.map("mul", t.map("mul", size, size), 0.5), beta)
    return t.where(t.map("lt", size, beta), near, t.map("sub", size, t.derive(lambda b: 0.5 * b, beta)), dtype=gap.dtype)  # type: ignore[arg-type]


@lowers("aten::mse_loss")
def mse_loss(t: Trace, x: Meta, target: Meta, reduction: int = _MEAN) -> Meta:
    gap = t.map("sub", *_wide(t, x, target))
    return _reduced(t, t.map("mul", gap, gap), reduction)


@lowers("aten::mse_loss_backward")
def mse_loss_backward(t: Trace, dy: Meta, x: Meta, target: Meta, reduction: int) -> Meta:
    dy, x, target = _wide(t, dy, x, target)
    gap = t.map("sub", x, target)
    return t.map("mul", t.map("mul", gap, 2.0), _spread(t, dy, gap.numel, reduction))


@lowers("aten::smooth_l1_loss", special={"beta": (0,)})
def smooth_l1_loss(t: Trace, x: Meta, target: Meta, reduction: int = _MEAN, beta: Value = 1.0) -> Meta:
    gap = t.map("sub", *_wide(t, x, target))
    flat = isinstance(beta, int | float) and beta == 0
    return _reduced(t, t.map("abs", gap) if flat else _smooth_l1(t, gap, beta), reduction)


@lowers("aten::smooth_l1_loss_backward", special={"beta": (0,)})
def smooth_l1_loss_backward(t: Trace, dy: Meta, x: Meta, target: Meta, reduction: int, beta: Value) -> Meta:
    dy, x, target = _wide(t, dy, x, target)
    gap = t.map("sub", x, target)
    slope = t.map("sign", gap)
    if not (isinstance(beta, int | float) and beta == 0):
        slope = t.where(t.map("ge", t.map("abs", gap), beta), slope, t.map("div", gap, beta), dtype=gap.dtype)  # NaN: NaN
    return t.map("mul", slope, _spread(t, dy, gap.numel, reduction))


@lowers("aten::huber_loss")
def huber_loss(t: Trace, x: Meta, target: Meta, reduction: int = _MEAN, delta: Value = 1.0) -> Meta:
    gap = t.map("sub", *_wide(t, x, target))
    size = t.map("abs", gap)
    near = t.map("mul", t.map("mul", size, size), 0.5)
    half = t.derive(lambda d: 0.5 * d, delta)  # type: ignore[arg-type]
    far = t.map("mul", t.map("sub", size, half), delta)
    return _reduced(t, t.cast(t.where(t.map("le", size, delta), near, far, dtype=gap.dtype), x.dtype), reduction)


@lowers("aten::huber_loss_backward")
def huber_loss_backward(t: Trace, dy: Meta, x: Meta, target: Meta, reduction: int, delta: Value) -> Meta:
    dy, x, target = _wide(t, dy, x, target)
    gap = t.map("sub", x, target)
    far = t.map("mul", t.map("sign", gap), delta)
    slope = t.where(t.map("ge", t.map("abs", gap), delta), far, gap, dtype=gap.dtype)  # NaN: NaN
    return t.map("mul", slope, _spread(t, dy, gap.numel, reduction))


@lowers("aten::soft_margin_loss")
def soft_margin_loss(t: Trace, x: Meta, target: Meta, reduction: int = _MEAN) -> Meta:
    wide, target = _wide(t, x, target)
    loss = t.map("log1p", t.map("exp", t.map("neg", t.map("mul", wide, target))))
    return _reduced(t, t.cast(loss, x.dtype), reduction)


@lowers("aten::soft_margin_loss_backward")
def soft_margin_loss_backward(t: Trace, dy: Meta, x: Meta, target: Meta, reduction: int) -> Meta:
    dy, x, target = _wide(t, dy, x, target)
    slope = t.map("neg", t.map("mul", target, t.map("sigmoid", t.map("neg", t.map("mul", x, target)))))
    return t.map("mul", slope, _spread(t, dy, x.numel, reduction))


# --- binary cross entropy


def _in_unit(t: Trace, x: Meta) -> Meta:
    return t.map("and", t.map("ge", x, 0), t.map("le", x, 1))


@lowers("aten::binary_cross_entropy")
def binary_cross_entropy(t: Trace, x: Meta, target: Meta, weight: Meta | None = None, reduction: int = _MEAN) -> Meta:
    """Logarithms are held at -100 or above, as torch does."""
    x, target = _wide(t, x, target)
    t.check(_in_unit(t, x), "all elements of input should be between 0 and 1")
    t.check(_in_unit(t, target), "all elements of target should be between 0 and 1")
    yes = t.map("mul", target, t.map("max", t.map("log", x), -100.0))
    no = t.map("mul", t.map("sub", 1.0, target), t.map("max", t.map("log1p", t.map("neg", x)), -100.0))
    loss = t.map("neg", t.map("add", yes, no))
    return _reduced(t, loss if weight is None else t.map("mul", loss, weight, dtype=loss.dtype), reduction)


@lowers("aten::binary_cross_entropy_backward")
def binary_cross_entropy_backward(t: Trace, dy: Meta, x: Meta, target: Meta, weight: Meta | None = None, reduction: int = _MEAN) -> Meta:
    dy, x, target = _wide(t, dy, x, target)
    spread = t.map("max", t.map("mul", t.map("sub", 1.0, x), x), 1e-12)
    slope = t.map("div", t.map("sub", x, target), spread)
    slope = slope if weight is None else t.map("mul", slope, weight, dtype=slope.dtype)
    return t.map("mul", slope, _spread(t, dy, slope.numel, reduction))


@lowers("aten::binary_cross_entropy_with_logits")
def bce_with_logits(
    t: Trace, x: Meta, target: Meta, weight: Meta | None = None, pos_weight: Meta | None = None, reduction: int = _MEAN
) -> Meta:
    """(1 - target) x - share * log_sigmoid(x), with share = 1 + (pos_weight - 1) target."""
    x, target = _wide(t, x, target)
    tail = t.map("log1p", t.map("exp", t.map("neg", t.map("abs", x))))
    log_sigmoid = t.map("sub", t.map("min", x, 0.0), tail)
    if pos_weight is not None:
        share = t.map("add", t.map("mul", t.map("sub", pos_weight, 1.0), target), 1.0, dtype=x.dtype)
        log_sigmoid = t.map("mul", share, log_sigmoid)
    loss = t.map("sub", t.map("mul", t.map("sub", 1.0, target), x), log_sigmoid)
    return _reduced(t, loss if weight is None else t.map("mul", loss, weight, dtype=loss.dtype), reduction)


# --- margins between classes


def _rows(x: Meta) -> Meta:
    """[batch, classes]; torch lets both be missing."""
    x = x.unsqueeze(0) if x.ndim == 0 else x
    return x.unsqueeze(0) if x.ndim == 1 else x


def _above(t: Trace, x: Meta) -> Meta:
    """``x`` where it is above 0, else 0, also where it is NaN."""
    return t.where(t.map("gt", x, 0.0), x, 0.0, dtype=x.dtype)


@lowers("aten::multi_margin_loss", concrete=("p",))
def multi_margin_loss(
    t: Trace, x: Meta, target: Meta, p: float = 1, margin: Value = 1, weight: Meta | None = None, reduction: int = _MEAN
) -> Meta:
    """mean over classes j != target of max(0, margin - x[target] + x[j]) ** p, weighted by the target class."""
    scalar = x.ndim < 2
    (x,) = _wide(t, x)
    rows = _rows(x)
    column = (target.unsqueeze(0) if target.ndim == 0 else target).unsqueeze(-1)
    own = t.temp(rows.dtype, column.shape)
    t.emit("gather", [own], [rows, positions(t, column)], (1,))
    gap = _above(t, t.map("add", t.map("sub", rows, own), margin))
    gap = t.map("mul", gap, gap) if p == 2 else gap
    if weight is not None:
        gap = t.map("mul", gap, take_rows(t, weight, column), dtype=gap.dtype)
    other = t.map("ne", t.iota(rows.shape[1]), column, dtype=DType.I64)
    total = t.reduce("sum", t.where(other, gap, 0.0, dtype=gap.dtype), [1])
    loss = t.map("div", total, float(rows.shape[1]))
    if reduction == _NONE:
        return loss.squeeze(0) if scalar and t.want().shape == () else loss
    return _reduced(t, loss, reduction)


@lowers("aten::multi_margin_loss_backward", concrete=("p",))
def multi_margin_loss_backward(
    t: Trace, dy: Meta, x: Meta, target: Meta, p: float, margin: Value, weight: Meta | None = None, reduction: int = _MEAN
) -> Meta:
    """What every other class gains above the margin, the target class loses."""
    dy, wide = _wide(t, dy, x)
    rows = _rows(wide)
    column = (target.unsqueeze(0) if target.ndim == 0 else target).unsqueeze(-1)
    own = t.temp(rows.dtype, column.shape)
    t.emit("gather", [own], [rows, positions(t, column)], (1,))
    gap = _above(t, t.map("add", t.map("sub", rows, own), margin))
    slope = t.map("mul", gap, 2.0) if p == 2 else t.cast(t.map("gt", gap, 0.0), gap.dtype)
    if weight is not None:
        slope = t.map("mul", slope, take_rows(t, weight, column), dtype=slope.dtype)
    is_own = t.map("eq", t.iota(rows.shape[1]), column, dtype=DType.I64)
    slope = t.where(is_own, 0.0, slope, dtype=slope.dtype)
    slope = t.where(is_own, t.map("neg", t.reduce("sum", slope, [1], True)), slope, dtype=slope.dtype)
    share = _spread(t, t.map("div", dy, float(rows.shape[1])), rows.shape[0], reduction)
    share = share.unsqueeze(-1) if share.ndim == 1 else share
    return t.reshape(t.map("mul", slope, share, dtype=slope.dtype), x.shape)
