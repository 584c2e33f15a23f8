"""Credentials of a process for the bus, from its environment.

WOOLY_API_KEY (or WOOLY_API_KEY_FILE): an API key; user and password on the bus, answered by the controller. WOOLY_NATS_NKEY: a file with
the seed of a service user that the bus itself knows. WOOLY_SEAL_KEY: a file with the keys that services seal facts with. Nothing of this: a
bus without authentication.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bus_schemas.subjects import LOCAL
from services.kit.access.tokens import parse_key
from services.kit.errors import SettingError
from services.kit.nats_jwt import read_seeds
from services.kit.seal import Seal, read_seal_keys
from services.kit.tls import client_context, plain_allowed
from wooly.shared.credentials import BusCredentials, is_encrypted, plain_hosts
from wooly.shared.files import Reread


@dataclass(frozen=True, slots=True)
class Credentials(BusCredentials):
    #: what services seal facts with; None: no seals
    seal: Seal | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], url: str) -> Credentials:
        """For the bus at ``url`` (one, or several separated by commas). Raises SettingError."""
        urls = [part.strip() for part in url.split(",") if part.strip()]
        try:
            encrypted = is_encrypted(urls)
        except ValueError as error:
            raise SettingError(f"{error}: {url}") from None
        for host in plain_hosts(urls):
            plain_allowed(environment, host or "127.0.0.1", "the bus", "write its address as tls://host:port")
        text = _text(environment, "WOOLY_API_KEY")
        key = parse_key(text) if text else None
        if text and key is None:
            raise SettingError("WOOLY_API_KEY is not a key: it looks like wk_<id>_<secret>, as it was shown when it was made")
        return cls(
            key.id if key is not None else LOCAL,
            key.secret if key is not None else "",
            _seed(environment),
            client_context(environment) if encrypted else None,
            _seal(environment),
        )


def _text(environment: Mapping[str, str], name: str) -> str:
    """The value, or that of the file which NAME_FILE names."""
    return environment.get(name, "").strip() or file_text(environment, f"{name}_FILE")


def _seed(environment: Mapping[str, str]) -> Callable[[], str] | None:
    if not file_text(environment, "WOOLY_NATS_NKEY"):  # raises what says that it cannot be read
        return None
    path = Path(environment["WOOLY_NATS_NKEY"].strip()).expanduser()
    return Reread([path], lambda: read_seeds(path)[0])


def _seal(environment: Mapping[str, str]) -> Seal | None:
    """The seal; None when facts are not sealed. A file without a key raises an error: without seals every fact on the bus would be
    accepted."""
    name = environment.get("WOOLY_SEAL_KEY", "").strip()
    if not name:
        return None
    file_text(environment, "WOOLY_SEAL_KEY")  # raises what says that it cannot be read
    path = Path(name).expanduser()
    try:
        return Seal(Reread([path], lambda: read_seal_keys(path.read_text())))
    except ValueError:
        raise SettingError(f"WOOLY_SEAL_KEY={name} holds no key: hexadecimal digits, the same for all services") from None


def file_text(environment: Mapping[str, str], name: str) -> str:
    """The text of the file that ``name`` names, without white space around it; empty when it is not set. Raises SettingError."""
    path = environment.get(name, "").strip()
    if not path:
        return ""
    try:
        return Path(path).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{name}={path} cannot be read: {error}") from None
