"""What a node takes of a client's report of its end."""

from __future__ import annotations

import pytest

from bus_schemas.events import Outcome
from services.server.admission import sound_outcome


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(),
        Outcome(255),
        Outcome(1, "torch.OutOfMemoryError"),
        Outcome(1, "f.<locals>.Mine"),
        Outcome(137, "", 9),
        Outcome(1, child=True),
    ],
)
def test_what_can_be_is_taken(outcome: Outcome) -> None:
    assert sound_outcome(outcome) == outcome


@pytest.mark.parametrize(
    "outcome",
    [
        None, Outcome(-1), Outcome(256), Outcome(1, "x" * 201), Outcome(1, "a b"), Outcome(1, "<script>alert(1)"), Outcome(1, "a\n"),
        Outcome(0, "", -1), Outcome(0, "", 65), Outcome(lost=True),
    ],
)  # fmt: skip
def test_what_cannot_be_is_no_report(outcome: Outcome | None) -> None:
    assert sound_outcome(outcome) is None
