"""JetStream access of a follower: information about a stream, and consumers that deliver into an inbox.

Services use the JetStream API (``JetStreamConsumers``). Clients authenticated by API key have no access to it, because they could have its
answers sent to any subject: they ask the controllers (``ProxiedConsumers``), which check permissions and deliver only into the client's
inboxes.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

import msgspec

from bus_schemas.access import AboutStream, Follow, Following, Refused, Said, StreamAbout, Unfollow, read_subject
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.seal import SEALED_FROM
from services.kit.streams import ELECTION_S

__all__ = ["HEARTBEAT_S", "ProxiedConsumers", "JetStreamConsumers", "Consumers", "stored_at_ns", "stored_message"]

HEARTBEAT_S: Final = 1.0
"""Interval of heartbeats of an idle consumer."""
_INACTIVE_NS: Final = 60 * 10**9
_UNFOLLOW_S: Final = 0.5
_PAUSE_S: Final = 0.02
_NEEDED: Final = "that needs the role admin or operator, without a tenant"
_NO_MESSAGE: Final = 10037
"""JetStream err_code: there is no message."""
_decode: Final[Callable[[bytes], Said]] = msgspec.msgpack.Decoder(Said).decode
_T = TypeVar("_T", StreamAbout, Following)
Api = Callable[..., Awaitable[dict[str, Any]]]


class Consumers(Protocol):
    """All raise BusRefused (with JetStream's err_code, where it was JetStream) and BusUnavailable."""

    async def about(self, asked: AboutStream) -> StreamAbout: ...

    async def follow(self, asked: Follow) -> Following: ...

    async def unfollow(self, asked: Unfollow) -> None: ...


class JetStreamConsumers:
    """``api``: ``Bus.js_api``."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def about(self, asked: AboutStream) -> StreamAbout:
        info = await self._api(f"STREAM.INFO.{asked.stream}")
        since = (info["config"].get("metadata") or {}).get(SEALED_FROM)
        found = await stored_message(self._api, asked.stream, {"last_by_subj": asked.subject}) if asked.subject else None
        last_on = 0 if found is None else found[0]
        return StreamAbout(info["created"], int(info["state"]["last_seq"]), last_on, None if since is None else int(since))

    async def follow(self, asked: Follow) -> Following:
        config = {
            "name": asked.consumer,
            "deliver_subject": asked.inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": asked.from_position,
            "ack_policy": "none",
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_NS,
        }
        if asked.subject:
            config["filter_subject"] = asked.subject
        suffix = f".{asked.subject}" if asked.subject else ""
        create = {"stream_name": asked.stream, "config": config, "action": "create"}
        made = await self._api(f"CONSUMER.CREATE.{asked.stream}.{asked.consumer}{suffix}", create)
        begun = int((made.get("delivered") or {}).get("consumer_seq") or 0)  # asked again, after an answer that was lost
        return Following(int(made.get("num_pending") or 0) + begun)

    async def unfollow(self, asked: Unfollow) -> None:
        await self._api(f"CONSUMER.DELETE.{asked.stream}.{asked.consumer}", timeout_s=_UNFOLLOW_S)


async def stored_message(api: Api, stream: str, query: dict[str, Any]) -> tuple[int, bytes] | None:
    """Position and data of the message of ``stream`` that ``query`` selects, None when there is none. ``api``: ``Bus.js_api``."""
    message = await _message(api, stream, query)
    return None if message is None else (int(message["seq"]), base64.b64decode(message.get("data", "")))


async def stored_at_ns(api: Api, stream: str, position: int) -> int:
    """When the broker stored the message of ``stream`` at ``position``, Unix time; 0 when there is none. ``api``: ``Bus.js_api``."""
    message = await _message(api, stream, {"seq": position})
    if message is None:
        return 0
    whole, _, part = message["time"].removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(f"{whole}+00:00").timestamp()) * 10**9 + int(part.ljust(9, "0"))


async def _message(api: Api, stream: str, query: dict[str, Any]) -> dict[str, Any] | None:
    try:
        message: dict[str, Any] = (await api(f"STREAM.MSG.GET.{stream}", query))["message"]
    except BusRefused as refused:
        if refused.code == _NO_MESSAGE:
            return None
        raise
    return message


class ProxiedConsumers:
    """``request``: ``Bus.request``. Asks again while no controller answers, for as long as an election may take. ``refusals``: the last
    refusals of the bus, in lower case."""

    def __init__(self, request: Callable[..., Awaitable[bytes]], principal: str, refusals: Collection[str] = ()) -> None:
        self._request = request
        self._refusals = refusals
        self._subject = read_subject(principal)

    async def about(self, asked: AboutStream) -> StreamAbout:
        return _expected(await self._ask(asked), StreamAbout)

    async def follow(self, asked: Follow) -> Following:
        return _expected(await self._ask(asked), Following)

    async def unfollow(self, asked: Unfollow) -> None:
        """One attempt: a consumer without a listener expires by itself."""
        await self._request(self._subject, msgspec.msgpack.encode(asked), _UNFOLLOW_S)

    async def _ask(self, asked: AboutStream | Follow) -> Said:
        question = msgspec.msgpack.encode(asked)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ELECTION_S
        while True:
            try:
                return _decode(await self._request(self._subject, question, max(0.05, min(2.0, deadline - loop.time()))))
            except (BusUnavailable, msgspec.DecodeError) as problem:
                if any(f'publish to "{self._subject.lower()}"' in text for text in self._refusals):
                    raise BusRefused(f"your key may not read {asked.stream}: {_NEEDED}") from None
                if loop.time() >= deadline:
                    raise BusUnavailable(f"no controller reads {asked.stream} to us; is one running? ({problem})") from problem
                await asyncio.sleep(_PAUSE_S)


def _expected(said: Said, kind: type[_T]) -> _T:
    if isinstance(said, Refused):
        raise BusRefused(said.text, said.code)
    if not isinstance(said, kind):
        raise BusRefused(f"a controller answered {type(said).__name__} instead of {kind.__name__}: is it of another version?")
    return said
