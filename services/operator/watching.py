"""Objects of one kind as the API server has them: listed, watched from there on, and listed again every half minute, so that nothing that
a watch missed stays unseen."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import httpx2
import msgspec
from lightkube import AsyncClient

from services.kit.log import get_logger

API_ERRORS: Final = (httpx2.HTTPError, msgspec.MsgspecError, KeyError)
"""What lightkube raises when the API server does not answer, or not as it should: a line that is cut off, an error without a type."""
_AGAIN_S: Final = 30.0
_PAUSE_S: Final = 1.0
_CHUNK: Final = 500


class Watched:
    """``synced`` is set once the first list was read. ``changed`` is called after every change."""

    def __init__(self, kube: AsyncClient, kind: Any, changed: Callable[[], None], **options: Any) -> None:
        """``options``: of ``AsyncClient.list``: namespace, labels."""
        self._kube = kube
        self._kind = kind
        self._changed = changed
        self._options = options
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.synced = asyncio.Event()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._objects.values())

    def put(self, found: Any) -> None:
        """What a write of ours has answered: the watch brings it later. An older one than is known changes nothing."""
        new = _plain(found)
        key = _key(new)
        held = self._objects.get(key)
        if held is None or int(held["metadata"]["resourceVersion"]) < int(new["metadata"]["resourceVersion"]):
            self._objects[key] = new

    async def listed(self) -> list[dict[str, Any]]:
        """The objects as they are now. Raises API_ERRORS."""
        return [_plain(one) async for one in self._kube.list(self._kind, chunk_size=_CHUNK, **self._options)]

    async def follow(self) -> None:
        """Keep up, for good; while the API server does not answer, the objects stay as they were."""
        while True:
            with contextlib.suppress(TimeoutError):
                try:
                    await self._follow_once()
                except API_ERRORS as error:
                    get_logger().warning("the API server cannot be followed", kind=self._kind.__name__, error=str(error))
                    await asyncio.sleep(_PAUSE_S * random.uniform(0.5, 1.5))

    async def _follow_once(self) -> None:
        listing = self._kube.list(self._kind, chunk_size=_CHUNK, **self._options)
        found = [_plain(one) async for one in listing]
        self._objects = {_key(one): one for one in found}
        self.synced.set()
        self._changed()
        watch = self._kube.watch(self._kind, server_timeout=round(_AGAIN_S), resource_version=listing.resourceVersion, **self._options)
        async with asyncio.timeout(_AGAIN_S * random.uniform(0.8, 1.0)), contextlib.aclosing(watch) as events:  # type: ignore[type-var]  # typed as an iterator, and closable
            async for what, one in events:
                new = _plain(one)
                if what == "DELETED":
                    self._objects.pop(_key(new), None)
                else:
                    self._objects[_key(new)] = new
                self._changed()


def _plain(found: Any) -> dict[str, Any]:
    plain: dict[str, Any] = found.to_dict()
    return plain


def _key(found: Mapping[str, Any]) -> tuple[str, str]:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]
