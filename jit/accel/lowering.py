"""From steps to calls: fused groups and library forms as launches, with every kernel that is needed on the way.

Kernels keep the strict form of named functions where there is one, so that results have the same bits on every device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from jit import library
from jit.accel.device import BUFFER_WORDS, OWN, Facts, Request
from jit.accel.library import LOWER
from jit.accel.library.matmul import Build
from jit.accel.tables import Call, KernelCall
from jit.kernels.launch import check_blocks
from jit.kernels.loop import REDUCTIONS, Form, LoopKernel
from jit.kernels.lower import Lowered, Sharing, fixed_numbers, lower
from jit.kernels.scalar_ops import held
from jit.library.build import Launch
from jit.plan.calls import Arg, ArgBlock, Fallback, arguments, block_of
from jit.plan.form import FormedLoop, form
from jit.plan.group import Group
from wis.kernel.model import Kernel, Math
from wis.kernel.ops import NAMED
from wis.kernel.strict import strict_form
from wis.kernel.verify import verify_kernel
from wis.program import BoundInstr

__all__ = ["Lowering"]

COLUMNS_MIN: Final = 128
"""With fewer kept elements than this, a block of threads for each keeps more of a processor busy than a thread for each."""
TILED_LENGTH_MIN: Final = 64
TILED_COLUMNS_MAX: Final = 1 << 17
"""Where fewer are added up, or so many are kept, a thread for each keeps a GPU busy, and its lanes idle less."""
TILED_SUMS_MAX: Final = 8
"""Of more sums, the lanes of a tile would take much of the memory that blocks share."""


@dataclass(frozen=True, slots=True)
class _Fused:
    """A fused kernel: its name, and how it is launched."""

    name: str
    lowered: Lowered


class Lowering:
    """Makes calls. ``new_temp(nbytes)`` gives the number of a new TEMP buffer; ``requests`` has every kernel named so far."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._fused: dict[tuple[LoopKernel, tuple[tuple[int, int], ...], Sharing], _Fused] = {}
        self.requests: dict[str, Request] = {}

    def group(self, group: Group) -> KernelCall:
        """A fused group as one launch."""
        formed = form(group)
        fused = self._fuse(formed)
        sizes = [formed.args[slot] for slot in fused.lowered.kept]
        blocks, threads = fused.lowered.grid([size for size in sizes if isinstance(size, int)])
        check_blocks("a fused operation", blocks)
        block = _block(fused.lowered.kernel, arguments(fused.lowered.arguments, formed.args))
        return KernelCall(block, tuple(group.loads), tuple(group.stores), fused.name, blocks, threads)

    def _fuse(self, formed: FormedLoop) -> _Fused:
        loop = formed.kernel
        fixed = fixed_numbers(loop, formed.args)
        sharing = self._sharing(formed)
        key = (loop, tuple(fixed.items()), sharing)
        known = self._fused.get(key)
        if known is None:
            name = f"fused_{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}"
            lowered = lower(loop, name, _policy(loop), fixed, sharing=sharing)
            self.requests[name] = Request(verify_kernel(lowered.kernel), (lowered.kernel.threads_max, 1, 1), options=OWN)
            known = self._fused[key] = _Fused(name, lowered)
        return known

    def _sharing(self, formed: FormedLoop) -> Sharing:
        """Of its sums, where it has any."""
        loop, at = formed.kernel, formed.kernel.layout
        if loop.form is not Form.COLS:
            return Sharing.BLOCK
        kept = _size(formed, (at.inner_size, *range(at.outer_sizes, at.outer_sizes + loop.n_outer)))
        if self._facts.unified:
            return Sharing.THREAD if kept >= COLUMNS_MIN else Sharing.BLOCK
        length = _size(formed, range(at.mid_sizes, at.mid_sizes + loop.n_mid))
        if length < TILED_LENGTH_MIN or kept >= TILED_COLUMNS_MAX or sum(x.op in REDUCTIONS for x in loop.nodes) > TILED_SUMS_MAX:
            return Sharing.THREAD if kept >= COLUMNS_MIN else Sharing.BLOCK
        return Sharing.TILE

    def _launched(self, x: Launch) -> KernelCall:
        """A launch of a library kernel."""
        kernel = x.made.kernel
        check_blocks(kernel.name, x.grid[0])
        if kernel.name not in self.requests:
            self.requests[kernel.name] = Request(verify_kernel(kernel), (x.made.threads, 1, 1), options=OWN)
        return KernelCall(_block(kernel, x.args), x.reads, x.writes, kernel.name, x.grid[0], x.made.threads)

    def has(self, instr: BoundInstr) -> bool:
        """Coarse instructions are always taken apart: their parts fuse."""
        return False

    def single(self, instr: BoundInstr, new_temp: Callable[[int], int]) -> list[Call | Fallback]:
        """One unfused instruction: launches of the library, or itself for the reference."""
        build = Build(new_temp, self._launched, self._facts)
        return list(build.calls) if library.lower(build, instr, LOWER) else [Fallback.of(instr)]


def _block(kernel: Kernel, args: Sequence[Arg]) -> ArgBlock:
    return block_of(kernel, args, buffer_words=BUFFER_WORDS, number_words=1)


def _size(formed: FormedLoop, slots: Iterable[int]) -> int:
    """The elements of the loops whose sizes are in these slots."""
    sizes = [formed.args[slot] for slot in slots]
    return prod(size for size in sizes if isinstance(size, int))


def _policy(loop: LoopKernel) -> Math:
    """STRICT where every function of the kernel has a strict form."""
    named = [node for node in loop.nodes if node.op in NAMED]
    return Math.STRICT if all(strict_form(node.op, held(node.dtype)) is not None for node in named) else Math.NATIVE
