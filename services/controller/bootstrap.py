"""Bootstrap keys: API keys given to the controller at its start and recorded in the log once; a key of the log, revoked ones too, stays as
it is.

WOOLY_BOOTSTRAP_KEY holds an admin key made by ``wooly keys generate`` (``wooly up --secure`` makes one). An operator who has lost every key
sets a new one and restarts the controller. WOOLY_BOOTSTRAP_NODES names a file of the installation's node and viewer keys; it holds hashes,
no secrets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from bus_schemas.events import ActionTaken, Event, KeyIssued
from services.controller.log_projection import LogProjection
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.access.access import Access
from services.kit.access.tokens import parse_key
from services.kit.errors import SettingError
from services.kit.keyring import NODES_VARIABLE, NodeKey
from services.kit.log import get_logger

__all__ = ["BOOTSTRAP_KEY", "bootstrap", "bootstrap_nodes"]

BOOTSTRAP_KEY: Final = "WOOLY_BOOTSTRAP_KEY"
_ACTOR: Final = "bootstrap"


async def bootstrap(environment: Mapping[str, str], access: Access, projection: LogProjection, writer: Writer) -> None:
    """Record the key, and warn when no identity can log in. Raises SettingError for an invalid key."""
    if not access.on:
        return
    text = environment.get(BOOTSTRAP_KEY, "").strip() or _from_file(environment)
    if text:
        await _take_over(text, access, projection, writer)
    if not projection.fold(AccessView).ways_in(time.time_ns()):
        get_logger().warning(
            "no user or key can log in: make a key with `wooly keys generate` and start again with it", setting=BOOTSTRAP_KEY
        )


def _from_file(environment: Mapping[str, str]) -> str:
    """The key in the file that WOOLY_BOOTSTRAP_KEY_FILE names."""
    path = environment.get(f"{BOOTSTRAP_KEY}_FILE", "").strip()
    try:
        return Path(path).read_text().strip() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{BOOTSTRAP_KEY}_FILE={path} cannot be read: {error}") from None


async def _take_over(text: str, access: Access, projection: LogProjection, writer: Writer) -> None:
    key = parse_key(text)
    if key is None:
        raise SettingError(f"{BOOTSTRAP_KEY} is no API key; make one with `wooly keys generate`")
    if key.id in projection.fold(AccessView).keys:
        return
    phc = await access.checker.hasher.hash_secret(key.secret)
    await _record(KeyIssued(time.time_ns(), key.id, "", "", "admin", phc, title="first key"), "issued: admin", writer)


async def _record(issued: KeyIssued, detail: str, writer: Writer) -> None:
    """Append the key, unless the log has it."""

    def decide(view: AccessView) -> tuple[str, list[Event]] | None:
        if issued.key in view.keys:
            return None
        get_logger().info("a bootstrap key becomes valid", key=issued.key, title=issued.title)
        return issued.key, [issued, ActionTaken(issued.at_ns, _ACTOR, "", "key.write", issued.key, detail)]

    await writer.change_access(decide)


def _read(path: str) -> list[NodeKey]:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=list[NodeKey])
    except (OSError, msgspec.DecodeError) as error:
        raise SettingError(f"{NODES_VARIABLE}={path} cannot be read: {error}") from None


async def bootstrap_nodes(environment: Mapping[str, str], writer: Writer) -> None:
    """Issue the keys that the log does not have. Raises SettingError."""
    path = environment.get(NODES_VARIABLE, "").strip()
    for key in _read(path) if path else ():
        role = "node" if key.node else "viewer"
        issued = KeyIssued(time.time_ns(), key.key, "", "", role, key.secret_hash, title=key.name, node=key.node)
        await _record(issued, f"issued: {key.name}", writer)
