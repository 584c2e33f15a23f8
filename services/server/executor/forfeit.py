"""Poisoned buffers: what a session has lost with batches that were refused, and may not be used as if it had not.

A client sends ahead: when it hears that a batch was refused, others that build on it are on their way. What the refused batch would have
made is *gone*; what it would have written is *stale*; a batch that touches either is refused with the same fault, and what it would have
made and written is lost with it. Dropping what is gone is no mistake, and what a refused batch would have dropped is dropped: a program
that catches the error and frees these buffers can continue.

May live here: that. May not: why a batch is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from bus_schemas import faults
from bus_schemas.batch import LIMITS, Batch, Fault
from services.server.executor.errors import Refused
from services.server.executor.plan import Plan

__all__ = ["Forfeit"]

_LOST_MAX: Final = 4 * LIMITS.buffers_max

Cause = tuple[int, str]
"""The batch that was refused first, and the name of its fault."""


@dataclass(slots=True)
class Forfeit:
    """Of one session: buffers that are gone and stale, each with the cause. ``owed``: handles to be freed that could not be when the batch
    was refused."""

    gone: dict[int, Cause] = field(default_factory=dict)
    stale: dict[int, Cause] = field(default_factory=dict)
    owed: tuple[int, ...] = ()

    def without(self, batch: Batch) -> Batch:
        """``batch`` with the frees that are to be done: not of what is gone, and of what is owed. May be asked again."""
        if not self.gone and not self.owed:
            return batch
        kept = tuple(handle for handle in batch.frees if handle not in self.gone)
        return msgspec.structs.replace(batch, frees=kept + tuple(handle for handle in self.owed if handle not in kept))

    def check(self, named: Iterable[int]) -> None:
        """Raises Refused when one of these is lost; the batch is lost with it."""
        if not self.gone and not self.stale:
            return
        lost = {handle: cause for handle in named if (cause := self.gone.get(handle) or self.stale.get(handle)) is not None}
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
        if self.gone:
            _forget(self.gone, itertools.chain(batch.frees, plan.made, plan.created))
        if self.stale:
            _forget(self.stale, itertools.chain(batch.frees, self.owed))
        self.owed = ()

    def refused(self, batch: Batch, made: Iterable[int], written: Iterable[int], fault: Fault) -> tuple[int, ...]:
        """``batch``, as it came, was refused with ``fault`` and had no effect; the handles that it frees all the same. Raises Refused,
        fatal, beyond all measure."""
        cause = (fault.cause_seq or batch.seq, fault.name)
        self.gone.update(dict.fromkeys(made, cause))
        self.stale.update(dict.fromkeys((handle for handle in written if handle not in self.gone), cause))
        frees = self.without(batch).frees
        _forget(self.gone, batch.frees)
        _forget(self.stale, frees)
        self.owed = ()
        if len(self.gone) + len(self.stale) > _LOST_MAX:
            raise Refused(Fault(faults.OVERSIZED, f"more than {_LOST_MAX} buffers were lost with work that was refused"))
        return frees


def _forget(lost: dict[int, Cause], handles: Iterable[int]) -> None:
    for handle in handles:
        lost.pop(handle, None)
