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
        sent_bytes, sent_ms = self._link.wire_bytes - before, (time.perf_counter() - start) * 1e3
        uploaded_bytes = sum(len(data) for _, data in flush.uploads)
        _log.debug(
            f"batch {ticket.seq}: {flush.n_ops} operations, program {bytes(flush.program[:4]).hex() or 'none'}, "
            f"{len(flush.scalars)} scalars, {len(flush.uploads)} uploads of {uploaded_bytes} bytes, {len(flush.allocs)} allocations, "
            f"{len(flush.frees)} frees, {len(flush.reads)} reads; {sent_bytes} bytes sent in {sent_ms:.1f} ms"
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
