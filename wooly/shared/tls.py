"""TLS contexts of connections to other processes, and the definition of loopback."""

from __future__ import annotations

import ipaddress
import os
import ssl

__all__ = ["client_context", "is_loopback"]


def client_context(authorities: str, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """Checks certificate and name of the other side against the PEM file ``authorities`` (empty: the system's). Raises ValueError."""
    try:
        context = ssl.create_default_context(cafile=os.path.expanduser(authorities) if authorities else None)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"WOOLY_TLS_CA={authorities} cannot be used ({error}); name a PEM file with certificates of authorities") from None
    context.minimum_version = minimum
    return context


def is_loopback(host: str) -> bool:
    """Of names only ``localhost`` counts: what other names resolve to depends on the resolver."""
    bare = host.strip("[]").lower()
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
