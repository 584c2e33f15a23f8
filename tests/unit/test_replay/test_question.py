"""Times and verbs of services.replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.controller.journals import Life, _arguments
from services.replay.question import Question, ReplayError, parse
from wooly.cli.replay import bounds

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


def test_names_may_begin_with_a_hyphen() -> None:
    life = Life("-task", "tenant", ("-X6YR1gT", "other"), (("-node", 1),), from_ns=2 * NS, to_ns=3 * NS)
    question = parse(_arguments(life, 5 * NS))
    assert (question.task, question.sessions, question.node, question.gpu) == ("-task", ("-X6YR1gT", "other"), "-node", 1)
    assert (question.from_ns, question.to_ns) == (2 * NS, 3 * NS)
    assert parse(["check", *bounds("-node", "1", "", ["-file"])]) == Question("check", node="-node", from_ns=NS, files=(Path("-file"),))
