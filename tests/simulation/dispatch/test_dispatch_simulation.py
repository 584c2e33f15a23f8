"""Many sessions, failures and reorderings against the dispatcher, by seed. Also: the simulator catches bugs it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.dispatch import STRICT, Dispatch, LaunchFinished, explain
from scheduler.dispatch.decisions import NOT_OPEN, RULES
from scheduler.errors import StimulusError
from tests.simulation.dispatch.auditor import AuditError, Auditor
from tests.simulation.dispatch.canaries import CANARIES, ChargesNothing, KeepsItsTag
from tests.simulation.dispatch.checkers import (
    check_bounds,
    check_explained,
    check_fairness,
    check_journal,
    check_occupancy,
    check_reasons_are_named,
    check_restored,
)
from tests.simulation.dispatch.workload import Livelock, Step, run

ROOT = Path(__file__).resolve().parents[3]
SEEDS = 60
ACTIONS = 400


def simulate(seed: int, dispatch: Dispatch, actions: int = ACTIONS) -> tuple[list[Step], Auditor]:
    """One audited run. Raises AuditError naming the seed and the step."""
    auditor = Auditor()
    steps: list[Step] = []
    for stimulus, decisions in run(seed, dispatch, actions):
        steps.append((stimulus, decisions))
        try:
            auditor.judge(stimulus, decisions)
        except AuditError as error:
            raise AuditError(f"seed {seed}, step {len(steps)}, {stimulus!r} -> {decisions!r}: {error}") from None
    auditor.finish(lambda name: dispatch.state.sessions[name].chain)
    return steps, auditor


@pytest.mark.parametrize("block", range(6))
def test_every_decision_is_one_the_model_allows(block: int) -> None:
    completed = pairs = 0
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6):
        dispatch = Dispatch()
        steps, auditor = simulate(seed, dispatch)
        check_reasons_are_named(steps)
        check_bounds(dispatch, auditor.config)
        check_journal(steps)
        check_occupancy(steps, dispatch)
        check_restored(steps)
        check_explained(steps)
        if auditor.config.policy == STRICT and not auditor.config.aging_ns and not auditor.config.reserve_percent:
            pairs += check_fairness(steps, Dispatch())
        completed += auditor.completed
    assert completed > 100 and pairs > 100, "the workload hardly runs anything: it tests nothing"


def test_a_seed_reproduces_a_run() -> None:
    first, _ = simulate(7, Dispatch())
    other, _ = simulate(8, Dispatch())
    assert check_journal(first) != check_journal(other)
    command = [sys.executable, "-m", "tests.simulation.dispatch.test_dispatch_simulation", "7"]
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
        assert result.stdout.strip() == check_journal(first).hex(), "the order of a set decides something"


def test_the_workload_reaches_every_reason() -> None:
    """A simulator that never drives the dispatcher into a corner does not test the corner."""
    reasons: set[str] = set()
    kinds: set[str] = set()
    rules: set[str] = {NOT_OPEN}
    for seed in range(SEEDS):
        dispatch = Dispatch()
        for _, decisions in run(seed, dispatch, ACTIONS):
            if rules < RULES:
                rules.update(explain(dispatch.state, name).rule for name in dispatch.state.sessions)
            kinds.update(type(decision).__name__ for decision in decisions)
            reasons.update(getattr(decision, "reason", "") for decision in decisions)
    assert rules == RULES
    assert kinds == {"Launch", "Preempt", "Park", "Drop", "Refuse", "Release"}
    assert reasons - {""} == {
        "already_run", "already_waiting", "after_last", "session_over", "epoch_stale", "session_unknown", "session_closing",
        "session_faulted", "priority_invalid", "seq_invalid", "epoch_unknown", "parked_batches_full", "parked_bytes_full",
        "weight_invalid", "pace_invalid", "sla_invalid", "sla_contradictory", "sla_unreachable",
    }  # fmt: skip


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.__name__)
def test_the_simulator_catches_a_bug(canary: type[Dispatch]) -> None:
    for seed in range(SEEDS):
        try:
            simulate(seed, canary())
        except (AuditError, Livelock, StimulusError, KeyError):
            return
    pytest.fail(f"{canary.__name__} passed {SEEDS} seeds: {canary.__doc__}")


@pytest.mark.parametrize("canary", [ChargesNothing, KeepsItsTag], ids=lambda canary: canary.__name__)
def test_the_fairness_bound_catches_a_bug(canary: type[Dispatch]) -> None:
    """Without the auditor: the bound alone tells that shares do not follow what was used."""
    for seed in range(SEEDS):
        dispatch = canary()
        steps = list(run(seed, dispatch, ACTIONS))
        config = dispatch.state.config
        if config.policy != STRICT or config.aging_ns or config.reserve_percent:
            continue
        try:
            check_fairness(steps, canary())
        except AssertionError:
            return
    pytest.fail(f"{canary.__name__} passed {SEEDS} seeds: {canary.__doc__}")


def test_every_launch_of_a_quiet_world_finishes() -> None:
    """Sanity of the drain: nothing that was launched is left in flight."""
    for seed in range(5):
        steps, _ = simulate(seed, Dispatch(), actions=200)
        assert any(isinstance(stimulus, LaunchFinished) for stimulus, _ in steps)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_many_seeds() -> None:
    for seed in range(SEEDS, 3_000):
        simulate(seed, Dispatch())


if __name__ == "__main__":
    print(check_journal(simulate(int(sys.argv[1]), Dispatch())[0]).hex())
