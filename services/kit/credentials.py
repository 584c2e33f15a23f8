"""Credentials of a process for the bus, from its environment.

WOOLY_API_KEY (or WOOLY_API_KEY_FILE): an API key; user and password on the bus, answered by the controller. WOOLY_NATS_NKEY: a file with
the seed of a service user that the bus itself knows. WOOLY_SEAL_KEY: a file with the key that services seal facts with. Nothing of this: a
bus without authentication.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bus_schemas.subjects import LOCAL
from services.kit.access.keys import parse_key
from services.kit.errors import SettingError
from services.kit.tls import client_context, plain_allowed

__all__ = ["Credentials"]

_TLS_SCHEMES = ("tls", "wss")


@dataclass(frozen=True, slots=True)
class Credentials:
    """``principal``: the key's id, ``local`` without one. ``tls`` None: plain text."""

    principal: str = LOCAL
    password: str = field(default="", repr=False)
    nkey_seed: str = field(default="", repr=False)
    seal_key: bytes = field(default=b"", repr=False)
    tls: ssl.SSLContext | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], url: str) -> Credentials:
        """For the bus at ``url`` (one, or several separated by commas). Raises SettingError."""
        parts = [urlsplit(part.strip()) for part in url.split(",") if part.strip()]
        encrypted = {part.scheme in _TLS_SCHEMES for part in parts}
        if encrypted == {True, False}:
            raise SettingError(f"some addresses of the bus are encrypted and some are not: {url}; write tls:// for all")
        if encrypted == {False}:
            for part in parts:
                plain_allowed(environment, part.hostname or "127.0.0.1", "the bus", "write its address as tls://host:port")
        text = _text(environment, "WOOLY_API_KEY")
        key = parse_key(text) if text else None
        if text and key is None:
            raise SettingError("WOOLY_API_KEY is not a key: it looks like wk_<id>_<secret>, as it was shown when it was made")
        return cls(
            key.id if key is not None else LOCAL,
            key.secret if key is not None else "",
            _file(environment, "WOOLY_NATS_NKEY"),
            _seal_key(environment),
            client_context(environment) if encrypted == {True} else None,
        )

    def options(self) -> dict[str, Any]:
        """For ``nats.aio.client.Client.connect``. The TLS handshake comes before any protocol message, so a man in the middle cannot
        downgrade the connection."""
        out: dict[str, Any] = {}
        if self.nkey_seed:
            out["nkeys_seed_str"] = self.nkey_seed
        elif self.password:
            out.update(user=self.principal, password=self.password)
        if self.tls is not None:
            logging.getLogger("asyncio").addFilter(_is_news)
            out.update(tls=self.tls, tls_handshake_first=True)
        return out


def _is_news(record: logging.LogRecord) -> bool:
    """Of every TLS connection that ends asyncio says that nats-py's protocol answers it in a way that changes nothing."""
    return not record.getMessage().startswith("returning true from eof_received()")


def _text(environment: Mapping[str, str], name: str) -> str:
    """The value, or that of the file which NAME_FILE names."""
    return environment.get(name, "").strip() or _file(environment, f"{name}_FILE")


def _seal_key(environment: Mapping[str, str]) -> bytes:
    """The key; empty when facts are not sealed. A file without a key raises an error: without seals every fact on the bus would be
    accepted."""
    text = _file(environment, "WOOLY_SEAL_KEY")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if environment.get("WOOLY_SEAL_KEY", "").strip() and not key:
        raise SettingError(f"WOOLY_SEAL_KEY={environment['WOOLY_SEAL_KEY']} holds no key: hexadecimal digits, the same for all services")
    return key


def _file(environment: Mapping[str, str], name: str) -> str:
    path = environment.get(name, "").strip()
    if not path:
        return ""
    try:
        return Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{name}={path} cannot be read: {error}") from None
