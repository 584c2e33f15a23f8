"""A node asks the controllers who a principal is (core request/reply, msgpack). Pure: data types and subjects."""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas.limits import Name
from bus_schemas.subjects import token

__all__ = ["WHO_ALL", "WHO_CHANGED", "Principal", "WhoIs", "who_subject"]

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
