"""Personal fields of the event log: names and identities of users, titles of tenants, keys and tasks. They are encrypted under a key of
that user or tenant. Destroying the key erases them everywhere, while every byte of the log stays, and with it seals, bills and replays.

The keys are in a bucket beside the log, where every controller finds them: ``$KV.wooly_personal.user.ID`` and ``.tenant.ID``. Each has 32
random bytes, wrapped if the controllers have a key for data at rest. Fields are encrypted by AES-SIV, with the name of the field as
associated data: equal text of one user gives equal bytes, so a fact that is written again unchanged is unchanged. A field without the mark
of an encrypted one is plain text: of an earlier version, or of a key that belongs to neither a user nor a tenant.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Self, TypeVar, get_args

import msgspec
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from bus_schemas.events import Event, KeyIssued, TaskSubmitted, TenantChanged, UserChanged
from bus_schemas.subjects import is_token
from services.kit.at_rest import AT_REST_VARIABLE, KeyWrap, WrongKey
from services.kit.bus import Bus
from services.kit.errors import BusRefused, Conflict, StartError
from services.kit.log import get_logger

ERASED: Final = "(erased)"
"""Shown for a title that can no longer be read."""
_BUCKET: Final = "wooly_personal"
_STREAM: Final = f"KV_{_BUCKET}"
_ROOT: Final = f"$KV.{_BUCKET}."
_MARK: Final = "\x1fenc."
"""Begins an encrypted field. REST refuses control characters in what callers write."""
_CONTEXT: Final = "wooly 2026 personal fields"
_START_S: Final = 30.0
_KEY_BYTES: Final = 32

_Personal = TenantChanged | UserChanged | KeyIssued | TaskSubmitted
P = TypeVar("P", TenantChanged, UserChanged, KeyIssued, TaskSubmitted)


class PersonalKeys:
    """``async with PersonalKeys(bus, wrap)`` returns once all keys are read. Raises StartError when they are wrapped under another key."""

    def __init__(self, bus: Bus, wrap: KeyWrap | None) -> None:
        self._bus = bus
        self._wrap = wrap
        self._ciphers: dict[str, AESSIV] = {}
        #: position of each owner's key, or of the mark of its destruction, in the bucket
        self._positions: dict[str, int] = {}
        #: positions of keys that others replaced, to be overwritten
        self._replaced: list[int] = []
        self._failure: StartError | None = None
        #: called with an owner whose key came or was destroyed
        self.on_change: Callable[[str], None] = lambda owner: None

    async def __aenter__(self) -> Self:
        await self._bus.ensure_stream(
            {
                "name": _STREAM,
                "subjects": [f"{_ROOT}>"],
                "storage": "file",
                "max_msgs_per_subject": 2,  # one that is replaced stays until it is overwritten (``_overwrite``)
                "discard": "new",
                "allow_rollup_hdrs": True,
                "allow_direct": True,
            }
        )
        self._follower = self._bus.follow(_STREAM, 1, self._on_key)
        await self._follower.start()
        async with asyncio.timeout(_START_S):
            await self._follower.current.wait()
        if self._failure is not None:
            await self._follower.stop()
            raise self._failure
        await self._wrap_again()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._follower.stop()

    def opened(self, fact: P) -> P:
        """``fact`` with its personal fields in plain text; what cannot be read is ``ERASED``, and of an identity empty."""
        found = {field: self._opened(fact, field, getattr(fact, field)) for field in _fields(fact) if is_sealed(getattr(fact, field))}
        return msgspec.structs.replace(fact, **found) if found else fact

    async def sealed(self, events: Sequence[Event]) -> list[Event]:
        """``events`` with their personal fields encrypted, under new keys where there are none. Raises BusUnavailable, BusRefused."""
        out = []
        for event in events:
            if isinstance(event, get_args(_Personal)):
                event = await self._sealed(event)
            out.append(event)
        return out

    async def destroy(self, owner: str) -> None:
        """Destroy the key of ``user.ID`` or ``tenant.ID``: the bus overwrites it on its disk. Raises BusUnavailable, BusRefused."""
        held = await self._bus.message(_STREAM, last_by_subj=_ROOT + owner)
        if held is not None and held[1]:
            await self._overwrite(held[0])
        await self._overwrite_replaced()
        # Other controllers forget the key when this comes.
        self._on_key(await self._bus.publish_acked(_ROOT + owner, b""), _ROOT + owner, b"")

    async def _overwrite_replaced(self) -> None:
        while self._replaced:
            await self._overwrite(self._replaced.pop())

    async def _overwrite(self, position: int) -> None:
        """Remove a message; the bus overwrites it on its disk. Raises BusUnavailable, BusRefused."""
        try:
            await self._bus.js_api(f"STREAM.MSG.DELETE.{_STREAM}", {"seq": position})
        except BusRefused:  # asked twice, and the first answer was lost: then it is deleted
            if await self._bus.message(_STREAM, seq=position) is not None:
                raise

    def _on_key(self, position: int, subject: str, data: bytes) -> None:
        owner = subject.removeprefix(_ROOT)
        if position <= self._positions.get(owner, 0) or not owner.startswith(("user.", "tenant.")):
            return
        if owner in self._positions:
            self._replaced.append(self._positions[owner])
        self._positions[owner] = position
        self._ciphers.pop(owner, None)
        if data:
            try:
                self._ciphers[owner] = AESSIV(blake3(self._unwrapped(data), derive_key_context=_CONTEXT).digest(64))
            except WrongKey as error:
                self._failure = StartError(f"the key of {owner} in {_STREAM} cannot be read: {error}")
        self.on_change(owner)

    async def _wrap_again(self) -> None:
        """Wrap under the first key for data at rest what is wrapped under another, or not at all."""
        wrapped = 0
        for owner, position in list(self._positions.items()) if self._wrap is not None else ():
            held = await self._bus.message(_STREAM, last_by_subj=_ROOT + owner)
            if self._wrap is None or held is None or not held[1] or (len(held[1]) != _KEY_BYTES and self._wrap.is_current(held[1])):
                continue
            with contextlib.suppress(Conflict):  # another controller did, or it was destroyed
                data = self._wrap.wrap(self._unwrapped(held[1]))
                self._on_key(await self._bus.publish_acked(_ROOT + owner, data, expect_last_on_subject=position), _ROOT + owner, data)
                wrapped += 1
        await self._overwrite_replaced()
        if wrapped:
            get_logger().info("keys of personal fields are wrapped under the first key for data at rest", keys=wrapped)

    def _unwrapped(self, data: bytes) -> bytes:
        """Raises WrongKey. A key that was made before the controllers had a key for data at rest is as it was."""
        if len(data) == _KEY_BYTES:
            return data
        if self._wrap is None:
            raise WrongKey(f"it is wrapped, and {AT_REST_VARIABLE} is not set")
        return self._wrap.unwrap(data)

    async def _sealed(self, fact: P) -> P:
        owner, texts = _owner(fact), {field: text for field in _fields(fact) if (text := getattr(fact, field)) and not is_sealed(text)}
        if not owner or not texts:
            return fact
        while owner not in self._ciphers:
            await self._create(owner)
        cipher = self._ciphers[owner]
        sealed = {field: cipher.encrypt(text.encode(), [_data(fact, field)]) for field, text in texts.items()}
        return msgspec.structs.replace(fact, **{field: _MARK + base64.b64encode(data).decode() for field, data in sealed.items()})

    async def _create(self, owner: str) -> None:
        key = secrets.token_bytes(_KEY_BYTES)
        data = key if self._wrap is None else self._wrap.wrap(key)
        try:
            position = await self._bus.publish_acked(_ROOT + owner, data, expect_last_on_subject=self._positions.get(owner, 0))
        except Conflict:  # another controller made it at the same moment
            found = await self._bus.message(_STREAM, last_by_subj=_ROOT + owner)
            if found is None:  # or is destroying it
                self._positions.pop(owner, None)
                return
            position, data = found
        self._on_key(position, _ROOT + owner, data)

    def _opened(self, fact: _Personal, field: str, text: str) -> str:
        cipher = self._ciphers.get(_owner(fact))
        if cipher is not None:
            try:
                return cipher.decrypt(base64.b64decode(text.removeprefix(_MARK)), [_data(fact, field)]).decode()
            except (InvalidTag, ValueError):
                pass
        return ERASED if field == "title" else ""


def _fields(fact: _Personal) -> tuple[str, ...]:
    return ("title", "oidc_name", "oidc_subject", "totp") if isinstance(fact, UserChanged) else ("title",)


def _owner(fact: _Personal) -> str:
    """Under whose key the fields are; empty: they stay as they are. Without authentication a task may name any text as its tenant, which is
    never one that can be erased."""
    user = "" if isinstance(fact, TenantChanged | TaskSubmitted) else fact.user
    return f"user.{user}" if user else f"tenant.{fact.tenant}" if is_token(fact.tenant) else ""


def is_sealed(text: str) -> bool:
    return text.startswith(_MARK)


def _data(fact: _Personal, field: str) -> bytes:
    return f"{type(fact).__name__}.{field}".encode()
