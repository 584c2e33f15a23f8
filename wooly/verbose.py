"""Debug output of ``WOOLY_DEBUG=1``: a line on standard error for the session, for every batch and for every wait."""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

from bus_schemas.session import SessionOpened
from wooly.link import Flush, Link, ReadBytes, Ticket

__all__ = ["VerboseLink", "switch_on"]

_log: Final = logging.getLogger("wooly")


def switch_on() -> None:
    """Send the log to standard error, apart from whatever logging the script sets up."""
    if not _log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("wooly %(relativeCreated)d ms: %(message)s"))
        _log.addHandler(handler)
    _log.setLevel(logging.DEBUG)
    _log.propagate = False


class VerboseLink:
    """A link that says what passes through it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        info = link.info
        _log.debug("session %s open, quota %d bytes, lease %d ms, limits %s", info.session, info.quota_bytes, info.lease_ms, info.limits)

    @property
    def info(self) -> SessionOpened:
        return self._link.info

    @property
    def wire_bytes(self) -> int:
        return self._link.wire_bytes

    def submit(self, flush: Flush) -> Ticket:
        start, before = time.perf_counter(), self._link.wire_bytes
        ticket = self._link.submit(flush)
        _log.debug(
            "batch %d: %d operations, program %s, %d scalars, %d uploads of %d bytes, %d allocations, %d frees, %d reads; "
            "%d bytes sent in %.1f ms",
            ticket.seq,
            flush.n_ops,
            bytes(flush.program[:4]).hex() or "none",
            len(flush.scalars),
            len(flush.uploads),
            sum(len(data) for _, data in flush.uploads),
            len(flush.allocs),
            len(flush.frees),
            len(flush.reads),
            self._link.wire_bytes - before,
            (time.perf_counter() - start) * 1e3,
        )
        return ticket

    def report(self) -> None:
        self._link.report()

    def wait(self, ticket: Ticket) -> list[ReadBytes]:
        start = time.perf_counter()
        answers = self._link.wait(ticket)
        _log.debug("batch %d: waited %.1f ms for %d answers", ticket.seq, (time.perf_counter() - start) * 1e3, len(answers))
        return answers

    def free_bytes(self) -> int:
        return self._link.free_bytes()

    def close(self) -> None:
        self._link.close()
        _log.debug("session %s closed", self._link.info.session)
