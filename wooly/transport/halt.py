"""State of a session whose budget is used up: the node's refusal, until it was raised to the script and the script continues."""

from __future__ import annotations

import threading

from wooly.errors import WoolyError

__all__ = ["Halt"]


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
