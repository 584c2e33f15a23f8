"""Time-based one-time passwords (TOTP, RFC 6238) as a second factor beside a password, and recovery codes. Pure.

The log holds a user's factor encrypted (``services.controller.personal``), as one text: the secret in base32 and the digests of the
recovery codes, separated by spaces. Which codes were used is in audit records of ``CODE_USE``, so no replica accepts one twice.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import struct
from collections.abc import Collection, Sequence
from typing import Final

from blake3 import blake3

CODE_USE: Final = "code.use"
"""The action of an audit record; its target is what ``accepted`` gave."""
SECRET_PATTERN: Final = r"\A[A-Z2-7]{32}\Z"
"""160 bits, as RFC 4226 recommends."""
RECOVERY_CODES: Final = 10
_STEP_S: Final = 30
_DIGITS: Final = 6
_DRIFT: Final = 1
"""Steps by which the clock of the user's device may be wrong (RFC 6238, section 5.2)."""
_USED: Final = "step "


def recovery_code(random: bytes) -> str:
    """A code of 10 random bytes: four groups of four letters and digits."""
    text = base64.b32encode(random).decode().lower()
    return "-".join(text[at : at + 4] for at in range(0, 16, 4))


def factor_of(secret: str, recovery_codes: Sequence[str]) -> str:
    """What the log holds of a user's factor."""
    return " ".join([secret, *map(_digest, recovery_codes)])


def accepted(factor: str, code: str, now_s: int, used: Collection[str]) -> str:
    """What a right ``code`` is noted as, empty for a wrong one or one that was used. ``used``: what was noted before."""
    secret, *recovery = factor.split(" ")
    if not secret:
        return ""
    given = "".join(code.split()).lower()
    last = max((int(one.removeprefix(_USED)) for one in used if one.startswith(_USED)), default=0)
    for step in range(now_s // _STEP_S - _DRIFT, now_s // _STEP_S + _DRIFT + 1):
        if step > last and _same(code_at(secret, step), given):
            return f"{_USED}{step}"
    digest = _digest(given)
    known = [one for one in recovery if _same(one, digest)]
    return f"recovery {digest}" if known and f"recovery {digest}" not in used else ""


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode(errors="replace"))


def unforgotten(used: frozenset[str]) -> frozenset[str]:
    """Of what ``accepted`` noted, what still counts: the last time step, and recovery codes."""
    steps = sorted((one for one in used if one.startswith(_USED)), key=lambda one: int(one.removeprefix(_USED)))
    return used - frozenset(steps[:-1])


def code_at(secret: str, step: int) -> str:
    """RFC 4226, section 5.3, over HMAC-SHA-1."""
    try:
        digest = hmac.digest(base64.b32decode(secret), struct.pack(">Q", step), "sha1")
    except binascii.Error:
        return ""
    (number,) = struct.unpack_from(">L", digest, digest[-1] & 15)
    return f"{(number & 0x7FFFFFFF) % 10**_DIGITS:0{_DIGITS}}"


def _digest(code: str) -> str:
    """Of a recovery code; its 80 random bits cannot be guessed."""
    return blake3("".join(code.lower().replace("-", "").split()).encode(errors="replace")).hexdigest(8)
