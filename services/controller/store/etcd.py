"""The configuration store in etcd (v3), through aetcd.

``https://``: TLS with the controller's own certificate (WOOLY_TLS_CERT), which etcd checks (``--client-cert-auth``).

What was learned about aetcd: it connects in plain text only, so ``_TlsClient`` connects for it; ``Event.kind`` is a string; a watch
stream that the server ends without an error falls silent for ever. So every watch has a client of its own, and starts anew from a full read
after a silence.

And of gRPC beneath it: channels to one address share a connection and its wait before the next attempt, by default, and that wait grows to
two minutes. So every client connects for itself, and tries again within ``_RECONNECT_MS``: etcd that is back is found back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import aetcd
import aetcd.rpc
import aetcd.watcher
import grpc

from services.controller.store import Change, Entry, Lease, LeaseLost, StoreConflict, StoreUnavailable, check_key, check_value
from services.kit.credentials import file_text
from services.kit.errors import SettingError
from services.kit.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, plain_allowed

_TIMEOUT_S: Final = 5
_SILENCE_S: Final = 30.0
_RETRY_S: Final = 0.5
_RECONNECT_MS: Final = 500
_CHANNEL_OPTIONS: Final = {
    "grpc.use_local_subchannel_pool": 1,
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": _RECONNECT_MS,
}
_ROOT: Final = "wooly/"


def parse_etcd_url(url: str) -> tuple[str, int, bool]:
    """(host, port, encrypted) of ``http://host:port`` or ``https://host:port``. Raises SettingError."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    try:
        port = parts.port or 2379
    except ValueError as error:
        raise SettingError(f"WOOLY_ETCD_URL is {url!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingError(f"WOOLY_ETCD_URL is {url!r}; write https://host:port, or http://host:port on this machine")
    return parts.hostname, port, parts.scheme == "https"


def _channel_credentials(environment: Mapping[str, str]) -> Any:
    """gRPC's credentials: trusted authorities (WOOLY_TLS_CA; else gRPC's own) and this process's certificate. Raises SettingError."""
    ca, key, certificate = (file_text(environment, name).encode() or None for name in (CA_VARIABLE, KEY_VARIABLE, CERT_VARIABLE))
    return grpc.ssl_channel_credentials(ca, key, certificate)


class _TlsClient(aetcd.Client):  # type: ignore[misc]  # aetcd has no types
    def __init__(self, host: str, port: int, credentials: Any) -> None:
        super().__init__(host, port, timeout=_TIMEOUT_S)
        self._target = f"{host}:{port}"
        self._credentials = credentials

    async def connect(self) -> None:
        """As that of the base class, over an encrypted channel and without a password. Raises nothing: the first call connects."""
        if not self._connected.is_set():
            rpc = aetcd.rpc
            self.channel = channel = rpc.secure_channel(self._target, self._credentials, options=list(_CHANNEL_OPTIONS.items()))
            self.kvstub, self.leasestub = rpc.KVStub(channel), rpc.LeaseStub(channel)
            self.clusterstub, self.maintenancestub = rpc.ClusterStub(channel), rpc.MaintenanceStub(channel)
            self._watcher = aetcd.watcher.Watcher(rpc.WatchStub(channel), timeout=_TIMEOUT_S)
            self._connected.set()


@contextlib.contextmanager
def _unavailable() -> Iterator[None]:
    """Turn what aetcd raises when etcd cannot be reached into StoreUnavailable."""
    try:
        yield
    except (aetcd.ClientError, TimeoutError, OSError) as error:
        raise StoreUnavailable(f"etcd did not answer ({type(error).__name__}: {error}); check WOOLY_ETCD_URL") from error


class EtcdLease:
    """A lease of etcd."""

    def __init__(self, client: Any, lease: Any) -> None:
        self._client = client
        self._lease = lease

    @property
    def ttl_s(self) -> int:
        return int(self._lease.ttl)

    @property
    def id(self) -> int:
        return int(self._lease.id)

    async def keepalive(self) -> None:
        with _unavailable():
            reply = await self._client.refresh_lease(self.id)
        if reply is None or reply.TTL <= 0:
            raise LeaseLost("the lease ran out; take a new one")

    async def revoke(self) -> None:
        with _unavailable():
            try:
                await self._client.revoke_lease(self.id)
            except aetcd.ClientError as error:
                if "lease not found" not in str(error):
                    raise


class EtcdStore:
    """A ConfigStore over one etcd endpoint. Keys live under ``wooly/``."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        """``environment`` has the certificates (WOOLY_TLS_*). Raises SettingError, also for plain text beyond loopback."""
        self._host, self._port, encrypted = parse_etcd_url(url)
        if not encrypted:
            plain_allowed(environment, self._host, "the configuration", "write WOOLY_ETCD_URL as https://host:port")
        self._credentials = _channel_credentials(environment) if encrypted else None
        self._client = self._connect()

    async def open(self) -> None:
        """Raises StoreUnavailable when etcd does not answer."""
        with _unavailable():
            await self._client.status()

    async def get(self, key: str) -> Entry | None:
        with _unavailable():
            found = await self._client.get(_path(key))
        return _entry(found) if found is not None else None

    async def entries(self, prefix: str) -> list[Entry]:
        return (await self._read(self._client, prefix))[0]

    async def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        with _unavailable():
            answer = await self._client.put(_path(key), check_value(value), lease=_lease_id(lease))
        return int(answer.header.revision)

    async def cas(self, key: str, value: bytes, revision: int, *, lease: Lease | None = None) -> int:
        if revision < 1:
            raise ValueError(f"a revision is positive, not {revision}; create writes a key that does not exist")
        return await self._put_if(key, value, self._client.transactions.mod(_path(key)) == revision, lease)

    async def create(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        return await self._put_if(key, value, self._client.transactions.create(_path(key)) == 0, lease)

    async def delete(self, key: str) -> bool:
        with _unavailable():
            return await self._client.delete(_path(key)) is not None

    @contextlib.asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        changes = self._changes(prefix, *await self._read(self._client, prefix))
        try:
            yield changes
        finally:
            await changes.aclose()

    async def lease(self, ttl_s: int) -> EtcdLease:
        if ttl_s < 1:
            raise ValueError(f"a lease is at least one second, not {ttl_s}")
        with _unavailable():
            return EtcdLease(self._client, await self._client.lease(ttl_s))

    async def close(self) -> None:
        await self._client.close()

    def _connect(self) -> Any:
        if self._credentials is not None:
            return _TlsClient(self._host, self._port, self._credentials)
        return aetcd.Client(self._host, self._port, timeout=_TIMEOUT_S, options=_CHANNEL_OPTIONS)

    async def _put_if(self, key: str, value: bytes, condition: Any, lease: Lease | None) -> int:
        put = self._client.transactions.put(_path(key), check_value(value), lease=_lease_id(lease))
        with _unavailable():
            done, answers = await self._client.transaction(compare=[condition], success=[put], failure=[])
        if not done:
            raise StoreConflict(f"{key} was written by another client")
        return int(answers[0].response_put.header.revision)

    async def _read(self, client: Any, prefix: str) -> tuple[list[Entry], int]:
        """The entries under ``prefix`` and the revision of the whole store they were read at."""
        with _unavailable():
            found = await client.get_prefix((_ROOT + prefix).encode(), sort_order="ascend")
        return [_entry(item) for item in found], int(found.header.revision)

    async def _changes(self, prefix: str, entries: list[Entry], revision: int) -> AsyncGenerator[Change, None]:
        """``entries`` as of ``revision``, then the changes of a watch from there; read and watch anew when it breaks or falls silent."""
        known: dict[str, int] = {}
        while True:
            for change in _difference(known, entries, revision):
                yield change
            client = self._connect()
            try:
                with _unavailable():
                    watch = await client.watch_prefix((_ROOT + prefix).encode(), start_revision=revision + 1)
                    events = aiter(watch)
                    while True:
                        async with asyncio.timeout(_SILENCE_S):  # (wait_for may forget a cancellation)
                            event = await anext(events)
                        change = _change(event)
                        if change.value is None:
                            known.pop(change.key, None)
                        else:
                            known[change.key] = change.revision
                        yield change
            except StoreUnavailable:
                pass
            finally:
                with contextlib.suppress(aetcd.ClientError, TimeoutError):
                    await client.close()
            entries, revision = await self._read_until_done(prefix)

    async def _read_until_done(self, prefix: str) -> tuple[list[Entry], int]:
        while True:
            try:
                return await self._read(self._client, prefix)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_S)


def _difference(known: dict[str, int], entries: list[Entry], revision: int) -> list[Change]:
    """The changes from ``known`` (key to revision) to ``entries``; ``known`` is brought up to date."""
    present = {entry.key for entry in entries}
    changes = [Change(key, None, revision) for key in sorted(set(known) - present)]
    changes += [Change(entry.key, entry.value, entry.revision) for entry in entries if known.get(entry.key) != entry.revision]
    known.clear()
    known.update({entry.key: entry.revision for entry in entries})
    return changes


def _path(key: str) -> bytes:
    return (_ROOT + check_key(key)).encode()


def _key(path: bytes) -> str:
    return path.decode().removeprefix(_ROOT)


def _entry(found: Any) -> Entry:
    return Entry(_key(found.key), bytes(found.value), int(found.mod_revision))


def _change(event: Any) -> Change:
    deleted = str(event.kind) == "DELETE"
    return Change(_key(event.kv.key), None if deleted else bytes(event.kv.value), int(event.kv.mod_revision))


def _lease_id(lease: Lease | None) -> int:
    if lease is None:
        return 0
    if not isinstance(lease, EtcdLease):
        raise TypeError("the lease is of another store")
    return lease.id
