"""The bootstrap key: a key that the operator gives the controller at its start, recorded in the log once.

WOOLY_BOOTSTRAP_KEY holds a key made by ``wooly keys generate`` (``wooly up --secure`` makes one by itself). It becomes an admin key of the
cluster when the log has never heard of its id; a key of the log, revoked ones too, is left as it is. An operator who has lost every key
sets a new one and restarts the controller.

May live here: that. May not: any other key.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bus_schemas.events import ActionTaken, KeyIssued
from services.controller.mirror import Mirror
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.access.access import Access
from services.kit.access.tokens import parse_key
from services.kit.errors import Conflict, SettingError
from services.kit.log import get_logger

__all__ = ["BOOTSTRAP_KEY", "bootstrap"]

BOOTSTRAP_KEY: Final = "WOOLY_BOOTSTRAP_KEY"
_ACTOR: Final = "bootstrap"


async def bootstrap(environment: Mapping[str, str], access: Access, mirror: Mirror, writer: Writer) -> None:
    """Record the key, and warn when no identity can log in. Raises SettingError for an invalid key."""
    if not access.on:
        return
    text = environment.get(BOOTSTRAP_KEY, "").strip() or _from_file(environment)
    if text:
        await _take_over(text, access, mirror, writer)
    if not mirror.fold(AccessView).ways_in(time.time_ns()):
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


async def _take_over(text: str, access: Access, mirror: Mirror, writer: Writer) -> None:
    key = parse_key(text)
    if key is None:
        raise SettingError(f"{BOOTSTRAP_KEY} is no API key; make one with `wooly keys generate`")
    while key.id not in mirror.fold(AccessView).keys:
        after = mirror.access_position
        now_ns = time.time_ns()
        phc = await access.checker.hasher.hash_secret(key.secret)
        issued = KeyIssued(now_ns, key.id, "", "", "admin", phc, title="first key")
        try:
            await writer.append_access(key.id, [issued, ActionTaken(now_ns, _ACTOR, "", "key.write", key.id, "issued: admin")], after)
            get_logger().info("the bootstrap key is valid", key=key.id)
        except Conflict:
            await mirror.caught_up()  # another replica took it over
