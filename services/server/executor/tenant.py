"""One session's side of the executor: its memory, its place in the order, its answers kept for a while, and its poisoned buffers: those
that a rejected batch would have made or written.

A client sends ahead: when it hears that a batch was refused, later batches that depend on it are on their way. A buffer that the refused
batch would have made is *unmade*; one that it would have written is *stale*. A batch that uses either is refused with the same fault, and
poisons the buffers that it would have made and written. Freeing an unmade buffer is allowed, and the frees of a refused batch are done: a
program that catches the error and frees these buffers can continue.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bus_schemas import faults
from bus_schemas.batch import LIMITS, Batch, Fault, decode_batch
from jit.engine import Space
from services.server.executor.errors import Refused
from services.server.executor.programs import Plan, UnderWay
from services.server.executor.swap_store import Kept
from services.server.protocol import HeldSession

__all__ = ["Brought", "Tenant"]

_LOST_MAX: Final = 4 * LIMITS.buffers_max

Cause = tuple[int, str]
"""The batch that was refused first, and the name of its fault."""


@dataclass(slots=True)
class Poisoned:
    """The poisoned buffers of one session, each with the cause. ``owed``: handles to be freed that could not be when the batch was
    refused."""

    unmade: dict[int, Cause] = field(default_factory=dict)
    stale: dict[int, Cause] = field(default_factory=dict)
    owed: tuple[int, ...] = ()

    def without(self, batch: Batch) -> Batch:
        """``batch`` with the frees that are to be done: without unmade buffers, with those owed. Changes nothing."""
        if not self.unmade and not self.owed:
            return batch
        kept = tuple(handle for handle in batch.frees if handle not in self.unmade)
        return msgspec.structs.replace(batch, frees=kept + tuple(handle for handle in self.owed if handle not in kept))

    def check(self, named: Iterable[int]) -> None:
        """Raises Refused when one of these is poisoned."""
        if not self.unmade and not self.stale:
            return
        lost = {handle: cause for handle in named if (cause := self.unmade.get(handle) or self.stale.get(handle)) is not None}
        if lost:
            seq, name = min(lost.values())
            before, why = ("out of memory: ", " for lack of memory") if name == faults.QUOTA_EXCEEDED else ("", "")
            text = (
                f"{before}{len(lost)} of the buffers of this work were made or changed by work that was refused{why}; "
                "drop them and compute them anew, or load what was saved"
            )
            raise Refused(Fault(name, text, fatal=False, cause_seq=seq))

    def accepted(self, batch: Batch, plan: Plan) -> None:
        """``batch``, as it came, is about to have its effect."""
        if self.unmade:
            _forget(self.unmade, itertools.chain(batch.frees, plan.made, plan.created))
        if self.stale:
            _forget(self.stale, itertools.chain(batch.frees, self.owed))
        self.owed = ()

    def refused(self, batch: Batch, made: Iterable[int], written: Iterable[int], fault: Fault) -> tuple[int, ...]:
        """``batch``, as it came, was refused with ``fault`` and had no effect; the handles that it frees all the same. Raises Refused,
        fatal, above the limit of poisoned buffers."""
        cause = (fault.cause_seq or batch.seq, fault.name)
        self.unmade.update(dict.fromkeys(made, cause))
        self.stale.update(dict.fromkeys((handle for handle in written if handle not in self.unmade), cause))
        frees = self.without(batch).frees
        _forget(self.unmade, batch.frees)
        _forget(self.stale, frees)
        self.owed = ()
        if len(self.unmade) + len(self.stale) > _LOST_MAX:
            raise Refused(Fault(faults.OVERSIZED, f"more than {_LOST_MAX} buffers were lost with work that was refused"))
        return frees


def _forget(lost: dict[int, Cause], handles: Iterable[int]) -> None:
    for handle in handles:
        lost.pop(handle, None)


_DONES_KEPT: Final = LIMITS.outstanding_batches_max + 1
"""A session sends batch n only when it has the Done of batch n - outstanding_batches_max, so older ones are never asked for."""


@dataclass(slots=True)
class Brought:
    """A batch that the server sent and that has not begun. Used by the preparing thread and the launching one."""

    session: str
    #: Whose budget it is prepared on.
    tenant: str
    seq: int
    #: Its encoding, until it is decoded.
    data: bytes
    #: The session's code domain.
    whose: str
    #: Decoded.
    known: Batch | None = None
    #: What went wrong when it was prepared: for the launching thread to raise.
    problem: Exception | None = None
    #: It will not be executed.
    dropped: bool = False

    def batch(self) -> Batch:
        """Decoded once. Raises msgspec.DecodeError."""
        data, batch = self.data, self.known  # in this order: the other thread sets them in the opposite one
        if batch is None:
            self.known = batch = decode_batch(data)
            self.data = b""
        return batch


@dataclass(slots=True)
class Tenant:
    """A session in the executor."""

    session: str
    space: Space
    #: The server's notes about it, given back when a server attaches.
    record: bytes
    #: Its code domain: the sessions whose programs, dims and kernels it may name.
    whose: str
    #: The last batch executed or refused.
    seq_done: int = 0
    #: Launch digest after it.
    chain: bytes = b""
    faulted: bool = False
    priority: int = 0
    #: The batch after ``seq_done``, when it has begun and was stopped.
    under_way: UnderWay | None = None
    #: Its buffers, bytes by handle.
    sizes: dict[int, int] = field(default_factory=dict)
    #: Its buffers that are swapped out.
    kept: dict[int, Kept] = field(default_factory=dict)
    #: When each buffer was used last.
    used_ns: dict[int, int] = field(default_factory=dict)
    #: Of the batch that asked for memory last: the buffers it names that were swapped out.
    wanted: tuple[int, ...] = ()
    #: The buffers that batch names.
    pinned: Collection[int] = ()
    #: Why what it names did not come back; empty: it did.
    problem: str = ""
    #: Why the session cannot continue: what came back is not what was swapped out; empty: it can.
    lost: str = ""
    #: Encoded answers by seq, each with the blobs it names.
    dones: OrderedDict[int, tuple[bytes, tuple[str, ...]]] = field(default_factory=OrderedDict)
    #: Batches that have not begun, by seq.
    brought: dict[int, Brought] = field(default_factory=dict)
    #: Its poisoned buffers.
    poisoned: Poisoned = field(default_factory=Poisoned)
    #: Session, task and tenant, for the log.
    about: dict[str, str] = field(default_factory=dict)

    def bring(self, seq: int, data: bytes) -> Brought:
        """The server sent this batch (encoded)."""
        brought = self.brought[seq] = Brought(self.session, self.about.get("tenant", ""), seq, data, self.whose)
        return brought

    def forget(self, seq: int) -> None:
        """Batch ``seq`` will not be executed."""
        brought = self.brought.pop(seq, None)
        if brought is not None:
            brought.dropped = True

    def forget_all(self) -> None:
        for seq in list(self.brought):
            self.forget(seq)

    def finish(self, seq: int, chain: bytes, done: bytes, blobs: tuple[str, ...]) -> tuple[str, ...]:
        """Batch ``seq`` is over: its answer is kept; the blobs of answers that are not kept any longer are returned."""
        self.seq_done = seq
        self.chain = chain
        self.dones[seq] = (done, blobs)
        blobs_dropped: tuple[str, ...] = ()
        while len(self.dones) > _DONES_KEPT:
            blobs_dropped += self.dones.popitem(last=False)[1][1]
        return blobs_dropped

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
