"""The data port against clients that are not ours: limits before authentication, and what such clients cannot reach or delay."""

from __future__ import annotations

import gc
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from bus_schemas.dataport import Answer, Blob, Denied, Get, Had, Have, Hello, Put, Stored, Welcome, decode_answer
from bus_schemas.frames import HEAD, frame
from services.kit.keyring import Authority
from services.kit.tls import certified_context
from services.server.executor import data_port as module
from services.server.executor.content import Content
from services.server.executor.data_port import DataPort, listen
from services.server.executor.staging import Staging

ABC = blake3(b"abc").digest()
Dial = Callable[[], socket.socket]


@pytest.fixture
def staging() -> Staging:
    staging = Staging()
    for name in ("a", "b"):
        staging.open(name, f"token of {name}", 1 << 20)
    return staging


@pytest.fixture
def port(staging: Staging, tmp_path: Path) -> DataPort:
    port = DataPort(staging, Content(staging), listen(tmp_path / "d", "127.0.0.1", 0), "127.0.0.1", hello_s=0.3, connections_max=20)
    port.start()
    return port


@pytest.fixture
def dial(port: DataPort) -> Iterator[Dial]:
    open_now: list[socket.socket] = []

    def connect() -> socket.socket:
        open_now.append(socket.create_connection(("127.0.0.1", int(port.addresses[1].rsplit(":", 1)[1])), timeout=60))
        return open_now[-1]

    yield connect
    for peer in open_now:
        peer.close()


def receive(peer: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        part = peer.recv(nbytes - len(data))
        if not part:
            break
        data += part
    return data


def answer(peer: socket.socket) -> Answer:
    return decode_answer(receive(peer, HEAD.unpack(receive(peer, HEAD.size))[0]))


def closed(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def hello(peer: socket.socket, session: str = "a") -> socket.socket:
    peer.sendall(frame(Hello(session, f"token of {session}")))
    assert answer(peer) == Welcome()
    return peer


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(frame(Have((ABC,))), id="no hello"),
        pytest.param(HEAD.pack(4097), id="a large first message"),
        pytest.param(HEAD.pack(0), id="an empty message"),
        pytest.param(HEAD.pack(100), id="the rest never comes"),
        pytest.param(b"", id="nothing comes"),
        pytest.param(b"\xff" * 100, id="noise"),
        pytest.param(frame(Hello("a", "wrong"))[:-1], id="cut off"),
    ],
)
def test_unauthenticated_clients_are_cut_off(dial: Dial, data: bytes) -> None:
    peer = dial()
    peer.sendall(data)
    assert closed(peer)


@pytest.mark.parametrize("token", ["", "wrong", "token of b", "\u00e9"])
def test_a_wrong_token_is_refused_and_cut_off(dial: Dial, token: str) -> None:
    peer = dial()
    peer.sendall(frame(Hello("a", token)))
    assert isinstance(answer(peer), Denied)
    assert closed(peer)


@pytest.mark.parametrize(
    "data", [frame(Put(ABC, 5 << 20)), frame(Put(ABC, 0)), frame(Put(ABC, -1)), HEAD.pack((1 << 20) + 1), frame(Hello("b", "token of b"))]
)
def test_what_no_client_sends_ends_the_connection(dial: Dial, data: bytes) -> None:
    peer = hello(dial())
    peer.sendall(data)
    assert closed(peer)


def test_a_chunk_is_kept_under_its_true_name_only(dial: Dial) -> None:
    peer = hello(dial())
    peer.sendall(frame(Put(bytes(32), 3)) + b"abc")
    assert isinstance(answer(peer), Denied)
    peer.sendall(frame(Put(ABC, 3)) + b"abc" + frame(Have((bytes(32), ABC))))
    assert (answer(peer), answer(peer)) == (Stored(ABC), Had(b"\0\1"))


def test_blobs_and_chunks_are_their_sessions(dial: Dial, staging: Staging) -> None:
    name, pieces = staging.add_blob("a", 6)
    pieces += [b"sec", b"ret"]
    staging.put("a", ABC, bytearray(b"abc"))
    other = hello(dial(), "b")
    other.sendall(frame(Get(name)) + frame(Have((ABC,))))
    assert isinstance(answer(other), Denied)
    assert answer(other) == Had(b"\0")
    peer = hello(dial())
    peer.sendall(frame(Get(name)))
    assert (answer(peer), receive(peer, 6)) == (Blob(6), b"secret")


def test_a_client_that_does_not_read_is_not_listened_to(dial: Dial, staging: Staging) -> None:
    """Its answers would pile up in the node otherwise; the others are served meanwhile, and it goes on once it reads."""
    peer = hello(dial())
    request = frame(Have((ABC,) * 30_000))
    answers = 0
    peer.settimeout(0.5)
    with pytest.raises(TimeoutError):
        while answers < 2_000:
            peer.sendall(request)
            answers += 1
    assert answers < 2_000
    quick = hello(dial(), "b")
    quick.sendall(frame(Have((ABC,))))
    assert answer(quick) == Had(b"\0")
    peer.settimeout(60)
    assert [answer(peer) for _ in range(answers)] == [Had(bytes(30_000))] * answers


