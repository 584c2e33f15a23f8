"""Reconciler of the configuration: the store holds the desired values, the log the values in force.

A change goes to the store first, then into the log as ConfigChanged; decisions look only at the log, so a rebuild sees the values that held
at each decision. Changes by other writers (another controller, an operator with etcdctl) arrive through the watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from bus_schemas.events import ActionTaken, ConfigChanged, Event, decode_events, encode_events
from bus_schemas.subjects import event_subject
from scheduler.placement.states import ENVIRONMENT, GLOBAL, GLOBAL_LIMITS, NODE_LIMITS, OVERCOMMIT_GLOBAL
from services.controller.errors import LogUnreadable
from services.controller.log_projection import LogProjection
from services.controller.store import ConfigStore, Entry, StoreConflict, StoreUnavailable
from services.controller.writer import Writer
from services.kit.errors import BusRefused, BusUnavailable, Conflict
from services.kit.log import get_logger

__all__ = ["Configuration"]

_PREFIX: Final = "config/"
_GLOBAL_KEY: Final = "config/global"
_NODES: Final = "config/nodes/"
_RETRY_S: Final = 1.0
_BY: Final = "changed_by"
_SHOWN_CHARS: Final = 200

Values = dict[str, int | None]
Unchanged = Callable[[], None]
"""Raises Stale when what the caller saw holds no longer."""


class _By(msgspec.Struct):
    """The author of a stored document: ActionTaken's fields by name, and the values that they wrote."""

    took: dict[str, int | str]
    of: Values


@dataclass(frozen=True, slots=True)
class _Document:
    """The stored values of one scope, and their author (None: not written through a controller)."""

    values: Values
    took: ActionTaken | None = None


