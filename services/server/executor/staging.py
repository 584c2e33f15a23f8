"""Bulk bytes on their way: chunks that sessions put, blobs they will get. Used by the data port's thread and the launching one.

Every chunk and blob belongs to one session; nothing here is ever handed to another. It is memory of the node that no bill shows: what all
sessions of a tenant hold together is bounded.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from bus_schemas.dataport import Denied
from bus_schemas.quotas import Excess
from bus_schemas.telemetry import QuotaUse
from scheduler.quotas import Asked
from services.server.executor.quota_watch import QuotaWatch

CACHE_BYTES: Final = 256 << 20
"""Chunks already used are kept up to this many bytes a tenant, so that equal bytes need not travel again."""

ANSWER_BYTES_MIN: Final = 256 << 20
"""Every session may have at least this many bytes of answers waiting to be fetched, however small its quota."""


@dataclass(frozen=True, slots=True)
class Blob:
    #: Of all pieces together, those to come included.
    nbytes: int
    pieces: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class Held:
    """What the sessions of one tenant hold together."""

    #: tenant, or the session that counts alone
    name: str
    stages: dict[str, _Stage] = field(default_factory=dict)
    pinned_bytes: int = 0
    #: of chunks that are under way
    coming_bytes: int = 0
    used_bytes: int = 0
    blob_bytes: int = 0

    def pin(self, stage: _Stage, digest: bytes, chunk: bytearray) -> None:
        stage.pinned[digest] = chunk
        stage.pinned_bytes += len(chunk)
        self.pinned_bytes += len(chunk)

    def unpin(self, stage: _Stage, digest: bytes) -> bytearray | None:
        chunk = stage.pinned.pop(digest, None)
        if chunk is not None:
            stage.pinned_bytes -= len(chunk)
            self.pinned_bytes -= len(chunk)
        return chunk

    def evict(self, used_bytes: int) -> None:
        """Keep at most ``used_bytes`` of used chunks: the oldest of the session that opened first are evicted first."""
        for stage in self.stages.values():
            while stage.used and self.used_bytes > used_bytes:
                self.used_bytes -= len(stage.used.popitem(last=False)[1])


@dataclass(slots=True)
class _Stage:
    token: str
    held: Held
    bytes_max: int
    answer_bytes_max: int
    pinned: dict[bytes, bytearray] = field(default_factory=dict)
    used: OrderedDict[bytes, bytearray] = field(default_factory=OrderedDict)
    pinned_bytes: int = 0
    blobs: dict[str, Blob] = field(default_factory=dict)
    blob_bytes: int = 0


class Staging:
    """Chunks and blobs of every open session."""

    def __init__(self, tenant_bytes_max: int = 8 << 30, tenant_answer_bytes_max: int = 1 << 40, watch: QuotaWatch | None = None) -> None:
        """Bounds for all sessions of a tenant together: its chunks, and its answers (at least ANSWER_BYTES_MIN) that wait to be fetched."""
        self._watch = watch or QuotaWatch()
        self._lock = threading.Lock()
        self._stages: dict[str, _Stage] = {}
        self._tenants: dict[str, Held] = {}
        self._tenant_bytes_max = tenant_bytes_max
        self._tenant_answer_bytes_max = max(tenant_answer_bytes_max, ANSWER_BYTES_MIN)

    def open(self, session: str, token: str, bytes_max: int, answer_bytes_max: int = 0, tenant: str = "") -> None:
        """``bytes_max`` bounds the chunks a session may have waiting to be used, ``answer_bytes_max`` (at least ANSWER_BYTES_MIN) the blobs
        it may have waiting to be fetched. ``tenant`` empty: the session counts alone."""
        with self._lock:
            name = tenant or f"session {session}"
            held = self._tenants.setdefault(name, Held(name))
            held.stages[session] = self._stages[session] = _Stage(token, held, bytes_max, max(answer_bytes_max, ANSWER_BYTES_MIN))

    def close(self, session: str) -> None:
        with self._lock:
            stage = self._stages.pop(session, None)
            if stage is None:
                return
            held = stage.held
            held.pinned_bytes -= stage.pinned_bytes
            held.used_bytes -= sum(map(len, stage.used.values()))
            held.blob_bytes -= stage.blob_bytes
            del held.stages[session]
            self._tenants = {name: held for name, held in self._tenants.items() if held.stages or held.coming_bytes}
        self._used(held)

    def admits(self, session: str, token: str) -> bool:
        """Does ``token`` open the data port for ``session``?"""
        with self._lock:
            stage = self._stages.get(session)
            return stage is not None and secrets.compare_digest(stage.token.encode(), token.encode(errors="replace"))

    def tenant_of(self, session: str) -> str:
        """The tenant of an open session, or what stands for one that counts alone."""
        with self._lock:
            stage = self._stages.get(session)
            return "" if stage is None else stage.held.name

    def have(self, session: str, digests: tuple[bytes, ...]) -> bytes:
        """One byte a digest, 1 when its chunk is here; those are pinned again, for an upload will name them."""
        with self._lock:
            stage = self._stages.get(session)
            if stage is None:
                return bytes(len(digests))
            for digest in digests:
                chunk = stage.used.pop(digest, None)
                if chunk is not None:
                    stage.held.used_bytes -= len(chunk)
                    stage.held.pin(stage, digest, chunk)
            return bytes(digest in stage.pinned for digest in digests)

    def begin(self, whose: str, nbytes: int) -> Held | Denied:
        """A chunk of ``whose`` (a session or a trust domain) is to come: its account, on which it counts until ``end``."""
        with self._lock:
            stage = self._stages.get(whose)
            held = stage.held if stage is not None else self._tenants.setdefault(whose, Held(whose))
            excess = self._refuse(held, self._tenant_bytes_max, held.pinned_bytes + held.coming_bytes, nbytes)
            if excess is not None:
                return Denied(excess.sentence(f"tenant {held.name}"), excess)
            held.coming_bytes += nbytes
            return held

    def end(self, held: Held, nbytes: int) -> None:
        """The chunk came, or will not."""
        with self._lock:
            held.coming_bytes -= nbytes

    def put(self, session: str, digest: bytes, chunk: bytearray) -> Denied | None:
        """Keep a verified chunk; or why it is not kept."""
        with self._lock:
            stage = self._stages.get(session)
            if stage is None:
                return Denied("the session is over")
            if digest in stage.pinned:
                return None
            held, most = stage.held, self._tenant_bytes_max
            excess = self._refuse(held, stage.bytes_max, stage.pinned_bytes, len(chunk))
            if excess is not None:
                return Denied(excess.sentence(f"session {session}"), excess)
            excess = self._refuse(held, most, held.pinned_bytes + held.coming_bytes, len(chunk))
            if excess is not None:
                return Denied(excess.sentence(f"tenant {held.name}"), excess)
            held.evict(most - held.pinned_bytes - len(chunk))
            held.pin(stage, digest, chunk)
        self._used(held)
        return None

    def _refuse(self, held: Held, most: int, used: int, nbytes: int) -> Excess | None:
        return self._watch.ask(Asked(time.monotonic_ns(), "staged_bytes", held.name, most, used, nbytes))

    def _used(self, held: Held) -> None:
        self._watch.use(QuotaUse(held.name, "staged_bytes", held.pinned_bytes, self._tenant_bytes_max))

    def chunk(self, session: str, digest: bytes) -> bytearray | None:
        """The chunk, or None when it is not here."""
        with self._lock:
            stage = self._stages.get(session)
            if stage is None:
                return None
            return stage.pinned.get(digest) or stage.used.get(digest)

    def used(self, session: str, digests: tuple[bytes, ...]) -> None:
        """An upload has taken these: they become cache, the oldest of which goes first."""
        with self._lock:
            stage = self._stages.get(session)
            if stage is None:
                return
            for digest in digests:
                chunk = stage.held.unpin(stage, digest)
                if chunk is not None:
                    stage.used[digest] = chunk
                    stage.held.used_bytes += len(chunk)
            stage.held.evict(CACHE_BYTES)
        self._used(stage.held)

    def refuse_answers(self, session: str, nbytes: int) -> Denied | None:
        """Why the session may not have so many bytes of blobs more; or None."""
        with self._lock:
            stage = self._stages.get(session)
            if stage is None:
                return Denied("the session is over")
            own, of_all = stage.answer_bytes_max - stage.blob_bytes, self._tenant_answer_bytes_max - stage.held.blob_bytes
            if own <= of_all:
                whose, most, room = f"session {session}", stage.answer_bytes_max, own
            else:
                whose, most, room = f"tenant {stage.held.name}", self._tenant_answer_bytes_max, of_all
            excess = self._refuse(stage.held, most, most - room, nbytes)
            return None if excess is None else Denied(excess.sentence(whose), excess)

    def add_blob(self, session: str, nbytes: int) -> tuple[str, list[bytes]]:
        """Keep so many bytes, which count from now on, for the session to fetch; the blob's name, and the list that its pieces go into."""
        name, blob = secrets.token_hex(8), Blob(nbytes)
        with self._lock:
            stage = self._stages.get(session)
            if stage is not None:
                stage.blobs[name] = blob
                stage.blob_bytes += nbytes
                stage.held.blob_bytes += nbytes
        return name, blob.pieces

    def blob(self, session: str, name: str) -> Blob | None:
        with self._lock:
            stage = self._stages.get(session)
            return None if stage is None else stage.blobs.get(name)

    def drop_blob(self, session: str, name: str) -> None:
        with self._lock:
            stage = self._stages.get(session)
            blob = None if stage is None else stage.blobs.pop(name, None)
            if stage is not None and blob is not None:
                stage.blob_bytes -= blob.nbytes
                stage.held.blob_bytes -= blob.nbytes
