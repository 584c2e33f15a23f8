"""The bodies of requests: what is accepted, with its limits. Unknown fields are refused, so a typo is not a default. Amounts are
integers of micro-credits (1 credit = 1,000,000): nothing is rounded on the way.

May live here: shapes and limits. May not: what is done with them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

__all__ = ["BudgetBody", "GrantBody", "MembershipBody", "PriceBody", "TierBody"]

_MICRO_MAX = 10**18
Token = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z", description="1 to 64 letters, digits, '-' or '_'")]
Percent = Annotated[int, Meta(ge=0, le=1_000)]
Note = Annotated[str, Meta(max_length=200, description="the reason; stored in the event log")]
From = Annotated[str, Meta(max_length=40, description="valid from: Unix seconds or ISO 8601 (UTC), not in the past; empty: from now on")]


class GrantBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Credits for a tenant; a negative amount takes credits back."""

    tenant: Annotated[str, Meta(min_length=1, max_length=200)]
    micro: Annotated[int, Meta(ge=-_MICRO_MAX, le=_MICRO_MAX, description="micro-credits, not 0")]
    id: Annotated[Token | None, Meta(description="identifies the grant permanently: a repeated request grants once")] = None
    note: Note = ""


class BudgetBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a tenant may spend in the period. ``limit_micro`` null: there is no such budget."""

    limit_micro: Annotated[int, Meta(ge=0, le=_MICRO_MAX)] | None
    warn_percent: Annotated[Percent, Meta(description="percentage of the limit at which a warning is recorded; 0: never")] = 80
    stop_percent: Annotated[Percent, Meta(description="percentage of the limit at which the next batch is refused; 0: never")] = 100
    note: Note = ""


class TierBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What a tier allows. ``default_vram_mb`` null: the cluster's default holds; left out: it stays as it is."""

    priority_ceiling: Annotated[int, Meta(ge=0, le=4, description="the best priority its tasks may have; 0 is the highest of all")]
    default_vram_mb: Annotated[int, Meta(ge=1, le=1 << 26, description="VRAM of a task that names none, in MiB")] | UnsetType | None = UNSET
    from_: From = msgspec.field(default="", name="from")


class MembershipBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The tier of a tenant."""

    tier: Literal["premium", "standard", "basic"]
    from_: From = msgspec.field(default="", name="from")


class PriceBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The price of a tier."""

    core_second_micro: Annotated[int, Meta(ge=0, le=10**15, description="micro-credits a core-second")]
    gib_second_micro: Annotated[int, Meta(ge=0, le=10**15, description="micro-credits a GiB-second")]
    from_: From = msgspec.field(default="", name="from")
