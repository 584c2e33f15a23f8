"""Powers and roots in f32. May live here: functions of the family x**y. May not: tables."""

from __future__ import annotations

from wis.kernel.strict.trace import Value

__all__ = ["rsqrt"]


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x), two roundings; rsqrt(+-0) = +-inf."""
    return 1.0 / x.sqrt()
