"""A small cluster, audited; the large one is ``python -m tests.simulation.placement``. And the planted bugs."""

from __future__ import annotations

import pytest

from scheduler.placement.reasons import GANG, REASONS
from tests.simulation.placement.canaries import CANARIES, PLAN, caught_by
from tests.simulation.placement.world import Plan, digest_of, replay, run


def test_a_crowded_cluster_keeps_its_promises() -> None:
    """The auditor agrees with every decision; everything that can happen happened; decided again the decisions are the same."""
    plan = Plan(seed=7, nodes=16, gpus=4, tasks=450, fill=1.8, every=10, task_s=900)
    outcome = run(plan)
    assert outcome.counts["placed"] > 300
    assert outcome.counts["reservations"] > 10
    assert outcome.counts["searches"] > 100
    seen = {reason for reason in REASONS if outcome.counts[reason]}
    assert seen >= REASONS - GANG - {"no_nodes", "no_device", "group_empty", "unknown_group"}, outcome.counts
    assert replay(outcome.log, 1) == outcome.view


def test_equal_seeds_give_equal_logs() -> None:
    plan = Plan(seed=5, nodes=8, gpus=2, tasks=150, every=50, task_s=600)
    first, second = run(plan), run(plan)
    assert first.digest == second.digest
    assert digest_of(first.log) == digest_of(second.log)


def test_without_a_planted_bug_there_is_no_finding() -> None:
    outcome = run(PLAN)
    assert replay(outcome.log, 1) == outcome.view


@pytest.mark.parametrize("bug", CANARIES, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: object) -> None:
    assert caught_by(bug)  # type: ignore[arg-type]  # a key of the table
