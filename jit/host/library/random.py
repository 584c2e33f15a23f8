"""random -> records."""

from __future__ import annotations

from jit.host.library.build import Build, view
from jit.host.library.kernels.random import BLOCK
from jit.host.record import Arg, Record, ScalarArg
from wis.dtypes import DType
from wis.ops import Dist
from wis.program import BoundInstr, Scalar

__all__ = ["random"]

_COST_NS = {Dist.UNIFORM: 0.5, Dist.NORMAL: 4.0, Dist.BITS: 0.5}


def random(instr: BoundInstr) -> list[Record] | None:
    """Draws from (seed, offset). Normal draws in f64 stay with the reference: their last bit hangs on its logarithm and cosine."""
    build, dist, out = Build(), Dist(instr.attrs[0]), view(instr.outs[0])
    if dist is Dist.NORMAL and out.dtype is DType.F64:
        return None
    if out.numel == 0:
        return []
    target = out if out.is_contiguous else build.temp(out.dtype, out.shape)
    seed, offset = instr.ins
    assert isinstance(seed, Scalar) and isinstance(offset, Scalar)
    args: dict[str, Arg] = {
        "y": target.ptr(), "n": out.numel, "seed": ScalarArg(seed.slot, DType.I64), "offset": ScalarArg(offset.slot, DType.I64),
    }  # fmt: skip
    family = f"random.{dist.name.lower()}.{out.dtype.text}"
    build.call(family, units=-(-out.numel // BLOCK), grain=BLOCK * _COST_NS[dist], reads=(), writes=(target,), args=args)
    if target is not out:
        build.copy(target, out)
    return build.records
