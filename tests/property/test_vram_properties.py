"""Rules of memory under arbitrary numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.vram import check_quota


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_a_quota_refusal_is_exactly_one_that_would_not_fit(quota: int, use: int, request: int, free: int) -> None:
    allowed = not check_quota(quota, use, request, free).reason
    assert allowed == ((quota == 0 or use + request <= quota) and request <= free)
