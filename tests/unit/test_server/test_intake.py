"""The edge: what is not a batch is refused with every place; the content digest names what runs, not who runs it."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.batch import LIMITS, Batch, Limits, Read, Upload, encode_batch, pack_message
from services.server.intake import NAMED_BODY_BYTES_MAX, Bad, content_digest, cost_of, read_batch, small_body

GOOD = Batch("s", 1, 1, program=bytes(32), dims=bytes(32), scalars=(1, 2.5, (0.0, 1.0)), handles=b"h")


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


def claims(bad: Bad) -> Batch:
    """What a refused batch says of its place and its buffers; it must not be fatal."""
    assert bad.batch is not None and not bad.fault.fatal
    return bad.batch


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"program": b"p" * 31}, "digest @ program: 31 bytes, a digest has 32"),
        ({"dims": b"d" * 33}, "digest @ dims: 33 bytes, a digest has 32"),
        ({"dims": b""}, "digest @ dims: program and dims go together"),
        ({"program": b"", "dims": b"", "dims_body": b"x"}, "body @ program: a body without a digest"),
        ({"program": b"", "dims": b"", "program_body": b"x"}, "body @ program: a body without a digest"),
        ({"program": b"", "dims": b"", "dims_delta": (b"x", b"y", b"z")}, "body @ program: a body without a digest"),
        (
            {"uploads": (Upload(7, 4, b"1234"), Upload(8, 9, b"", (b"c" * 32, b"c" * 31)))},
            "digest @ upload 1: a chunk's digest has 32 bytes",
        ),
    ],
)
def test_contradictions(changes: dict[str, Any], place: str) -> None:
    batch = msgspec.structs.replace(GOOD, **changes)
    with pytest.raises(Bad) as caught:
        read_batch(encode_batch(batch), "s")
    fault = caught.value.fault
    assert (fault.name, fault.places) == ("MalformedBatch", (place,))
    assert fault.message == "the batch was refused as a whole, nothing of it was done"
    claimed = claims(caught.value)
    assert (claimed.session, claimed.epoch, claimed.seq, claimed.program) == ("s", 1, 1, batch.program)
    assert claimed.allocs == tuple((upload.handle, upload.nbytes) for upload in batch.uploads)


def test_a_batch_for_another_session_or_without_a_place_in_it_is_fatal() -> None:
    for changes, place in (
        ({"session": "t"}, "session @ batch: it names session 't' and came on the subject of 's'"),
        ({"seq": 0}, "seq @ batch: 0 is not a positive sequence number"),
        ({"seq": 1 << 62}, f"seq @ batch: {1 << 62} is not a positive sequence number"),
    ):
        with pytest.raises(Bad) as caught:
            read_batch(encode_batch(msgspec.structs.replace(GOOD, **changes)), "s")
        assert (caught.value.fault.places, caught.value.fault.fatal, caught.value.batch) == ((place,), True, None)
    for seq in (1, (1 << 62) - 1):
        batch = msgspec.structs.replace(GOOD, seq=seq)
        assert read_batch(encode_batch(batch), "s")[0] == batch
        with pytest.raises(Bad) as caught:
            read_batch(encode_batch(msgspec.structs.replace(batch, dims=b"")), "s")
        assert claims(caught.value).seq == seq


def test_what_a_refused_batch_says_of_its_buffers_is_known() -> None:
    """Its results are refused one by one, and what it frees is freed; nothing else of it counts."""
    uploads = (Upload(3, 4, b"1234"), Upload(4, 2, b"12"))
    batch = msgspec.structs.replace(
        GOOD, program_body=b"body", allocs=((1, 8), (2, 16)), uploads=uploads, frees=(5, 6), reads=(Read(1, 1, 0, 1),), dims=b""
    )
    with pytest.raises(Bad) as caught:
        read_batch(encode_batch(batch), "s")
    assert claims(caught.value) == Batch(
        "s", 1, 1, program=bytes(32), program_body=b"body", handles=b"h", allocs=((1, 8), (2, 16), (3, 4), (4, 2)), frees=(5, 6)
    )


@pytest.mark.parametrize("count", [0, 1, 15, 16, 40_000])
def test_as_many_as_the_limit_are_accepted_and_claimed_and_one_more_is_not(count: int) -> None:
    limits = Limits(buffers_max=count)
    for field in ("frees", "allocs"):
        things = tuple(range(count)) if field == "frees" else tuple((i, 1) for i in range(count))
        batch = msgspec.structs.replace(GOOD, **{field: things})
        assert read_batch(encode_batch(batch), "s", limits)[0] == batch
        with pytest.raises(Bad) as caught:
            read_batch(encode_batch(msgspec.structs.replace(batch, dims=b"")), "s", limits)
        assert getattr(claims(caught.value), field) == things
        more = msgspec.structs.replace(batch, **{field: (*things, things[0] if things else (7 if field == "frees" else (7, 1)))})
        with pytest.raises(Bad) as caught:
            read_batch(encode_batch(more), "s", limits)
        assert caught.value.fault.places == (f"count @ {field}: {count + 1}, at most {count} are accepted",)
        assert getattr(claims(caught.value), field) == ()


def test_a_field_that_cannot_be_read_leaves_the_others_known() -> None:
    fields = msgspec.msgpack.decode(encode_batch(msgspec.structs.replace(GOOD, allocs=((1, 8),), frees=(5,))))
    names = [None, *(field.name for field in msgspec.structs.fields(Batch))]  # the tag comes first
    for name in ("program", "program_body", "handles", "allocs", "uploads", "frees"):
        spoiled = list(fields)
        spoiled[names.index(name)] = 1.5
        with pytest.raises(Bad) as caught:
            read_batch(msgspec.msgpack.encode(spoiled), "s")
        claimed = claims(caught.value)
        assert claimed.frees == (() if name == "frees" else (5,))
        assert claimed.allocs == (() if name == "allocs" else ((1, 8),))
        assert claimed.handles == (b"" if name == "handles" else b"h")
    for name in ("session", "epoch", "seq"):
        spoiled = list(fields)
        spoiled[names.index(name)] = 1.5
        with pytest.raises(Bad) as caught:
            read_batch(msgspec.msgpack.encode(spoiled), "s")
        assert caught.value.fault.fatal and caught.value.batch is None


def test_a_message_above_the_limit_is_not_looked_at() -> None:
    data = encode_batch(GOOD)
    assert read_batch(data, "s", Limits(batch_bytes_max=len(data)))[0] == GOOD
    with pytest.raises(Bad) as caught:
        read_batch(data, "s", Limits(batch_bytes_max=len(data) - 1))
    assert caught.value.fault.places == (f"bytes @ batch: {len(data)} bytes, at most {len(data) - 1} are accepted",)
    assert (caught.value.fault.name, caught.value.fault.fatal) == ("OversizedBatch", True)


def test_places_are_cut_where_they_would_be_too_long_or_too_many() -> None:
    def place(length: int) -> str:
        with pytest.raises(Bad) as caught:
            read_batch(encode_batch(Batch("x" * length, 1, 1)), "s")
        return caught.value.fault.places[0]

    whole = place(10)
    room = 300 - len(whole)
    assert place(10 + room) == whole.replace("x" * 10, "x" * (10 + room)) and len(place(10 + room)) == 300
    assert place(11 + room) == whole.replace("x" * 10, "x" * (11 + room))[:300] + "..."
    many = msgspec.structs.replace(GOOD, uploads=tuple(Upload(i, 1, b"", (b"c",)) for i in range(30)))
    with pytest.raises(Bad) as caught:
        read_batch(encode_batch(many), "s")
    assert [text.split(":")[0] for text in caught.value.fault.places] == [f"digest @ upload {i}" for i in range(20)]


def test_excesses() -> None:
    few = Limits(scalars_max=1, reads_max=1, inline_bytes_max=4)
    batch = Batch("s", 1, 1, scalars=(1, 2), reads=(Read(0, 1, 0, 1),) * 2, uploads=(Upload(0, 4, b"1234"), Upload(1, 5, b"12345")))
    batch = msgspec.structs.replace(batch, origin="a" * 201)
    with pytest.raises(Bad) as caught:
        read_batch(encode_batch(batch), "s", few)
    assert caught.value.fault.name == "OversizedBatch"
    assert caught.value.fault.places == (
        "count @ scalars: 2, at most 1 are accepted",
        "count @ reads: 2, at most 1 are accepted",
        "inline @ upload 1: 5 bytes, above 4 use the data port",
        "text @ origin: 201 characters, at most 200 are accepted",
    )
    assert claims(caught.value).allocs == ((0, 4), (1, 5))


NOTHING = {"uploads": Upload(1, 0), "frees": 0, "scalars": 0.5, "kernels": b"", "allocs": (1, 0), "reads": Read(0, 1, 0, 0)}


@pytest.mark.parametrize("field", NOTHING)
def test_a_bomb_of_many_things_is_counted_and_not_made(field: str) -> None:
    """A message of a few KB holds millions of them: to make them would keep the node from other sessions for seconds."""
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


def test_the_chunks_of_an_upload_are_counted_before_they_are_made() -> None:
    """Eight kilobytes on the bus that would become millions of objects; the handle that the upload would make is known all the same."""
    body = encode_batch(Batch("s", 1, 1, uploads=(Upload(7, 4, b"", (b"c" * 32,)), Upload(8, 9, b"", (b"",) * 4_000_000))))
    message = zlib.compress(body)
    tracemalloc.start()
    try:
        with pytest.raises(Bad) as caught:
            read_batch(message, "s")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.fault.places == ("digest @ upload 1: a chunk's digest has 32 bytes",)
    assert claims(caught.value).allocs == ((7, 4), (8, 9))
    assert peak < 4 * len(body), f"{peak} bytes: the body twice, and no object for each chunk"


def test_a_small_batch_is_read_at_once_and_others_are_not_inflated_for_it() -> None:
    small, large = (encode_batch(msgspec.structs.replace(GOOD, scalars=(0.001,) * count)) for count in (500, 10_000))
    assert small_body(small) == small and small_body(pack_message(small)) == small
    assert len(large) > 64 << 10 and small_body(large) is None and small_body(pack_message(large)) is None
    for damaged in (pack_message(small)[:-1], b"\x78garbage"):
        assert small_body(damaged) is None, "what is wrong with it is found where there is time"


def test_the_cost_of_a_batch_is_its_bytes_and_its_elements() -> None:
    assert cost_of(GOOD, 100) == 100 + 3 * 64
    assert cost_of(msgspec.structs.replace(GOOD, uploads=(Upload(1, 8, b"", (b"c" * 32,) * 10),)), 1000) == 1000 + 22 * 64
    named, large = (msgspec.structs.replace(GOOD, program_body=bytes(size)) for size in (NAMED_BODY_BYTES_MAX, NAMED_BODY_BYTES_MAX + 1))
    assert cost_of(named, 100) == cost_of(GOOD, 100) + 8 * NAMED_BODY_BYTES_MAX, "the node names its operations"
    assert cost_of(large, 100) == cost_of(GOOD, 100)
