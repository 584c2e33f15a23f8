"""A lock on the device's blocks: a space's views are valid only while no other space takes memory, for blocks move then.

The launching thread goes first: the moving one waits as long as that one is inside or wants to be, and stays inside for a piece at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

__all__ = ["Gate"]


class _Launching(AbstractContextManager[None]):
    """Made once for every gate: the launching thread comes by with every batch."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        gate = self._gate
        with gate._changed:
            gate._launching = True
            while gate._moving:
                gate._changed.wait()

    def __exit__(self, *exception: object) -> None:
        gate = self._gate
        with gate._changed:
            gate._launching = False
            gate._changed.notify_all()


class Gate:
    """``launching`` and ``moving`` exclude each other."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._launching = False
        self._moving = False
        self._by_launching = _Launching(self)

    def launching(self) -> AbstractContextManager[None]:
        """Not to be nested."""
        return self._by_launching

    @contextmanager
    def moving(self) -> Iterator[None]:
        """For no longer than a piece takes."""
        with self._changed:
            while self._launching:
                self._changed.wait()
            self._moving = True
        try:
            yield
        finally:
            with self._changed:
                self._moving = False
                self._changed.notify_all()
