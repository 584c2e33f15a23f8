"""Exports of audit records as signed chains of JSON lines, and their verification offline. Pure.

An export is one line with the member ``export`` (what was asked for), one line a record, the oldest first, and one with the signature. The
last member of all but the last is ``digest``: SHA-256, in hex, of the digest of the line before and the line without this member. The
first line follows ``previous``, the last digest of the export before (empty: none), so exports that continue each other are one chain in
one file. The signature is Ed25519 over ``MESSAGE`` and the last digest.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

MESSAGE: Final = b"wooly audit export 1\n"
_DIGEST: Final = re.compile(rb'(.*),"digest":"([0-9a-f]{64})"\}', re.DOTALL)


class ChainError(ValueError):
    """The file is no chain of whole, signed exports; the message names the line."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a file holds."""

    #: records in it
    records: int = 0
    #: position in the log after which its records begin
    after: int = 0
    #: position up to which it has the records
    position: int = 0
    #: of its last line but the signature; empty: the file is empty
    digest: str = ""
    #: whether the digest before its first line was empty: it is not the continuation of another file
    whole: bool = True
    #: whether the controller still had all records that were asked for
    complete: bool = True


def chained(lines: Iterable[bytes], previous: str) -> Iterator[tuple[bytes, str]]:
    """Every line (a JSON object without white space around it) with its digest appended, and that digest."""
    for line in lines:
        previous = _digest(previous, line)
        yield line[:-1] + b',"digest":"' + previous.encode() + b'"}\n', previous


def signature_line(digest: str, sign: Callable[[bytes], bytes]) -> bytes:
    """The last line of an export whose last digest is ``digest``."""
    return json.dumps({"signature": base64.b64encode(sign(MESSAGE + digest.encode())).decode()}, separators=(",", ":")).encode() + b"\n"


def verify(lines: Iterable[bytes], signed: Callable[[bytes, bytes], bool]) -> Verified:
    """What the exports in ``lines`` hold. ``signed``: whether a signature is that of a message. Raises ChainError."""
    found = Verified()
    is_open = False
    for number, line in enumerate(lines, 1):
        try:
            found, is_open = _next(found, is_open, number == 1, line.removesuffix(b"\n"), signed)
        except ChainError as error:
            raise ChainError(f"line {number}: {error}") from None
    if is_open:
        raise ChainError("the last line is no signature: the file was cut off")
    return found


def _next(found: Verified, is_open: bool, first: bool, line: bytes, signed: Callable[[bytes, bytes], bool]) -> tuple[Verified, bool]:
    """What is verified after ``line``, and whether a signature must still follow. Raises ChainError."""
    match = _DIGEST.fullmatch(line)
    if match is None:
        if not is_open or not signed(_signature(line), MESSAGE + found.digest.encode()):
            raise ChainError("it is neither a line of the chain nor its signature by this key")
        return found, False
    body, digest = match[1] + b"}", match[2].decode()
    value = _object(body)
    header = value.get("export")
    if isinstance(header, dict) == is_open:
        raise ChainError("an export begins before the one above it was signed" if is_open else "an export begins without its first line")
    records, after, position, whole, complete = found.records, found.after, found.position, found.whole, found.complete
    previous = found.digest
    if isinstance(header, dict):
        begins, previous = _integer(header, "after"), str(header.get("previous"))
        if first:
            after = position = begins
            whole = not previous
        elif previous != found.digest or begins != found.position:
            raise ChainError("this export does not continue the one above it")
        complete = complete and header.get("complete") is True
    else:
        at, position = position, _integer(value, "position")
        if position < at:
            raise ChainError(f"position {position} comes after position {at}")
        records += 1
    if _digest(previous, body) != digest:
        raise ChainError("its digest is wrong: this line, or one above it, was changed, removed or added")
    return Verified(records, after, position, digest, whole, complete), True


def _digest(previous: str, line: bytes) -> str:
    return hashlib.sha256(previous.encode() + line).hexdigest()


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ChainError(f"it is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ChainError("it is no JSON object")
    return value


def _integer(value: dict[str, Any], name: str) -> int:
    found = value.get(name)
    if type(found) is not int:
        raise ChainError(f"it has no number {name}")
    return found


def _signature(line: bytes) -> bytes:
    try:
        return base64.b64decode(str(_object(line).get("signature")), validate=True)
    except binascii.Error:
        raise ChainError("its signature is not base64") from None
