"""Limits of a kernel: one frozen record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """Bounds on one kernel."""

    bytes_max: int = 4 << 20
    name_max: int = 200
    params_max: int = 256
    blocks_max: int = 4_096
    ops_max: int = 100_000
    regs_max: int = 65_536
    threads_max: int = 1_024
    shared_bytes_max: int = 48 << 10
    dynamic_shared_bytes_max: int = 96 << 10  # static and dynamic together
    local_bytes_max: int = 64 << 10
    constant_bytes_max: int = 64 << 10
    functions_max: int = 256
    targets_max: int = 1_024  # of one switch
    barriers_max: int = 16
    loop_depth_max: int = 64
    file_max: int = 1_000
    inlined_blocks_max: int = 8_192
    register_blocks_max: int = 1 << 27  # registers times blocks: what analyses keep a bit of
    inlined_ops_max: int = 200_000  # after calls became code; a trap site has 17 bits, counting only memory ops
    expanded_ops_max: int = 400_000  # after ops that are not core became others
    sites_max: int = 131_071
    grid_blocks_max: int = (1 << 31) - 1
    findings_max: int = 100


KERNEL_LIMITS: Final = KernelLimits()
