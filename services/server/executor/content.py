"""Content that several sessions hold on one device: equal bytes of one trust domain are stored in one shared block, which is charged to its
holders by exact division.

A session that did not opt in has no domain, and nothing of it is ever found here. Names are keyed hashes of (domain, content) under a key
of this process: they reveal nothing outside a domain, and a look-up never finds content that only other domains hold.

Used by the launching thread (everything that changes) and by the data port's (``have``).

A block of S bytes with n holders is charged S // n to each, and one byte more to the first S mod n of them by name. So charges sum to S at
every instant, and which session pays the odd byte does not depend on their order of arrival.
"""

from __future__ import annotations

import secrets
import struct
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from blake3 import blake3

from bus_schemas.batch import LIMITS, Upload
from bus_schemas.dataport import Denied
from jit.engine import Shared, Space
from services.server.executor.staging import Staging


def split(nbytes: int, holders: Collection[str]) -> dict[str, int]:
    """What each of ``holders`` (different ones) is charged for a block of ``nbytes``."""
    if not holders:
        return {}
    each, odd = divmod(nbytes, len(holders))
    return {holder: each + (at < odd) for at, holder in enumerate(sorted(holders))}


class Charges:
    """What every session is charged for shared blocks, in bytes."""

    __slots__ = ("_changed", "_of")

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._changed: set[str] = set()

    def move(self, nbytes: int, before: Collection[str], after: Collection[str]) -> None:
        """A block of ``nbytes`` had the holders ``before`` and has ``after``."""
        old, new = split(nbytes, before), split(nbytes, after)
        for holder in old.keys() | new.keys():
            change = new.get(holder, 0) - old.get(holder, 0)
            if change:
                self._changed.add(holder)
                held = self._of.pop(holder, 0) + change
                if held:
                    self._of[holder] = held

    def of(self, session: str) -> int:
        return self._of.get(session, 0)

    def total(self) -> int:
        """The sum over all sessions: the bytes of all blocks, each once."""
        return sum(self._of.values())

    def take_changed(self) -> tuple[str, ...]:
        """Sessions whose charge was changed since the last call, by name."""
        if not self._changed:
            return ()
        changed = tuple(sorted(self._changed))
        self._changed.clear()
        return changed


SHARE_BYTES_MIN: Final = LIMITS.inline_bytes_max + 1
"""Smaller buffers are not shared: of a transformer of any size they are less than one percent (docs/dedup.md)."""

_LOOKS_MAX: Final = 8
"""Chunks that one ``have`` looks for in the model cache: what a client asks for at a time. The data port does nothing else meanwhile."""

_BORROWED: Final = 1 << 80
"""No handle of a client: theirs have 64 bits."""

_DIGEST_BYTES: Final = 32
_CHUNK: Final = b"chunk"
_BUFFER: Final = b"buffer"
_HEAD: Final = struct.Struct("<BIQ")


class ChunkSource(Protocol):
    """Where chunks can be had that no session holds."""

    def chunk(self, domain: str, digest: bytes) -> bytearray | None:
        """A chunk of this domain, checked against its name, or None."""
        ...

    def heal(self, domain: str, digest: bytes, chunk: bytearray) -> None:
        """A session of the domain sent this chunk: replace one that was found damaged."""
        ...


@dataclass(slots=True, eq=False)
class _Block:
    """One content on the device. ``holders``: the handles that refer to it, by session."""

    name: bytes
    chunks: tuple[tuple[bytes, int, int], ...]
    shared: Shared
    nbytes: int
    holders: dict[str, set[int]] = field(default_factory=dict)

    @property
    def buffers(self) -> int:
        return sum(len(handles) for handles in self.holders.values())


@dataclass(slots=True, eq=False)
class _Member:
    """A session that opted in. ``held_bytes``: sizes of its buffers on shared blocks, in full."""

    domain: str
    space: Space
    held: dict[int, _Block] = field(default_factory=dict)
    held_bytes: int = 0


