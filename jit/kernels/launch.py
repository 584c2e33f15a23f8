"""Launches of single kernels: what is woven into the code, which blocks of a grid run, and what they leave behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from jit.errors import KernelRefused
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.traps import Trap

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What is woven into the code. All are on in production; benchmarks turn single ones off to see what they cost."""

    check: bool = True  # accesses outside of their memory load 0, store nothing, trap
    meter: bool = True  # count thread-instructions
    fuel: bool = True  # stop when they exceed the launch's fuel (needs meter)
    clear: bool = True  # shared memory starts as zeros; off for kernels that write before they read


CHECKED: Final = KernelOptions()
"""Everything on."""


def check_blocks(name: str, blocks: int) -> None:
    """Whether a kernel of our own, whose accesses are not checked, can have so many blocks along an axis: their numbers are i32.

    Raises KernelRefused."""
    if blocks > KERNEL_LIMITS.grid_blocks_max:
        most = KERNEL_LIMITS.grid_blocks_max
        raise KernelRefused(f"{name}: {blocks} rows in one operation, at most {most} are accepted here; split the tensor")


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A grid of blocks, or the slice ``first .. first + count - 1`` of it (row-major, x fastest).

    ``fuel``: thread-instructions; None: no limit.
    """

    grid: Dim3
    block: Dim3
    dynamic_bytes: int = 0
    first: int = 0
    count: int | None = None
    fuel: int | None = None


@dataclass(frozen=True, slots=True)
class KernelOutcome:
    """``instructions``: exact thread-instructions (0 when not metered); ``trap``: the first one, by the order of wis.kernel.traps.

    Out of fuel: the launch stopped early, its memory is undefined, and ``instructions`` exceeds the fuel.
    """

    instructions: int
    out_of_fuel: bool
    trap: Trap | None
