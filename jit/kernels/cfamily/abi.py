"""Calling convention of generated kernels, the same in every language.

Arguments of the entry, in order:

    GLOBAL u8 *bN          for every buffer parameter N: where its region's buffer starts
    GLOBAL const u64 *w    a table of words, of which those of this launch start at
    u64 at
    GLOBAL u64 *state      what launches report, see below; several launches may share it
    GLOBAL u8 *scratch     ``Source.scratch_bytes`` for every block of threads that is launched; anything when that is 0

Words, from ``at`` on: for every parameter in order, of a buffer (offset of the region in its buffer, bytes of the region, address of the
region in the space ARENA), of a scalar (its bits, zero-extended); then the grid's x, y, z, the number of the first block that is launched,
and how many are. The region of a buffer must start at a multiple of ``VerifiedKernel.aligns``, and its bytes may be reached by others
only as the kernel's certificate allows.

State: [0] the least trap key (NO_TRAP at first), [1] thread-instructions, [2] the fuel (2**64 - 1: endless), [3] the launches' own (0 at
first). The launch was out of fuel when [1] exceeds [2]; its memory is undefined then.

Work-items: ``local_size[0] * blocks``, ``local_size[1]``, ``local_size[2]``, in groups of ``local_size``. In C99 there are
none: the function runs all blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from wis.kernel.model import BufferParam, Kernel, RegType
from wis.kernel.traps import NO_TRAP

STATE_WORDS: Final = 4
ENDLESS: Final = (1 << 64) - 1
"""Fuel that does not end."""

_FLOATS: Final = {
    RegType.F16: np.dtype(np.float16), RegType.BF16: np.dtype(ml_dtypes.bfloat16), RegType.F32: np.dtype(np.float32),
    RegType.F64: np.dtype(np.float64),
}  # fmt: skip


class Form(Enum):
    """What one work-item runs."""

    THREAD = "thread"
    BLOCK = "block"  # all threads of a block, in loops


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel. ``helpers``: functions that it calls, by name; ``function``: its own text; ``prelude``: what its program starts with.

    ``scratch_bytes``: scratch memory of each launched block of threads; ``shared_bytes``: what a launch in CUDA asks for.
    """

    prelude: str
    helpers: tuple[tuple[str, str], ...]
    function: str
    entry: str
    form: Form
    local_size: tuple[int, int, int]
    scratch_bytes: int
    shared_bytes: int

    @property
    def text(self) -> str:
        """A program with this kernel alone."""
        return program([self])


def program(sources: Sequence[Source]) -> str:
    """One program with all these kernels, which must be of one language and have entries of different names."""
    helpers = dict(pair for source in sources for pair in source.helpers)
    return "\n".join([sources[0].prelude, *helpers.values(), *(source.function for source in sources), ""])


@dataclass(frozen=True, slots=True)
class Region:
    """A buffer argument: byte offset in the buffer that is passed, bytes, and the address of its first byte in the space ARENA."""

    offset: int
    nbytes: int
    address: int


def table_words(kernel: Kernel) -> int:
    """How many words a launch of ``kernel`` has in the table."""
    return sum(3 if isinstance(param, BufferParam) else 1 for param in kernel.params) + 5


def launch_words(
    kernel: Kernel, params: Sequence[Region | int | float], grid: tuple[int, int, int], first: int, count: int
) -> npt.NDArray[np.uint64]:
    """The words of a launch. ``params``: a region for every buffer, a number for every scalar."""
    words: list[int] = []
    for param, given in zip(kernel.params, params, strict=True):
        if isinstance(param, BufferParam):
            assert isinstance(given, Region)
            words += [given.offset, given.nbytes, given.address]
        else:
            assert not isinstance(given, Region)
            words.append(_bits(RegType(param.reg_type), given))
    return np.array([*words, *grid, first, count], np.uint64)


def _bits(kind: RegType, given: float) -> int:
    if kind in _FLOATS:
        dtype = _FLOATS[kind]
        return int(np.asarray(given).astype(np.float32 if dtype.itemsize == 2 else dtype).astype(dtype).view(f"u{dtype.itemsize}"))
    return int(bool(given)) if kind is RegType.PRED else int(given) & (1 << kind.bits) - 1


def fresh_state(fuel: int | None) -> npt.NDArray[np.uint64]:
    """The state before a launch. ``fuel`` None: endless."""
    return np.array([NO_TRAP, 0, ENDLESS if fuel is None else fuel, 0], np.uint64)
