"""Subjects and streams of the bus, in one place. Pure: names only.

Identifiers in subjects (node, session, gpu) are checked by ``token``: letters, digits, ``-`` and ``_``.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "EVENTS_STREAM", "EVENTS_ALL", "TELEMETRY_STREAM", "TELEMETRY_ALL", "DISCOVER", "token", "batch_stream", "batch_subject", "batch_all",
    "node_request", "session_done", "event_subject", "telemetry_subject", "JOURNAL_STREAM", "JOURNAL_ALL", "journal_subject",
]  # fmt: skip

EVENTS_STREAM: Final = "WOOLY_EVENTS"
EVENTS_ALL: Final = "wooly.evt.>"
TELEMETRY_STREAM: Final = "WOOLY_TELEMETRY"
TELEMETRY_ALL: Final = "wooly.telemetry.>"
JOURNAL_STREAM: Final = "WOOLY_JOURNAL"
JOURNAL_ALL: Final = "wooly.journal.>"
DISCOVER: Final = "wooly.discover"
"""Core request; every node answers with a NodeInfo."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def token(text: str) -> str:
    """``text`` if it may stand between dots of a subject; raises ValueError otherwise."""
    if not _TOKEN.match(text):
        raise ValueError(f"{text!r} may not stand in a subject: use 1 to 64 letters, digits, '-' or '_'")
    return text


def batch_stream(node: str) -> str:
    """The stream that holds the batches of one node (file storage, limits by age and size)."""
    return f"WOOLY_BATCH_{token(node)}"


def batch_subject(node: str, session: str) -> str:
    return f"wooly.node.{token(node)}.batch.{token(session)}"


def batch_all(node: str) -> str:
    return f"wooly.node.{token(node)}.batch.*"


def node_request(node: str, verb: str) -> str:
    """Core request/reply with one node; verb: ``open``, ``close``, ``ping``, ``stats``."""
    return f"wooly.node.{token(node)}.req.{token(verb)}"


def session_done(session: str) -> str:
    """Core subject on which a session hears of its batches (Done messages)."""
    return f"wooly.session.{token(session)}.done"


def event_subject(area: str, entity: str) -> str:
    """Subject of a fact: area is ``node``, ``session``, ``usage``, ``task``, ``placement`` or ``config``; entity its id."""
    return f"wooly.evt.{token(area)}.{token(entity)}"


def journal_subject(node: str, gpu: int, lane: str) -> str:
    """Subject of the journal of one core (bus_schemas.journal) of one device."""
    return f"wooly.journal.{token(node)}.{gpu}.{token(lane)}"


def telemetry_subject(node: str, gpu: int) -> str:
    return f"wooly.telemetry.{token(node)}.{gpu}"
