"""To which sockets a client gives its token and its tensors."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus_schemas.dataport import Blob, Get, Welcome, decode_request
from bus_schemas.frames import HEAD, frame
from wooly.errors import NodeLostError
from wooly.transport.data_port import DataPort

_LISTEN = """
import os, socket, sys
os.setuid(65534)
bound = socket.socket(fileno=int(sys.argv[1]))
bound.listen()
print(flush=True)
bound.accept()[0].recv(1)
"""


@contextlib.contextmanager
def listening(bound: socket.socket) -> Iterator[list[bytes]]:
    """Welcomes one client; what it was sent."""
    heard: list[bytes] = []
    bound.listen()

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = bound.accept()
            with connection:
                heard.append(connection.recv(4096))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield heard
    finally:
        with contextlib.suppress(OSError):
            bound.shutdown(socket.SHUT_RDWR)
        thread.join()
        bound.close()


def at(folder: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(str(folder / "d0"))
    return bound


def sent_to(folder: Path) -> list[bytes]:
    """What a client sends to a socket in the folder, before it gives up."""
    with listening(at(folder)) as heard, pytest.raises(NodeLostError):
        DataPort([f"unix:{folder / 'd0'}"], "session", "the token").put([memoryview(b"weights")])
    return heard


def received(connection: socket.socket) -> object:
    """The next request of a client; None once it has closed the connection."""
    try:
        head = connection.recv(HEAD.size, socket.MSG_WAITALL)
    except ConnectionResetError:
        return None
    return decode_request(connection.recv(HEAD.unpack(head)[0], socket.MSG_WAITALL)) if head else None


def test_an_answer_that_ctrl_c_left_on_its_way_is_not_taken_for_another(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    bound, main = at(tmp_path), threading.main_thread().ident
    bound.listen()
    assert main is not None

    def serve() -> None:
        with bound.accept()[0] as connection:
            received(connection)
            connection.sendall(frame(Welcome()))
            assert received(connection) == Get("a")
            connection.sendall(frame(Blob(4)))
            signal.pthread_kill(main, signal.SIGINT)
            if received(connection) is not None:  # another request on the same connection: what was asked first comes first
                connection.sendall(b"aaaa" + frame(Blob(4)) + b"bbbb")
                return
        with bound.accept()[0] as connection:
            received(connection)
            connection.sendall(frame(Welcome()))
            assert received(connection) == Get("b")
            connection.sendall(frame(Blob(4)) + b"bbbb")
            received(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    port = DataPort([f"unix:{tmp_path / 'd0'}"], "session", "the token")
    try:
        with pytest.raises(KeyboardInterrupt):
            port.get("a", 4)
        assert bytes(port.get("b", 4)) == b"bbbb"
    finally:
        port.close()
        thread.join()
        bound.close()


def test_a_socket_in_a_private_folder_of_ours_is_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (heard,) = sent_to(tmp_path)
    assert b"the token" in heard


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_a_socket_in_a_folder_that_others_may_use_is_not(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert sent_to(tmp_path) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders and sockets away")
def test_a_socket_in_anothers_folder_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.chown(tmp_path, 65534, 65534)
    assert sent_to(tmp_path) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders and sockets away")
def test_a_socket_that_another_serves_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with at(tmp_path) as bound:
        command = [sys.executable, "-S", "-c", _LISTEN, str(bound.fileno())]
        with subprocess.Popen(command, pass_fds=(bound.fileno(),), stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline()
            with pytest.raises(NodeLostError, match="is served by user 65534"):
                DataPort([f"unix:{tmp_path / 'd0'}"], "session", "the token").put([memoryview(b"weights")])
            process.kill()


def test_plain_tcp_is_not_used_when_the_bus_is_encrypted() -> None:
    address = None
    for tls in (None, ssl.create_default_context()):
        bound = socket.create_server(("127.0.0.1", 0))
        address = f"tcp:127.0.0.1:{bound.getsockname()[1]}"
        with listening(bound) as heard, pytest.raises(NodeLostError, match="plain TCP" if tls else "does not answer"):
            DataPort([address], "session", "the token", tls).put([memoryview(b"weights")])
        assert bool(heard) == (tls is None)
