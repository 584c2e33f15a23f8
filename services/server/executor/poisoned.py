"""Poisoned buffers: those that a rejected batch would have made or written.

A client sends ahead: when it hears that a batch was refused, later batches that depend on it are on their way. A buffer that the refused
batch would have made is *unmade*; one that it would have written is *stale*. A batch that uses either is refused with the same fault, and
poisons the buffers that it would have made and written. Freeing an unmade buffer is allowed, and the frees of a refused batch are done: a
program that catches the error and frees these buffers can continue.
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
from services.server.executor.programs import Plan

__all__ = ["Poisoned"]

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
