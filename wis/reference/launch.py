"""Semantics of launches, by the definition of the kernel tier."""

from __future__ import annotations

from collections.abc import Sequence

from wis.kernel import interpret
from wis.kernel.traps import describe_trap
from wis.launches import KernelCall, kernel_call
from wis.program import Operand
from wis.reference.access import Array, Buffers

__all__ = ["describe_trap", "kernel_call", "run_call"]


def run_call(call: KernelCall, buffers: Buffers, fuel: int | None = None, addresses: Sequence[int] | None = None) -> interpret.Outcome:
    """One launch on the program's buffers."""
    params: list[Array | int | float] = []
    places: list[int] = []
    for x in call.params:
        if isinstance(x, Operand):
            whole = buffers[x.buffer]
            assert whole is not None, "buffers of operands exist"
            params.append(whole[x.offset : x.offset + x.shape[0]] if x.shape[0] else whole[:0])
            start = x.buffer + 1 << 40 if addresses is None else addresses[x.buffer]
            places.append(start + x.offset if x.shape[0] else 0)  # an empty region is a null pointer
        else:
            params.append(x)
            places.append(0)
    return interpret.launch(call.kernel, interpret.Launch(call.grid, call.block, dynamic_bytes=call.dynamic_bytes), params, fuel, places)
