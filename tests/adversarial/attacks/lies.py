"""Attacks by bytes and kernels whose declarations are false."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from tests.adversarial.attack import ATTACKS, Attack, Refused, Shot, launch, wisk
from tests.adversarial.attacks.bounds import words
from wis.errors import DecodeError, VerifyError
from wis.kernel.model import Block, Kernel, Op, Ret, decode_kernel, encode_kernel
from wis.kernel.module import decode_module
from wis.kernel.text import parse_kernel
from wis.kernel.verify import verify_kernel

_SOUND = """kernel 2 k
math strict
threads 64
param buf i32 rw
param i32
shared i32[8]
regs i32 i32 f32 pred i64
block 0
  r0 = const(0)
  r1 = param(p1)
  store(p0 i32) r0, r1
  ret
"""


def _kernel() -> Kernel:
    return parse_kernel(_SOUND)


def _decoded(change: Callable[[bytes], bytes]) -> None:
    decode_kernel(change(encode_kernel(_kernel())))


def _wider(data: bytes) -> bytes:
    """The first array's header in three bytes instead of one."""
    assert data[0] & 0xF0 == 0x90
    return b"\xdc\x00" + bytes([data[0] & 15]) + data[1:]


_BYTES: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda data: b"",
    "cut": lambda data: data[:-1],
    "longer": lambda data: data + b"\x00",
    "twice": lambda data: data + data,
    "wide header": _wider,
    "version 99": lambda data: encode_kernel(msgspec.structs.replace(_kernel(), version=99)),
    "map": lambda data: b"\x81\xa1a\x01",
    "length of 4 GiB": lambda data: b"\xdd\xff\xff\xff\xff" + data,
    "text that is no text": lambda data: data.replace(b"\xa1k", b"\xa1\xff"),
    "number for an array": lambda data: b"\x05",
}
for _name, _change in _BYTES.items():
    ATTACKS[f"bytes/{_name}"] = Attack(
        f"bytes/{_name}", f"Not the bytes of a kernel: {_name}.", Refused(DecodeError), partial(_decoded, _change)
    )


def _module() -> None:
    """Bytes that are a kernel, given for a module."""
    decode_module(encode_kernel(_kernel()))


ATTACKS["bytes/kernel for a module"] = Attack("bytes/kernel for a module", _module.__doc__ or "", Refused(DecodeError), _module)


def _text(line: str) -> Shot:
    return wisk(_SOUND.replace("  store(p0 i32) r0, r1\n", line + "\n"), [words(8), 5], launch())


_LINES = {
    "undefined register": "  r0 = add r0, r1\n  r2 = add r2, r2",
    "types that do not fit": "  r2 = add r0, r1",
    "element that does not fit": "  store(p0 f32) r0, r1",
    "three elements": "  store(p0 i32x3) r0, r1, r1, r1",
    "32 bytes at once": "  store(p0 f32x8) r0, r2, r2, r2, r2, r2, r2, r2, r2",
    "parameter that there is not": "  store(p7 i32) r0, r1",
    "scalar as a buffer": "  store(p1 i32) r0, r1",
    "shared array that there is not": "  store(s3 i32) r0, r1",
    "float atomic minimum": "  r2 = const(1.0)\n  red(min p0 f32) r0, r2",
    "wrapping increment of signed": "  red(inc p0 i32) r0, r1",
    "atomic on a byte": "  red(add p0 u8) r0, r1",
}
for _name, _line in _LINES.items():
    ATTACKS[f"lies/{_name}"] = Attack(
        f"lies/{_name}", f"A kernel that breaks a rule: {_name}.", Refused(VerifyError), partial(_text, _line)
    )


def _op(op: Op) -> None:
    kernel = _kernel()
    verify_kernel(msgspec.structs.replace(kernel, blocks=(Block((op,), Ret()),)))


_OPS: dict[str, Op] = {
    "op that there is not": Op(9999, (0,), (1,)),
    "negative register": Op(2, (0,), (-1,)),
    "register beyond all": Op(2, (0,), (2**62,)),
    "special value that there is not": Op(3, (0,), (), (77,)),
    "no attributes": Op(72, (0,), (1,), ()),
    "space that there is not": Op(72, (0,), (1,), (9, 0, 5, 1, 0, 0)),
    "negative count": Op(72, (0,), (0,), (0, 0, 5, -1, 0, 0)),
    "displacement beyond 64 bits": Op(72, (0,), (0,), (0, 0, 5, 1, 2**63, 0)),
    "constant beyond its type": Op(1, (0,), (), (2**40,)),
}
for _name, _what in _OPS.items():
    ATTACKS[f"lies/{_name}"] = Attack(
        f"lies/{_name}", f"A kernel that breaks a rule: {_name}.", Refused((VerifyError, DecodeError)), partial(_op, _what)
    )


def _changed(**changes: Any) -> None:
    verify_kernel(msgspec.structs.replace(_kernel(), **changes))


_FIELDS: dict[str, dict[str, Any]] = {
    "no threads": {"threads_max": 0},
    "threads of 2^31": {"threads_max": 2**31},
    "math policy that there is not": {"math": 7},
    "no blocks": {"blocks": ()},
    "negative local memory": {"local_bytes": -1},
    "dynamic without an array": {"dynamic": 1, "shared": ()},
    "dynamic 2": {"dynamic": 2},
    "version 1 with later fields": {"version": 1, "local_bytes": 8},
    "register type that there is not": {"regs": (99,)},
}
for _name, _changes in _FIELDS.items():
    ATTACKS[f"lies/{_name}"] = Attack(
        f"lies/{_name}", f"A kernel that breaks a rule: {_name}.", Refused((VerifyError, DecodeError)), partial(_changed, **_changes)
    )
