"""What holds for every test.

Property tests try the same examples on every machine, so that a change is judged by itself and not by the luck of a draw. The search for
new examples is a run of its own: `make fuzz` runs them with `--hypothesis-profile=search`, and what it finds becomes a test.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings

settings.register_profile("fixed", derandomize=True, database=None)
settings.register_profile("search", derandomize=False, print_blob=True)
settings.register_profile("mutation", derandomize=True, database=None, deadline=None, phases=(Phase.explicit, Phase.generate))
settings.load_profile("fixed")


@pytest.fixture
def patient_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that start a node again under open sessions: a busy machine may take longer for that than a client waits for a node."""
    monkeypatch.setattr("wooly.session._SILENCE_S", 60.0)
