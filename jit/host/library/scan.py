"""cumsum, cumprod, cummax, cummin, argmax, argmin -> records."""

from __future__ import annotations

from jit.host.library.build import Build, View, view
from jit.host.library.elements import ELEMENTS
from jit.host.library.kernels.scan import LANES
from jit.host.library.nest import Space, space
from jit.host.record import Arg, Record
from jit.plan.access import overlaps
from wis.program import BoundInstr

__all__ = ["arg_extreme", "lines", "running"]

_WHAT = {"cumsum": "add", "cumprod": "mul", "cummax": "max", "cummin": "min", "argmax": "max", "argmin": "min"}


def lines(dim: int, operands: dict[str, View], *, block: int) -> Space:
    """The space of lines along ``dim``: all other dimensions, of operands that agree in them."""
    first = next(iter(operands.values()))

    def others(values: tuple[int, ...]) -> tuple[int, ...]:
        return values[:dim] + values[dim + 1 :]

    strides = {name: others(v.strides) for name, v in operands.items()}
    return space(others(first.shape), strides, block=block, order_by=next(iter(operands)))


def _walk(dim: int, operands: dict[str, View], n: int) -> tuple[str, Space]:
    over = lines(dim, operands, block=LANES)
    if over.sizes[-1] >= 4 and all(strides[-1] == 1 for strides in over.strides.values()):
        return "lanes", over
    return "line", lines(dim, operands, block=max(1, 4096 // max(n, 1)))


def running(instr: BoundInstr) -> list[Record] | None:
    """cumsum, cumprod; cummax and cummin with their indices."""
    build, (dim,) = Build(), instr.attrs
    x, y = view(instr.ins[0]), view(instr.outs[0])
    if x.numel == 0:
        return []
    if overlaps(instr) or x.dtype.text not in ELEMENTS:
        return None
    if not x.shape:
        return None
    operands = {"x": x, "y": y}
    if len(instr.outs) == 2:
        operands["index"] = view(instr.outs[1])
    n = x.shape[dim]
    walk, over = _walk(dim, operands, n)
    extra: dict[str, Arg] = {"n": n, **{f"{name}_dim": v.strides[dim] for name, v in operands.items()}}
    family = f"{'running_extreme' if len(operands) == 3 else 'running'}.{x.dtype.text}.{_WHAT[instr.op.name]}.{walk}.{over.rank}"
    writes = {name: v for name, v in operands.items() if name != "x"}
    build.walk(family, over, grain=n * (0.2 if walk == "lanes" else 1.5), reads={"x": x}, writes=writes, extra=extra)
    return build.records


def arg_extreme(instr: BoundInstr) -> list[Record] | None:
    """argmax, argmin: y has size 1 along the dimension."""
    build, (dim,) = Build(), instr.attrs
    x, y = view(instr.ins[0]), view(instr.outs[0])
    if y.numel == 0:
        return []
    if overlaps(instr) or x.dtype.text not in ELEMENTS or x.numel == 0:
        return None
    n = x.shape[dim]
    operands = {"x": x, "y": y}
    walk, over = _walk(dim, operands, n)
    if walk == "line" and x.strides[dim] == 1 and n >= 2 * LANES:
        walk = "along"
    extra: dict[str, Arg] = {"n": n, "x_dim": x.strides[dim], "y_dim": 0}
    family = f"arg_extreme.{x.dtype.text}.{_WHAT[instr.op.name]}.{walk}.{over.rank}"
    build.walk(family, over, grain=n * (1.5 if walk == "line" else 0.2), reads={"x": x}, writes={"y": y}, extra=extra)
    return build.records
