"""A connection to the bus on a thread of its own: an event loop, one NATS client, calls from the script's threads; and the client's
credentials for the bus and the data port, from its configuration.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import re
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from bus_schemas import subjects
from bus_schemas.subjects import LOCAL
from wooly import progress
from wooly.config import Config
from wooly.errors import ConfigError, NoServerError
from wooly.shared.credentials import BusCredentials, is_encrypted, plain_hosts, split_key
from wooly.shared.nats_client import NotAdmitted, ReconnectingClient, connect
from wooly.shared.tls import client_context, is_loopback
from wooly.transport.patience import Away, repeat


def bus_credentials(config: Config, urls: Sequence[str] = ()) -> BusCredentials:
    """For the bus at ``urls`` (the configuration's unless given). Raises ConfigError when the key would travel in plain text, or the
    certificates cannot be read."""
    servers = urls or config.nats_urls
    try:
        encrypted = is_encrypted(servers)
    except ValueError as error:
        raise ConfigError(f"WOOLY_NATS_URL: {error}") from None
    outside = [host for host in plain_hosts(servers) if not is_loopback(host)]
    if config.api_key and outside and not config.insecure:
        raise ConfigError(
            f"WOOLY_NATS_URL: the API key is not sent to {outside[0]} in plain text; write tls://{outside[0]}, or set WOOLY_INSECURE=1 "
            "in a private network"
        )
    key, secret = split_key(config.api_key) or (LOCAL, "")
    try:
        return BusCredentials(key, secret, tls=client_context(config.tls_ca) if encrypted else None)
    except ValueError as error:
        raise ConfigError(str(error)) from None


_CONNECT_S: Final = 6.0
_AUTHORIZATION: Final = "authorization violation"

T = TypeVar("T")


class NoAnswer(Exception):
    """A request was not answered in time, or its subject has no responder."""


def where(urls: Sequence[str]) -> str:
    """The addresses of a bus for messages: without the passwords that they may hold."""
    return re.sub(r"//[^@/]*@", "//***@", ", ".join(urls))


class BusThread:
    """The bus thread. Everything marked *(bus thread)* may be called only there; ``on_reconnect`` callbacks run there too."""

    def __init__(self, urls: Sequence[str], name: str, credentials: BusCredentials | None = None) -> None:
        self._urls = list(urls)
        self._where = where(urls)
        self._name = name
        self.credentials = credentials or BusCredentials()
        self._refused = False
        self.principal = self.credentials.principal
        self._nc: Client = ReconnectingClient()
        self._reconnected: Callable[[], None] = lambda: None
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="wooly bus", daemon=True)

    # -- from any thread -----------------------------------------------------------------------------------------------------------

    def start(self, wait_s: float = 0.0) -> None:
        """Start the thread and connect; a bus that does not answer is waited for. Raises NoServerError."""
        self._thread.start()
        try:
            repeat(self._try_to_connect, wait_s)
        except NoServerError:
            self.stop()
            raise

    def _try_to_connect(self) -> None:
        try:
            with progress.slow(f"connecting to the bus at {self._where}"):
                self.call(self._connect(), _CONNECT_S + 1)
        except (OSError, nats.errors.Error, TimeoutError, concurrent.futures.TimeoutError) as error:
            problem = NoServerError(self._why_not(error))
            if self._refused or isinstance(error, ssl.SSLError):
                raise problem from None
            raise Away(problem) from None

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run ``work`` on the bus thread and wait for it. Raises TimeoutError."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None

    def post(self, callback: Callable[..., object], *arguments: object) -> None:
        """Run ``callback`` on the bus thread soon."""
        self.loop.call_soon_threadsafe(callback, *arguments)

    def stop(self) -> None:
        """Disconnect and end the thread. Safe to call twice."""
        if self.loop.is_closed() or not self._thread.is_alive():
            return
        with contextlib.suppress(TimeoutError, concurrent.futures.CancelledError):
            self.call(self._disconnect(), 3.0)
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(3.0)

    # -- (bus thread) --------------------------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return bool(self._nc.is_connected)

    @property
    def refused(self) -> bool:
        """Whether the bus has refused our credentials."""
        return self._refused and not self.connected

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        self._reconnected = callback

    async def publish(self, subject: str, data: bytes, message_id: str) -> None:
        """Hand to the connection; while it is down, at most 64 MiB are kept for its return (the caller sends again anyway)."""
        with contextlib.suppress(nats.errors.OutboundBufferLimitError, nats.errors.ConnectionClosedError):
            await self._nc.publish(subject, data, headers={"Nats-Msg-Id": message_id})

    async def subscribe(self, subject: str, handler: Callable[[bytes], None]) -> None:
        """Call ``handler(data)`` for every message. Returns once the bus knows; nats-py waits in vain for a confirmation that a broken
        connection has lost, so it is asked for again."""

        async def on_message(message: Msg) -> None:
            handler(message.data)

        await self._nc.subscribe(subject, cb=on_message)
        while True:
            with contextlib.suppress(nats.errors.TimeoutError):
                return await self._nc.flush(timeout=1)

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        """One answer. Raises NoAnswer."""
        try:
            message = await self._nc.request(subject, data, timeout=timeout_s)
        except (nats.errors.Error, TimeoutError) as error:
            raise NoAnswer(type(error).__name__) from error
        answer: bytes = message.data
        return answer

    # -- insides -------------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            pending = asyncio.all_tasks(self.loop)
            for task in pending:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            self.loop.close()

    async def _connect(self) -> None:
        async def reconnected() -> None:
            self._reconnected()

        async def failed(error: Exception) -> None:
            """Errors show as missing answers; nats-py would print a traceback."""
            self._refused |= _AUTHORIZATION in str(error).lower()

        async with asyncio.timeout(_CONNECT_S):
            while True:
                with contextlib.suppress(NotAdmitted):
                    self._nc = await connect(
                        self._urls,
                        name=self._name,
                        credentials=self.credentials,
                        inbox_prefix=subjects.inbox_prefix(self.principal),
                        on_error=failed,
                        on_reconnect=reconnected,
                        timeout_s=_CONNECT_S,
                    )
                    return

    def _why_not(self, error: Exception) -> str:
        where = self._where
        self._refused |= _AUTHORIZATION in str(error).lower()
        if self._refused:
            what = "does not accept the API key" if self.credentials.secret else "asks for an API key"
            return f"the bus at {where} {what}: run `wooly login`, or set WOOLY_API_KEY to a key that is good and has few connections"
        if isinstance(error, ssl.SSLError):
            return f"the bus at {where} does not prove its identity ({error}); set WOOLY_TLS_CA to the installation's ca.pem"
        if isinstance(error, TimeoutError):
            error = TimeoutError(f"no answer within {_CONNECT_S:g} s")
        return f"no NATS server answers at {where} ({error}); check WOOLY_NATS_URL, and that the bus runs"

    async def _disconnect(self) -> None:
        if self._nc.is_connected:
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await self._nc.flush(timeout=1)
        if self._nc.is_connected or self._nc.is_reconnecting:
            # Flushing and closing a broken connection fails; one of TLS, with an AttributeError of asyncio's.
            with contextlib.suppress(nats.errors.Error, OSError, RuntimeError, AttributeError):
                await self._nc.close()
