"""The client's credentials for the bus and the data port, from its configuration."""

from __future__ import annotations

from collections.abc import Sequence

from bus_schemas.subjects import LOCAL
from wooly.config import Config
from wooly.errors import ConfigError
from wooly.shared.credentials import BusCredentials, is_encrypted, plain_hosts
from wooly.shared.tls import client_context, is_loopback

__all__ = ["bus_credentials"]


def bus_credentials(config: Config, urls: Sequence[str] = ()) -> BusCredentials:
    """For the bus at ``urls`` (the configuration's unless given). Raises ConfigError when the key would travel in plain text, or the
    certificates cannot be read."""
    servers = urls or config.nats_urls
    try:
        encrypted = is_encrypted(servers)
    except ValueError as error:
        raise ConfigError(f"WOOLY_NATS_URL: {error}") from None
    outside = [host for host in plain_hosts(servers) if not is_loopback(host)]
    if config.api_key and outside and not config.insecure:
        raise ConfigError(
            f"WOOLY_NATS_URL: the API key is not sent to {outside[0]} in plain text; write tls://{outside[0]}, or set WOOLY_INSECURE=1 "
            "in a private network"
        )
    _, _, rest = config.api_key.partition("_")
    key, _, secret = rest.partition("_")
    try:
        return BusCredentials(key or LOCAL, secret, tls=client_context(config.tls_ca) if encrypted else None)
    except ValueError as error:
        raise ConfigError(str(error)) from None
