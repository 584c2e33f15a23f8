"""Credentials of one connection to the bus, and the options that nats-py takes for them."""

from __future__ import annotations

import base64
import logging
import re
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from bus_schemas.subjects import LOCAL

_TLS_SCHEMES: Final = ("tls", "wss")


@dataclass(frozen=True, slots=True)
class BusCredentials:
    #: id of the API key; ``local`` without one
    principal: str = LOCAL
    #: secret part of the API key, or a short-lived token of it; empty without one
    secret: str = field(default="", repr=False)
    #: the seed, at this moment, of a service user that the bus configuration lists; used instead of a key
    nkey_seed: Callable[[], str] | None = field(default=None, repr=False)
    #: None: plain text
    tls: ssl.SSLContext | None = None

    def options(self) -> dict[str, Any]:
        """For ``nats.aio.client.Client.connect``. The TLS handshake comes before any protocol message, so a man in the middle cannot
        downgrade the connection."""
        out: dict[str, Any] = {}
        if self.nkey_seed is not None:
            out["nkeys_seed_str"] = self.nkey_seed()
        elif self.secret:
            out.update(user=self.principal, password=self.secret)
        if self.tls is not None:
            logging.getLogger("asyncio").addFilter(_is_relevant)
            out.update(tls=self.tls, tls_handshake_first=True)
        return out


_KEY: Final = re.compile(r"wk_([a-z2-7]{16})_([a-z2-7]{52})", re.ASCII)
_TOKEN: Final = re.compile(r"wt_([A-Za-z0-9_-]{1,2000})\.[A-Za-z0-9_-]{43}", re.ASCII)
_KEY_AT: Final = 3
"""Where a token's payload has the id of its key."""


def split_key(text: str) -> tuple[str, str] | None:
    """User and password on the bus: id and secret of an API key, or of a short-lived token the id of its key and the token; None for other
    texts."""
    key, token = _KEY.fullmatch(text), _TOKEN.fullmatch(text)
    if key is not None:
        return key[1], key[2]
    if token is None:
        return None
    try:
        payload = msgspec.msgpack.decode(base64.b64decode(token[1] + "=" * (-len(token[1]) % 4), altchars=b"-_"))
        return (str(payload[_KEY_AT]), text) if payload[0] == "access" else None
    except (ValueError, msgspec.DecodeError, TypeError, LookupError):
        return None


def totp_secret(random: bytes) -> str:
    """The secret of a second factor, of 20 random bytes, as authenticator apps take it."""
    return base64.b32encode(random).decode()


def totp_uri(secret: str, user: str, issuer: str) -> str:
    """The address that authenticator apps read, by hand or from a QR code (Key URI Format of Google Authenticator)."""
    return f"otpauth://totp/{quote(f'{issuer}:{user}')}?{urlencode({'secret': secret, 'issuer': issuer}, quote_via=quote)}"


def is_encrypted(urls: Iterable[str]) -> bool:
    """Whether the bus at ``urls`` is reached over TLS. Raises ValueError when only some of the addresses are."""
    found = {urlsplit(url).scheme in _TLS_SCHEMES for url in urls}
    if len(found) == 2:
        raise ValueError("some addresses of the bus are encrypted and some are not; write tls:// for all")
    return found == {True}


def plain_hosts(urls: Iterable[str]) -> list[str]:
    """The hosts of ``urls`` that are reached in plain text."""
    return [parts.hostname or "" for url in urls if (parts := urlsplit(url)).scheme not in _TLS_SCHEMES]


def _is_relevant(record: logging.LogRecord) -> bool:
    """asyncio logs for every TLS connection that ends that the result of nats-py's eof_received() has no effect."""
    return not record.getMessage().startswith("returning true from eof_received()")
