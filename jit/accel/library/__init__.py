"""What fusion does not cover, as kernels of the kernel tier: verified like any other, and the same on every device.

``LOWER`` has the lowering of each operation that has one; it adds calls to a ``Build``, or raises
Inexpressible (the reference then runs it).

    writer, build      the means: values with operators and control flow; views, temporaries, calls
    copy               between layouts and element types
    index, scan, ...   one module a family of operations

May live here: lowerings and their kernels. May not: anything of one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from jit.accel.library import conv, index, matmul, order, pool, random, scan
from jit.accel.library.build import Build
from wis.program import BoundInstr

__all__ = ["LOWER"]

LOWER: Final[dict[str, Callable[[Build, BoundInstr], None]]] = {
    "matmul": matmul.matmul,
    "conv": conv.conv,
    "conv_dx": conv.conv_dx,
    "conv_dw": conv.conv_dw,
    "max_pool": pool.max_pool,
    "avg_pool": pool.avg_pool,
    "avg_pool_dx": pool.avg_pool_dx,
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
