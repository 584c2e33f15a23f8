"""Bytes from clients, nodes and runners that are not what they should be, at every door that has a parser: only the errors that the door
names, answers of bounded size, and no more memory than the door allows. ``make fuzz`` tries more.
"""

from __future__ import annotations

import logging
import socket
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bus_schemas import batch as batches
from bus_schemas import dataport, events, journal, telemetry
from bus_schemas.batch import LIMITS, Batch, Done, Limits, encode_done
from bus_schemas.frames import HEAD, frame
from services.server.executor.content import Content
from services.server.executor.data_port import DataPort, listen
from services.server.executor.model_cache import CachePort, ModelCache
from services.server.executor.staging import Staging
from services.server.inflow import read
from services.server.intake import Bad, cost_of, read_batch, small_body
from services.server.model_cache_door import make_door, opens

MIB: Final = 1 << 20
DEEP: Final = b"\x91" * 50_000 + b"\x90"
"""An array in an array in an array ..., in 50 kB."""
MANY: Final = 100 if settings.get_current_profile_name() == "fuzz" else 1
"""Times as many examples in ``make fuzz``."""
FEW: Final = Limits(batch_bytes_max=MIB)

encode = msgspec.msgpack.encode
number = st.integers(-(1 << 63), (1 << 64) - 1)
leaf = st.none() | st.booleans() | number | st.floats() | st.text(max_size=40) | st.binary(max_size=80) | st.just(bytes(32))
tree = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=20
)


def array(kind: type[Any]) -> st.SearchStrategy[bytes]:
    """Messages of an array-like type: the right tag, then fields of which some are right, some are not, with more or fewer of them."""
    tag = kind.__struct_config__.tag
    count = len(msgspec.structs.fields(kind))
    some = st.just(0) | st.just("") | st.just(b"") | st.just([]) | tree
    return st.lists(some, min_size=max(0, count - 2), max_size=count + 2).map(lambda fields: encode([tag, *fields]))


def packed(found: list[bytes]) -> bytes:
    """A list of what is encoded already."""
    return encode([msgspec.Raw(data) for data in found])


