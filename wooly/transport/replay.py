"""What a session is built from again when its node has lost its memory: an image of its buffers, and its batches since."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, replace
from typing import Final

from blake3 import blake3

from bus_schemas.batch import Done
from wis.encoding import decode_program
from wis.program import BufferKind, Program, bind
from wooly.errors import RecoveryDivergedError
from wooly.link import Flush, ReadBytes

_ENTRY_BYTES: Final = 512
"""Estimate of what an entry takes beside its sequences and bytes."""
_ITEM_BYTES: Final = 40
"""The same of one element of a sequence: a Python integer, or a pair of them."""
_GROUP_MAX: Final = 1024
_GROUP_BYTES: Final = 32 << 20
"""Of one batch of an image; a larger buffer has one of its own."""


@dataclass(slots=True)
class Kept:
    """A batch that was executed, and digests of the answers that came with its Done, by position; None: an answer of the data port."""

    flush: Flush
    digests: tuple[bytes | None, ...]

    def again(self, *, whole: bool) -> Flush:
        """The batch to be repeated. ``whole``: with all its reads, for their answers have not been taken; else only with those whose
        answers can be compared."""
        if whole or None not in self.digests:
            return self.flush
        return replace(self.flush, reads=[read for read, digest in zip(self.flush.reads, self.digests, strict=True) if digest])

    def check(self, done: Done, *, whole: bool) -> None:
        """Compare the answers of the repetition with those given before. Raises RecoveryDivergedError."""
        wanted = self.digests if whole or None not in self.digests else tuple(digest for digest in self.digests if digest)
        found = tuple(None if read.blob else blake3(read.inline).digest() for read in done.reads)
        if done.fault is not None or found != wanted:
            refused = f" ({done.fault.message})" if done.fault is not None else ""
            raise RecoveryDivergedError(
                f"the node lost the session's memory, and batch {done.seq} did not give what it gave before{refused} when it was repeated; "
                "start the script again"
            )


class ReplayLog:
    """The session's last image, and its batches since in order. It holds uploads, which do not change any more, and no results."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max``: of image and batches, as estimated; once more is kept all is given up, and its memory is free. 0: none."""
        self._bytes_max = bytes_max
        self._kept: dict[int, Kept] = {}
        self._image: list[tuple[int, ReadBytes]] = []
        self._image_bytes = 0
        self._batch_bytes = 0
        self.base = 0
        """The last batch whose effects are in the image, 0: there is none."""
        self.lack = "" if bytes_max else "WOOLY_RECOVERY_MB is 0"
        """Why the session cannot be built from it; empty: it can."""

    @property
    def whole(self) -> bool:
        """Whether the session can be built from it."""
        return not self.lack

    def keep(self, seq: int, flush: Flush, done: Done) -> None:
        """Batch ``seq`` was executed, with this answer. ``flush`` belongs to the log from now on."""
        if not self.whole or seq in self._kept or seq <= self.base:
            return
        if done.fault is not None:  # what of it later batches lack is known to the node that refused it, and to no other
            self._give_up(f"batch {seq} was refused")
            return
        self._batch_bytes += _size(flush)
        if not self._fits():
            return
        flush.origin = None  # it holds the operations, and is for messages about a batch that was not executed yet
        self._kept[seq] = Kept(flush, tuple(None if read.blob else blake3(read.inline).digest() for read in done.reads))

    def _give_up(self, lack: str) -> None:
        """Forget everything: the session can no longer be built again."""
        self.lack = lack
        self._kept.clear()
        self._image.clear()

    def _fits(self) -> bool:
        """Whether image and batches fit; if not, they are given up."""
        if self._image_bytes + self._batch_bytes > self._bytes_max:
            self._give_up(f"its memory and its batches take more than WOOLY_RECOVERY_MB ({self._bytes_max >> 20})")
        return self.whole

    def image_due(self, *, since_s: float, target_s: float, cost_s: float) -> bool:
        """Whether an image is worth its time: so that no more than ``target_s`` of work is repeated, for at most a fiftieth of the time; or
        because the log is half full, for at most a tenth. ``since_s``: since the last image; ``cost_s``: what that took, or the first may
        take."""
        if not self.whole or not self._kept:
            return False
        if 2 * self._batch_bytes > self._bytes_max - self._image_bytes:
            return 10 * cost_s <= since_s
        return since_s > target_s and 50 * cost_s <= since_s

    def live(self) -> tuple[dict[int, int], dict[int, ReadBytes]]:
        """Bytes of the buffers that the session holds, by handle, and what is in those that the client knows: they were uploaded, or are in
        the image, and not written since."""
        known = dict(self._image)
        held = {handle: len(data) for handle, data in self._image}
        made: Made = {}
        for _, kept in self:
            follow(held, kept.flush, made, known)
        return held, known

    def fetched_bytes(self) -> int:
        """What is to be fetched for an image."""
        return _fetched_bytes(*self.live())

    def has_room_for_image(self, *, small: bool) -> bool:
        """Whether an image of the buffers fits, beside none of the batches before it; ``small``: what is to be fetched for it into one
        batch."""
        held, known = self.live()
        return sum(held.values()) <= self._bytes_max and not (small and _fetched_bytes(held, known) > _GROUP_BYTES)

    def take(self, seq: int, image: list[tuple[int, ReadBytes]]) -> None:
        """``image`` is what the session's buffers hold after batch ``seq``; earlier batches are forgotten."""
        self._image = image
        self._image_bytes = sum(len(data) for _, data in image)
        self._kept = {at: kept for at, kept in self._kept.items() if at > seq}
        self._batch_bytes = sum(_size(kept.flush) for kept in self._kept.values())
        self.base = seq
        self._fits()

    @property
    def last(self) -> int:
        """The last batch whose effects are in it."""
        return max(self._kept, default=self.base)

    def restore(self) -> list[Flush]:
        """The batches that build the image."""
        data = dict(self._image)
        return [
            Flush(uploads=[(handle, memoryview(data[handle])) for handle, _ in group])
            for group in groups({handle: len(found) for handle, found in self._image})
        ]

    def __contains__(self, seq: int) -> bool:
        return seq in self._kept or seq <= self.base

    def __iter__(self) -> Iterator[tuple[int, Kept]]:
        return iter(sorted(self._kept.items()))

    def __len__(self) -> int:
        return len(self._kept)


