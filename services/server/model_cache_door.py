"""Who may speak to the model cache: a name and a token, given by the server for an hour, checked by the data port. Nothing is remembered.

The name says until when and for which domain; the token is a keyed hash of it under the cache's own key, which only this node's processes
can read.

May live here: making and checking doors. May not: the bus, files of the cache.
"""

from __future__ import annotations

import secrets
from typing import Final

from blake3 import blake3

__all__ = ["make_door", "opens"]

DOOR_S: Final = 3600
_PREFIX: Final = "model-cache"


def make_door(key: bytes, domain: str, now_s: int) -> tuple[str, str]:
    """Name and token for ``domain``, good for an hour from ``now_s`` (Unix time)."""
    name = f"{_PREFIX} {now_s + DOOR_S} {secrets.token_hex(8)} {domain}"
    return name, _token(key, name)


def opens(key: bytes, name: str, token: str, now_s: int) -> str | None:
    """The domain that a door opens, None when it is none, or not any longer."""
    parts = name.split(" ", 3)
    if len(parts) != 4 or parts[0] != _PREFIX or not secrets.compare_digest(_token(key, name).encode(), token.encode(errors="replace")):
        return None
    return parts[3] if now_s < int(parts[1]) else None


def _token(key: bytes, name: str) -> str:
    return blake3(name.encode(errors="replace"), key=key).hexdigest()
