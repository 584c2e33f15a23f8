"""What the services share about access on the bus: the projection of access events, and the secret that signs tokens.

The secret is 32 bytes in a bucket that all replicas and billing read. Where services seal their facts it is derived from those bytes and
their common key, so that a reader of the bus's disk, or a writer of other bytes, cannot compute it. The first service that starts creates
it. Deleting the key (``nats kv del wooly_access session_secret``) and restarting makes a new one; every browser then logs in again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from types import TracebackType
from typing import Any, Final, Self

from bus_schemas.events import decode_events
from services.kit.access.view import AccessView
from services.kit.bus import Bus
from services.kit.errors import Conflict, LogUnreadable, StartError
from services.kit.projection import Projection

__all__ = ["AccessProjection", "BUCKET", "shared_secret"]

BUCKET: Final = "wooly_access"
_STREAM: Final = f"KV_{BUCKET}"
_SUBJECT: Final = f"$KV.{BUCKET}.session_secret"
_BYTES: Final = 32
_TRIES: Final = 5
_PAUSE_S: Final = 0.1
_SUBJECTS: Final = "wooly.evt.access.*"
_HISTORY_S: Final = 30.0


class AccessProjection(Projection):
    """``async with AccessProjection(bus)`` returns once the history is folded. After an unreadable event, which may be a revocation, all
    authentication fails."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, _SUBJECTS)
        self.view = AccessView()

    async def __aenter__(self) -> Self:
        await self.follow()
        async with asyncio.timeout(_HISTORY_S):
            with contextlib.suppress(LogUnreadable):
                await self.wait_for(await self.log_end())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    @property
    def receives_revocations(self) -> bool:
        """Whether a revocation would be folded now."""
        return self.connected and self.failure is None

    def apply(self, position: int, subject: str, data: bytes) -> None:
        for event in decode_events(data):
            self.view.apply(position, event)

    def start_over(self) -> None:
        self.view = AccessView()


async def shared_secret(bus: Bus) -> bytes:
    """The secret, made now if there is none. Raises StartError when what is there is no secret, BusUnavailable, BusRefused."""
    await bus.ensure_stream(_bucket())
    for _ in range(_TRIES):
        revision, found = await bus.message(_STREAM, last_by_subj=_SUBJECT) or (0, b"")
        if found and bus.seal is not None:
            return bus.seal.secret(found)
        if found:
            if len(found) != _BYTES:
                raise StartError(f"{_SUBJECT} holds {len(found)} bytes instead of {_BYTES}; delete it and start again")
            return found
        with contextlib.suppress(Conflict):  # another replica made it at the same moment
            await bus.publish_acked(_SUBJECT, secrets.token_bytes(_BYTES), expect_last_on_subject=revision)
        await asyncio.sleep(_PAUSE_S)
    raise StartError(f"no secret could be stored at {_SUBJECT}; is the bucket full or read-only?")


def _bucket() -> dict[str, Any]:
    return {
        "name": _STREAM,
        "subjects": [f"$KV.{BUCKET}.>"],
        "storage": "file",
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }
