"""The monthly statement of a tenant, as billing computes it and its REST answers it."""

from __future__ import annotations

import msgspec


class StatementLine(msgspec.Struct, frozen=True):
    """What one task used on one node in the month."""

    task: str
    model: str
    node: str
    core_micro: int
    vram_micro: int
    core_ns: int
    byte_ms: int
    launches: int


class StatementGrant(msgspec.Struct, frozen=True):
    grant: str
    at_ns: int
    micro: int


class StatementPrice(msgspec.Struct, frozen=True):
    """A price that was in force for a part of the month, [from_ns, to_ns)."""

    tier: str
    from_ns: int
    to_ns: int
    core_second_micro: int
    gib_second_micro: int


class Statement(msgspec.Struct, frozen=True):
    """One tenant, one month [from_ns, to_ns) in UTC; micro-credits. Balances: credit left, negative when the tenant owes."""

    tenant: str
    month: str
    from_ns: int
    to_ns: int
    position: int
    opening_micro: int
    granted_micro: int
    core_micro: int
    vram_micro: int
    closing_micro: int
    lines: tuple[StatementLine, ...]
    grants: tuple[StatementGrant, ...]
    prices: tuple[StatementPrice, ...]
