"""Actions on the global configuration."""

from __future__ import annotations

from services.controller.configuration import Configuration, Values
from services.controller.identity import Caller
from services.controller.mirror import Mirror
from services.controller.revisions import check, config_revision

__all__ = ["ConfigActions"]


class ConfigActions:
    def __init__(self, mirror: Mirror, configuration: Configuration) -> None:
        self._mirror = mirror
        self._configuration = configuration

    async def change(self, by: Caller, changes: Values, *, revision: int | None = None) -> None:
        """Set global values; None unsets. Raises Denied, Stale when ``revision`` is given and no longer holds, and errors of bus and
        store; returns once the view shows it."""
        by.require("config.write")
        await self._mirror.caught_up()

        def unchanged() -> None:
            check("the configuration", config_revision(self._mirror), revision)

        unchanged()
        detail = ", ".join(f"{key}={'unset' if value is None else value}" for key, value in sorted(changes.items()))
        took = by.took("config.write", "global", detail=detail)
        await self._configuration.set_global(changes, took, unchanged if revision is not None else None)
