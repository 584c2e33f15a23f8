"""Times and verbs of services.replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.replay.question import Question, ReplayError, parse

NS = 10**9


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1700000000.25", 1_700_000_000 * NS + NS // 4),
        ("2023-11-14T22:13:20Z", 1_700_000_000 * NS),
        ("2023-11-14T22:13:20.000001", 1_700_000_000 * NS + 1000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000 * NS),
    ],
)
def test_times(text: str, ns: int) -> None:
    question = parse(["check", "--from", text])
    assert question == Question("check", from_ns=ns)


@pytest.mark.parametrize("text", ["yesterday", "nan", "infinity", "2023-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ReplayError, match="is not a time"):
        parse(["check", "--to", text])


def test_everything_at_once() -> None:
    assert parse(["why", "t1", "--top", "3", "--node", "n", "--file", "a", "--file", "b"]) == Question(
        "why", node="n", files=(Path("a"), Path("b")), task="t1", top=3
    )
    assert parse(["whatif", "--policy", "fifo", "--quantum-ms", "5"]) == Question("whatif", policy="fifo", quantum_ms=5)
