"""The replay log of a session: its batches so far, so that it can be built again on a node that has lost its memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from blake3 import blake3

from bus_schemas.batch import Done
from wooly.errors import RecoveryDivergedError
from wooly.link import Flush

__all__ = ["Kept", "ReplayLog"]

_ENTRY_BYTES: Final = 512
"""Estimate of what an entry takes beside its sequences and bytes."""
_ITEM_BYTES: Final = 40
"""The same of one element of a sequence: a Python integer, or a pair of them."""


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
        wanted = self.digests if whole else tuple(digest for digest in self.digests if digest)
        for digest, read in zip(wanted, done.reads, strict=False):
            if digest and not read.blob and blake3(read.inline).digest() != digest:
                raise RecoveryDivergedError(
                    f"the node lost this session's memory, and batch {done.seq} did not give what it gave before when it was repeated; "
                    "start the script again"
                )


class ReplayLog:
    """Batches in order, from the session's first. It holds uploads, which do not change any more, and no results."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max``: of all that it holds, as estimated; once more is kept the log is given up, and its memory is free. 0: none."""
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: dict[int, Kept] = {}
        self.whole = bytes_max > 0
        """Whether it has every batch that was executed."""

    def keep(self, seq: int, flush: Flush, done: Done) -> None:
        """Batch ``seq`` was executed, with this answer. ``flush`` belongs to the log from now on."""
        if not self.whole or seq in self._kept:
            return
        if done.fault is not None:  # what of it later batches lack is known to the node that refused it, and to no other
            self.give_up()
            return
        self._bytes += _size(flush)
        if self._bytes > self._bytes_max:
            self.give_up()
            return
        flush.origin = None  # it holds the operations, and is for messages about a batch that was not executed yet
        self._kept[seq] = Kept(flush, tuple(None if read.blob else blake3(read.inline).digest() for read in done.reads))

    def give_up(self) -> None:
        """Forget everything: the session can no longer be built again."""
        self.whole = False
        self._kept.clear()

    def __contains__(self, seq: int) -> bool:
        return seq in self._kept

    def __iter__(self) -> Iterator[tuple[int, Kept]]:
        return iter(sorted(self._kept.items()))

    def __len__(self) -> int:
        return len(self._kept)


def _size(flush: Flush) -> int:
    items = len(flush.handles) + len(flush.scalars) + len(flush.allocs) + len(flush.frees) + len(flush.reads)
    return _ENTRY_BYTES + _ITEM_BYTES * items + len(flush.dims) + sum(data.nbytes for _, data in flush.uploads)
