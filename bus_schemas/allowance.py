"""Requests of nodes to billing for allowances of tenants with a budget, and the answers (core request/reply, msgpack). Pure: data types.

A node counts what its tenants use in micro-credits, fact for fact as billing will charge it. Billing's answer holds for the facts up to
``serials``; what the node has used since it takes off itself. So an answer that took long, or comes of a replica that lags, is right too.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas.limits import Name, TenantName
from bus_schemas.subjects import token

ALLOWANCE_ALL: Final = "wooly.billing.req.allow.*"

UNLIMITED: Final = "unlimited"
"""The tenant has no budget that could stop it."""
GRANTED: Final = "granted"
WAIT: Final = "wait"
"""Something is left, but it is lent to other nodes: ask again soon."""
EXHAUSTED: Final = "exhausted"
MICRO_MAX: Final = 1 << 62
"""What an amount says at most, for it has 64 bits: more than any limit of a budget."""


def allowance_request(node: str) -> str:
    """The subject on which node ``node`` asks."""
    return f"wooly.billing.req.allow.{token(node)}"


class TenantUse(msgspec.Struct, array_like=True, frozen=True):
    """What one tenant used on this node that the last answer did not know: ``facts``: (gpu, serial, micro-credits) of usage facts;
    ``running_micro``: what is in no fact yet. ``busy``: it has batches that want to run, or ran some since it asked last."""

    tenant: TenantName
    facts: tuple[tuple[int, int, int], ...] = ()
    running_micro: int = 0
    busy: bool = True


class AskAllowances(msgspec.Struct, array_like=True, frozen=True, tag="ask_allowances.v1"):
    node: Name
    epoch: int
    tenants: tuple[TenantUse, ...]


class Allowance(msgspec.Struct, array_like=True, frozen=True):
    """``micro``: what the tenant may use on this node beyond the facts up to the answer's ``serials``. ``valid_ms``: for so long, counted
    from when the node asked. ``reason``: for people, which budget is used up, how much of it, and when it is renewed."""

    tenant: str
    state: str
    micro: int = 0
    valid_ms: int = 0
    reason: str = ""
    renews_ns: int = 0
    """When the budget that binds begins anew (Unix time; 0: never)."""


class AllowancesGiven(msgspec.Struct, array_like=True, frozen=True, tag="allowances_given.v1"):
    """``serials``: (gpu, serial) of the last usage facts of this node and epoch that billing has charged."""

    serials: tuple[tuple[int, int], ...]
    tenants: tuple[Allowance, ...]
