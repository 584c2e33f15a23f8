"""The BLAS that numpy carries: addresses of its C interface, and the switch that keeps it to one thread.

The library is built with 64-bit integers: sizes and leading dimensions are i64, the order and transpose flags are i32. It runs
single-threaded because our own workers cut the work; its own pool underneath ours costs up to two hundred times.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

ROW_MAJOR: Final = 101
COL_MAJOR: Final = 102
NO_TRANS: Final = 111
TRANS: Final = 112


@cache
def _library() -> ctypes.CDLL | None:
    folder = Path(np.__file__).parent
    for place in (folder.parent / "numpy.libs", folder / ".libs", folder / ".dylibs"):
        for path in sorted(place.glob("*scipy_openblas64_*")):
            library = ctypes.CDLL(str(path))
            library.scipy_openblas_set_num_threads64_(1)
            return library
    return None


def available() -> bool:
    """Whether numpy's own OpenBLAS was found; without it every ``lower`` that needs BLAS returns None."""
    return _library() is not None


@cache
def address(name: str) -> int:
    """The address of ``cblas_<name>`` (``sgemm``, ``dgemv`` ...). Raises LookupError when there is no such function."""
    library = _library()
    function = getattr(library, f"scipy_cblas_{name}64_", None) if library is not None else None
    if function is None:
        raise LookupError(f"numpy's BLAS has no {name!r}: install numpy from its wheel, which carries OpenBLAS")
    place = ctypes.cast(function, ctypes.c_void_p).value
    assert place is not None
    return place
