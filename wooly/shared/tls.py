"""TLS contexts of connections to other processes, and the definition of loopback."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Self

from wooly.shared.files import Reread


class ReloadingContext(ssl.SSLContext):
    """A context whose files may be replaced: connections that begin later use what the files hold then."""

    _current: Reread[ssl.SSLContext]

    @classmethod
    def of(cls, files: Sequence[str], make: Callable[[], ssl.SSLContext]) -> Self:
        """``make()``: a context of what ``files`` hold. Raises what it raises."""
        current = Reread(files, make)
        self = cls(current().protocol)
        self.minimum_version = current().minimum_version
        self._current = current
        return self

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self._current().wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return self._current().wrap_socket(*arguments, **options)


def client_context(authorities: str, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """Checks certificate and name of the other side against the PEM file ``authorities`` (empty: the system's), which is read again once it
    was replaced. Raises ValueError."""
    file = os.path.expanduser(authorities)

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=file or None)
        context.minimum_version = minimum
        return context

    try:
        return ReloadingContext.of([file], make) if file else make()
    except (OSError, ssl.SSLError) as error:
        raise ValueError(_unusable(authorities, error)) from None


def outside_context(authorities: str) -> ssl.SSLContext:
    """For services of others (TLS 1.2 or later): trusts the system's authorities and those of the PEM file ``authorities`` (empty: none).
    Raises ValueError."""
    context = client_context("", ssl.TLSVersion.TLSv1_2)
    if authorities:
        try:
            context.load_verify_locations(os.path.expanduser(authorities))
        except (OSError, ssl.SSLError) as error:
            raise ValueError(_unusable(authorities, error)) from None
    return context


def _unusable(authorities: str, error: Exception) -> str:
    return f"WOOLY_TLS_CA={authorities} cannot be used ({error}); name a PEM file with certificates of authorities"


def is_loopback(host: str) -> bool:
    """Of names only ``localhost`` counts: what other names resolve to depends on the resolver."""
    bare = host.strip("[]").lower()
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
