"""The edge: what is not a batch is refused with every place; the content digest names what runs, not who runs it."""

from __future__ import annotations

import tracemalloc
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.batch import LIMITS, Batch, Limits, Read, Upload, encode_batch, pack_message
from services.server.intake import Bad, content_digest, read_batch

GOOD = Batch("s", 1, 1, program=bytes(32), dims=bytes(32), scalars=(1, 2.5, (0.0, 1.0)), handles=b"h")


def refused(batch: Batch, limits: Limits = LIMITS) -> tuple[str, list[str]]:
    with pytest.raises(Bad) as caught:
        read_batch(encode_batch(batch), "s", limits)
    return caught.value.fault.name, [place.split(":")[0] for place in caught.value.fault.places]


def test_a_good_batch_passes() -> None:
    data = encode_batch(GOOD)
    assert read_batch(data, "s") == (GOOD, data)


def test_a_deflated_batch_passes_and_a_bomb_does_not() -> None:
    data = encode_batch(msgspec.structs.replace(GOOD, scalars=(0.001,) * 500))
    message = pack_message(data)
    assert len(message) < len(data) // 10
    assert read_batch(message, "s")[1] == data
    with pytest.raises(Bad, match="refused") as caught:
        read_batch(zlib.compress(bytes(LIMITS.batch_bytes_max + 1)), "s")
    assert "inflates to more than" in caught.value.fault.places[0]
    with pytest.raises(Bad):
        read_batch(message[:-1], "s")


def test_an_answer_stays_small_however_much_it_could_quote() -> None:
    with pytest.raises(Bad) as caught:
        read_batch(encode_batch(Batch("x" * 100_000, 1, 1)), "s")
    assert sum(len(place) for place in caught.value.fault.places) < 1000


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_refused(data: bytes) -> None:
    try:
        read_batch(data, "s")
    except Bad as bad:
        assert bad.fault.places


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_damaged_batch_is_a_batch_or_refused(at: int, value: int) -> None:
    data = bytearray(encode_batch(GOOD))
    data[at % len(data)] = value
    try:
        read_batch(bytes(data), "s")
    except Bad as bad:
        assert bad.fault.places


def test_contradictions() -> None:
    change = msgspec.structs.replace
    assert refused(change(GOOD, session="t")) == ("MalformedBatch", ["session @ batch"])
    assert refused(change(GOOD, seq=0)) == ("MalformedBatch", ["seq @ batch"])
    assert refused(change(GOOD, dims=b"")) == ("MalformedBatch", ["digest @ dims"])
    assert refused(Batch("s", 1, 1, dims_body=b"x")) == ("MalformedBatch", ["body @ program"])


def test_excesses() -> None:
    few = Limits(scalars_max=1, reads_max=1, inline_bytes_max=4)
    batch = Batch("s", 1, 1, scalars=(1, 2), reads=(Read(0, 1, 0, 1),) * 2, uploads=(Upload(1, 5, b"12345"),))
    assert refused(batch, few) == ("OversizedBatch", ["count @ scalars", "count @ reads", "inline @ upload 0"])


NOTHING = {"uploads": Upload(1, 0), "frees": 0, "scalars": 0.5, "kernels": b"", "allocs": (1, 0), "reads": Read(0, 1, 0, 0)}


@pytest.mark.parametrize("field", NOTHING)
def test_a_bomb_of_many_things_is_counted_and_not_made(field: str) -> None:
    """A message of a few KB holds millions of them: to make them would keep the node from everybody else for seconds."""
    count = 800_000
    message = zlib.compress(encode_batch(msgspec.structs.replace(GOOD, **{field: (NOTHING[field],) * count})), 9)
    tracemalloc.start()
    try:
        with pytest.raises(Bad) as caught:
            read_batch(message, "s")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.fault.name == "OversizedBatch"
    assert [place.split(",")[0] for place in caught.value.fault.places] == [f"count @ {field}: {count}"]
    assert peak_bytes < 3 * LIMITS.batch_bytes_max, "the message inflated, and little beside it"


def test_a_large_batch_within_its_limits_passes() -> None:
    large = msgspec.structs.replace(GOOD, frees=tuple(range(LIMITS.buffers_max)), reads=(Read(0, 1, 0, 1),) * LIMITS.reads_max)
    data = encode_batch(large)
    assert read_batch(data, "s") == (large, data)


def test_a_large_message_that_is_no_batch_is_refused() -> None:
    for data in (
        b"\x81" * 100_000,
        encode_batch(msgspec.structs.replace(GOOD, frees=(0,) * 90_000))[:-1],
        b"\xdd\xff\xff\xff\xff" * 50_000,
    ):
        with pytest.raises(Bad) as caught:
            read_batch(data, "s")
        assert caught.value.fault.name in ("MalformedBatch", "OversizedBatch")


def test_the_content_digest_ignores_names_and_sees_what_runs() -> None:
    change = msgspec.structs.replace
    same = change(GOOD, session="t", epoch=9, seq=4, handles=b"other", program_body=b"body", frees=(1,))
    assert content_digest(same) == content_digest(GOOD)
    for other in (change(GOOD, program=b"\1" * 32), change(GOOD, dims=b"\1" * 32), change(GOOD, scalars=(1, 2.5, (0.0, 1.5)))):
        assert content_digest(other) != content_digest(GOOD)
