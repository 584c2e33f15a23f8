"""Batches and program uses as earlier revisions wrote them stay readable, and what is written today stays as it is."""

from __future__ import annotations

import msgspec
import pytest

from bus_schemas.batch import Batch, Read, Upload, decode_batch, encode_batch
from bus_schemas.journal import ProgramUse, decode_uses, encode_use

WITHOUT_ORIGIN = bytes.fromhex(
    "dc0011a862617463682e7631a1730203c4207070707070707070707070707070707070707070707070707070707070707070c4206464646464646464"
    "646464646464646464646464646464646464646464646464c404626f6479c40464696d73c09301cb400400000000000092cb0000000000000000cb3f"
    "f0000000000000c401689192010891940203c403616263909194000100089104a5747261636591c4016b"
)
WITH_ORIGIN = b"\xdc\x00\x12" + WITHOUT_ORIGIN[3:] + b"\xaatrain.py:3"
WITH_REPEATS = b"\xdc\x00\x13" + WITH_ORIGIN[3:] + b"\xc3"
BATCH = Batch(
    session="s",
    epoch=2,
    seq=3,
    program=b"p" * 32,
    dims=b"d" * 32,
    program_body=b"body",
    dims_body=b"dims",
    scalars=(1, 2.5, (0.0, 1.0)),
    handles=b"h",
    allocs=((1, 8),),
    uploads=(Upload(2, 3, b"abc"),),
    reads=(Read(0, 1, 0, 8),),
    frees=(4,),
    trace="trace",
    kernels=(b"k",),
)
USE_WITHOUT_ORIGIN = bytes.fromhex("1d00000093c4084141414141414141c408424242424242424291a6616464207832")
USE_WITH_ORIGIN = bytes.fromhex("2a00000095c4084141414141414141c408424242424242424291a6616464207832a173aa747261696e2e70793a33")
USE = ProgramUse(b"A" * 8, b"B" * 8, ("add x2",))


def test_batches_with_and_without_an_origin_and_repeats() -> None:
    assert decode_batch(WITHOUT_ORIGIN) == BATCH
    located = msgspec.structs.replace(BATCH, origin="train.py:3")
    assert decode_batch(WITH_ORIGIN) == located
    repeats = msgspec.structs.replace(located, repeats=True)
    assert decode_batch(WITH_REPEATS) == repeats and encode_batch(repeats) == WITH_REPEATS
    assert decode_batch(WITH_REPEATS[:2] + b"\x14" + WITH_REPEATS[3:] + b"\xc0") == repeats, "a later field is skipped"
    with pytest.raises(msgspec.ValidationError):
        decode_batch(WITH_ORIGIN[:-11] + b"\x01")


def test_program_uses_with_and_without_an_origin() -> None:
    located = msgspec.structs.replace(USE, session="s", origin="train.py:3")
    assert decode_uses(USE_WITHOUT_ORIGIN + USE_WITH_ORIGIN) == [USE, located] and encode_use(located) == USE_WITH_ORIGIN