class Content:
    """``staging`` holds what sessions sent, ``cache`` (None: there is none) what is kept on disk."""

    def __init__(self, staging: Staging, cache: ChunkSource | None = None) -> None:
        self._staging = staging
        self._cache = cache
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._members: dict[str, _Member] = {}
        self._spaces: dict[str, Space] = {}
        self._blocks: dict[bytes, _Block] = {}
        self._chunks: dict[bytes, dict[_Block, tuple[int, int]]] = {}
        self._charges = Charges()

    # -- sessions ------------------------------------------------------------------------------------------------------------------

    def open(self, session: str, domain: str, space: Space) -> None:
        """A session and its space; ``domain`` empty: it shares nothing."""
        self._spaces[session] = space
        if domain:
            with self._lock:
                self._members[session] = _Member(domain, space)

    def close(self, session: str) -> None:
        """All buffers of the session go. Call it before its space is closed."""
        self._spaces.pop(session, None)
        member = self._members.get(session)
        if member is not None:
            for handle in list(member.held):
                self.freed(session, handle)
            with self._lock:
                del self._members[session]

    # -- what may be taken (both threads) --------------------------------------------------------------------------------------------

    def have(self, session: str, digests: Sequence[bytes]) -> bytes:
        """One byte a digest, 1 when the session need not send that chunk (data port's thread).

        A chunk that is only in device memory may be freed before its upload is executed; then the session is asked for it again.
        """
        held = bytearray(self._staging.have(session, tuple(digests)))
        with self._lock:
            member = self._members.get(session)
        if member is None:
            return bytes(held)
        looks = 0
        for at, digest in enumerate(digests):
            if held[at]:
                continue
            if self._resident(member.domain, digest):
                held[at] = 1
            elif self._cache is not None and looks < _LOOKS_MAX:
                looks += 1
                chunk = self._cache.chunk(member.domain, digest)
                held[at] = chunk is not None and self._staging.put(session, digest, chunk) is None
        return bytes(held)

    def missing(self, session: str, uploads: Collection[Upload]) -> tuple[bytes, ...]:
        """Digests of chunks that these uploads name and that cannot be had here. Those that the session sent stay until they are used."""
        if not uploads:
            return ()
        member = self._members.get(session)
        missing: list[bytes] = []
        for upload in uploads:
            if member is not None and self._find(member, upload) is not None:
                continue
            staged = self._staging.have(session, upload.chunks)
            missing += (
                digest for digest, here in zip(upload.chunks, staged, strict=True) if not here and not self._length(session, member, digest)
            )
        return tuple(missing)

    def brought(self, session: str, upload: Upload) -> int:
        """How many bytes the upload's chunks have together, 0 for those that cannot be had."""
        member = self._members.get(session)
        if member is not None and self._find(member, upload) is not None:
            return upload.nbytes
        return sum(self._length(session, member, digest) for digest in upload.chunks)

    def put(self, session: str, digest: bytes, chunk: bytearray) -> Denied | None:
        """Keep a chunk that matches its name until an upload uses it (data port's thread); or why it is not kept."""
        with self._lock:
            member = self._members.get(session)
        if member is not None and self._cache is not None:
            self._cache.heal(member.domain, digest, chunk)
        return self._staging.put(session, digest, chunk)

    # -- what takes memory (launching thread) ----------------------------------------------------------------------------------------

    def attached(self, session: str, uploads: Iterable[Upload], loose: Collection[int]) -> frozenset[int]:
        """Handles of uploads that will share a block that exists by then. ``loose``: handles that the same batch writes or frees."""
        member = self._members.get(session)
        if member is None:
            return frozenset()
        made: set[bytes] = set()
        handles: set[int] = set()
        for upload in uploads:
            if _shareable(upload) and upload.handle not in loose:
                name = self._name(member.domain, _BUFFER, upload.nbytes, upload.chunks)
                if name in self._blocks or name in made:
                    handles.add(upload.handle)
                made.add(name)
        return frozenset(handles)

    def upload(self, session: str, upload: Upload, loose: Collection[int]) -> None:
        """Make the upload's buffer: on a block with this content, or of its own, which later ones may share. Its chunks are not missing.

        Raises OutOfMemory.
        """
        space = self._spaces[session]
        member = self._members.get(session)
        sharing = member is not None and _shareable(upload) and upload.handle not in loose
        if sharing:
            assert member is not None
            block = self._find(member, upload)
            if block is not None:
                space.attach(upload.handle, block.shared)
                self._join(session, upload.handle, block)
                return
        space.alloc(upload.handle, upload.nbytes)
        if upload.inline:
            space.write(upload.handle, 0, upload.inline)
        at = 0
        spans = []
        for digest in upload.chunks:
            length = self._write(space, session, member.domain if member is not None else "", upload.handle, at, digest)
            spans.append((digest, at, length))
            at += length
        if sharing:
            assert member is not None
            name = self._name(member.domain, _BUFFER, upload.nbytes, upload.chunks)
            chunks = tuple((self._chunk_name(member.domain, digest), start, length) for digest, start, length in spans)
            block = _Block(name, chunks, space.share(upload.handle), upload.nbytes)
            with self._lock:
                self._blocks[name] = block
                for chunk, start, length in chunks:
                    self._chunks.setdefault(chunk, {})[block] = start, length
            self._join(session, upload.handle, block)

    def copies(self, session: str, handles: Collection[int]) -> int:
        """Bytes of device memory that ``release`` takes: a copy for each of these buffers but the last on its block."""
        member = self._members.get(session)
        if member is None:
            return 0
        leaving: dict[_Block, int] = {}
        for handle in set(handles):
            block = member.held.get(handle)
            if block is not None:
                leaving[block] = leaving.get(block, 0) + 1
        return sum(block.nbytes * min(count, block.buffers - 1) for block, count in leaving.items())

    def release(self, session: str, handles: Iterable[int]) -> None:
        """These buffers are about to be written or moved: each gets a block of its own. Raises OutOfMemory: the rest stay shared."""
        member = self._members.get(session)
        if member is None or not member.held:
            return
        for handle in handles:
            if handle in member.held:
                member.space.unshare(handle)
                self.freed(session, handle)

    def freed(self, session: str, handle: int) -> None:
        """The buffer is freed, or no longer refers to shared content."""
        member = self._members.get(session)
        block = member.held.pop(handle, None) if member is not None else None
        if member is None or block is None:
            return
        member.held_bytes -= block.nbytes
        handles = block.holders[session]
        handles.remove(handle)
        if handles:
            return
        before = tuple(block.holders)
        with self._lock:
            del block.holders[session]
            if not block.holders:
                self._forget(block)
        self._charges.move(block.nbytes, before, tuple(block.holders))

    # -- accounts ------------------------------------------------------------------------------------------------------------------

    def sharing(self, session: str) -> bool:
        """Did the session opt in?"""
        return session in self._members

    def shared_handles(self, session: str) -> Collection[int]:
        """The session's buffers whose blocks can be shared."""
        member = self._members.get(session)
        return member.held.keys() if member is not None else ()

    def lone_handles(self, session: str) -> tuple[int, ...]:
        """Those of them whose block has reference count 1."""
        member = self._members.get(session)
        return tuple(handle for handle, block in member.held.items() if block.buffers == 1) if member is not None else ()

    def charge(self, session: str) -> int:
        """The session's part of the shared blocks it holds, in bytes: parts of all holders sum to the block exactly."""
        return self._charges.of(session)

    def charged(self, session: str) -> int:
        """What the session is charged for: its own buffers on the device in full, and its part of shared blocks."""
        member = self._members.get(session)
        own = self._spaces[session].resident_bytes
        return own if member is None else own - member.held_bytes + self._charges.of(session)

    def held_bytes(self, session: str) -> int:
        """Sizes of the session's buffers on shared blocks, in full."""
        member = self._members.get(session)
        return 0 if member is None else member.held_bytes

    def take_changed(self) -> tuple[str, ...]:
        """Open sessions whose charge changed since the last call."""
        return tuple(name for name in self._charges.take_changed() if name in self._spaces)

    @property
    def block_bytes(self) -> int:
        """Device memory of all shared blocks, each once."""
        return self._charges.total()

    def holders(self, domain: str, nbytes: int, chunks: tuple[bytes, ...]) -> frozenset[str]:
        """Sessions of the domain that hold this content (any thread)."""
        with self._lock:
            block = self._blocks.get(self._name(domain, _BUFFER, nbytes, chunks))
            return frozenset() if block is None else frozenset(block.holders)

    # -- insides -------------------------------------------------------------------------------------------------------------------

    def _join(self, session: str, handle: int, block: _Block) -> None:
        before = tuple(block.holders)
        with self._lock:
            block.holders.setdefault(session, set()).add(handle)
        member = self._members[session]
        member.held[handle] = block
        member.held_bytes += block.nbytes
        self._charges.move(block.nbytes, before, tuple(block.holders))

    def _forget(self, block: _Block) -> None:
        del self._blocks[block.name]
        for chunk, _, _ in block.chunks:
            places = self._chunks.get(chunk)
            if places is not None:
                places.pop(block, None)
                if not places:
                    del self._chunks[chunk]

    def _find(self, member: _Member, upload: Upload) -> _Block | None:
        if not _shareable(upload):
            return None
        return self._blocks.get(self._name(member.domain, _BUFFER, upload.nbytes, upload.chunks))

    def _resident(self, domain: str, digest: bytes) -> bool:
        with self._lock:
            return self._chunk_name(domain, digest) in self._chunks

    def _length(self, session: str, member: _Member | None, digest: bytes) -> int:
        chunk = self._staging.chunk(session, digest)
        if chunk is not None:
            return len(chunk)
        places = self._chunks.get(self._chunk_name(member.domain, digest)) if member is not None else None
        return next(iter(places.values()))[1] if places else 0

    def _write(self, space: Space, session: str, domain: str, handle: int, at: int, digest: bytes) -> int:
        """Write a chunk, as it was sent or out of a block that has it, into a buffer at ``at``; its length."""
        chunk = self._staging.chunk(session, digest)
        if chunk is not None:
            space.write(handle, at, chunk)
            return len(chunk)
        block, (start, length) = next(iter(self._chunks[self._chunk_name(domain, digest)].items()))
        space.attach(_BORROWED, block.shared)  # read in this space, not in the holder's: that one may be on its way elsewhere
        try:
            space.write(handle, at, space.read(_BORROWED, start, length))
        finally:
            space.free(_BORROWED)
        return length

    def _chunk_name(self, domain: str, digest: bytes) -> bytes:
        return self._name(domain, _CHUNK, 0, (digest,))

    def _name(self, domain: str, kind: bytes, nbytes: int, digests: tuple[bytes, ...]) -> bytes:
        whose = domain.encode()
        hasher = blake3(_HEAD.pack(len(kind), len(whose), nbytes), key=self._key)
        hasher.update(kind + whose + b"".join(digests))
        return hasher.digest()


def _shareable(upload: Upload) -> bool:
    return bool(upload.chunks) and upload.nbytes >= SHARE_BYTES_MIN and all(len(digest) == _DIGEST_BYTES for digest in upload.chunks)
