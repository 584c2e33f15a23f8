"""A device as the engine sees it: memory, compiled kernels, launches in order. What a back end of this family has to write.

Everything that is asked of a device is done in the order asked. ``launch`` and ``zero`` may return before it is done; ``read``, ``view``
and ``finish`` wait. Calls come from one thread at a time.

The argument table and the state of launches are those of ``jit.kernels.cfamily.abi``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from jit.kernels.cfamily import Form
from jit.kernels.launch import CHECKED, Dim3, KernelOptions
from wis.dtypes import DType
from wis.kernel.verify import Barriers, VerifiedKernel

__all__ = [
    "Buffer", "Bytes", "Compiled", "Device", "Facts", "Matrix", "Request", "BUFFER_WORDS", "GRID_WORDS", "OWN", "form_of",
]  # fmt: skip

Bytes = npt.NDArray[np.uint8]
Buffer = Any
"""Memory of a device; what it is, only the device knows."""

BUFFER_WORDS: Final = 3
GRID_WORDS: Final = 5
OWN: Final = KernelOptions(check=False, meter=False, fuel=False)
"""For kernels that the engine made itself from verified programs: their indices are inside by construction, and the program was counted."""


@dataclass(frozen=True, slots=True)
class Facts:
    """``units``: compute units, what a launch can occupy at most. ``unified``: the host reads and writes the device's memory in place.

    ``products``: element types for which the device brings a matrix product of its own. ``align_bytes``: a part of memory begins at a
    multiple of this, a power of two.
    """

    name: str
    units: int
    unified: bool
    products: frozenset[DType]
    align_bytes: int = 64


class Matrix(NamedTuple):
    """An operand of a product [.., m, k] x [.., k, n]: ``offset`` in bytes, strides in elements; it has a ``blas_layout``, and no size is
    0."""

    buffer: Buffer
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def blas_layout(shape: Sequence[int], strides: Sequence[int]) -> tuple[bool, int] | None:
    """How a library of matrix products reads the last two dimensions: whether the elements of a column are neighbours (else those of a
    row), and the distance between two columns (rows) in elements. None: it cannot."""
    (rows, columns), (down, across) = shape[-2:], strides[-2:]
    for neighbours, lines, length, step, along in ((False, rows, columns, down, across), (True, columns, rows, across, down)):
        if (length == 1 or along == 1) and (lines == 1 or length <= step < 1 << 31):
            return neighbours, max(step if lines > 1 else length, 1)
    return None


@dataclass(frozen=True, slots=True)
class Request:
    """A kernel to compile for one block shape.

    ``foreign``: a user's kernel, so it is compiled in a separate process, where an abort costs nothing. ``aliased``: what it may only read
    is also what it writes, so that nothing proved from loads of it holds: threads may come to a barrier apart.
    """

    verified: VerifiedKernel
    block: Dim3
    dynamic_bytes: int = 0
    options: KernelOptions = CHECKED
    foreign: bool = False
    aliased: bool = False


def form_of(request: Request) -> Form | None:
    """The form to emit; None: the one that suits. Waiting of the device's own is for kernels whose proofs hold."""
    return Form.BLOCK if request.aliased and request.verified.barriers is not Barriers.NONE else None


class Compiled(Protocol):
    """A kernel that a device can launch. ``scratch_bytes``: memory it needs beside its buffers, for each block of a launch."""

    @property
    def scratch_bytes(self) -> int: ...


class Device(Protocol):
    """One device. Methods raise ToolchainError when it fails."""

    @property
    def facts(self) -> Facts: ...

    @property
    def compiled(self) -> int:
        """How many kernels it compiled (and did not find in the cache) so far."""
        ...

    def allocate(self, nbytes: int) -> Buffer:
        """New memory, all zeros; it is freed with the last reference to it. Raises MemoryError."""
        ...

    def reserve(self, nbytes: int) -> Buffer | None:
        """New memory of any contents, in one piece to be divided with ``part``; None where the device gives none so large."""
        ...

    def part(self, buffer: Buffer, offset: int, nbytes: int) -> Buffer:
        """So many bytes of what ``reserve`` gave, as memory of its own; ``offset`` is a multiple of ``Facts.align_bytes``."""
        ...

    def copy(self, source: Buffer, source_offset: int, target: Buffer, target_offset: int, nbytes: int) -> None:
        """From one place of the device to another that does not overlap it."""
        ...

    def write(self, buffer: Buffer, offset: int, data: Bytes) -> None:
        """Copy from the host."""
        ...

    def read(self, buffer: Buffer, offset: int, nbytes: int) -> Bytes:
        """A copy, or a view that later work may change."""
        ...

    def zero(self, buffer: Buffer, offset: int, nbytes: int) -> None: ...

    def view(self, buffer: Buffer) -> Bytes | None:
        """The memory in place, to be used until the next launch; None when the device's memory is its own (``Facts.unified``)."""
        ...

    def compile(self, requests: Sequence[Request]) -> list[Any]:
        """A ``Compiled`` for each. Raises KernelRefused for what this device cannot do."""
        ...

    def launch(self, kernel: Any, count: int, buffers: Sequence[Buffer], table: Buffer, at: int, state: Buffer, scratch: Buffer) -> Any:
        """Run ``count`` blocks of a grid with the row at word ``at`` of ``table``; returns a mark for ``elapsed_ns``.

        ``scratch`` has room for ``count`` blocks, or is None when the kernel needs none.
        """
        ...

    def elapsed_ns(self, marks: Sequence[Any]) -> list[int]:
        """How long the device worked on each of these launches, which are done."""
        ...

    def product(self, dtype: DType, out: Matrix, a: Matrix, b: Matrix) -> Any:
        """out = a b, for an element type of ``Facts.products``; returns a mark, or None when the host did it and it is done."""
        ...

    def wait(self, mark: Any) -> None:
        """Wait until this launch, and with it everything before it, is done."""
        ...

    def finish(self) -> None:
        """Wait until all is done."""
        ...

    def close(self) -> None:
        """Safe to call twice."""
        ...
