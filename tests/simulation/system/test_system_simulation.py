"""The whole system in virtual time, by seed; and the simulation finds the bugs that it is given. (Many seeds: ``make simulate``.)"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.system.canaries import CANARIES, Canary, caught_by
from tests.simulation.system.run import simulate

ROOT = Path(__file__).resolve().parents[3]
SEEDS = 60


def test_every_invariant_holds() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts.update(simulate(seed).counts)
    for what in ("scripts: finished", "sessions continued", "moves: 200", "connections broken", "core messages lost", "slices stopped"):
        assert counts[what] > 0, f"no {what}: the seeds test too little"


@pytest.mark.parametrize(
    "seed",
    [
        472,
        497,
        5088,
        5285,
        22377,
        34060,
        40527,
        46925,
        52165,
        53314,
        8402,
        10138,
        10966,
        21781,
        23930,
        36542,
        46509,
        47588,
        54181,
        58280,
        64708,
        66994,
        105449,
    ],
)
def test_seeds_that_found_a_fault_pass(seed: int) -> None:
    """Tasks that moved while a node was lost or started anew were charged twice or kept memory; a saved view of a reservation that moved
    was another one. What a slice was charged for a batch that the client's image has was taken off the next batch. Work in an image was
    charged nowhere when its node died before it had reported that; and so was work that a server lost before its journal was on disk, while
    another session could repeat it without a charge already. Batches were charged twice that a session had not been sent yet when it was
    lost while it was built."""
    simulate(seed)


def test_a_seed_reproduces_a_run() -> None:
    first = simulate(7)
    assert first.digest != simulate(8).digest
    code = "from tests.simulation.system.run import simulate; print(simulate(7).digest)"
    environment = {**os.environ, "PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stdout.strip() == first.digest, "the order of a set decides something"


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.__name__)
def test_the_simulation_finds_a_bug(canary: Canary) -> None:
    """Within so many seeds from one that was seen to find it; all are looked for from the first seed by ``make simulate``."""
    _, how = caught_by(canary, seeds_max=40, near=True)
    assert "Violation" in how, f"it failed before it was judged: {how}"