def bent(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """The same with bytes changed, cut off, or with something behind, and nested deeply where a field may be."""
    changed = st.tuples(data, st.integers(0, 1 << 16), st.binary(min_size=1, max_size=4)).map(
        lambda found: found[0][: found[1] % (len(found[0]) + 1)] + found[2] + found[0][found[1] % (len(found[0]) + 1) + len(found[2]) :]
    )
    cut = st.tuples(data, st.integers(0, 1 << 16)).map(lambda found: found[0][: found[1] % (len(found[0]) + 1)])
    return data | changed | cut | st.binary(max_size=200) | cut.map(lambda prefix: prefix + DEEP)


# -- batches -----------------------------------------------------------------------------------------------------------------------------

fields = {
    "session": st.just("s") | st.text(max_size=5) | tree,
    "epoch": st.just(1) | number,
    "seq": st.just(1) | number,
    "program": st.sampled_from([b"", bytes(32), b"x"]),
    "dims": st.sampled_from([b"", bytes(32)]),
    "program_body": st.binary(max_size=20),
    "dims_body": st.binary(max_size=20),
    "dims_delta": st.none() | st.tuples(st.binary(max_size=40), st.binary(max_size=20), st.binary(max_size=20)) | tree,
    "scalars": st.lists(number | st.floats() | tree, max_size=6),
    "handles": st.binary(max_size=40) | st.lists(number, max_size=4).map(lambda found: zlib.compress(repr(found).encode())),
    "allocs": st.lists(st.tuples(number, number) | tree, max_size=4),
    "uploads": st.lists(st.tuples(number, number, st.binary(max_size=40), st.lists(st.binary(max_size=33), max_size=3)) | tree, max_size=3),
    "reads": st.lists(st.tuples(number, number, number, number) | tree, max_size=3),
    "frees": st.lists(number, max_size=4),
    "trace": st.just("") | st.text(max_size=80),
    "kernels": st.lists(st.binary(max_size=20), max_size=3),
    "origin": st.text(max_size=300),
    "repeats": st.booleans() | tree,
}
assert list(fields) == [field.name for field in msgspec.structs.fields(Batch)]
bodies = bent(st.tuples(*fields.values()).map(lambda found: encode([Batch.__struct_config__.tag, *found])) | array(Batch))
bombs = st.tuples(st.integers(0, 40 * MIB), st.sampled_from([b"\0", b"\x90", b"\x91", b"\xc0"]), bodies).map(
    lambda found: zlib.compress(found[2] + found[1] * found[0], 1)
)


@settings(max_examples=150 * MANY)
@given(bodies | bodies.map(zlib.compress) | bent(bodies.map(zlib.compress)))
@example(encode([Batch.__struct_config__.tag, "s", 1, 1, *[b""] * 14])[:-1] + DEEP)
@example(zlib.compress(b"\xdc\x00\x13" + encode([Batch.__struct_config__.tag, "s", 1, 1])[1:] + DEEP))
def test_a_message_is_a_batch_within_limits_or_is_refused_in_few_words(data: bytes) -> None:
    try:
        batch, body = read_batch(data, "s", FEW)
    except Bad as bad:
        assert len(encode_done(Done("s", 1, fault=bad.fault))) < 32_000
        assert bad.fault.fatal == (bad.batch is None)
        return
    assert batch.session == "s" and batch.seq > 0 and len(body) <= FEW.batch_bytes_max
    assert cost_of(batch, len(body)) >= len(body)


@settings(max_examples=50 * MANY)
@given(bodies | bodies.map(zlib.compress) | st.binary(max_size=200).map(lambda data: b"\x78" + data))
def test_what_is_read_on_the_event_loop_is_small(data: bytes) -> None:
    body = small_body(data)
    if body is not None:
        assert len(body) <= 64 << 10
        read(body, "s", small=True)


@settings(max_examples=12 * MANY, suppress_health_check=[HealthCheck.too_slow])
@given(bombs)
def test_inflating_takes_no_more_memory_than_a_batch_may_have(data: bytes) -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        read(data, "s", small=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 4 * LIMITS.batch_bytes_max


# -- codecs  ------------------------------------------------------------------------------------------------------

CODECS: Final[dict[str, tuple[Callable[[bytes], Any], st.SearchStrategy[bytes]]]] = {
    "batch": (batches.decode_batch, bodies),
    "done": (batches.decode_done, array(Done)),
    "data port request": (dataport.decode_request, st.one_of(*map(array, get_args(dataport.Request)))),
    "data port answer": (dataport.decode_answer, st.one_of(*map(array, get_args(dataport.Answer)))),
    "manifest": (dataport.decode_manifest, array(dataport.ModelManifest)),
    "telemetry": (telemetry.decode_telemetry, array(telemetry.Telemetry)),
    "journal": (journal.decode_part, array(journal.JournalPart)),
    "events": (events.decode_events, st.lists(st.one_of(*map(array, get_args(events.Event))), max_size=3).map(packed)),
    "split events": (events.split_events, st.lists(tree, max_size=3).map(encode)),
}  # fmt: skip


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_raises_only_what_it_names(name: str) -> None:
    decode, messages = CODECS[name]

    @settings(max_examples=30 * MANY)
    @given(bent(messages))
    @example(DEEP)
    def tried(data: bytes) -> None:
        try:
            decode(data)
        except msgspec.DecodeError:
            pass

    tried()


# -- the data port -----------------------------------------------------------------------------------------------------------------------

CHUNK: Final = b"a chunk"
NAME: Final = blake3(CHUNK).digest()
digests = st.sampled_from([NAME, bytes(32), b""]) | st.binary(max_size=40)
requests = st.one_of(
    st.builds(dataport.Have, st.lists(digests, max_size=20).map(tuple)),
    st.builds(dataport.Put, digests, st.sampled_from([0, 1, len(CHUNK), LIMITS.chunk_bytes, LIMITS.chunk_bytes + 1]) | number),
    st.builds(dataport.Get, st.text(max_size=20)),
    st.builds(dataport.Drop, st.text(max_size=20)),
    st.builds(dataport.Keep, digests),
    st.builds(dataport.Models),
    st.builds(dataport.Forget, st.text(max_size=20)),
    st.builds(dataport.Hello, st.text(max_size=20), st.text(max_size=20)),
)
pieces = st.one_of(
    requests.map(frame),
    bent(requests.map(encode)).map(lambda data: HEAD.pack(len(data)) + data),
    st.just(frame(dataport.Put(NAME, len(CHUNK))) + CHUNK),
    st.integers(0, 1 << 32).map(lambda length: HEAD.pack(length % (1 << 32))),
    st.binary(max_size=40),
)


class Port:
    """A data port with a session and a model cache, whose asyncio reports errors of callbacks to ``errors``."""

    def __init__(self, folder: Path) -> None:
        self.errors: list[str] = []
        handler = logging.Handler(logging.ERROR)
        handler.emit = lambda record: self.errors.append(record.getMessage())  # type: ignore[method-assign]  # a handler that only collects
        logging.getLogger("asyncio").addHandler(handler)
        self.staging = Staging()
        self.staging.open("s", "token", 1 << 20)
        cache = ModelCache(folder / "cache", MIB)
        content = Content(self.staging, cache)
        door = make_door(cache.key, "tenant a", 0)

        def open_cache(name: str, token: str) -> CachePort | None:
            domain = opens(cache.key, name, token, 0)
            return None if domain is None else CachePort(cache, content, domain)

        self.hellos = [b"", frame(dataport.Hello("s", "token")), frame(dataport.Hello(*door))]
        self.port = DataPort(self.staging, content, listen(folder / "d", "127.0.0.1", 0), "127.0.0.1", open_cache=open_cache)
        self.port.start()

    def ask(self, data: bytes) -> bytes:
        """All that the port answers to ``data``, until it or we close."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(30)
            peer.connect(self.port.addresses[0].removeprefix("unix:"))
            out = b""
            try:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                while part := peer.recv(1 << 16):
                    out += part
            except ConnectionError:
                pass
            return out


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Port]:
    yield Port(tmp_path_factory.mktemp("port"))


@settings(max_examples=100 * MANY)
@given(st.integers(0, 2), st.lists(pieces, max_size=6))
@example(1, [HEAD.pack(len(DEEP) + 8) + b"\x93\xa4drop\xa1x" + DEEP])
def test_the_data_port_answers_in_frames_or_closes_and_serves_the_next(port: Port, hello: int, sent: list[bytes]) -> None:
    answered = port.ask(port.hellos[hello] + b"".join(sent))
    while answered:
        (length,) = HEAD.unpack(answered[: HEAD.size])
        body, answered = answered[HEAD.size : HEAD.size + length], answered[HEAD.size + length :]
        assert len(body) == length
        if hello == 0:
            assert isinstance(dataport.decode_answer(body), dataport.Denied)
        dataport.decode_answer(body)
    assert port.ask(port.hellos[1]) == frame(dataport.Welcome())
    assert not port.errors
