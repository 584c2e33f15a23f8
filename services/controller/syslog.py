"""Audit records to syslog (RFC 5424), by the leader among the controllers.

The position of the last record that was sent is in the configuration store, written after the records: the next leader
continues there. So a record is handed to the socket at least once, and again after a failure between the two.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from logging.handlers import SysLogHandler
from typing import Final

from services.controller.errors import LogUnreadable
from services.controller.log_projection import LogProjection
from services.controller.presenters import rfc3339
from services.controller.presenters.access import action_answer
from services.controller.store import ConfigStore, StoreUnavailable
from services.kit.access import AccessView
from services.kit.access.refusals import DENIED, FAILED
from services.kit.access.view import Done
from services.kit.errors import BusUnavailable
from services.kit.http import parse_address
from services.kit.log import get_logger
from services.kit.tls import plain_allowed

__all__ = ["Syslog", "syslog_line"]

VARIABLE: Final = "WOOLY_AUDIT_SYSLOG"
_KEY: Final = "audit/syslog"
_TICK_S: Final = 1.0
_BATCH: Final = 500


def syslog_line(done: Done, host: str) -> str:
    """The record from the version of RFC 5424 on (the handler writes the priority before it): its message is that of the REST answer, as
    JSON in ASCII."""
    return f"1 {rfc3339(done.fact.at_ns)} {host} wooly - audit - {json.dumps(action_answer(done), separators=(',', ':'))}"


class Syslog:
    def __init__(self, address: str | tuple[str, int], store: ConfigStore, projection: LogProjection, on_duty: Callable[[], bool]) -> None:
        """``address``: the path of a Unix socket, or host and port (UDP)."""
        self._address = address
        self._store = store
        self._projection = projection
        self._on_duty = on_duty
        self._host = socket.gethostname()
        self._handler: _Handler | None = None
        #: position of the last record that was sent; None: this controller was not the leader, the store knows it
        self._sent: int | None = None

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str], store: ConfigStore, projection: LogProjection, on_duty: Callable[[], bool]
    ) -> Syslog | None:
        """None when WOOLY_AUDIT_SYSLOG is not set. Raises SettingError, also for plain text beyond loopback."""
        text = environment.get(VARIABLE, "").strip()
        if not text or text.startswith("/"):
            return cls(text, store, projection, on_duty) if text else None
        address = parse_address(text, VARIABLE)
        plain_allowed(environment, address[0], "audit records", "name the socket of a syslog daemon here, which forwards them over TLS")
        return cls(address, store, projection, on_duty)

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                try:
                    await self._step()
                except (OSError, BusUnavailable, StoreUnavailable, LogUnreadable) as error:
                    get_logger().warning("audit records do not reach syslog", address=str(self._address), problem=str(error))
                await asyncio.sleep(_TICK_S)
        finally:
            if self._handler is not None:
                self._handler.close()

    async def _step(self) -> None:
        """Send what is in the log behind the stored position. Raises OSError, BusUnavailable, StoreUnavailable."""
        if not self._on_duty():
            self._sent = None
            return
        if self._sent is None:
            stored = await self._store.get(_KEY)
            self._sent = int(stored.value) if stored is not None else 0
        while newer := self._newer(min(self._sent, self._projection.position)):  # (the log may have lost its tail)
            last = newer[min(_BATCH, len(newer)) - 1].position
            await asyncio.to_thread(self._send, [done for done in newer if done.position <= last])
            await self._store.put(_KEY, str(last).encode())
            self._sent = last

    def _newer(self, position: int) -> list[Done]:
        """The records behind ``position``, the oldest first."""
        return list(takewhile(lambda done: done.position > position, self._projection.fold(AccessView).actions()))[::-1]

    def _send(self, records: Sequence[Done]) -> None:
        """Raises OSError."""
        if self._handler is None:
            self._handler = _Handler(self._address, SysLogHandler.LOG_AUTHPRIV)
        for done in records:
            level = logging.WARNING if done.fact.action in (DENIED, FAILED) else logging.INFO
            self._handler.emit(logging.LogRecord("audit", level, "", 0, syslog_line(done, self._host), None, None))


class _Handler(SysLogHandler):
    append_nul = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Raise what ``emit`` caught: the record is sent again."""
        raise
