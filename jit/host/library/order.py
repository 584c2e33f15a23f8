"""sort, topk -> records."""

from __future__ import annotations

from jit.host.library.build import Build, View, view
from jit.host.library.elements import ELEMENTS
from jit.host.library.kernels.order import HISTOGRAM_BYTES, INSERTION, key_bytes
from jit.host.library.nest import Space, space
from jit.host.record import Arg, Record
from jit.plan.access import overlaps
from wis.program import BoundInstr

__all__ = ["sort"]

_MAX_KEPT = 128  # longer lists of best-so-far cost more than sorting


def _lines(dim: int, operands: dict[str, View], *, block: int) -> Space:
    """The space of lines along ``dim``: all other dimensions, of operands that agree in them."""
    first = next(iter(operands.values()))

    def others(values: tuple[int, ...]) -> tuple[int, ...]:
        return values[:dim] + values[dim + 1 :]

    strides = {name: others(v.strides) for name, v in operands.items()}
    return space(others(first.shape), strides, block=block, order_by=next(iter(operands)))


def sort(instr: BoundInstr) -> list[Record] | None:
    """sort and topk."""
    build, (dim, down) = Build(), instr.attrs
    x, y, index = view(instr.ins[0]), view(instr.outs[0]), view(instr.outs[1])
    if y.numel == 0:
        return []
    if overlaps(instr) or x.dtype.text not in ELEMENTS or not x.shape:
        return None
    n, k, size = x.shape[dim], y.shape[dim], key_bytes(x.dtype.text)
    if n >= 1 << 31:
        return None
    over = _lines(dim, {"x": x, "y": y, "index": index}, block=max(1, 512 // n))
    extra: dict[str, Arg] = {"n": n, "k": k, "x_dim": x.strides[dim], "y_dim": y.strides[dim], "index_dim": index.strides[dim]}
    if k <= _MAX_KEPT and 4 * k <= n and n > INSERTION:
        name, scratch, grain = "topk", (k + 1) * size, 2.0 * n
    else:
        name, scratch, grain = "sort", HISTOGRAM_BYTES + 2 * n * size, 15.0 * n
    writes = {"y": y, "index": index}
    family = f"{name}.{x.dtype.text}.{int(bool(down))}.{over.rank}"
    build.walk(family, over, grain=grain, reads={"x": x}, writes=writes, extra=extra, scratch_bytes=scratch)
    return build.records
