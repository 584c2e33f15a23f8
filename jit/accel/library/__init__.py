"""The library (``jit.library``) and what accelerators have beside it: products of matrices and convolutions, as kernels of the kernel tier
or by the device's own.

May live here: lowerings and their kernels. May not: anything of one device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from jit import library
from jit.accel.library import conv, matmul

__all__ = ["LOWER"]

LOWER: Final[Mapping[str, Callable[[Any, Any], None]]] = {
    **library.LOWER,
    "matmul": matmul.matmul,
    "conv": conv.conv,
    "conv_dx": conv.conv_dx,
    "conv_dw": conv.conv_dw,
}
