"""Which tenants may share equal content: trust domains, from WOOLY_DEDUP_TRUST. Pure.

A domain is a name. Sessions of one domain that opted in share one copy of equal weights, and may learn from how fast an upload went that
another session of their domain holds the same. So a tenant's domain is its own unless the operator declares tenants that trust each other:
``a,b;c,d`` puts a and b in one domain, c and d in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from blake3 import blake3

from bus_schemas.subjects import token
from services.kit.errors import SettingError

__all__ = ["TRUST_VARIABLE", "Trust", "read_trust"]

TRUST_VARIABLE = "WOOLY_DEDUP_TRUST"


@dataclass(frozen=True, slots=True)
class Trust:
    """``groups``: the domain of every tenant that is declared."""

    groups: Mapping[str, str] = field(default_factory=dict)

    def domain(self, tenant: str) -> str:
        """The domain of a tenant's sessions. Never empty."""
        return self.groups.get(tenant) or f"tenant {tenant}"


def read_trust(text: str) -> Trust:
    """What ``a,b;c,d`` declares; empty: nothing. Raises SettingError.

    The name of a group is made of all its members: who joins or leaves makes another domain, which begins empty.
    """
    groups: dict[str, str] = {}
    for part in text.split(";"):
        members = sorted({name.strip() for name in part.split(",") if name.strip()})
        if not members:
            continue
        if len(members) < 2:
            raise SettingError(f"{TRUST_VARIABLE}={text}: the group {part.strip()!r} has one tenant; name at least two, such as a,b;c,d")
        name = "group " + blake3(",".join(members).encode()).hexdigest()[:32]
        for member in members:
            _check(text, member)
            if member in groups:
                raise SettingError(f"{TRUST_VARIABLE}={text}: tenant {member} is in two groups; join the groups, or leave it in one")
            groups[member] = name
    return Trust(groups)


def _check(text: str, member: str) -> None:
    try:
        token(member)
    except ValueError as error:
        raise SettingError(f"{TRUST_VARIABLE}={text}: {error}") from None
