"""``wooly replay`` and ``wooly why`` over local journal files: tables, JSON, exit codes, and what is said of bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler.dispatch import Journal, Record
from tests.support.command import Wooly
from tests.support.dispatch_load import preempted_journal

MS = 1_000_000


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return preempted_journal(tmp_path)


def frames(records: list[Record]) -> bytes:
    journal = Journal()
    return b"".join(journal.add(record.stimulus, record.decisions) for record in records)


def test_a_journal_is_equal_until_a_byte_is_changed(wooly: Wooly, journal: Path) -> None:
    done = wooly("replay", "--file", str(journal))
    assert done.returncode == 0 and done.stderr == ""
    assert "equal" in done.stdout and done.stdout.splitlines()[-1].startswith("1 segments, ")
    data = bytearray(journal.read_bytes())
    data[len(data) // 2] ^= 4
    journal.write_bytes(data)
    done = wooly("replay", "--file", str(journal))
    assert done.returncode == 1
    assert "differs" in done.stdout and done.stdout.splitlines()[-1] == "1 of 1 segments differ"
    document = json.loads(wooly("replay", "--json", "--file", str(journal)).stdout)
    assert document["equal"] is False and "checksum" in document["segments"][0]["difference"]


def test_why_tells_who_ran_and_under_which_rule(wooly: Wooly, journal: Path) -> None:
    story = json.loads(wooly("why", "low", "--json", "--file", str(journal)).stdout)
    # Twelve batches of high take 10 ms each, and low is never held up by anything else.
    assert [(line["session"], line["ns"]) for line in story["by_other"]] == [("high", 120 * MS)]
    assert story["waited_ns"] == 120 * MS and story["finished"] == 20 and story["preempted"] == 12
    assert {line["rule"] for line in story["by_rule"]} == {"higher_priority"}
    assert story["by_other"][0]["core_ns"] == 120 * MS
    shown = wooly("why", "low", "--top", "2", "--file", str(journal)).stdout
    assert "20 batches arrived; they waited 120.0 ms in all, 16 % of the time" in shown
    assert "high (P0) ran meanwhile, mostly because a task of a higher priority had work" in shown
    assert "12 of its launches were preempted" in shown
    assert json.loads(wooly("why", "high", "--json", "--file", str(journal)).stdout)["waited_ns"] == 0


def test_another_policy_is_predicted_exactly_where_nothing_is_unknown(wooly: Wooly, journal: Path) -> None:
    """First in, first out: high waits for the rest of the batch that runs."""
    document = json.loads(wooly("replay", "--policy", "fifo", "--json", "--file", str(journal)).stdout)
    high, low = sorted(document["devices"][0]["sessions"], key=lambda line: line["priority"])
    assert (high["recorded"]["p99_ns"], high["modelled"]["p99_ns"]) == (10 * MS, 10 * MS)
    assert 25 * MS <= high["predicted"]["p99_ns"] <= 40 * MS
    assert low["predicted"]["finished"] == 20 and low["predicted"]["preempted"] == 0
    shown = wooly("replay", "--policy", "timeslice", "--quantum-ms", "5", "--file", str(journal)).stdout
    assert "recorded under strict, predicted under timeslice" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("replay", "--from", "noon", "--file", "{journal}"), "'noon' is not a time"),
        (("replay", "--file", "nowhere.journal"), "nowhere.journal cannot be read"),
        (("replay", "--from", "2100-01-01", "--file", "{journal}"), "no journal of that node and time"),
        (("replay", "--quantum-ms", "3", "--file", "{journal}"), "--quantum-ms goes with --policy"),
        (("replay",), "no bus is named"),
        (("why", "unknown", "--file", "{journal}"), "no task or session 'unknown'"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_line(wooly: Wooly, journal: Path, arguments: tuple[str, ...], said: str) -> None:
    done = wooly(*(argument.format(journal=journal) for argument in arguments))
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
