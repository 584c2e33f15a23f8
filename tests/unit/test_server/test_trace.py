"""Trace context as clients send it: taken when well-formed and sampled, ignored otherwise."""

from __future__ import annotations

import pytest

from wooly.shared.trace import parse_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_sampled_parent() -> None:
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-01") == (int(TRACE, 16), int(SPAN, 16))


@pytest.mark.parametrize(
    "text",
    [
        "", "-", "---", f"00-{TRACE}-{SPAN}-00", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{'-' + TRACE[1:]}-{SPAN}-01",
        f"00-+{TRACE[1:]}-{SPAN}-01", f"00-{TRACE[:15]}_{TRACE[16:]}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more",
    ],
)  # fmt: skip
def test_anything_else_is_no_parent(text: str) -> None:
    assert parse_traceparent(text) is None
