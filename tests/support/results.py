"""Comparison of what two runs of one script saved with ``torch.save``: tensors by tolerance, everything else by equality."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

__all__ = ["TOLERANCE", "leaves", "compare"]

TOLERANCE: Final = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 4e-2, torch.float16: 4e-3}
"""Relative and absolute tolerance by the type in which a value was computed; types that are not listed must be equal."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor or plain value in ``value``, with its place."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}[{i}]")
    else:
        yield path, value


def compare(have: Any, want: Any, *, exact: bool, computed_in: torch.dtype | None = None, tolerance: float | None = None) -> None:
    """Raise AssertionError, with the place, where ``have`` differs from ``want``.

    ``computed_in``: the type in which the script computes where its results are of a wider one (autocast). ``tolerance``: instead of the
    table's, for floating-point values. Python floats are compared like float32 unless ``exact``.
    """
    found, expected = dict(leaves(have)), dict(leaves(want))
    assert found.keys() == expected.keys(), f"other keys: {sorted(found.keys() ^ expected.keys())[:5]}"
    for path, b in expected.items():
        a = found[path]
        if not isinstance(b, torch.Tensor):
            if not exact and type(a) is type(b) is float:
                allowed = TOLERANCE[torch.float32] if tolerance is None else tolerance
                assert a == b or abs(a - b) <= allowed * (1 + abs(b)) or (a != a and b != b), f"{path}: {a!r}, not {b!r}"
            else:
                assert a == b, f"{path}: {a!r}, not {b!r}"
            continue
        assert a.device.type == "cpu" and a.dtype == b.dtype and a.shape == b.shape, f"{path}: {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
        within = 0.0 if exact else TOLERANCE.get(computed_in if computed_in and b.dtype.is_floating_point else b.dtype, 0.0)
        if tolerance is not None and not exact and (b.dtype.is_floating_point or b.dtype.is_complex):
            within = tolerance
        elif not exact and b.dtype.is_complex:
            within = TOLERANCE[torch.float64 if b.dtype == torch.complex128 else torch.float32]
        torch.testing.assert_close(a, b, rtol=within, atol=within, equal_nan=True, msg=lambda text, path=path: f"{path}: {text}")
