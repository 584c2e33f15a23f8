"""What fusion does not cover, as kernels of the kernel tier: verified like any other, one source for every device.

``LOWER`` has the lowering of each operation that has one; it adds calls to a ``Build``, or raises Inexpressible (``lower`` then says no,
and the reference runs the operation).

    writer, build      the means: values with operators and control flow; index spaces, temporaries, calls, copies
    index, scan, ...   one module a family of operations

May live here: lowerings and their kernels. May not: anything of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from jit.errors import Inexpressible
from jit.library import index, order, random, scan, windows
from jit.library.build import Build
from wis.ops import Kind
from wis.program import BoundInstr

__all__ = ["LOWER", "Lower", "lower"]

Lower = Callable[[Build[Any], BoundInstr], None]
LOWER: Final[Mapping[str, Lower]] = {
    "max_pool": windows.max_pool,
    "avg_pool": windows.avg_pool,
    "avg_pool_dx": windows.avg_pool_dx,
    "argmax": scan.arg_extreme,
    "argmin": scan.arg_extreme,
    "cumsum": scan.running,
    "cumprod": scan.running,
    "cummax": scan.running_extreme,
    "cummin": scan.running_extreme,
    "sort": order.sort,
    "topk": order.sort,
    "search_sorted": order.search_sorted,
    "nonzero": order.nonzero,
    "random": random.random,
    "gather": index.gather,
    "scatter": index.scatter,
    "index": index.index,
    "index_put": index.index_put,
}


def lower(build: Build[Any], instr: BoundInstr, table: Mapping[str, Any] = LOWER) -> bool:
    """Add the calls of an instruction; False where it has no form here. Of ``table``: the lowerings by name."""
    if instr.op.kind is not Kind.INDEX and not any(out.numel for out in instr.outs):
        return True  # writes nothing (an index would still trap)
    lowering = table.get(instr.op.name)
    if lowering is None:
        return False
    try:
        lowering(build, instr)
    except Inexpressible:
        return False
    return True
