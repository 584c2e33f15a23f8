"""One-time passwords: the values of RFC 6238, drift, replay, and recovery codes."""

from __future__ import annotations

import base64

import pytest

from services.kit.access.totp import accepted, factor_of, recovery_code
from wooly.shared.credentials import totp_secret, totp_uri

SECRET = base64.b32encode(b"12345678901234567890").decode()
CODES = [recovery_code(bytes([at] * 10)) for at in range(10)]
FACTOR = factor_of(SECRET, CODES)


@pytest.mark.parametrize(
    ("at_s", "code"),
    [(59, "94287082"), (1111111109, "07081804"), (1111111111, "14050471"), (1234567890, "89005924"), (2000000000, "69279037")],
)
def test_the_values_of_appendix_b(at_s: int, code: str) -> None:
    """They have eight digits; of six digits are the last ones."""
    assert accepted(FACTOR, code[2:], at_s, ()) == f"step {at_s // 30}"
    assert accepted(FACTOR, f" {code[2:5]} {code[5:]} ", at_s, ()), "apps show it in two groups"


@pytest.mark.parametrize(("late_s", "good"), [(-60, False), (-30, True), (0, True), (30, True), (60, False)])
def test_clocks_may_differ_by_one_step(late_s: int, good: bool) -> None:
    assert bool(accepted(FACTOR, "081804", 1111111109 + late_s, ())) is good


def test_no_code_counts_twice_nor_an_older_one() -> None:
    step = accepted(FACTOR, "081804", 1111111109, ())
    assert accepted(FACTOR, "081804", 1111111109, [step]) == ""
    assert accepted(FACTOR, "081804", 1111111109, [f"step {1111111109 // 30 + 1}"]) == ""
    assert accepted(FACTOR, "050471", 1111111111, [step]) != ""


def test_recovery_codes() -> None:
    first = accepted(FACTOR, CODES[3], 1, ())
    assert first.startswith("recovery ") and CODES[3] not in FACTOR
    assert accepted(FACTOR, CODES[3].upper().replace("-", ""), 1, ()) == first
    assert accepted(FACTOR, CODES[3], 1, [first]) == "" and accepted(FACTOR, CODES[4], 1, [first]) != ""
    assert len({accepted(FACTOR, code, 1, ()) for code in CODES}) == 10


@pytest.mark.parametrize(
    "code", ["", "0", "000000", "step 1", "recovery", "\ud800", "é" * 6, "94287082", CODES[0][:-1], FACTOR.split(" ")[1]]
)
def test_other_texts_are_wrong(code: str) -> None:
    assert accepted(FACTOR, code, 59, ()) == ""
    assert accepted("", code, 59, ()) == ""


def test_the_address_for_apps() -> None:
    assert totp_secret(b"12345678901234567890") == SECRET
    assert totp_uri(SECRET, "anna", "Wooly at h:1") == f"otpauth://totp/Wooly%20at%20h%3A1%3Aanna?secret={SECRET}&issuer=Wooly%20at%20h%3A1"
