"""Two of the recorded runs of ``make replay-runs``, both with memory overcommitted and a client killed; in the second the server, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.life import live
from tests.replay.mixes import mix


@pytest.mark.parametrize("seed", [7, 17])
def test_a_recorded_run_is_reproduced_digest_for_digest(tmp_path: Path, seed: int) -> None:
    lived = live(mix(seed), tmp_path)
    assert lived.document["equal"], lived.segments
    assert lived.counts["Launch"] > 20
    assert {line["lane"] for line in lived.segments} == {"dispatch", "vram"}
    assert not [line["gap"] for line in lived.segments if line["gap"]]
