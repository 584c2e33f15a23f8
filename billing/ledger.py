"""Double-entry ledger: credits are only moved between accounts.

Every transaction is a set of postings whose amounts sum to zero (debits positive, credits negative). Accounts: ``tenant:<id>`` (what a
tenant owes; a negative balance is credit left), ``revenue:core``, ``revenue:vram`` and ``grants``.
"""

from __future__ import annotations

import msgspec

from billing.errors import LedgerImbalanceError
from billing.tariff import Charge

CORE = "revenue:core"
VRAM = "revenue:vram"
GRANTS = "grants"


def tenant_account(tenant: str) -> str:
    return f"tenant:{tenant}"


class Ledger(msgspec.Struct, array_like=True):
    """Balances by account in micro-credits, with the turnover of both sides."""

    balances: dict[str, int] = {}
    debits_micro: int = 0
    credits_micro: int = 0
    transactions: int = 0

    def post(self, postings: dict[str, int]) -> None:
        """Apply one transaction; raises LedgerImbalanceError, changing nothing, unless the postings sum to zero."""
        if sum(postings.values()) != 0:
            raise LedgerImbalanceError(f"postings do not sum to zero: {postings}")
        for account, micro in postings.items():
            self.balances[account] = self.balances.get(account, 0) + micro
            if micro >= 0:
                self.debits_micro += micro
            else:
                self.credits_micro -= micro
        self.transactions += 1

    def charge(self, tenant: str, amount: Charge) -> None:
        """The tenant owes the sum of both meters; revenue has earned it."""
        self.post({tenant_account(tenant): amount.core_micro + amount.vram_micro, CORE: -amount.core_micro, VRAM: -amount.vram_micro})

    def grant(self, tenant: str, micro: int) -> None:
        self.post({GRANTS: micro, tenant_account(tenant): -micro})

    def balance_micro(self, tenant: str) -> int:
        """Credit left to ``tenant`` in micro-credits; negative when it owes."""
        return -self.balances.get(tenant_account(tenant), 0)