def _fetched_bytes(held: dict[int, int], known: dict[int, ReadBytes]) -> int:
    return sum(nbytes for handle, nbytes in held.items() if handle not in known)


def groups(held: dict[int, int]) -> list[list[tuple[int, int]]]:
    """(handle, bytes) of buffers, as many as one batch of an image reads or writes."""
    found: list[list[tuple[int, int]]] = []
    room = 0
    for handle, nbytes in held.items():
        if not found or nbytes > room or len(found[-1]) == _GROUP_MAX:
            found.append([])
            room = _GROUP_BYTES
        found[-1].append((handle, nbytes))
        room -= nbytes
    return found


Made = MutableMapping[tuple[bytes, bytes], tuple[tuple[tuple[int, int], ...], tuple[int, ...]]]
"""By digests of a program and its dims: (position in ``handles``, bytes) of the buffers that it makes, and the positions of all that it
may write."""


def follow(held: dict[int, int], flush: Flush, made: Made, known: dict[int, ReadBytes] | None = None) -> None:
    """Make of ``held``, the bytes of a session's buffers by handle, what they are after ``flush``, and of ``known``, what is in some of
    them, too. ``made``: what is known of programs."""
    held.update(flush.allocs)
    held.update((handle, data.nbytes) for handle, data in flush.uploads)
    if known is not None:
        known.update(flush.uploads)
    if flush.program:
        key = (flush.program, flush.dims_digest)
        if key not in made:
            made[key] = _effects(flush)
        created, written = made[key]
        held.update((flush.handles[at], nbytes) for at, nbytes in created)
        if known:
            for at in written:
                known.pop(flush.handles[at], None)
    for handle in flush.frees:
        held.pop(handle, None)  # not there: the answer of the batch that made it was lost on its way
        if known:
            known.pop(handle, None)


def _effects(flush: Flush) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    program = decode_program(flush.program_body)
    sizes, outs = bind(program, flush.dims).nbytes, {ref.buffer for instr in program.code for ref in instr.outs}
    numbered = tuple(enumerate(visible(program)))
    created = tuple((at, sizes[n]) for at, n in numbered if program.buffers[n] == BufferKind.CREATED)
    return created, tuple(at for at, n in numbered if n in outs)


def visible(program: Program) -> list[int]:
    """The buffers of ``program`` that a flush gives handles, in their order."""
    return [number for number, kind in enumerate(program.buffers) if kind != BufferKind.TEMP]


def _size(flush: Flush) -> int:
    items = len(flush.handles) + len(flush.scalars) + len(flush.allocs) + len(flush.frees) + len(flush.reads)
    return _ENTRY_BYTES + _ITEM_BYTES * items + len(flush.dims) + sum(data.nbytes for _, data in flush.uploads)
