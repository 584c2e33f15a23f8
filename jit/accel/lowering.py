"""From steps to calls: fused groups and library forms as launches, with every kernel that is needed on the way.

Kernels keep the strict form of named functions where there is one, so that results have the same bits on every device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jit.accel import library
from jit.accel.calls import Arg, Buf, Call, KernelCall, block_of
from jit.accel.device import OWN, Facts, Request
from jit.accel.library.build import Build
from jit.accel.library.writer import Made
from jit.errors import Inexpressible
from jit.kernels.loop import Form, LoopKernel
from jit.kernels.lower import Lowered, What, fixed_numbers, lower
from jit.kernels.scalar_ops import held
from jit.plan.access import Access
from jit.plan.calls import Fallback
from jit.plan.form import FormedLoop, form
from jit.plan.group import Group
from wis.kernel.model import Math, RegType, ScalarParam
from wis.kernel.ops import NAMED
from wis.kernel.strict import strict_form
from wis.kernel.verify import verify_kernel
from wis.ops import Kind
from wis.program import BoundInstr, Scalar

__all__ = ["Lowering"]

COLUMNS_MIN: Final = 128
"""With fewer kept elements than this, a block of threads for each keeps more of a device busy than a thread for each."""


@dataclass(frozen=True, slots=True)
class _Fused:
    """A fused kernel: its name, how it is launched, and the register type of each parameter (None: a buffer)."""

    name: str
    lowered: Lowered
    kinds: tuple[RegType | None, ...]


class Lowering:
    """Makes calls. ``new_temp(nbytes)`` gives the number of a new TEMP buffer; ``requests`` has every kernel named so far."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._fused: dict[tuple[LoopKernel, tuple[tuple[int, int], ...], bool], _Fused] = {}
        self.requests: dict[str, Request] = {}

    def group(self, group: Group) -> KernelCall:
        """A fused group as one launch."""
        formed = form(group)
        fused = self._fuse(formed)
        sizes = [formed.args[slot] for slot in fused.lowered.kept]
        blocks, threads = fused.lowered.grid([size for size in sizes if isinstance(size, int)])
        args = [_argument(what, formed.args[slot]) for what, slot in fused.lowered.arguments]
        block = block_of(fused.kinds, args)
        return KernelCall(block, tuple(group.loads), tuple(group.stores), fused.name, blocks, threads)

    def _fuse(self, formed: FormedLoop) -> _Fused:
        loop = formed.kernel
        fixed = fixed_numbers(loop, formed.args)
        columns = loop.form is Form.COLS and _kept(formed) >= COLUMNS_MIN
        key = (loop, tuple(fixed.items()), columns)
        known = self._fused.get(key)
        if known is None:
            name = f"fused_{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}"
            lowered = lower(loop, name, _policy(loop), fixed, columns=columns)
            self.requests[name] = Request(verify_kernel(lowered.kernel), (lowered.kernel.threads_max, 1, 1), options=OWN)
            known = self._fused[key] = _Fused(name, lowered, _kinds(lowered))
        return known

    def _library(self, made: Made) -> str:
        name = made.kernel.name
        if name not in self.requests:
            self.requests[name] = Request(verify_kernel(made.kernel), (made.threads, 1, 1), options=OWN)
        return name

    def has(self, instr: BoundInstr) -> bool:
        """Coarse instructions are always taken apart: their parts fuse."""
        return False

    def single(self, instr: BoundInstr, new_temp: Callable[[int], int]) -> list[Call | Fallback]:
        """One unfused instruction: launches of the library, or itself for the reference."""
        if instr.op.kind is not Kind.INDEX and not any(out.numel for out in instr.outs):
            return []  # writes nothing (an index would still trap)
        lowering = library.LOWER.get(instr.op.name)
        if lowering is None:
            return [Fallback.of(instr)]
        build = Build(new_temp, self._library, self._facts)
        try:
            lowering(build, instr)
        except Inexpressible:
            return [Fallback.of(instr)]
        return list(build.calls)


def _kept(formed: FormedLoop) -> int:
    """How many elements a kernel in columns keeps."""
    at, loop = formed.kernel.layout, formed.kernel
    total = 1
    for slot in (at.inner_size, *range(at.outer_sizes, at.outer_sizes + loop.n_outer)):
        size = formed.args[slot]
        assert isinstance(size, int)
        total *= size
    return total


def _argument(what: What, given: int | Access | Scalar) -> Arg:
    if isinstance(given, Access):
        return Buf(given.buffer) if what is What.BUFFER else given.offset
    return given


def _kinds(lowered: Lowered) -> tuple[RegType | None, ...]:
    return tuple(RegType(p.reg_type) if isinstance(p, ScalarParam) else None for p in lowered.kernel.params)


def _policy(loop: LoopKernel) -> Math:
    """STRICT where every function of the kernel has a strict form."""
    named = [node for node in loop.nodes if node.op in NAMED]
    return Math.STRICT if all(strict_form(node.op, held(node.dtype)) is not None for node in named) else Math.NATIVE
