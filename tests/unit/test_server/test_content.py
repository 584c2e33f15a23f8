"""The content store on a real engine: what is shared, what never, which session is charged, and what other domains can learn."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from bus_schemas.batch import Upload
from jit.backends import create_engine
from jit.engine import Engine, Space
from jit.errors import OutOfMemory
from services.server.executor.content import SHARE_BYTES_MIN, Content
from services.server.executor.model_cache import ModelCache
from services.server.executor.staging import Staging

CHUNK = 1 << 16
SIZE = 3 * CHUNK


def some_bytes(seed: int, nbytes: int = SIZE) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8).tobytes()


@dataclass
class Device:
    """An engine and its content store, sessions ``a1``, ``a2`` of domain a and so on; ``quiet`` did not opt in."""

    backend: str = "reference"
    vram_bytes: int = 1 << 30
    cache: ModelCache | None = None
    staging: Staging = field(default_factory=Staging)
    spaces: dict[str, Space] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine: Engine = create_engine(self.backend, cache_dir=None, threads=1, vram_bytes=self.vram_bytes)
        self.content = Content(self.staging, self.cache)
        self.sent: list[tuple[str, bytes]] = []
        for session in ("a1", "a2", "a3", "b1", "quiet"):
            self.open(session, session[0] if len(session) == 2 else "")

    def open(self, session: str, domain: str) -> None:
        self.staging.open(session, "", 1 << 40)
        self.spaces[session] = self.engine.open_space()
        self.content.open(session, domain, self.spaces[session])

    def upload(self, session: str, handle: int, data: bytes, loose: tuple[int, ...] = ()) -> frozenset[int]:
        """What a client and the runner do: only chunks that ``have`` denies are sent."""
        chunks = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        names = tuple(blake3(chunk).digest() for chunk in chunks)
        for name, chunk, held in zip(names, chunks, self.content.have(session, names), strict=True):
            if not held:
                assert self.staging.put(session, name, bytearray(chunk)) is None
                self.sent.append((session, name))
        upload = Upload(handle, len(data), chunks=names)
        assert self.content.missing(session, [upload]) == ()
        assert self.content.brought(session, upload) == len(data)
        attached = self.content.attached(session, [upload], loose)
        before = self.engine.memory.used_bytes
        self.content.upload(session, upload, loose)
        assert self.engine.memory.used_bytes == before + (0 if attached else len(data))
        self.staging.used(session, names)
        return attached

    def bytes_of(self, session: str, handle: int, nbytes: int = SIZE) -> bytes:
        return bytes(self.spaces[session].read(handle, 0, nbytes))

    def check(self) -> None:
        """Charges sum to what is on the device."""
        assert sum(self.content.charged(session) for session in self.spaces) == self.engine.memory.used_bytes


@pytest.fixture(params=["reference", "host", "opencl"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = Device(request.param)
    yield device
    device.check()
    for session in list(device.spaces):
        device.content.close(session)
        device.spaces.pop(session).close()
    assert device.engine.memory.used_bytes == 0
    assert device.content.block_bytes == 0
    device.engine.close()


def test_equal_content_of_one_domain_is_sent_and_stored_once(device: Device) -> None:
    data = some_bytes(1)
    assert not device.upload("a1", 1, data)
    assert device.upload("a2", 7, data) == {7}
    assert device.upload("a3", 1, data) == {1}
    assert {session for session, _ in device.sent} == {"a1"}
    assert device.engine.memory.used_bytes == SIZE
    assert [device.content.charged(session) for session in ("a1", "a2", "a3")] == [SIZE // 3] * 3
    assert [device.content.held_bytes(session) for session in ("a1", "a2", "quiet")] == [SIZE, SIZE, 0]
    assert {device.bytes_of("a1", 1), device.bytes_of("a2", 7), device.bytes_of("a3", 1)} == {data}


def test_other_domains_and_sessions_without_opt_in_share_nothing(device: Device) -> None:
    data = some_bytes(1)
    for session in ("a1", "b1", "quiet"):
        assert not device.upload(session, 1, data)
        device.check()
    device.open("quiet2", "")
    assert not device.upload("quiet2", 1, data)
    assert len(device.sent) == 4 * 3
    assert device.engine.memory.used_bytes == 4 * SIZE
    assert [device.content.charged(session) for session in ("a1", "b1", "quiet")] == [SIZE] * 3


def test_the_odd_bytes_are_charged_to_the_first_by_name(device: Device) -> None:
    data = some_bytes(1, SIZE + 2)
    for session in ("a3", "a1", "a2"):
        device.upload(session, 1, data)
    assert [device.content.charge(session) for session in ("a1", "a2", "a3")] == [CHUNK + 1, CHUNK + 1, CHUNK]
    assert device.content.take_changed() == ("a1", "a2", "a3")
    assert device.content.take_changed() == ()
    device.content.close("a1")
    device.spaces.pop("a1").close()
    assert device.content.take_changed() == ("a2", "a3")
    assert [device.content.charge(session) for session in ("a2", "a3")] == [(SIZE + 2) // 2] * 2


def test_a_session_that_holds_content_twice_is_one_holder(device: Device) -> None:
    data = some_bytes(1)
    device.upload("a1", 1, data)
    device.upload("a1", 2, data)
    assert device.content.charged("a1") == SIZE
    device.upload("a2", 1, data)
    assert device.content.charged("a1") == device.content.charged("a2") == SIZE // 2
    device.content.freed("a1", 1)
    device.spaces["a1"].free(1)
    assert device.content.charged("a1") == SIZE // 2


def test_who_writes_gets_a_copy_and_the_others_keep_theirs(device: Device) -> None:
    data = some_bytes(1)
    for session in ("a1", "a2", "a3"):
        device.upload(session, 1, data)
    assert device.content.copies("a1", [1]) == SIZE
    device.content.release("a1", [1, 99])
    device.spaces["a1"].write(1, 0, b"\0" * SIZE)
    assert device.engine.memory.used_bytes == 2 * SIZE
    assert device.content.charged("a1") == SIZE
    assert device.bytes_of("a2", 1) == device.bytes_of("a3", 1) == data
    device.check()
    assert device.upload("a1", 2, data) == {2}, "the content is still there for who uploads it again"


def test_the_last_holder_writes_in_place_and_the_content_is_not_found_again(device: Device) -> None:
    data = some_bytes(1)
    device.upload("a1", 1, data)
    device.upload("a1", 2, data)
    assert device.content.copies("a1", [1, 2]) == SIZE, "the last of them keeps the block"
    device.content.release("a1", [1, 2])
    assert device.engine.memory.used_bytes == 2 * SIZE
    device.spaces["a1"].write(1, 0, b"\0" * SIZE)
    device.spaces["a1"].write(2, 0, b"\0" * SIZE)
    assert not device.upload("a2", 1, data)
    assert device.bytes_of("a2", 1) == data
    assert device.content.copies("a2", [1]) == 0


def test_chunks_of_other_content_are_taken_from_the_device(device: Device) -> None:
    first, second = some_bytes(1), some_bytes(2)
    device.upload("a1", 1, first)
    mixed = first[CHUNK : 2 * CHUNK] + second[:CHUNK] + first[-CHUNK:] + first[:CHUNK]
    assert not device.upload("a2", 1, mixed)
    assert device.bytes_of("a2", 1, len(mixed)) == mixed
    assert len(device.sent) == 3 + 1
    assert device.upload("a3", 5, mixed) == {5}


def test_content_that_goes_before_its_upload_is_executed_is_asked_for(device: Device) -> None:
    """``have`` said yes because of a block; its holder went."""
    data = some_bytes(1)
    device.upload("a1", 1, data)
    names = tuple(blake3(data[at : at + CHUNK]).digest() for at in range(0, SIZE, CHUNK))
    assert device.content.have("a2", names) == b"\1\1\1"
    device.content.freed("a1", 1)
    device.spaces["a1"].free(1)
    upload = Upload(1, SIZE, chunks=names)
    assert device.content.missing("a2", [upload]) == names
    assert device.content.have("a2", names) == b"\0\0\0"


def test_chunks_that_an_upload_will_use_are_not_evicted_by_others_that_come() -> None:
    device = Device(staging=Staging(tenant_bytes_max=SIZE))
    data = some_bytes(1)
    device.upload("quiet", 1, data)
    names = tuple(blake3(data[at : at + CHUNK]).digest() for at in range(0, SIZE, CHUNK))
    upload = Upload(2, SIZE, chunks=names)
    assert device.content.missing("quiet", [upload]) == ()
    other = some_bytes(2, CHUNK)
    device.content.put("quiet", blake3(other).digest(), bytearray(other))  # of the data port's thread, before the batch begins
    device.content.upload("quiet", upload, ())
    assert device.bytes_of("quiet", 2) == data
    device.engine.close()


def test_what_a_batch_writes_or_frees_itself_is_an_ordinary_buffer(device: Device) -> None:
    data = some_bytes(1)
    assert not device.upload("a1", 1, data, loose=(1,))
    assert device.content.held_bytes("a1") == 0
    device.spaces["a1"].write(1, 0, b"\0")
    assert not device.upload("a2", 1, data)
    assert not device.upload("a3", 1, data, loose=(1,))
    assert device.bytes_of("a3", 1) == data


def test_one_batch_may_bring_the_same_content_twice(device: Device) -> None:
    data = some_bytes(1)
    name = blake3(data).digest()
    device.staging.put("a1", name, bytearray(data))
    uploads = [Upload(handle, SIZE, chunks=(name,)) for handle in (1, 2, 3)]
    assert device.content.attached("a1", uploads, (1,)) == {3}
    for upload in uploads:
        device.content.upload("a1", upload, (1,))
    assert device.engine.memory.used_bytes == 2 * SIZE


def test_names_that_run_into_one_another_are_not_the_same_content(device: Device) -> None:
    data = some_bytes(1)
    device.upload("a1", 1, data)
    names = b"".join(blake3(data[at : at + CHUNK]).digest() for at in range(0, SIZE, CHUNK))
    for cuts in ((31, 64), (32, 65), (96,)):
        forged = tuple(names[start:end] for start, end in zip((0, *cuts), (*cuts, 96), strict=True) if end > start)
        upload = Upload(1, SIZE, chunks=forged)
        assert device.content.attached("a2", [upload], ()) == frozenset()
        assert device.content.missing("a2", [upload]) != ()


def test_small_and_inline_uploads_are_not_shared(device: Device) -> None:
    data = some_bytes(1, SHARE_BYTES_MIN - 1)
    for session in ("a1", "a2"):
        assert not device.upload(session, 1, data)
        device.content.upload(session, Upload(2, 8, b"12345678"), ())
        assert device.bytes_of(session, 2, 8) == b"12345678"
    assert device.upload("a1", 3, data + b"x") == frozenset()
    assert device.upload("a2", 3, data + b"x") == {3}


def test_a_copy_that_does_not_fit_changes_nothing() -> None:
    device = Device(vram_bytes=SIZE + CHUNK)
    data = some_bytes(1)
    device.upload("a1", 1, data)
    device.upload("a2", 1, data)
    with pytest.raises(OutOfMemory):
        device.content.release("a2", [1])
    assert device.bytes_of("a2", 1) == data
    assert device.content.charged("a2") == SIZE // 2
    device.check()


def steps(device: Device, session: str, names: tuple[bytes, ...]) -> tuple[bytes, list[str]]:
    """The answer of ``have``, and every call that giving it took, of Python and of C."""
    calls: list[str] = []

    def trace(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            calls.append(frame.f_code.co_name if event == "call" else argument.__qualname__)

    gc.disable()  # a collection would call the callbacks of other libraries
    sys.setprofile(trace)
    try:
        answer = device.content.have(session, names)
    finally:
        sys.setprofile(None)
        gc.enable()
    return answer, calls


@pytest.mark.parametrize("asker", ["b1", "quiet"])
def test_content_of_other_domains_looks_absent_by_answer_and_by_work(device: Device, asker: str) -> None:
    data = some_bytes(1)
    device.upload("a1", 1, data)
    held = tuple(blake3(data[at : at + CHUNK]).digest() for at in range(0, SIZE, CHUNK))
    absent = tuple(blake3(name).digest() for name in held)
    assert steps(device, asker, held) == steps(device, asker, absent)
    assert steps(device, asker, held)[0] == b"\0\0\0"
    assert steps(device, "a2", held)[0] == b"\1\1\1"


@pytest.mark.parametrize("asker", ["b1", "quiet"])
def test_models_of_other_domains_look_absent(tmp_path: Path, asker: str) -> None:
    cache = ModelCache(tmp_path, 1 << 20)
    data = some_bytes(1, CHUNK)
    cache.put("a", blake3(data).digest(), bytearray(data))
    device = Device(cache=cache)
    held, absent = (blake3(data).digest(),), (blake3(b"absent").digest(),)
    assert steps(device, asker, held) == steps(device, asker, absent)
    assert steps(device, asker, held)[0] == b"\0"
    assert steps(device, "a1", held)[0] == b"\1"


def test_names_in_the_store_differ_by_domain_and_by_process(device: Device) -> None:
    data = some_bytes(1)
    other = Device()
    for one in (device, other):
        one.upload("a1", 1, data)
        one.upload("b1", 1, data)
    names = [name for one in (device, other) for name in (*one.content._blocks, *one.content._chunks)]
    assert len(names) == len(set(names)) == 2 * 2 * (1 + 3)
    digests = {blake3(data[at : at + CHUNK]).digest() for at in range(0, SIZE, CHUNK)}
    assert not digests.intersection(names)
