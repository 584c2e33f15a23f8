"""Matrix products on memory that the host reaches: NumPy's BLAS, one thread of it on each of several pieces.

BLAS's own threads wait for each other actively, which costs many times the product where processors are shared. Pieces depend on shapes
only, so the bits of a result do not depend on how many threads there are.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jit.host.library import blas

__all__ = ["Products"]

Array = npt.NDArray[Any]
PIECE_WORK: Final = 1 << 23
"""Multiplications and additions worth a thread of their own."""
PIECES_MAX: Final = 8


class Products:
    """Runs products on ``threads`` threads."""

    def __init__(self, threads: int) -> None:
        blas.available()  # finds the library and sets it to one thread
        self._pool = ThreadPoolExecutor(threads, "product")

    def run(self, out: Array, a: Array, b: Array) -> None:
        """out = a b for [.., m, k] x [.., k, n] of any strides."""
        lead = out.shape[:-2]
        a, b = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
        work = 2 * out.size * a.shape[-1]
        pieces = max(1, min(PIECES_MAX, work // PIECE_WORK))
        if pieces == 1:
            _product(out, a, b)
        elif lead and lead[0] > 1:
            parts = _cuts(lead[0], pieces)
            list(self._pool.map(lambda p: _product(out[p], a[p], b[p]), parts))
        else:
            b = _plain(b)
            rows = _cuts(out.shape[-2], pieces)
            list(self._pool.map(lambda p: _product(out[..., p, :], a[..., p, :], b), rows))

    def close(self) -> None:
        self._pool.shutdown()


def _cuts(n: int, pieces: int) -> list[slice]:
    marks = [n * i // pieces for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(marks) if a < b]


def _product(out: Array, a: Array, b: Array) -> None:
    if _is_plain(out):
        np.matmul(_plain(a), _plain(b), out=out)
    else:
        out[...] = np.matmul(_plain(a), _plain(b))


def _plain(x: Array) -> Array:
    return x if _is_plain(x) else np.ascontiguousarray(x)


def _is_plain(x: Array) -> bool:
    """Whether BLAS takes the matrices of ``x`` as they lie: NumPy multiplies others element by element."""
    (m, n), (row, column), size = x.shape[-2:], x.strides[-2:], x.itemsize
    return x.size == 0 or (column == size and row >= n * size) or (row == size and column >= m * size)
