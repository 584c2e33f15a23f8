"""Frames between server and executor: cut out of the stream whole, wherever it is broken; every message comes back equal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.frames import Frames, frame
from services.server.protocol import Confirm, Execute, decode_command


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_frames_survive_any_fragmentation(batches: list[bytes], cuts: list[int]) -> None:
    sent = [Execute("s", seq, b"chain", batch) for seq, batch in enumerate(batches)]
    stream = b"".join(frame(command) for command in sent)
    frames = Frames()
    got = []
    at = 0
    turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        got += [decode_command(body) for body in frames.feed(stream[at : at + size])]
        at, turn = at + size, turn + 1
    assert got == sent


def test_messages_keep_their_kind() -> None:
    (body,) = Frames().feed(frame(Confirm(7)))
    assert decode_command(body) == Confirm(7)
