"""Kernels in the definition (wis.kernel.interpret), behind the protocol that all devices have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from jit.errors import KernelRefused
from jit.kernels.device import CHECKED, Bytes, Dim3, KernelLaunch, KernelOptions, KernelOutcome, PreparedKernel
from wis.kernel import interpret
from wis.kernel.verify import VerifiedKernel

__all__ = ["ReferenceKernels"]


@dataclass(frozen=True, slots=True)
class _Prepared:
    verified: VerifiedKernel


class ReferenceKernels:
    """A KernelDevice that compiles nothing: every run checks, counts and takes fuel, whatever the options say."""

    def prepare(self, verified: VerifiedKernel, block: Dim3, dynamic_bytes: int = 0, options: KernelOptions = CHECKED) -> PreparedKernel:
        if min(block) < 1 or prod(block) > verified.kernel.threads_max:
            raise KernelRefused(f"blocks of {block[0]} x {block[1]} x {block[2]} threads, accepted are 1 to {verified.kernel.threads_max}")
        if dynamic_bytes and not verified.kernel.dynamic:
            raise KernelRefused(f"{dynamic_bytes} dynamic bytes of shared memory for a kernel that takes none")
        return _Prepared(verified)

    def run(
        self, prepared: PreparedKernel, launch: KernelLaunch, params: Sequence[Bytes | int | float], addresses: Sequence[int] | None = None
    ) -> KernelOutcome:
        where = interpret.Launch(launch.grid, launch.block, launch.first, launch.count, launch.dynamic_bytes)
        try:
            outcome = interpret.launch(prepared.verified, where, params, launch.fuel, addresses)
        except ValueError as error:
            raise KernelRefused(str(error)) from None
        return KernelOutcome(outcome.instructions, outcome.out_of_fuel, outcome.trap)

    def close(self) -> None:
        pass
