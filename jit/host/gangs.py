"""Fused groups of the host back end through the kernel tier: verified kernels for gangs, compiled by ``jit.host.simt``."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np
from blake3 import blake3

from jit.errors import Inexpressible, KernelRefused
from jit.host.calls import Call, Lowering, title
from jit.host.record import SCRATCH_BYTES
from jit.host.simt.function import ARGS_FIXED, ARGS_PARAM, kernel_text
from jit.host.toolchain import Toolchain, c_function
from jit.kernels.gangs import GangKernel, lower_gangs
from jit.kernels.launch import Dim3, KernelOptions
from jit.kernels.loop import Form, LoopKernel
from jit.kernels.lower import LANES, What
from jit.plan.access import Access
from jit.plan.calls import ArgBlock
from jit.plan.form import FormedLoop, form
from jit.plan.group import Group
from wis.dtypes import DType
from wis.errors import VerifyError
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import BufferParam
from wis.kernel.verify import verify_kernel
from wis.program import Scalar

__all__ = ["GangLowering", "variant"]

_OWN: Final = KernelOptions(check=False, meter=False, fuel=False, clear=False)
"""Indices are inside by construction, programs are counted before they run, and shared memory is written before it is read."""
_LIMITS: Final = replace(KERNEL_LIMITS, shared_bytes_max=1 << 20)
"""Shared memory is the scratch of a thread here."""
_LIGHT: Final = ("sroa", "instruction_combine", "simplify_cfg")
"""Passes for kernels of long loops, which are written as they should run: more make them slower, and take twice as long. Short rows are the
exception: what is the same for all of them has to leave the loop over blocks."""
_ROOM_MIN: Final = 256


class GangLowering(Lowering):
    """Makes calls. Groups that the kernel tier cannot express, or that are too large for it, take the other lowering."""

    def __init__(self, toolchain: Toolchain) -> None:
        super().__init__(toolchain)
        self._gangs: dict[tuple[LoopKernel, int, bool], tuple[GangKernel, int, int]] = {}

    def group(self, group: Group) -> Call:
        made = form(group)
        try:
            kernel, address, scratch_bytes = self._compiled(made)
        except (Inexpressible, VerifyError, KernelRefused):
            return super().group(group)
        grid = kernel.grid(made.args)
        units = prod(grid)
        return Call(
            _arg_block(kernel, made, grid), tuple(group.loads), tuple(group.stores), address=address, units=units,
            grain=made.units * made.grain / max(1, units), max_chunks=0, scratch_bytes=max(SCRATCH_BYTES, scratch_bytes), name=title(made),
        )  # fmt: skip

    def _compiled(self, made: FormedLoop) -> tuple[GangKernel, int, int]:
        """The kernel, its address and the bytes of scratch that a thread needs."""
        room, short = variant(made)
        key = made.kernel, room, short
        if key not in self._gangs:
            kernel = lower_gangs(made.kernel, "group", room=room, short=short)
            verified = verify_kernel(kernel.kernel, _LIMITS)
            seal = f"{self._seal}\n{verified.digest.hex()}"
            symbol = f"gang_{blake3(seal.encode()).hexdigest(16)}"
            found = self._toolchain.functions(
                seal,
                (symbol, f"{symbol}_scratch"),
                lambda: kernel_text(verified, symbol, (LANES, 1, 1), 0, _OWN),
                optimise=True,
                passes=() if short or made.kernel.form is Form.COLS else _LIGHT,
            )
            self._gangs[key] = kernel, found[symbol], c_function(found[f"{symbol}_scratch"], ctypes.c_int64)()
        return self._gangs[key]


def variant(made: FormedLoop) -> tuple[int, bool]:
    """Elements of a row for which values are kept (a power of two; 0: none are), and whether rows have fewer elements than lanes."""
    loop, at = made.kernel, made.kernel.layout
    inner, *mid = (made.args[slot] for slot in (at.inner_size, *range(at.mid_sizes, at.mid_sizes + loop.n_mid)))
    row = prod(size for size in (inner, *mid) if isinstance(size, int))
    short = loop.form is Form.ROWS and not mid and row < LANES
    return max(_ROOM_MIN, 1 << (row - 1).bit_length()) if loop.keep else 0, short


def _arg_block(kernel: GangKernel, made: FormedLoop, grid: Dim3) -> ArgBlock:
    """The words of a launch as ``jit.host.simt.function`` reads them; the state is not used."""
    params = kernel.kernel.params
    words = np.zeros(ARGS_FIXED + ARGS_PARAM * len(params), np.int64)
    words[1:ARGS_FIXED] = grid
    pointers: list[tuple[int, int, int]] = []
    scalars: list[tuple[DType, int, int]] = []
    for at, (param, (what, slot)) in enumerate(zip(params, kernel.arguments, strict=True)):
        word, given = ARGS_FIXED + ARGS_PARAM * at, made.args[slot]
        if isinstance(param, BufferParam):
            assert isinstance(given, Access)
            pointers.append((word, given.buffer, 0))
        elif isinstance(given, Access):
            assert what is What.OFFSET
            words[word] = given.offset
        elif isinstance(given, Scalar):
            scalars.append((given.dtype, word, given.slot))
        else:
            words[word] = given
    return ArgBlock(words, np.array(pointers, np.int64).reshape(-1, 3), (), tuple(scalars))
