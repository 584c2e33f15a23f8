"""Format of API keys: ``wk_<id>_<secret>``. The id is public and appears in subjects and in the log; the secret is shown once."""

from __future__ import annotations

import base64
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

__all__ = ["KEY_ID", "KeyText", "is_key_id", "make_key", "parse_key"]

_ID_BYTES: Final = 10
_SECRET_BYTES: Final = 32
KEY_ID: Final = "[a-z2-7]{16}"
_KEY: Final = re.compile(rf"wk_({KEY_ID})_([a-z2-7]{{52}})", re.ASCII)
_ONLY_ID: Final = re.compile(KEY_ID, re.ASCII)


@dataclass(frozen=True, slots=True)
class KeyText:
    """``secret`` stays out of every repr and log line."""

    id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """The whole key, to be shown once."""
        return f"wk_{self.id}_{self.secret}"


def make_key() -> KeyText:
    """A new key: 80 random bits of id, 256 of secret."""
    return KeyText(_base32(_ID_BYTES), _base32(_SECRET_BYTES))


def parse_key(text: str) -> KeyText | None:
    """The parts of a key, None for anything that is none."""
    found = _KEY.fullmatch(text) if len(text) < 100 else None
    return KeyText(found[1], found[2]) if found else None


def is_key_id(text: str) -> bool:
    return _ONLY_ID.fullmatch(text) is not None


def _base32(count: int) -> str:
    return base64.b32encode(secrets.token_bytes(count)).decode().rstrip("=").lower()