class Configuration:
    """``follow()`` runs for ever beside the API."""

    def __init__(self, store: ConfigStore, projection: LogProjection, writer: Writer) -> None:
        self._store = store
        self._projection = projection
        self._writer = writer
        self._one = asyncio.Lock()

    async def start(self, overcommit_percent: int) -> None:
        """Record the environment's default, and take over what the store holds."""
        await self._adopt(ENVIRONMENT, _Document({OVERCOMMIT_GLOBAL: overcommit_percent}))
        await self._adopt_all(await self._store.entries(_PREFIX))

    async def set_global(self, changes: Values, took: ActionTaken, unchanged: Unchanged | None = None) -> None:
        """Change global values; None unsets. ``took``: the audit record. ``unchanged`` is called before anything is written."""
        await self._change(_GLOBAL_KEY, GLOBAL, changes, took, unchanged)

    async def set_node(self, node: str, changes: Values, took: ActionTaken, unchanged: Unchanged | None = None) -> None:
        """Change values of one node; as ``set_global``."""
        await self._change(_NODES + node, node, changes, took, unchanged)

    async def follow(self) -> None:
        """Take over every change of the store, for ever."""
        while True:
            try:
                async with self._store.watch(_PREFIX) as changes:
                    async for change in changes:
                        scope = _scope(change.key)
                        wanted = _decode(change.key, change.value) if scope is not None else None
                        if scope is not None and wanted is not None and self._differences(scope, wanted):
                            await self._adopt_stored(change.key, scope)
            except (StoreUnavailable, BusUnavailable, BusRefused, LogUnreadable) as error:
                get_logger().warning("configuration is not followed", error=str(error))
                await asyncio.sleep(_RETRY_S)

    async def _change(self, key: str, scope: str, changes: Values, took: ActionTaken, unchanged: Unchanged | None) -> None:
        while True:
            position = self._position(scope)
            entry = await self._store.get(key)
            stored = _decode(key, entry.value if entry else None)
            held = stored if stored is not None else _Document(self._held(scope))
            if unchanged is not None:
                await self._adopt_stored(key, scope)  # only a log in step with the store has a revision that says whether anything changed
                unchanged()
            values = {**held.values, **changes}
            kept = {name: value for name, value in sorted(values.items()) if value is not None}
            if stored is None or kept != {name: value for name, value in held.values.items() if value is not None}:
                body = msgspec.json.encode({**kept, _BY: {"took": msgspec.structs.asdict(took), "of": kept}})
                try:
                    if entry is None:
                        await self._store.create(key, body)
                    else:
                        await self._store.cas(key, body, entry.revision)
                except StoreConflict:
                    await self._projection.caught_up()
                    continue
                await self._adopt_after(position, scope, _Document(values, took))
                await self._adopt_stored(key, scope)
                return
            await self._adopt_stored(key, scope, took)
            return

    async def _adopt_all(self, entries: list[Entry]) -> None:
        """Make the log equal to the store; what the log has and the store has not is unset."""
        wanted = {scope: _decode(entry.key, entry.value) for entry in entries if (scope := _scope(entry.key)) is not None}
        for scope in sorted({scope for scope, _ in self._projection.view.config} - {ENVIRONMENT} | set(wanted)):
            document = wanted.get(scope, _Document({}))
            if document is not None:
                await self._adopt(scope, document)

    def _held(self, scope: str) -> Values:
        """The values of a scope that the log has."""
        return {key: value for (of, key), value in self._projection.view.config.items() if of == scope and isinstance(value, int)}

    async def _adopt(self, scope: str, wanted: _Document) -> None:
        """Append the differences between ``wanted`` and the log, with the audit record."""
        async with self._one:
            await self._writer.change("config", scope, lambda: self._differences(scope, wanted))

    async def _adopt_after(self, position: int, scope: str, wanted: _Document) -> None:
        """Append the differences between ``wanted`` and the log if the last fact about the scope is the one at ``position``."""
        async with self._one:
            events = self._differences(scope, wanted) if self._position(scope) == position else []
            if events:
                with contextlib.suppress(Conflict):
                    await self._writer.append("config", scope, events)

    async def _adopt_stored(self, key: str, scope: str, took: ActionTaken | None = None) -> None:
        """The same with what the store holds now: a document read before may be older than what another controller has appended since.
        ``took``: the audit record where the document names no author."""
        async with self._one:
            while True:
                position = self._position(scope)
                entry = await self._store.get(key)
                wanted = _decode(key, entry.value if entry else None)
                if wanted is None:
                    return
                if self._position(scope) != position:
                    continue
                events = self._differences(scope, wanted if wanted.took is not None else _Document(wanted.values, took))
                if not events:
                    return
                try:
                    await self._writer.append("config", scope, events)
                    return
                except Conflict:
                    await self._projection.caught_up()

    def _position(self, scope: str) -> int:
        return self._projection.subject_positions.get(event_subject("config", scope), 0)

    def _differences(self, scope: str, wanted: _Document) -> list[Event]:
        held = {key: value for (of, key), value in self._projection.view.config.items() if of == scope}
        differing = [key for key in sorted({*held, *wanted.values}) if held.get(key) != wanted.values.get(key)]
        facts: list[Event] = [ConfigChanged(time.time_ns(), scope, key, wanted.values.get(key)) for key in differing]
        return [*facts, wanted.took] if facts and wanted.took is not None else facts


def _scope(key: str) -> str | None:
    """The scope a key is about, None for other keys."""
    if key == _GLOBAL_KEY:
        return GLOBAL
    node = key.removeprefix(_NODES)
    return node if key.startswith(_NODES) and "/" not in node else None


def _decode(key: str, value: bytes | None) -> _Document | None:
    """The valid values in a stored document; others are left out, with a warning: an operator's mistake must not stop the controller. None
    when nothing in it is valid: then the present values stay, and no mistake takes a drained node into service. The author is recorded only
    with exactly the values that they wrote."""
    if value is None:
        return _Document({})
    try:
        document = msgspec.json.decode(value, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        get_logger().warning("configuration ignored", key=key, error=str(error))
        return None
    limits = GLOBAL_LIMITS if key == _GLOBAL_KEY else NODE_LIMITS
    values: Values = {}
    by = document.pop(_BY, None)
    for name, found in document.items():
        if name in limits and isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= limits[name]:
            values[name] = found
        else:
            get_logger().warning("configuration value ignored", key=key, name=name, value=repr(found)[:_SHOWN_CHARS])
    if document and not values:
        return None
    return _Document(values, _took(by, values))


def _took(by: object, values: Values) -> ActionTaken | None:
    try:
        written = msgspec.convert(by, _By)
        (took,) = decode_events(encode_events([ActionTaken(**written.took)]))  # type: ignore[arg-type]  # types are checked by this decoding
    except (msgspec.DecodeError, msgspec.ValidationError, TypeError):
        return None
    return took if written.of == values and isinstance(took, ActionTaken) else None
