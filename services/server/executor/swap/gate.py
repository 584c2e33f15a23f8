"""Who may touch the device's blocks: a space's views hold only while no other space takes memory, for blocks move then.

The launching thread goes first: the moving one waits as long as that one is inside or wants to be, and stays inside for a piece at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Gate"]


class Gate:
    """``launching`` and ``moving`` exclude each other."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._launching = False
        self._moving = False

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Not to be nested."""
        with self._changed:
            self._launching = True
            while self._moving:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._launching = False
                self._changed.notify_all()

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
