"""Requests to the controllers (core request/reply, msgpack): a node asks who a principal is; and a client authenticated by API key asks the
JetStream consumer proxy for a stream.

Such clients have no access to the JetStream API, because a caller of it chooses the subject that its answers go to (docs/security.md).
Pure: data types and subjects.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from bus_schemas.limits import Name, Text
from bus_schemas.subjects import inbox_prefix, token

WHO_ALL: Final = "wooly.access.who.*"
WHO_CHANGED: Final = "wooly.access.gone"
"""Controllers publish on it that the rights of a principal changed; each node then asks for that principal again."""


def who_subject(node: str) -> str:
    """A node asks the controllers on it."""
    return f"wooly.access.who.{token(node)}"


class WhoIs(msgspec.Struct, frozen=True):
    """``task``: for which task it wants a session, or empty."""

    principal: Name
    task: Name = ""


class Principal(msgspec.Struct, frozen=True):
    """``good``: may use nodes now. ``tenant`` empty: works for the whole cluster, and says itself for whom. ``name``: as the log calls
    it. ``task_good``: the task that was asked about is its tenant's (or none was asked about)."""

    principal: str
    good: bool
    tenant: str = ""
    role: str = ""
    name: str = ""
    task_good: bool = True


READ_ALL: Final = "wooly.access.read.*"
_FILTER: Final = re.compile(r"[A-Za-z0-9_-]{1,64}(\.([A-Za-z0-9_-]{1,64}|\*))*(\.>)?\Z")
_FILTER_CHARS_MAX: Final = 512


def read_subject(principal: str) -> str:
    """The subject of requests by ``principal``; each principal has its own."""
    return f"wooly.access.read.{token(principal)}"


def consumer_prefix(principal: str) -> str:
    """The prefix of the names of a principal's consumers. The rest is random: a client that knows a consumer's name could delete it."""
    return f"follow_{token(principal)}_"


def consumer_owner(consumer: str) -> str:
    """The principal that owns this consumer; empty when the name has no owner in it."""
    kind, _, rest = consumer.partition("_")
    return rest.rpartition("_")[0] if kind == "follow" else ""


class AboutStream(msgspec.Struct, frozen=True, tag="about"):
    """``subject``: ask also for the last message on it (wildcards allowed)."""

    stream: Text
    subject: Text = ""


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """Every message from ``from_position`` on (those on ``subject`` alone, if not empty), in order, to ``inbox``. To ask twice with the
    same ``consumer`` does it once."""

    stream: Text
    consumer: Text
    inbox: Text
    from_position: int
    subject: Text = ""


class Unfollow(msgspec.Struct, frozen=True, tag="unfollow"):
    stream: Text
    consumer: Text


Asked = AboutStream | Follow | Unfollow


class StreamAbout(msgspec.Struct, frozen=True, tag="stream"):
    """``made``: when the stream was made (RFC 3339). ``last``: position of its last message, 0: none. ``last_on_subject``: of the last one
    on the subject that was asked about. ``sealed_from``: position from which facts without a seal do not count, None: all do."""

    made: str
    last: int
    last_on_subject: int = 0
    sealed_from: int | None = None


class Following(msgspec.Struct, frozen=True, tag="following"):
    """``pending``: how many messages the stream held when the consumer was made (nothing of an ``Unfollow``)."""

    pending: int = 0


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """``code``: JetStream's err_code, 0: the controller's own refusal."""

    text: str
    code: int = 0


Said = StreamAbout | Following | Refused


def follow_fault(asked: Follow | Unfollow, principal: str) -> str:
    """Why this cannot be asked of JetStream for ``principal``; empty: it can."""
    if not _named(asked.consumer, consumer_prefix(principal)):
        return f"consumer: its name begins with {consumer_prefix(principal)!r}, then up to 64 letters and digits"
    if isinstance(asked, Unfollow):
        return ""
    if not _named(asked.inbox, f"{inbox_prefix(principal)}."):
        return f"inbox: it begins with {inbox_prefix(principal)!r} and a dot, then up to 64 letters and digits"
    if asked.from_position < 1:
        return "from_position: the first message is 1"
    return subject_fault(asked.subject)


def subject_fault(subject: str) -> str:
    """Why ``subject`` cannot narrow what is read; empty: it can."""
    if subject and (len(subject) > _FILTER_CHARS_MAX or not _FILTER.match(subject)):
        return f"subject: words of letters, digits, '-' and '_' between dots, '*' for one, '>' for the rest; {_FILTER_CHARS_MAX} at most"
    return ""


def _named(text: str, begins: str) -> bool:
    rest = text.removeprefix(begins)
    return rest != text and rest.isalnum() and rest.isascii() and len(rest) <= 64
