"""Whether authentication is on. Off is for one machine only: everything listens on its loopback.

Setting WOOLY_AUTH: ``on``, ``off``, or unset: off where that is allowed, else on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from services.kit.errors import SettingError
from wooly.shared.tls import is_loopback

__all__ = ["authentication_on", "hosts_of"]


def authentication_on(environment: Mapping[str, str], listens_on: Iterable[str]) -> bool:
    """``listens_on``: every host that this service and its bus listen on. Raises SettingError when it is off and one is not loopback."""
    said = environment.get("WOOLY_AUTH", "").strip().lower()
    if said not in ("", "on", "off"):
        raise SettingError(f"WOOLY_AUTH is {said!r}; write on or off")
    outside = sorted({host for host in listens_on if not is_loopback(host)})
    if said == "off" and outside:
        raise SettingError(
            f"WOOLY_AUTH is off, but {outside[0]} is not a loopback address: anybody who reaches it could do anything; "
            "set WOOLY_AUTH=on (and WOOLY_BOOTSTRAP_KEY, made by `wooly keys generate`, for the first admin), "
            "or listen on 127.0.0.1 only (WOOLY_HTTP=127.0.0.1:8080)"
        )
    return said == "on" or bool(outside)


def hosts_of(urls: str) -> list[str]:
    """The hosts in a list of URLs separated by commas, as WOOLY_NATS_URL is one; empty (no loopback) for what is no URL."""
    return [_host(url if "://" in url else f"nats://{url}") for part in urls.split(",") if (url := part.strip())]


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
