"""Short-lived tokens that name an identity: a browser's session, and the relay token that a service presents on behalf of a caller.

A token is a payload and its HMAC-SHA-256 under a secret that all replicas share. It names a user or a key, never rights: those are looked
up in the log at every use. Pure: time, ids and secret come in.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final, Literal

import msgspec

__all__ = ["RELAY_S", "RENEW_AFTER_S", "SESSION_MAX_S", "SESSION_S", "Token", "csrf_token", "read_token", "write_token"]

SESSION_S: Final = 15 * 60
"""Life of a session's token; it is renewed while the session is used."""
RENEW_AFTER_S: Final = 5 * 60
SESSION_MAX_S: Final = 12 * 3600
"""Life of a session, however much it is used."""
RELAY_S: Final = 60
_TEXT_MAX: Final = 1024
_PREFIX: Final = "wt_"


class Token(msgspec.Struct, array_like=True, frozen=True):
    """``user`` or ``key``: who it is. ``stamp``: of the user's password, so that a new password ends what began with the old one.
    Times are Unix seconds."""

    kind: Literal["session", "relay"]
    id: str
    user: str
    key: str
    stamp: str
    began_s: int
    issued_s: int
    expires_s: int


_decoder: Final = msgspec.msgpack.Decoder(Token)


def write_token(secret: bytes, token: Token) -> str:
    payload = msgspec.msgpack.encode(token)
    return f"{_PREFIX}{_text(payload)}.{_text(_mac(secret, payload))}"


def read_token(secret: bytes, text: str, now_s: int, kind: str) -> Token | None:
    """The token, None unless it is ours, whole, of this kind and in its time."""
    if len(text) > _TEXT_MAX or not text.startswith(_PREFIX):
        return None
    payload_text, dot, mac_text = text.removeprefix(_PREFIX).partition(".")
    payload, mac = _bytes(payload_text), _bytes(mac_text)
    if not dot or payload is None or mac is None or not hmac.compare_digest(mac, _mac(secret, payload)):
        return None
    try:
        token = _decoder.decode(payload)
    except msgspec.DecodeError:
        return None  # of another version of ours: its owner logs in again
    return token if token.kind == kind and token.issued_s - 60 <= now_s < token.expires_s else None


def csrf_token(secret: bytes, session: str) -> str:
    """What pages of a session send with every write, and no other site knows."""
    return _text(hmac.digest(secret, b"csrf\0" + session.encode(), hashlib.sha256))


def _mac(secret: bytes, payload: bytes) -> bytes:
    return hmac.digest(secret, b"token\0" + payload, hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes | None:
    """None for what is not exactly what ``_text`` writes: a token has one spelling."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if _text(data) == text else None
