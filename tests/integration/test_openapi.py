"""Controller and billing against their own OpenAPI descriptions: no 5xx, no answer that is not described."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.billing import BillingProcess
from tests.support.openapi import against_description
from tests.support.plane import Plane

FEW = 2


def hold(folder: Path, examples: int, seed: int = 1) -> tuple[int, list[str]]:
    with Plane(folder) as plane:
        plane.register("n1", gib=(8, 8))
        plane.register("n2", gib=(4,), groups=("g",))
        plane.controller.ask("POST", "/api/v1/tasks", {"id": "t1", "required_vram_mb": 100})
        billing = BillingProcess(plane.nats.url, folder / "billing")
        try:
            asked, findings = against_description(plane.controller.url, examples=examples, seed=seed)
            also, more = against_description(billing.url, examples=examples, seed=seed)
        finally:
            billing.end(signal.SIGTERM)
        assert plane.controller.get("/health")["status"] == "ok"
    return asked + also, findings + more


def test_every_answer_is_described(tmp_path: Path) -> None:
    asked, findings = hold(tmp_path, FEW)
    assert not findings, "\n".join(findings)
    assert asked >= 80


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_answer_is_described_whatever_is_asked(tmp_path: Path, seed: int) -> None:
    asked, findings = hold(tmp_path, 200, seed)
    assert not findings, "\n".join(findings)
    assert asked > 5_000
