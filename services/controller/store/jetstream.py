"""The configuration store in a JetStream key-value bucket: what an embedded stack has anyway.

The bucket has the layout of NATS's own key-value tools (``nats kv`` reads it): subject ``$KV.<bucket>.<key>``, the last message of a
subject is the value, an empty one means deleted. History is 1: with more, the server stretches short times to live to the marker's.
A key whose time runs out leaves an empty marker for a minute; it must not stand in the way of a create.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

from services.controller.store import Change, Entry, Lease, LeaseLost, StoreConflict, StoreUnavailable, check_key, check_value
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable, Conflict
from services.kit.streams import ELECTION_S

__all__ = ["JetStreamStore", "JetStreamLease"]

_MARKER_TTL_NS: Final = 60 * 10**9


def bucket_config(bucket: str) -> dict[str, Any]:
    """The stream behind a bucket."""
    return {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "storage": "file",
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": _MARKER_TTL_NS,
    }


class JetStreamLease:
    """JetStream gives every message its own time to live, so a lease is a list of keys to write again before their time runs out."""

    def __init__(self, store: JetStreamStore, ttl_s: int) -> None:
        self._store = store
        self._ttl_s = ttl_s
        self._held: dict[str, tuple[bytes, int, float]] = {}
        """(value, revision, monotonic time before it was written) by key."""
        self._lost = False

    @property
    def ttl_s(self) -> int:
        return self._ttl_s

    def hold(self, key: str, value: bytes, revision: int, before_s: float) -> None:
        """For the store: ``key`` was written under this lease, after monotonic time ``before_s``."""
        self._held[key] = (value, revision, before_s)

    async def keepalive(self) -> None:
        if self._lost:
            raise LeaseLost("the lease ran out; take a new one")
        for key, (value, revision, written_s) in list(self._held.items()):
            before_s = time.monotonic()
            try:
                self.hold(key, value, await self._store.write(key, value, revision, self._ttl_s), before_s)
            except StoreConflict as error:
                in_time = time.monotonic() - written_s < self._ttl_s
                if in_time and await self._store.get(key) is not None:
                    del self._held[key]  # overwritten since: the key left the lease, as it would in etcd
                    continue
                self._lost = True
                raise LeaseLost(f"the lease of {key} ran out; take a new one") from error

    async def revoke(self) -> None:
        self._lost = True
        for key, (_, revision, _) in self._held.items():
            with contextlib.suppress(StoreConflict):  # deleted or overwritten: not ours any more
                await self._store.write(key, b"", revision, None)
        self._held.clear()


class JetStreamStore:
    """A ConfigStore over a Bus it does not own."""

    def __init__(self, bus: Bus, bucket: str) -> None:
        self._bus = bus
        self._stream = f"KV_{bucket}"
        self._root = f"$KV.{bucket}."

    async def open(self, bucket: str) -> None:
        """Create the bucket if there is none."""
        try:
            await self._bus.ensure_stream(bucket_config(bucket))
        except BusRefused as error:
            raise StoreUnavailable(f"cannot create the configuration bucket: {error}; nats-server 2.11 or newer is needed") from error
        except BusUnavailable as error:
            raise StoreUnavailable(str(error)) from error

    async def get(self, key: str) -> Entry | None:
        value, revision = await self._last(check_key(key))
        return Entry(key, value, revision) if value else None

    async def entries(self, prefix: str) -> list[Entry]:
        found: list[Entry] = []
        offset = 0
        while True:
            query = {"subjects_filter": f"{self._root}>", "offset": offset}
            info = await self._api(f"STREAM.INFO.{self._stream}", query)
            subjects = info["state"].get("subjects") or {}
            for subject in subjects:
                key = subject.removeprefix(self._root)
                entry = await self.get(key) if key.startswith(prefix) else None
                if entry is not None:
                    found.append(entry)
            offset += len(subjects)
            if not subjects or offset >= int(info.get("total", 0)):
                return sorted(found, key=lambda entry: entry.key)

    async def put(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        return await self._write(check_key(key), check_value(value), None, lease)

    async def cas(self, key: str, value: bytes, revision: int, *, lease: Lease | None = None) -> int:
        if revision < 1:
            raise ValueError(f"a revision is positive, not {revision}; create writes a key that does not exist")
        return await self._write(check_key(key), check_value(value), revision, lease)

    async def create(self, key: str, value: bytes, *, lease: Lease | None = None) -> int:
        check_key(key)
        check_value(value)
        try:
            return await self._write(key, value, 0, lease)
        except StoreConflict:
            present, revision = await self._last(key)
            if present:
                raise
        return await self._write(key, value, revision, lease)  # only the marker of a deleted key is there

    async def delete(self, key: str) -> bool:
        value, _ = await self._last(check_key(key))
        if value:
            await self.write(key, b"", None, None)
        return bool(value)

    @contextlib.asynccontextmanager
    async def watch(self, prefix: str) -> AsyncIterator[AsyncIterator[Change]]:
        changes: deque[Change] = deque()
        arrived = asyncio.Event()
        here: set[str] = set()

        def on_message(position: int, subject: str, data: bytes) -> None:
            key = subject.removeprefix(self._root)
            if not key.startswith(prefix) or (not data and key not in here):
                return  # the tombstone of a key that was deleted before the watch began
            (here.add if data else here.discard)(key)
            changes.append(Change(key, data or None, position))
            arrived.set()

        async def iterate() -> AsyncIterator[Change]:
            while True:
                while changes:
                    yield changes.popleft()
                arrived.clear()
                await arrived.wait()

        follower = self._bus.follow(self._stream, 1, on_message)
        try:
            await follower.start()
        except (BusUnavailable, BusRefused) as error:
            raise StoreUnavailable(str(error)) from error
        try:
            yield iterate()
        finally:
            await follower.stop()

    async def lease(self, ttl_s: int) -> JetStreamLease:
        if ttl_s < 1:
            raise ValueError(f"a lease is at least one second, not {ttl_s}")
        return JetStreamLease(self, ttl_s)

    async def close(self) -> None:
        """Nothing of its own is open."""

    async def write(self, key: str, value: bytes, revision: int | None, ttl_s: int | None) -> int:
        """Write if the key's last message is ``revision`` (0: none; None: whatever it is). Empty: delete."""
        headers: dict[str, str] = {}
        if ttl_s is not None:
            headers["Nats-TTL"] = f"{ttl_s}s"
        if not value:
            headers["KV-Operation"] = "DEL"
        try:
            return await self._bus.publish_acked(
                self._root + key, value, expect_last_on_subject=revision, headers=headers, deadline_s=ELECTION_S
            )
        except Conflict as error:
            raise StoreConflict(f"{key} was written by another client") from error
        except (BusUnavailable, BusRefused) as error:
            raise StoreUnavailable(str(error)) from error

    async def _write(self, key: str, value: bytes, revision: int | None, lease: Lease | None) -> int:
        if lease is not None and not isinstance(lease, JetStreamLease):
            raise TypeError("the lease is of another store")
        before_s = time.monotonic()
        written = await self.write(key, value, revision, lease.ttl_s if lease is not None else None)
        if lease is not None:
            lease.hold(key, value, written, before_s)
        return written

    async def _last(self, key: str) -> tuple[bytes, int]:
        """(value, revision) of the key's last message; an empty value when it is deleted, revision 0 when there is none."""
        try:
            revision, value = await self._bus.message(self._stream, last_by_subj=self._root + key) or (0, b"")
        except (BusUnavailable, BusRefused) as error:
            raise StoreUnavailable(str(error)) from error
        return value, revision

    async def _api(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._bus.js_api(verb, body)
        except (BusUnavailable, BusRefused) as error:
            raise StoreUnavailable(str(error)) from error
