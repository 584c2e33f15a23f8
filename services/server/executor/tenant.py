"""One session's side of the executor: its memory, its place in the order, its answers kept for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from bus_schemas.batch import LIMITS, Batch, Fault, decode_batch
from jit.engine import Space
from services.server.executor.poisoned import Poisoned
from services.server.executor.programs import UnderWay
from services.server.executor.swap.store import Kept
from services.server.protocol import HeldSession

__all__ = ["Brought", "Tenant"]

_DONES_KEPT: Final = LIMITS.outstanding_batches_max + 1
"""A session sends batch n only when it has the Done of batch n - outstanding_batches_max, so older ones are never asked for."""


@dataclass(slots=True)
class Brought:
    """A batch that the server sent and that has not begun. Used by the preparing thread and the launching one."""

    session: str
    seq: int
    #: Its encoding, until it is decoded.
    data: bytes
    #: Decoded.
    known: Batch | None = None
    #: Why it was refused when it was prepared.
    refusal: Fault | None = None

    def batch(self) -> Batch:
        """Decoded once. Raises msgspec.DecodeError."""
        data, batch = self.data, self.known  # in this order: the other thread sets them in the opposite one
        if batch is None:
            self.known = batch = decode_batch(data)
            self.data = b""
        return batch


@dataclass(slots=True)
class Tenant:
    """``sizes``: the session's buffers, bytes by handle. ``seq_done``: the last batch executed or refused. ``dones``: encoded Done by seq,
    with the blobs it names. ``chain``: launch digest after ``seq_done``. ``under_way``: the batch after ``seq_done``, when it has begun and
    was stopped. ``kept``: its buffers that are swapped out; ``used_ns``: when each was used last. Of the batch that asked for memory last:
    ``pinned``, the buffers it names, ``wanted``, those of them that were swapped out, and ``problem``, why they did not come back.
    ``brought``: by seq, batches that have not begun. ``poisoned``: its poisoned buffers.
    ``about``: who it is, for the log. ``lost``: why the session cannot go on (what came back is not what went)."""

    session: str
    space: Space
    record: bytes
    seq_done: int = 0
    chain: bytes = b""
    faulted: bool = False
    priority: int = 0
    under_way: UnderWay | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    used_ns: dict[int, int] = field(default_factory=dict)
    wanted: tuple[int, ...] = ()
    pinned: Collection[int] = ()
    problem: str = ""
    lost: str = ""
    dones: OrderedDict[int, tuple[bytes, tuple[str, ...]]] = field(default_factory=OrderedDict)
    brought: dict[int, Brought] = field(default_factory=dict)
    poisoned: Poisoned = field(default_factory=Poisoned)
    about: dict[str, str] = field(default_factory=dict)

    def bring(self, seq: int, data: bytes) -> Brought:
        """The server sent this batch (encoded)."""
        brought = self.brought[seq] = Brought(self.session, seq, data)
        return brought

    def finish(self, seq: int, chain: bytes, done: bytes, blobs: tuple[str, ...]) -> tuple[str, ...]:
        """Batch ``seq`` is over: its answer is kept; the blobs of answers that are not kept any longer are returned."""
        self.seq_done = seq
        self.chain = chain
        self.dones[seq] = (done, blobs)
        gone: tuple[str, ...] = ()
        while len(self.dones) > _DONES_KEPT:
            gone += self.dones.popitem(last=False)[1][1]
        return gone

    def recall(self, after_seq: int, bytes_max: int) -> tuple[bytes, ...]:
        """The kept answers of batches after ``after_seq``, in order: the first, and those behind it while they are not above ``bytes_max``
        together."""
        found: list[bytes] = []
        for seq, (done, _) in self.dones.items():
            if seq > after_seq:
                bytes_max -= len(done)
                if found and bytes_max < 0:
                    break
                found.append(done)
        return tuple(found)

    def held(self, charged_bytes: int) -> HeldSession:
        return HeldSession(self.session, self.record, self.seq_done, self.chain, charged_bytes, self.faulted)
