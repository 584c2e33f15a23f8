"""Seals on facts: proof that a service wrote a fact, against replay of stored messages by other clients of the bus.

The bus checks what a connection publishes, not where it has answers delivered: a client with access to JetStream can have any stored
bytes delivered to any subject, the subjects of facts included. Clients with API keys have no such access. As a second line of defence
against them, services put a header beside each of their facts: a keyed hash of its subject, its name and its bytes, with a key that only
services have. Facts of nodes (areas ``node``, ``session``, ``usage``) carry none: nodes may write them, each on its own subjects, and what
such a message may hold is checked.

Facts older than the first start with a key have no seals: the stream remembers from which position on they count (``SEALED_FROM``).
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

import msgspec
from blake3 import blake3

from bus_schemas import events as facts
from bus_schemas.events import Event, decode_events, encode_events

__all__ = ["HEADER", "NAME_HEADER", "SEALED_FROM", "Seal", "SealedLog", "is_fact"]

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
    facts.DeviceAccounted, facts.SessionPriorityChanged,
)  # fmt: skip


class Seal:
    """Made of the key that all services of an installation share."""

    def __init__(self, key: bytes) -> None:
        self._key = blake3(key).digest()

    def make(self, subject: str, name: str, data: bytes) -> str:
        """The header's value. ``name``: the message's id, which no other message has."""
        return blake3(f"{subject}\n{name}\n".encode() + data, key=self._key).hexdigest(32)

    def secret(self, salt: bytes) -> bytes:
        """32 bytes that only services can compute, even if an attacker knows or chose ``salt``."""
        return blake3(salt, key=blake3(self._key, derive_key_context=_SECRET_CONTEXT).digest()).digest()

    def holds(self, subject: str, headers: Mapping[str, str], data: bytes) -> bool:
        """Whether a service wrote this message to this subject."""
        given, name = headers.get(HEADER, ""), headers.get(NAME_HEADER, "")
        return hmac.compare_digest(self.make(subject, name, data).encode(), given.encode(errors="replace"))


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
        if not self._seal.holds(subject, headers, data) or self._repeats(position, subject, headers[HEADER]):
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
