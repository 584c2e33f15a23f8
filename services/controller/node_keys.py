"""Keys of nodes (and of who watches) that an installation was made with, taken over into the log once: WOOLY_BOOTSTRAP_NODES names a
file of them.

The file holds hashes, no secrets: the nodes have those. A key of the log, revoked ones too, is left as it is.

May live here: that. May not: the admin's first key (``bootstrap``), keys made later (REST).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from bus_schemas.events import ActionTaken, KeyIssued
from services.controller.mirror import Mirror
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.errors import Conflict, SettingError
from services.kit.keyring import NODES_VARIABLE, NodeKey
from services.kit.log import get_logger

__all__ = ["bootstrap_nodes"]

_ACTOR: Final = "bootstrap"


def _read(path: str) -> list[NodeKey]:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=list[NodeKey])
    except (OSError, msgspec.DecodeError) as error:
        raise SettingError(f"{NODES_VARIABLE}={path} cannot be read: {error}") from None


async def bootstrap_nodes(environment: Mapping[str, str], mirror: Mirror, writer: Writer) -> None:
    """Issue the keys that the log has never heard of. Raises SettingError."""
    path = environment.get(NODES_VARIABLE, "").strip()
    if not path:
        return
    for key in _read(path):
        while key.key not in mirror.fold(AccessView).keys:
            now_ns, after = time.time_ns(), mirror.access_position
            role = "node" if key.node else "viewer"
            issued = KeyIssued(now_ns, key.key, "", "", role, key.secret_hash, title=key.name, node=key.node)
            took = ActionTaken(now_ns, _ACTOR, "", "key.write", key.key, f"issued: {key.name}")
            try:
                await writer.append_access(key.key, [issued, took], after)
                get_logger().info("a key of the installation is valid", key=key.key, of=key.name)
            except Conflict:
                await mirror.caught_up()
