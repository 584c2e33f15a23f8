"""A node asks the controllers who a principal is (core request/reply, msgpack). Pure: data types."""

from __future__ import annotations

import msgspec

__all__ = ["Principal", "WhoIs"]


class WhoIs(msgspec.Struct, frozen=True):
    principal: str


class Principal(msgspec.Struct, frozen=True):
    """``good``: may use nodes now. ``tenant`` empty: works for the whole cluster, and says itself for whom. ``name``: as the log calls
    it."""

    principal: str
    good: bool
    tenant: str = ""
    role: str = ""
    name: str = ""
