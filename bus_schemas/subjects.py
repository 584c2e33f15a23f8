"""Subjects and streams of the bus, in one place. Pure: names only.

Identifiers in subjects (node, session, principal, gpu) are checked by ``token``: letters, digits, ``-`` and ``_``.

Whatever a client sends or hears carries its *principal*: the id of the key it connected with, or ``local`` where authentication is off.
The bus lets a client use subjects and inboxes of its own principal only, so the principal in a subject is a fact and not a claim.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

EVENTS_STREAM: Final = "WOOLY_EVENTS"
EVENTS_ALL: Final = "wooly.evt.>"
TELEMETRY_STREAM: Final = "WOOLY_TELEMETRY"
TELEMETRY_ALL: Final = "wooly.telemetry.>"
JOURNAL_STREAM: Final = "WOOLY_JOURNAL"
JOURNAL_ALL: Final = "wooly.journal.>"
DISCOVER_ALL: Final = "wooly.discover.*"
LOCAL: Final = "local"
"""The principal of every connection where authentication is off."""

_NODE_NAMESPACE: Final = uuid.UUID("6f0a2c9e-6d0c-5b0e-9a65-1d5f6f9e3a11")
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def token(text: str) -> str:
    """``text`` if it may stand between dots of a subject; raises ValueError otherwise."""
    if not _TOKEN.match(text):
        raise ValueError(f"{text!r} may not stand in a subject: use 1 to 64 letters, digits, '-' or '_'")
    return text


def is_token(text: str) -> bool:
    """Whether ``text`` may stand between dots of a subject."""
    return _TOKEN.match(text) is not None


def _token_or_any(text: str) -> str:
    return text if text == "*" else token(text)


def matches(pattern: str, subject: str) -> bool:
    """Whether ``subject`` is one of ``pattern``, in which ``*`` stands for any word."""
    wanted, given = pattern.split("."), subject.split(".")
    return len(wanted) == len(given) and all(word in ("*", said) for word, said in zip(wanted, given, strict=True))


def batch_stream(node: str) -> str:
    """The stream that holds the batches of one node (file storage, limits by age and size)."""
    return f"WOOLY_BATCH_{token(node)}"


def node_id(name: str) -> str:
    """The id of the node called ``name``, unless it was given another: the same for ever."""
    return str(uuid.uuid5(_NODE_NAMESPACE, name))


def batch_subject(node: str, session: str, principal: str = LOCAL) -> str:
    return f"wooly.node.{token(node)}.batch.{token(principal)}.{token(session)}"


def batch_all(node: str) -> str:
    return f"wooly.node.{token(node)}.batch.*.*"


def batch_parts(subject: str) -> tuple[str, str]:
    """(principal, session) of the subject of a batch."""
    _, principal, session = subject.rsplit(".", 2)
    return principal, session


def discover(principal: str = LOCAL) -> str:
    """Core request; every node answers with a NodeInfo."""
    return f"wooly.discover.{token(principal)}"


def node_request(node: str, verb: str, principal: str = LOCAL) -> str:
    """Core request/reply with one node; verb: ``open``, ``close``, ``ping``, ``stats`` and others."""
    return f"wooly.node.{token(node)}.req.{token(verb)}.{token(principal)}"


def node_requests(node: str, verb: str) -> str:
    """``node_request`` of every principal: what the node listens on."""
    return f"wooly.node.{token(node)}.req.{token(verb)}.*"


def requester(subject: str) -> str:
    """The principal of a discovery or of a node's request."""
    return subject.rsplit(".", 1)[1]


def inbox_prefix(principal: str = LOCAL) -> str:
    """Answers to a principal arrive on subjects that begin with this and a dot. Who answers looks whether the reply subject does."""
    return f"_INBOX_{token(principal)}"


def session_name(principal: str, unique: str) -> str:
    """The name of a session of ``principal``. It begins with the principal, so that a principal cannot use another's session names."""
    return unique if principal == LOCAL else f"{principal}-{unique}"


def session_done(session: str, principal: str = LOCAL, node: str = "*") -> str:
    """Core subject on which a session hears of its batches (Done messages) from ``node``. ``*`` stands for any, when listening."""
    return f"wooly.session.{_token_or_any(node)}.{_token_or_any(principal)}.{_token_or_any(session)}.done"


AREAS: Final = ("access", "budget", "config", "group", "load", "node", "placement", "session", "task", "tier", "usage")
"""What facts are about."""


def event_subject(area: str, entity: str) -> str:
    """Subject of a fact about an area, one of ``AREAS``, and an entity, its id."""
    if area not in AREAS:
        raise ValueError(f"{area!r} is no area of facts: readers of the log would not look there")
    return f"wooly.evt.{token(area)}.{token(entity)}"


def placement_subject(generation: str, task: str) -> str:
    """Subject of a decision on a task. Generations are numbered by services.controller.log_projection."""
    return f"wooly.evt.placement.{token(generation)}.{token(task)}"


def session_facts(session: str, node: str = "*") -> str:
    """Subject of a node's facts about a session. ``*`` stands for any, when reading."""
    return f"wooly.evt.session.{_token_or_any(session)}.{_token_or_any(node)}"


def journal_subject(node: str, gpu: int, lane: str) -> str:
    """Subject of the journal of one core (bus_schemas.journal) of one device."""
    return f"wooly.journal.{token(node)}.{gpu}.{token(lane)}"


def telemetry_subject(node: str, gpu: int) -> str:
    return f"wooly.telemetry.{token(node)}.{gpu}"
