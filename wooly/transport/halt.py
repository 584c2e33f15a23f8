"""Refusals of a node until they were raised to the script: of single batches, and of all of them while the budget is used up."""

from __future__ import annotations

import threading
from typing import Final

from bus_schemas.batch import Fault
from wooly.errors import WoolyError, from_fault, quota_reached
from wooly.link import Origin
from wooly.shared.lru import LruDict

_LOST_KEPT_MAX: Final = 64
"""Of how many refused batches it is remembered where they came from."""


class Refusals:
    """Refusals of single batches."""

    def __init__(self) -> None:
        #: of a batch that no caller has waited for: its number, and what it raises
        self.first: tuple[int, WoolyError] | None = None
        self._lost_at: LruDict[int, str] = LruDict(_LOST_KEPT_MAX)

    def exception(self, seq: int, fault: Fault, origin: Origin | None, skipped: int) -> WoolyError:
        """The exception for the script: the node's words, and which lines of the script they are about. ``skipped``: by how much the
        node's numbers of batches are lower."""
        where = origin.text(fault.places) if origin is not None else ""
        if fault.cause_seq:
            cause = self._lost_at.get(fault.cause_seq + skipped, "")
            where = f"{where}; the work that was refused was {cause}" if where and cause else where
        elif not fault.fatal and where:
            self._lost_at[seq] = where
        text = origin.explain(fault.instruction, fault.message) if origin is not None and fault.instruction >= 0 else fault.message
        if fault.excess is not None:
            return quota_reached(f"{text}\n  {where}" if where else text, fault.excess)
        return from_fault(fault.name, text, fault.places, where)

    def raise_first(self, seq_max: int) -> None:
        """Raise, once, the refusal of a batch up to ``seq_max`` that no caller waited for: later batches lack its results."""
        first = self.first
        if first is not None and first[0] <= seq_max:
            self.first = None
            try:
                raise first[1]
            finally:
                del first  # its traceback holds this frame, which would keep the script's tensors alive


class Halt:
    """Any thread may call. True while the node has refused a batch that is to be sent again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._error: WoolyError | None = None
        self._raised = False

    def __bool__(self) -> bool:
        return self._error is not None

    def set(self, error: WoolyError) -> None:
        """Record a refusal; further refusals of the same batches change nothing."""
        with self._lock:
            if self._error is None:
                self._error, self._raised = error, False

    def raise_pending(self) -> None:
        """Raise the refusal, if there is one."""
        with self._lock:
            error, self._raised = self._error, self._error is not None
        if error is not None:
            raise error.with_traceback(None)

    def over(self) -> bool:
        """Whether the refusal was raised to the script, which now continues: true once, and the batches are then sent again."""
        with self._lock:
            over, self._raised = self._raised, False
            if over:
                self._error = None
        return over
