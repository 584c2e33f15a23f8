"""Resolves launch instructions: the kernel, its grid, its regions and numbers. Every engine starts from this. ``run_call`` is the semantics
of a launch, by the definition of the kernel tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Final

from wis.errors import LaunchError
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import ADDRESS_SHIFT, Access, BufferParam, RegType
from wis.program import BoundInstr, BoundProgram, BufferKind, Operand, Scalar
from wis.reference.access import Array, Buffers, Number, immediate
from wis.verify.launches import SCALAR_TYPES

if TYPE_CHECKING:
    from wis.kernel.interpret import Outcome
    from wis.kernel.verify import VerifiedKernel  # a program without launches does without it

__all__ = ["KernelCall", "addresses", "kernel_call", "launch_params", "run_call"]

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One launch.

    ``params``: for every parameter of the kernel the region (u8, stride 1, ``offset`` and ``shape[0]`` in bytes) or the number.
    """

    kernel: VerifiedKernel
    grid: Dim3
    block: Dim3
    dynamic_bytes: int
    params: tuple[Operand | int | float, ...]


_TEMP_BASE: Final = 1 << 59  # below the bases of shared and local memory, above all of a session's buffers


def addresses(bound: BoundProgram, keys: Sequence[int]) -> list[int]:
    """For every buffer of a program, where pointers that lost their buffer find it.

    A session's by its handle (``keys``, in order of EXTERNAL
    and CREATED buffers); a TEMP has no handle and lies by itself.
    """
    given = iter(keys)
    return [
        _TEMP_BASE + (number << 40) if kind == BufferKind.TEMP else next(given) << ADDRESS_SHIFT
        for number, kind in enumerate(bound.program.buffers)
    ]


def kernel_call(instr: BoundInstr, kernels: Sequence[VerifiedKernel], scalars: Sequence[Number]) -> KernelCall:
    """The launch that ``instr`` of a verified program means under ``scalars``. Raises LaunchError for a grid beyond the limits."""
    verified = kernels[instr.attrs[0]]
    grid = tuple(int(_number(scalars, x)) for x in instr.ins[:3] if isinstance(x, Scalar))
    if min(grid) < 1 or prod(grid) > KERNEL_LIMITS.grid_blocks_max:
        raise LaunchError(f"{verified.kernel.name}: a grid of {' x '.join(map(str, grid))} blocks, accepted is 1 to "
                          f"{KERNEL_LIMITS.grid_blocks_max} in all")  # fmt: skip
    params = [_number(scalars, x) if isinstance(x, Scalar) else x for x in launch_params(instr, verified)]
    return KernelCall(verified, (grid[0], grid[1], grid[2]), instr.attrs[1:4], instr.attrs[4], tuple(params))  # type: ignore[arg-type]  # three


def launch_params(instr: BoundInstr, verified: VerifiedKernel) -> list[Operand | Scalar]:
    """What a launch gives for every parameter of its kernel, in order."""
    outs, rest = iter(instr.outs), iter(instr.ins[3:])
    return [next(outs) if isinstance(p, BufferParam) and p.access & Access.WRITE else next(rest) for p in verified.kernel.params]


def _number(scalars: Sequence[Number], x: Scalar) -> int | float:
    value = immediate(scalars[x.slot], x.dtype)
    number: int | float = value.item() if value.dtype.kind in "iufb" else float(value)
    return int(number) if isinstance(number, bool) else number


def run_call(call: KernelCall, buffers: Buffers, fuel: int | None = None, addresses: Sequence[int] | None = None) -> Outcome:
    """One launch on the program's buffers."""
    from wis.kernel import interpret  # which imports modules that import this one

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


assert set(SCALAR_TYPES) == set(RegType)
