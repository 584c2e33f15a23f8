"""Chains of audit records: whatever is changed in a file is found."""

from __future__ import annotations

import json

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from wooly.shared.audit_chain import ChainError, Verified, chained, signature_line, verify

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def signed(signature: bytes, message: bytes) -> bool:
    try:
        KEY.public_key().verify(signature, message)
    except InvalidSignature:
        return False
    return True


def export(positions: list[int], after: int = 0, previous: str = "", *, complete: bool = True) -> list[bytes]:
    about = {"export": {"version": 1, "after": after, "previous": previous, "complete": complete}}
    values = [about, *({"position": position, "detail": '"digest":"é'} for position in positions)]
    lines = list(chained((json.dumps(value, separators=(",", ":")).encode() for value in values), previous))
    return [*(line for line, _ in lines), signature_line(lines[-1][1], KEY.sign)]


FIRST = export([3, 5, 5, 9])
DIGEST = verify(FIRST, signed).digest
BOTH = FIRST + export([12], 9, DIGEST)


def test_exports_that_continue_each_other_are_one_chain() -> None:
    assert verify(FIRST, signed) == Verified(4, 0, 9, DIGEST)
    found = verify(BOTH, signed)
    assert (found.records, found.after, found.position, found.whole, found.complete) == (5, 0, 12, True, True)
    alone = verify(BOTH[len(FIRST) :], signed)
    assert (alone.records, alone.after, alone.whole) == (1, 9, False)
    assert verify([], signed) == Verified() and not verify(export([], complete=False), signed).complete


def test_every_line_that_is_removed_doubled_or_moved_is_found() -> None:
    for number in range(len(BOTH)):
        if number != len(BOTH) - 1:  # (the last: below)
            with pytest.raises(ChainError):
                verify(BOTH[:number] + BOTH[number + 1 :], signed)
            with pytest.raises(ChainError):
                verify([*BOTH[:number], BOTH[number + 1], BOTH[number], *BOTH[number + 2 :]], signed)
        with pytest.raises(ChainError):
            verify(BOTH[: number + 1] + BOTH[number:], signed)
    with pytest.raises(ChainError, match="cut off"):
        verify(BOTH[:-1], signed)


def test_every_byte_that_is_changed_is_found() -> None:
    data = b"".join(BOTH)
    for number in range(len(data)):
        if data[number : number + 1] != b"\n":
            changed = data[:number] + bytes([data[number] ^ 1]) + data[number + 1 :]
            with pytest.raises(ChainError):
                verify(changed.splitlines(keepends=True), signed)


def test_another_key_does_not_sign_it() -> None:
    other = Ed25519PrivateKey.generate()
    forged = [*FIRST[:-1], signature_line(DIGEST, other.sign)]
    with pytest.raises(ChainError, match=f"line {len(FIRST)}: .*signature by this key"):
        verify(forged, signed)


def test_a_gap_between_two_exports_is_found() -> None:
    with pytest.raises(ChainError, match="does not continue"):
        verify(FIRST + export([12], 11, DIGEST), signed)
