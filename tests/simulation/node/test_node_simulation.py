"""A whole node in virtual time, by seed; and the simulation catches the bugs that it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.node.canaries import CANARIES, Canary, caught_by
from tests.simulation.node.run import simulate

ROOT = Path(__file__).resolve().parents[3]
SEEDS = 150
BLOCKS = 6


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_invariant_holds(block: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(block * SEEDS // BLOCKS, (block + 1) * SEEDS // BLOCKS):
        counts.update(simulate(seed).counts)
    for what in ("batches ran", "preemptions", "snapshots", "waits for memory", "swaps out", "swaps in", "priorities changed", "cancelled"):
        assert counts[what] > 0, f"no {what}: the workload tests too little"


def test_a_seed_reproduces_a_run() -> None:
    first = simulate(7)
    assert first.digests != simulate(8).digests
    code = "from tests.simulation.node.run import simulate; print([d.hex() for d in simulate(7).digests])"
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        assert result.stdout.strip() == str([digest.hex() for digest in first.digests]), "the order of a set decides something"


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_the_simulation_catches_a_bug(canary: Canary) -> None:
    _, how = caught_by(canary)
    assert "Violation" in how, f"it failed before it was judged: {how}"
