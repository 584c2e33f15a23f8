"""NATS client for an installation with an auth callout: it reconnects while the callout is unavailable, uses unpredictable inboxes, and
parses every message that a nats-server can deliver.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.nuid import NUID
from nats.protocol import parser

from wooly.shared.credentials import BusCredentials

__all__ = ["NotAdmitted", "ReconnectingClient", "connect"]

_CONNECT_S: Final = 4
_PING_S: Final = 2
"""A server that leaves two pings unanswered is left for another; one that hangs is noticed in no other way."""
_RECONNECT_WAIT_S: Final[Any] = 0.1  # nats-py declares int and takes any number
_PENDING_BYTES_MAX: Final = 64 << 20
_WORD: Final = rb"([^ \t\r\n]+)[ \t]+"

# NATS tokenises on SP and TAB only, so a subject may contain any other byte; nats-py's regex splits on all that Python calls white space,
# rejects such a message, and reconnects: for ever, when a stream redelivers it.
parser.MSG_RE = re.compile(rb"\AMSG[ \t]+" + _WORD * 2 + rb"(" + _WORD + rb")?(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG[ \t]+" + _WORD * 2 + rb"(" + _WORD + rb")?(\d+)[ \t]+(\d+)\r\n")

_closing: Final[set[asyncio.Future[None]]] = set()


class NotAdmitted(TimeoutError):
    """The bus neither admitted nor refused the connection: the auth callout is slow, or no controller runs."""


class _UnpredictableNames(NUID):
    """Names of inboxes. nats-py counts, so the responder of one request could compute the inbox of the next, and nodes may publish into all
    inboxes."""

    def next(self) -> bytearray:
        return bytearray(secrets.token_hex(11).encode())  # as long as theirs: nats-py cuts subjects by it


class ReconnectingClient(Client):
    """With an auth callout, the bus's answer to a connection can be late, and it is a refusal while the callout service is down. nats-py
    then closes for good; this client keeps trying, as after any broken connection."""

    def __init__(self, seed: Callable[[], str] | None = None) -> None:
        """``seed``: of the nkey to connect with, asked for at every connection."""
        super().__init__()
        self._nuid = _UnpredictableNames()
        self._seed = seed

    @property
    def requires_authentication(self) -> bool:
        """Whether the connected bus authenticates its clients."""
        return bool(self._server_info.get("auth_required"))

    def _connect_command(self) -> bytes:
        if self._seed is not None:
            self._nkeys_seed_str = self._seed()
            self._setup_nkeys_connect()
        return super()._connect_command()

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg.lower() or not self.options.get("allow_reconnect"):
            await super()._process_err(err_msg)
            return
        error = nats.errors.Error(f"nats: {err_msg}")
        await self._error_cb(error)
        await self._process_op_err(error)

    async def _attempt_reconnect(self) -> None:
        """A server that hangs does not answer the end of a TLS connection either; nats-py would wait for that for half a minute."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._attempt_reconnect()

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        """Malformed headers count as none: nats-py would stop reading from the connection."""
        try:
            read: dict[str, str] | None = await super()._process_headers(headers)
        except (IndexError, UnicodeDecodeError):
            return None
        return read

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None) -> Any:
        """Subjects need not be UTF-8: invalid bytes are replaced, the valid words still identify the sender."""
        try:
            return super()._build_message(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            return super()._build_message(sid, _text(subject), _text(reply), data, headers)


async def connect(
    servers: Sequence[str],
    *,
    name: str,
    credentials: BusCredentials,
    inbox_prefix: str,
    on_error: Callable[[Exception], Awaitable[None]],
    on_reconnect: Callable[[], Awaitable[None]],
    timeout_s: float,
) -> ReconnectingClient:
    """Connect once; the connection then reconnects without limit. Raises OSError, nats.errors.Error, TimeoutError; NotAdmitted, after which
    the caller should try again."""
    client = ReconnectingClient(credentials.nkey_seed)
    try:
        async with asyncio.timeout(timeout_s):  # after a failed handshake nats-py waits for a farewell that never arrives
            await client.connect(
                servers=list(servers),
                name=name,
                error_cb=on_error,
                reconnected_cb=on_reconnect,
                reconnect_time_wait=_RECONNECT_WAIT_S,
                max_reconnect_attempts=2,
                connect_timeout=_CONNECT_S,
                ping_interval=_PING_S,
                pending_size=_PENDING_BYTES_MAX,
                inbox_prefix=inbox_prefix,
                allow_reconnect=True,
                **credentials.options(),
            )
        if not client.is_connected:  # while the auth callout is slow, nats-py takes the bus's own ping for an answer
            raise NotAdmitted("the bus does not answer whether it admits this connection: does a controller run?")
    except BaseException:
        _close_later(client, timeout_s)
        raise
    client.options["max_reconnect_attempts"] = -1
    return client


def _close_later(client: Client, timeout_s: float) -> None:
    """Close a connection that was never established, without waiting: the other side may take long."""
    closing = asyncio.ensure_future(asyncio.wait_for(client.close(), timeout_s))
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)
    closing.add_done_callback(lambda done: done.cancelled() or done.exception())


def _text(raw: bytes) -> bytes:
    return raw.decode(errors="replace").encode()
