"""Credentials of the client for the bus and the data port, and the certificates it trusts.

May live here: the key's parts, the TLS context. May not: connecting.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bus_schemas.subjects import LOCAL
from wooly.config import Config
from wooly.errors import ConfigError
from wooly.rest import is_loopback

__all__ = ["BusIdentity"]

_TLS_SCHEMES = ("tls", "wss")


@dataclass(frozen=True, slots=True)
class BusIdentity:
    """``principal``: the key's id, ``local`` without one. ``tls`` None: plain text."""

    principal: str = LOCAL
    secret: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, config: Config, urls: Sequence[str] = ()) -> BusIdentity:
        """For the bus at ``urls`` (the configuration's unless given). Raises ConfigError when the key would travel in plain text, or the
        certificates cannot be read."""
        parts = [urlsplit(url) for url in urls or config.nats_urls]
        encrypted = [part.scheme in _TLS_SCHEMES for part in parts]
        if any(encrypted) and not all(encrypted):
            raise ConfigError("WOOLY_NATS_URL: some addresses are encrypted and some are not; write tls:// for all")
        plain = [part.hostname or "" for part, safe in zip(parts, encrypted, strict=True) if not safe]
        outside = [host for host in plain if not is_loopback(host)]
        if config.api_key and outside and not config.insecure:
            raise ConfigError(
                f"WOOLY_NATS_URL: the API key is not sent to {outside[0]} in plain text; write tls://{outside[0]}, or set WOOLY_INSECURE=1 "
                "in a private network"
            )
        _, _, rest = config.api_key.partition("_")
        key, _, secret = rest.partition("_")
        return cls(key or LOCAL, secret, _context(config.tls_ca) if any(encrypted) else None)

    def options(self) -> dict[str, Any]:
        """For ``nats.aio.client.Client.connect``. The TLS handshake comes before any protocol message, so a man in the middle cannot
        downgrade the connection."""
        out: dict[str, Any] = {}
        if self.secret:
            out.update(user=self.principal, password=self.secret)
        if self.tls is not None:
            logging.getLogger("asyncio").addFilter(_is_news)
            out.update(tls=self.tls, tls_handshake_first=True)
        return out


def _is_news(record: logging.LogRecord) -> bool:
    """Of every TLS connection that ends asyncio says that nats-py's protocol answers it in a way that changes nothing."""
    return not record.getMessage().startswith("returning true from eof_received()")


def _context(authorities: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=os.path.expanduser(authorities) if authorities else None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"WOOLY_TLS_CA={authorities!r} cannot be read as certificates ({error}); name a PEM file") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
