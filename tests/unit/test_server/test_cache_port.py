"""The model cache over a socket, by the client's own end: doors, bytes, and connections that break off."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from blake3 import blake3

from bus_schemas.dataport import Get, Keep, Kept, Listed, ModelManifest, Models, ModelTensor, encode_manifest
from services.server.executor.content import Content
from services.server.executor.data_port import DataPort as NodePort
from services.server.executor.data_port import listen
from services.server.executor.model_cache import CachePort, ModelCache
from services.server.executor.staging import Staging
from services.server.model_cache_door import make_door, opens
from tests.support.node import until
from wooly.errors import NodeLostError, RefusedError
from wooly.transport.data_port import DataPort

WEIGHTS = b"weights" * 1000


@dataclass
class Node:
    folder: Path
    cache: ModelCache
    addresses: tuple[str, ...]

    def door(self, domain: str, now_s: int = 0) -> DataPort:
        name, token = make_door(self.cache.key, domain, now_s)
        return DataPort(self.addresses, name, token)

    def files(self) -> list[Path]:
        return [path for path in (self.folder / "cache" / "chunks").rglob("*") if path.is_file()]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    cache = ModelCache(tmp_path / "cache", 10_000)
    staging = Staging()
    staging.open("a-session", "token", 1 << 20)
    content = Content(staging, cache)

    def open_cache(name: str, token: str) -> CachePort | None:
        domain = opens(cache.key, name, token, 0)
        return None if domain is None else CachePort(cache, content, domain)

    port = NodePort(staging, content, listen(tmp_path / "d", "127.0.0.1", 0), "127.0.0.1", open_cache=open_cache)
    port.start()
    yield Node(tmp_path, cache, port.addresses)


def keep(port: DataPort, data: bytes = WEIGHTS) -> object:
    (chunk,) = port.put([memoryview(data)])
    manifest = encode_manifest(ModelManifest("base", "", (ModelTensor("w", "U8", (len(data),), len(data), (chunk,)),)))
    port.put([memoryview(manifest)])
    return port.ask(Keep(blake3(manifest).digest()))


def names(port: DataPort) -> list[str]:
    listed = port.ask(Models())
    assert isinstance(listed, Listed)
    return [model.name for model in listed.models]


def test_a_model_goes_through_its_door_and_again_without_bytes(node: Node) -> None:
    port = node.door("a")
    assert keep(port) == Kept()
    sent = port.sent_bytes
    assert sent > len(WEIGHTS)
    assert keep(port) == Kept()
    assert port.sent_bytes - sent < 1000
    assert names(port) == ["base"]
    assert names(node.door("b")) == []
    assert [path.read_bytes() for path in node.files()] == [WEIGHTS]
    port.close()


def test_what_is_no_door_is_refused(node: Node) -> None:
    for name, token in (make_door(bytes(32), "a", 0), make_door(node.cache.key, "a", -4000), ("model-cache", ""), ("a-session", "wrong")):
        with pytest.raises(NodeLostError, match="no such session, or the wrong token"):
            DataPort(node.addresses, name, token).ask(Models())


def test_a_session_cannot_speak_to_the_cache_nor_a_door_of_blobs(node: Node) -> None:
    session = DataPort(node.addresses, "a-session", "token")
    session.put([memoryview(WEIGHTS)])
    for request in (Models(), Keep(b"")):
        with pytest.raises(NodeLostError, match="does not answer"):
            session.ask(request)
    assert node.files() == []
    with pytest.raises(RefusedError, match="no such blob"):
        node.door("a").ask(Get("blob"))


def test_an_add_that_breaks_off_leaves_nothing(node: Node) -> None:
    port = node.door("a")
    port.put([memoryview(WEIGHTS)])
    assert len(node.files()) == 1
    port.close()
    until(lambda: not node.files(), "the node notices")


def test_a_full_cache_says_so_and_leaves_nothing(node: Node) -> None:
    port = node.door("a")
    with pytest.raises(RefusedError, match="raise WOOLY_MODEL_CACHE_MB"):
        port.put([memoryview(WEIGHTS), memoryview(b"more" * 1000)])
    port.close()
    until(lambda: not node.files(), "the node notices")
    assert keep(node.door("a")) == Kept()


def test_work_on_the_cache_keeps_no_session_waiting(node: Node) -> None:
    """Another process holds the lock of the lists: a model waits for it, and the chunks of sessions come meanwhile."""
    door, session = node.door("a"), DataPort(node.addresses, "a-session", "token")
    with (node.folder / "cache" / "lock").open("w") as lock, ThreadPoolExecutor(1) as thread:
        fcntl.flock(lock, fcntl.LOCK_EX)
        keeping = thread.submit(keep, door)
        until(lambda: len(node.files()) == 2, "the chunk and the manifest came")
        for number in range(20):
            session.put([memoryview(f"chunk {number}".encode())])
        assert not keeping.done()
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert keeping.result() == Kept()
    assert names(door) == ["base"]


def test_the_lists_of_a_domain_name_so_many_tensors(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor without bytes costs the client nothing, and each question about the models reads it."""
    monkeypatch.setattr("services.server.executor.model_cache._ENTRIES_MAX", 10)
    port = node.door("a")
    for name, count, fits in (("one", 6, True), ("two", 5, False), ("two", 4, True), ("one", 6, True), ("one", 7, False)):
        manifest = encode_manifest(ModelManifest(name, "", tuple(ModelTensor(f"t{at}", "U8", (0,), 0, ()) for at in range(count))))
        port.put([memoryview(manifest)])
        digest = blake3(manifest).digest()
        if fits:
            assert port.ask(Keep(digest)) == Kept()
        else:
            with pytest.raises(RefusedError, match="lists of tensors"):
                port.ask(Keep(digest))
    assert names(port) == ["one", "two"]