def test_blobs_at_the_receivers_pace(dial: Dial, staging: Staging) -> None:
    name, pieces = staging.add_blob("a", 8 << 20)
    pieces += [bytes(1 << 20)] * 8
    peer = hello(dial())
    peer.sendall(frame(Get(name)) * 3 + frame(Have((ABC,))))
    for _ in range(3):
        assert answer(peer) == Blob(8 << 20)
        assert len(receive(peer, 8 << 20)) == 8 << 20
    assert answer(peer) == Had(b"\0")


def serves(peer: socket.socket) -> bool:
    peer.sendall(frame(Have((ABC,))))
    return answer(peer) == Had(b"\0")


def test_it_listens_for_as_long_as_it_lives(port: DataPort) -> None:
    """Also after a garbage collection."""
    gc.collect()
    for address in port.addresses:
        kind, _, place = address.partition(":")
        with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as peer:
            peer.settimeout(60)
            peer.connect(place if kind == "unix" else ("127.0.0.1", int(place.rsplit(":", 1)[1])))
            hello(peer)


def test_a_session_has_few_connections_and_loses_the_oldest(dial: Dial) -> None:
    """Each may hold a chunk's memory; and a client whose connections break without a word must not be locked out by them."""
    peers = [hello(dial()) for _ in range(8)]
    other = hello(dial(), "b")
    newer = hello(dial())
    assert closed(peers[0])
    assert all(serves(peer) for peer in (*peers[1:], newer, other))


def test_connections_end_with_their_session(dial: Dial, port: DataPort, staging: Staging) -> None:
    """A client that lost its power closes none: thousands of such sessions would take all that the port may have."""
    peers = [hello(dial()) for _ in range(3)]
    other = hello(dial(), "b")
    staging.close("a")
    port.end("a")
    assert all(closed(peer) for peer in peers)
    assert serves(other)


def test_unauthenticated_clients_do_not_lock_out_others(dial: Dial) -> None:
    """A silent connection gives way to the next one; an authenticated one stays."""
    first = hello(dial())
    strangers = [dial() for _ in range(19)]
    last = hello(dial(), "b")
    assert closed(strangers[0])
    assert serves(first) and serves(last)


def test_a_tenant_with_many_sessions_does_not_lock_out_others(dial: Dial, staging: Staging) -> None:
    """When all connections are taken, the tenant with the most loses its oldest."""
    first = hello(dial(), "b")
    for number in range(4):
        staging.open(f"hostile{number}", f"token of hostile{number}", 1 << 20, tenant="hostile")
    peers = [hello(dial(), f"hostile{number % 4}") for number in range(19)]
    last = hello(dial(), "a")
    assert closed(peers[0])
    assert all(serves(peer) for peer in (first, last, *peers[1:]))
    peers.append(hello(dial(), "hostile0"))
    assert closed(peers[1])
    assert all(serves(peer) for peer in (first, last, *peers[2:]))


def test_a_chunk_that_does_not_come_in_time_ends_its_connection(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = hello(dial())
    monkeypatch.setattr(module, "_CHUNK_S", 0.3)
    peer.sendall(frame(Put(ABC, 3)) + b"ab")
    assert closed(peer)
    peer = hello(dial())
    peer.sendall(frame(Put(ABC, 3)) + b"abc")
    assert answer(peer) == Stored(ABC)
    assert not select.select([peer], [], [], 0.6)[0], "it came, and the connection stays"


def test_of_handshakes_under_way_the_oldest_are_given_up(staging: Staging, tmp_path: Path) -> None:
    """Silent connections, more than there may be in a handshake, keep none out that speaks, and hold no file."""
    Authority.load_or_make(tmp_path / "ca").issue(tmp_path / "node", ["127.0.0.1"])
    tls = certified_context(*(str(tmp_path / "node" / f"{part}.pem") for part in ("cert", "key")))
    sockets = listen(tmp_path / "d", "127.0.0.1", 0)
    port = DataPort(staging, Content(staging), sockets, "127.0.0.1", hello_s=60, tls=tls, connections_max=20)
    port.start()
    at = ("127.0.0.1", int(port.addresses[1].rsplit(":", 1)[1]))
    silent = [socket.create_connection(at, timeout=60) for _ in range(30)]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(at, timeout=60) as raw, context.wrap_socket(raw) as peer:
        hello(peer)
        assert all(map(closed, silent[:25]))
        assert not select.select(silent[-3:], [], [], 0)[0]
    for connection in silent:
        connection.close()
