"""Two tenants train with torch on one node of a secure stack; one runs out midway, is granted more, and learns what the other learns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.node import until
from tests.support.secure import SecureStack

SCRIPT = Path(__file__).parent / "scripts" / "budgeted.py"
PATIENCE_S = 120


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureStack]:
    with SecureStack(tmp_path_factory.mktemp("budget"), WOOLY_DATA_HOST="127.0.0.1") as running:
        yield running


class Script:
    """The training of one tenant, as a process with the tenant's key."""

    def __init__(self, stack: SecureStack, folder: Path, tenant: str) -> None:
        folder.mkdir()
        self.out, self.refused, self.again = (folder / name for name in ("out.pt", "refused", "again"))
        key = stack.key(tenant=tenant, role="member")
        command = [sys.executable, str(SCRIPT), *map(str, (self.out, self.refused, self.again))]
        self.process = subprocess.Popen(command, env=stack.client_environment(key), cwd=folder)

    def result(self) -> Any:
        assert self.process.wait(PATIENCE_S) == 0
        return torch.load(self.out, weights_only=False)


@pytest.mark.soak
def test_who_runs_out_stops_and_goes_on_and_both_learn_the_same(stack: SecureStack, tmp_path: Path) -> None:
    for tenant in ("first", "poor", "rich"):
        stack.tenant(tenant)
    money = "/api/v1/billing/"
    Script(stack, tmp_path / "first", "first").result()

    def spent() -> int:
        items = stack.ask("GET", money + "credits?by=tenant&tenant=first", service="billing")["items"]
        return sum(item["core_credits_micro"] + item["vram_credits_micro"] for item in items)

    cost = until(spent, "what the training costs on this machine")
    stack.ask("PUT", money + "budgets/poor/total", {"limit_micro": 0}, service="billing")
    stack.ask("POST", money + "grants", {"tenant": "poor", "micro": max(1, cost // 4)}, service="billing")
    poor, rich = Script(stack, tmp_path / "poor", "poor"), Script(stack, tmp_path / "rich", "rich")

    def told() -> bool:
        assert poor.process.poll() is None, "it ended before its budget did"
        return poor.refused.exists() and bool(poor.refused.read_text())

    until(told, "the poor tenant runs out", PATIENCE_S)
    assert "the total budget of tenant 'poor' is used up" in poor.refused.read_text()
    learned = rich.result()
    assert not rich.refused.exists()
    stack.ask("POST", money + "grants", {"tenant": "poor", "micro": 10**12}, service="billing")
    poor.again.touch()
    later = poor.result()
    assert later["losses"] == learned["losses"]
    assert all(torch.equal(value, later["state"][name]) for name, value in learned["state"].items())
    ledger = stack.ask("GET", money + "ledger", service="billing")
    assert sum(item["micro"] for item in ledger["accounts"]) == 0 and ledger["debits_micro"] == ledger["credits_micro"]
    assert stack.ask("GET", money + "verify", service="billing")["ok"]
