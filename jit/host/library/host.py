"""Vector properties of this machine's CPU."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

__all__ = ["vector_bytes", "vector_registers"]


@cache
def _features() -> frozenset[str]:
    return frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)


def vector_bytes() -> int:
    """Size of the widest vector register that is as fast as its width promises."""
    if "avx512f" in _features():
        return 64
    return 32 if "avx2" in _features() else 16


def vector_registers() -> int:
    """How many of them there are."""
    return 32 if "avx512f" in _features() or "neon" in _features() else 16
