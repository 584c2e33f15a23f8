"""Text forms of an identity: API keys, and the short-lived tokens of keys, browser sessions and relayed requests. Pure, but for
``make_key``.

An API key is ``wk_<id>_<secret>``: the id is public and appears in subjects and in the log; the secret is shown once.

A token is a payload and its HMAC-SHA-256 under a secret that all replicas share. It names a user or a key, never rights: those are looked
up in the log at every use. A service presents a relay token on behalf of its caller. A browser that logs in at an OpenID Connect provider
keeps its ``LoginFlow`` in the same form.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

import msgspec

_KEY_ID_BYTES: Final = 10
_KEY_SECRET_BYTES: Final = 32
KEY_ID: Final = "[a-z2-7]{16}"
_KEY: Final = re.compile(rf"wk_({KEY_ID})_([a-z2-7]{{52}})", re.ASCII)
_ONLY_ID: Final = re.compile(KEY_ID, re.ASCII)
SESSION_S: Final = 15 * 60
"""Validity of a session's token; it is renewed while the session is used."""
RENEW_AFTER_S: Final = 5 * 60
SESSION_MAX_S: Final = 12 * 3600
"""Longest duration of a session, however much it is used."""
RELAY_S: Final = 60
FLOW_S: Final = 600
"""Time for a login at an OpenID Connect provider."""
_TEXT_MAX: Final = 4096
TOKEN_PREFIX: Final = "wt_"
T = TypeVar("T", bound=msgspec.Struct)


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
    return KeyText(_base32(_KEY_ID_BYTES), _base32(_KEY_SECRET_BYTES))


def parse_key(text: str) -> KeyText | None:
    """The parts of a key, None for text without the form of one."""
    found = _KEY.fullmatch(text) if len(text) < 100 else None
    return KeyText(found[1], found[2]) if found else None


def is_key_id(text: str) -> bool:
    return _ONLY_ID.fullmatch(text) is not None


def _base32(count: int) -> str:
    return base64.b32encode(secrets.token_bytes(count)).decode().rstrip("=").lower()


class Token(msgspec.Struct, array_like=True, frozen=True):
    """The payload. It names the holder by ``user`` or ``key``. Times are Unix seconds."""

    kind: Literal["session", "relay", "access"]
    id: str
    user: str
    key: str
    #: of the user's password: a new password invalidates the tokens that began with the old one
    stamp: str
    #: of the session
    began_s: int
    #: of this token
    issued_s: int
    expires_s: int
    #: narrow the rights of the key; empty: all of them
    scopes: tuple[str, ...] = ()


def write_token(secret: bytes, token: Token) -> str:
    return _signed(secret, b"token", token)


def read_token(secret: bytes, text: str, now_s: int, kind: str) -> Token | None:
    """The token, None unless its MAC and its kind are right and it has not expired."""
    token = _read(secret, b"token", text, Token)
    return token if token is not None and token.kind == kind and token.issued_s - 60 <= now_s < token.expires_s else None


class LoginFlow(msgspec.Struct, array_like=True, frozen=True):
    """A login at an OpenID Connect provider that a browser has begun; it keeps this in a cookie."""

    state: str
    nonce: str
    #: of PKCE (RFC 7636)
    verifier: str
    #: the page to go to after it
    target: str
    #: Unix seconds
    expires_s: int


def make_login_flow(target: str, now_s: int) -> LoginFlow:
    state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
    return LoginFlow(state, nonce, verifier, target, now_s + FLOW_S)


def write_login_flow(secret: bytes, flow: LoginFlow) -> str:
    return _signed(secret, b"flow", flow)


def read_login_flow(secret: bytes, text: str, now_s: int) -> LoginFlow | None:
    """None unless its MAC is right and it has not expired."""
    flow = _read(secret, b"flow", text, LoginFlow)
    return flow if flow is not None and now_s < flow.expires_s else None


def _signed(secret: bytes, purpose: bytes, value: msgspec.Struct) -> str:
    payload = msgspec.msgpack.encode(value)
    return f"{TOKEN_PREFIX}{_text(payload)}.{_text(_mac(secret, purpose, payload))}"


def _read(secret: bytes, purpose: bytes, text: str, kind: type[T]) -> T | None:
    if len(text) > _TEXT_MAX or not text.startswith(TOKEN_PREFIX):
        return None
    payload_text, dot, mac_text = text.removeprefix(TOKEN_PREFIX).partition(".")
    payload, mac = _bytes(payload_text), _bytes(mac_text)
    if not dot or payload is None or mac is None or not hmac.compare_digest(mac, _mac(secret, purpose, payload)):
        return None
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.DecodeError:
        return None  # written by another version: its holder logs in again


def csrf_token(secret: bytes, session: str) -> str:
    """What pages of a session send with every write, and no other site knows."""
    return _text(hmac.digest(secret, b"csrf\0" + session.encode(), hashlib.sha256))


def _mac(secret: bytes, purpose: bytes, payload: bytes) -> bytes:
    return hmac.digest(secret, purpose + b"\0" + payload, hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes | None:
    """None for what is not exactly what ``_text`` writes: a token has one spelling."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if _text(data) == text else None
