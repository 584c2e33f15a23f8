"""The decisions of a move: what the session ahead runs, when it is near enough, how much it may slow the script down."""

from __future__ import annotations

import pytest

from wooly.link import Flush
from wooly.transport.moving import digests_of, is_near, mirrored, pause_s


def test_what_would_wait_to_be_fetched_is_not_read_ahead() -> None:
    flush = Flush(handles=[1, 2], frees=[3], reads=[(1, 0, 8), (2, 0, 65), (1, 8, 64)])
    ahead = mirrored(flush, 64)
    assert (ahead.handles, ahead.frees, ahead.reads) == ([1, 2], [3], [(1, 0, 8), (1, 8, 64)])
    assert len(flush.reads) == 3, "the script's batch stays as it is"
    assert digests_of(flush, (b"a", None, b"c"), 64) == (b"a", b"c")


@pytest.mark.parametrize(
    ("behind", "batch_s", "near"), [(0, 9.0, True), (2, 9.0, True), (3, 9.0, False), (3, 0.03, True), (30, 0.003, True), (31, 0.01, False)]
)
def test_the_script_is_held_for_little_work_only(behind: int, batch_s: float, near: bool) -> None:
    assert is_near(behind, batch_s) is near


@pytest.mark.parametrize(("since_s", "pause"), [(-1.0, 0.0), (0.1, 0.1), (60.0, 0.25)])
def test_the_script_keeps_half_of_its_speed(since_s: float, pause: float) -> None:
    assert pause_s(since_s) == pause
