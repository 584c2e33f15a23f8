"""Running one kernel on the definition and on the host back end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from jit.kernels.launch import Dim3, KernelLaunch, KernelOutcome
from tests.support.kernel_devices import HostKernels, KernelDevice, ReferenceKernels
from wis.kernel.text import parse_kernel
from wis.kernel.verify import VerifiedKernel, verify_kernel

__all__ = ["agree", "host", "kernel"]


@cache
def host() -> HostKernels:
    return HostKernels(None, 2)


def kernel(text: str) -> VerifiedKernel:
    return verify_kernel(parse_kernel(text))


def agree(
    verified: VerifiedKernel, grid: Dim3, block: Dim3, params: Sequence[Any], fuel: int | None = None, device: KernelDevice | None = None
) -> KernelOutcome:
    """Both give the same memory, count and trap; returns what they gave. ``params`` hold the results afterwards. ``device``: instead of
    the host back end."""
    reference = ReferenceKernels()
    device = host() if device is None else device
    launch = KernelLaunch(grid, block, fuel=fuel)
    copies = [p.copy() if isinstance(p, np.ndarray) else p for p in params]
    want = reference.run(reference.prepare(verified, block), launch, copies)
    got = device.run(device.prepare(verified, block), launch, params)
    assert got.out_of_fuel == want.out_of_fuel
    if not want.out_of_fuel:
        assert got == want
        for mine, theirs in zip(params, copies, strict=True):
            if isinstance(mine, np.ndarray):
                np.testing.assert_array_equal(mine, theirs)
    return got
