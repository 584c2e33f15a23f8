"""The secret that tokens are signed with: 32 bytes in a bucket on the bus that all replicas and billing read. Where services seal their
facts it is made of those bytes and their common key, so that who reads the bus's disk, or brings the bus to store other bytes, knows
nothing.

The first service that starts creates it. Deleting the key (``nats kv del wooly_access session_secret``) and restarting makes a new one;
every browser then logs in again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Any, Final

from services.kit.bus import Bus
from services.kit.errors import Conflict, StartError

__all__ = ["BUCKET", "shared_secret"]

BUCKET: Final = "wooly_access"
_STREAM: Final = f"KV_{BUCKET}"
_SUBJECT: Final = f"$KV.{BUCKET}.session_secret"
_BYTES: Final = 32
_TRIES: Final = 5
_PAUSE_S: Final = 0.1


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
