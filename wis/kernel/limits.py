"""How large a kernel may be. May live here: bounds. May not: checking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["KernelLimits", "KERNEL_LIMITS"]


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
    findings_max: int = 100


KERNEL_LIMITS: Final = KernelLimits()
