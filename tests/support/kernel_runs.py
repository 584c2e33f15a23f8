"""Running generated kernels on kernel devices, and saying how two runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from jit.kernels.launch import CHECKED, KernelLaunch, KernelOptions, KernelOutcome
from tests.support.kernel_devices import KernelDevice
from tests.support.wis_kernels import Bytes, Case
from wis.kernel.verify import VerifiedKernel

__all__ = ["Run", "differences", "run_case"]


@dataclass(frozen=True, slots=True)
class Run:
    """What a launch left behind: all buffers' bytes, and its outcome (of several pieces: the sum, the least trap)."""

    buffers: tuple[Bytes, ...]
    outcome: KernelOutcome


def run_case(
    device: KernelDevice,
    verified: VerifiedKernel,
    case: Case,
    cuts: Sequence[int] | None = None,
    fuel: int | None = None,
    options: KernelOptions = CHECKED,
) -> Run:
    """Run the whole grid, or the pieces between ``cuts`` (block numbers, the first 0, the last the grid's) one after the other."""
    params = [p.copy() if isinstance(p, np.ndarray) else p for p in case.params]
    prepared = device.prepare(verified, case.block, case.dynamic_bytes, options)
    pieces = [(0, None)] if cuts is None else [(a, b - a) for a, b in pairwise(cuts)]
    outcomes = []
    for first, count in pieces:
        launch = KernelLaunch(case.grid, case.block, case.dynamic_bytes, first, count, fuel)
        outcomes.append(device.run(prepared, launch, params))
    traps = [o.trap for o in outcomes if o.trap is not None]
    trap = min(traps, key=lambda t: (t.cta, t.thread, t.site, t.kind)) if traps else None
    outcome = KernelOutcome(sum(o.instructions for o in outcomes), any(o.out_of_fuel for o in outcomes), trap)
    return Run(tuple(p for p in params if isinstance(p, np.ndarray)), outcome)


def differences(want: Run, got: Run) -> list[str]:
    """How ``got`` is not what it should be; nothing when it is."""
    found = []
    if want.outcome != got.outcome:
        found.append(f"{got.outcome} instead of {want.outcome}")
    if not want.outcome.out_of_fuel:
        for number, (a, b) in enumerate(zip(want.buffers, got.buffers, strict=True)):
            wrong = np.flatnonzero(a != b)
            if len(wrong):
                at = int(wrong[0])
                found.append(
                    f"buffer {number}: {len(wrong)} bytes, at {at}: {b[at : at + 8].tolist()} instead of {a[at : at + 8].tolist()}"
                )
    return found
