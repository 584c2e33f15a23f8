"""Seals on facts: proof that a service wrote a fact, against replay of stored messages by other clients of the bus.

The bus checks what a connection publishes, not where it has answers delivered: a client with access to JetStream can have any stored
bytes delivered to any subject, the subjects of facts included. Clients with API keys have no such access. As a second line of defence
against them, services put a header beside each of their facts: a keyed hash of its subject, its name and its bytes, with a key that only
services have. Facts of nodes (areas ``node``, ``session``, ``usage``) carry none: nodes may write them, each on its own subjects, and what
such a message may hold is checked.

Facts older than the first start with a key have no seals: the stream remembers from which position on they count (``SEALED_FROM``).

The key is rotated without a break (``services.kit.rotation``): a file holds several keys, one a line. The first seals; all are accepted, a
retired one (``HEX until=N``) only up to position N of the log, which the bus counts. So the log stays readable, and a stolen key that is
retired seals no new fact. A line ``HEX next`` is a key that will seal once every service accepts it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import msgspec
from blake3 import blake3

from bus_schemas import events as facts
from bus_schemas.events import Event, decode_events, encode_events

HEADER: Final = "Wooly-Seal"
NAME_HEADER: Final = "Nats-Msg-Id"
SEALED_FROM: Final = "wooly_sealed_from"
"""In the metadata of the events stream: the first position at which seals are asked for."""

_PREFIX: Final = "wooly.evt."
_OF_NODES: Final = ("node", "session", "usage")
_MANY: Final = ("task", "placement", "load")
_REMEMBERED: Final = 24
_SECRET_CONTEXT: Final = "wooly 2026 secret of tokens"
_NOTHING: Final = encode_events([])
_BY_NODES: Final = (
    facts.NodeRegistered, facts.NodeLost, facts.NodeRecovered, facts.SessionOpenedFact, facts.SessionClosedFact, facts.UsageRecorded,
    facts.DeviceAccounted, facts.SessionPriorityChanged, facts.NodeLeaving,
)  # fmt: skip


@dataclass(frozen=True)
class SealKey:
    """One of the keys that all services of an installation share."""

    #: as the file holds it
    key: bytes = field(repr=False)
    #: the last position of the log at which its seals count; None: it is not retired
    until: int | None = None
    #: it is accepted and does not seal yet
    next: bool = False

    @cached_property
    def id(self) -> str:
        """Names the key where people read it; tells nothing about it."""
        return blake3(b"id\n", key=self._digest).hexdigest(4)

    def make(self, subject: str, name: str, data: bytes) -> str:
        return blake3(f"{subject}\n{name}\n".encode() + data, key=self._digest).hexdigest(32)

    def secret(self, salt: bytes) -> bytes:
        return blake3(salt, key=blake3(self._digest, derive_key_context=_SECRET_CONTEXT).digest()).digest()

    @cached_property
    def _digest(self) -> bytes:
        return blake3(self.key).digest()


def read_seal_keys(text: str) -> tuple[SealKey, ...]:
    """The keys of a file, the one that seals first. Raises ValueError when it holds none, or something else."""
    keys = []
    for line in text.split("\n"):
        digits, _, state = line.strip().partition(" ")
        if state not in ("", "next") and not state.startswith("until="):
            raise ValueError(f"unknown state of a key: {state}")
        if digits:
            keys.append(SealKey(bytes.fromhex(digits), int(state[6:]) if state.startswith("until=") else None, next=state == "next"))
    if not keys or not all(one.key for one in keys) or keys[0].next or keys[0].until is not None:
        raise ValueError("it holds no key to seal with")
    return tuple(keys)


def write_seal_keys(keys: Sequence[SealKey]) -> str:
    """The text that ``read_seal_keys`` reads."""
    states = ["" if one.until is None else f" until={one.until}" for one in keys]
    return "".join(f"{one.key.hex()}{' next' if one.next else state}\n" for one, state in zip(keys, states, strict=True))


class Seal:
    """``keys()``: the keys of this moment, the one that seals first."""

    def __init__(self, keys: Callable[[], Sequence[SealKey]]) -> None:
        self._keys = keys

    def make(self, subject: str, name: str, data: bytes) -> str:
        """The header's value. ``name``: the message's id, which no other message has."""
        return self._keys()[0].make(subject, name, data)

    def secrets(self, salt: bytes) -> tuple[bytes, ...]:
        """32 bytes for each key that is not retired, the first for new use. Only services can compute them, even if an attacker knows or
        chose ``salt``."""
        return tuple(key.secret(salt) for key in self._keys() if key.until is None)

    def holds(self, position: int, subject: str, headers: Mapping[str, str], data: bytes) -> bool:
        """Whether a service wrote this message, which is at ``position`` of the log, to this subject."""
        given, name = headers.get(HEADER, "").encode(errors="replace"), headers.get(NAME_HEADER, "")
        counting = (key for key in self._keys() if key.until is None or position <= key.until)
        return any(hmac.compare_digest(key.make(subject, name, data).encode(), given) for key in counting)


class SealedLog:
    """One reader's view of the log: what of each message counts. ``since``: the first position at which seals are asked for. ``seal`` None:
    a reader that cannot check them, a node. It accepts subjects that only services may publish on, and cannot be made to read an old fact
    again."""

    def __init__(self, seal: Seal | None) -> None:
        self._seal = seal
        self._seen: dict[str, int] = {}
        self.since: int | None = None

    def start_over(self) -> None:
        """The broker gives positions again."""
        self._seen.clear()

    def accepted(self, position: int, subject: str, headers: Mapping[str, str], data: bytes) -> bytes:
        """The message as it counts: as it is, with fewer events, or with none."""
        if self.since is None or position < self.since:
            return data
        if not is_fact(subject):
            return _NOTHING  # what is delivered onto a fact's subject keeps its own
        if self._seal is None:
            return _NOTHING if HEADER in headers and self._repeats(position, subject, headers[HEADER]) else data
        if _area(subject) in _OF_NODES and HEADER not in headers:
            return _of_node(subject, data)
        if not self._seal.holds(position, subject, headers, data) or self._repeats(position, subject, headers[HEADER]):
            return _NOTHING
        return data

    def _repeats(self, position: int, subject: str, seal: str) -> bool:
        """Whether this is a copy of an earlier fact. Facts of single tasks, which are many, are not remembered: their replay does little
        harm."""
        if _area(subject) in _MANY:
            return False
        return self._seen.setdefault(seal[:_REMEMBERED], position) != position


def is_fact(subject: str) -> bool:
    return subject.startswith(_PREFIX)


def _area(subject: str) -> str:
    return subject.split(".", 3)[2]


def _of_node(subject: str, data: bytes) -> bytes:
    """A node's message, less the events that nodes may not write or that name another node. An unreadable one counts as empty, so that no
    node can stop a service."""
    try:
        events = decode_events(data)
    except msgspec.DecodeError:
        return _NOTHING
    node = subject.rsplit(".", 1)[1]
    good: list[Event] = [event for event in events if isinstance(event, _BY_NODES) and event.node == node]
    return data if len(good) == len(events) else encode_events(good)
