"""The scope of a rendering: whose rows it shows and which actions it offers. Two callers of one scope see the same bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.kit.access import ACTIONS, Action, Identity, allowed


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose rows are shown, and which actions are offered."""

    tenant: str  #: empty: all tenants
    actions: frozenset[str]  #: actions offered; a tenant's: on its own things

    @classmethod
    def of(cls, identity: Identity) -> Scope:
        found = (action for action in ACTIONS if _offered(identity, action))
        return cls(identity.tenant, frozenset(found))

    def may(self, action: Action) -> bool:
        return action in self.actions

    def sees(self, tenant: str) -> bool:
        """Whether rows of ``tenant`` are shown."""
        return not self.tenant or self.tenant == tenant


def _offered(identity: Identity, action: str) -> bool:
    named: Action = action  # type: ignore[assignment]  # ACTIONS are the Actions, by name
    return allowed(identity, named) or bool(identity.tenant and allowed(identity, named, identity.tenant))


CLUSTER: Final = Scope("", frozenset(ACTIONS))
"""Everything, as an embedded stack on loopback shows it."""
