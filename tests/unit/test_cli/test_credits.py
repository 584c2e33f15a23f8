"""Amounts of credits as people write them on the command line: exact, or refused; and flags that would mean nothing."""

from __future__ import annotations

import pytest

from tests.support.command import Wooly
from wooly.cli.credits import micro_of
from wooly.cli.group import CommandError


@pytest.mark.parametrize(("text", "micro"), [("100", 100_000_000), ("0.25", 250_000), ("-0.000001", -1), ("1e3", 10**9), ("0", 0)])
def test_an_amount_is_read_exactly(text: str, micro: int) -> None:
    assert micro_of("AMOUNT", text) == micro


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0,25", "is not a number"),
        ("NaN", "is not a number"),
        ("Infinity", "is not a number"),
        ("1e999999", "is not a number"),
        ("1e99999", "is not a number"),
        ("0.0000001", "finer than a micro-credit"),
        ("0.000000999999999999999999999999999999", "finer than a micro-credit"),
    ],
)
def test_what_is_no_amount_is_refused(text: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        micro_of("AMOUNT", text)


def test_flags_before_a_subcommand_are_refused(wooly: Wooly) -> None:
    """Credits would be granted at another address than the one given."""
    found = wooly("credits", "--billing", "http://127.0.0.1:1", "grant", "lab", "1", WOOLY_BILLING_URL="http://127.0.0.1:2")
    assert (found.returncode, found.stderr) == (2, "wooly: give flags behind `grant`, not before it\n")


@pytest.mark.parametrize(
    ("asked", "says"),
    [(("--warn", "75"), "give its limit"), (("--stop", "0"), "give its limit"), (("--day", "5", "--month", "x"), "is not a number")],
)
def test_a_budget_is_set_as_asked_or_not_at_all(wooly: Wooly, asked: tuple[str, ...], says: str) -> None:
    found = wooly("credits", "budget", "lab", *asked, WOOLY_BILLING_URL="http://127.0.0.1:1")
    assert found.returncode == 2 and says in found.stderr
