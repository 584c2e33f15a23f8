"""Waiting for a part of the system that does not answer now: how long, and the lines on standard error that say so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from wooly import progress
from wooly.errors import WoolyError

_SAY_AFTER_S: Final = 2.0
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 1.0

T = TypeVar("T")


class Outage:
    """Says once that something does not answer, and once that it does again."""

    def __init__(self, wait_s: float) -> None:
        """``wait_s``: how long it is waited for, at most."""
        self._wait_s = wait_s
        self._began_s: float | None = None
        self._said = False

    def lasts(self, what: str) -> None:
        """A try failed. ``what``: a sentence without its end, such as ``node a does not answer``."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
        if now_s - self._began_s >= _SAY_AFTER_S and not self._said:
            self._said = True
            progress.say(f"wooly: {what}; waiting, at most {self._wait_s:.0f} s (WOOLY_RECOVERY_WAIT_S)")

    def over(self) -> None:
        """It answers."""
        if self._said and self._began_s is not None:
            progress.say(f"wooly: continuing after {time.monotonic() - self._began_s:.0f} s")
        self._began_s, self._said = None, False


class Away(Exception):
    """Something does not answer now; it may later."""

    def __init__(self, error: WoolyError) -> None:
        super().__init__(str(error))
        self.error = error
        """What to raise when it is waited for no longer."""


def repeat(work: Callable[[], T], wait_s: float, check: Callable[[], None] = lambda: None) -> T:
    """``work()``, again and again while it raises Away, for ``wait_s`` at most; then the error of the last try. ``check`` is called
    before each new try, and may raise."""
    began_s, pause_s, outage = time.monotonic(), _PAUSE_S, Outage(wait_s)
    while True:
        try:
            result = work()
        except Away as away:
            gone_s = time.monotonic() - began_s
            if gone_s + pause_s > wait_s:
                raise away.error from None
            outage.lasts(str(away))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            check()
        else:
            outage.over()
            return result
