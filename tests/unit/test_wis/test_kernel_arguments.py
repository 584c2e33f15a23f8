"""What a module says about arguments must fit its kernels."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from wis.dtypes import DType
from wis.kernel.module import ArgKind, Argument, Entry, Field, Module, Variable, check_module
from wis.kernel.text import parse_kernel

KERNEL = parse_kernel("kernel 2 k\nmath strict\nthreads 32\nparam buf f32 r\nparam i32\nparam buf u8 rw\nregs i32\nblock 0\n  ret\n")
GOOD = (
    Argument(ArgKind.BUFFER, "a", 0),
    Argument(ArgKind.STRUCT, "s", nbytes=8, fields=(Field(4, DType.I32, 1),)),
    Argument(ArgKind.SCALAR, "unread", -1, DType.F64),
    Argument(ArgKind.VARIABLE, "v", 2, variable=0),
)


def module(**changes: Any) -> Module:
    """GOOD with argument ``aN`` changed as said."""
    arguments = list(GOOD)
    for name, values in changes.items():
        arguments[int(name[1:])] = msgspec.structs.replace(arguments[int(name[1:])], **values)
    return Module(1, (Entry("k", KERNEL, tuple(arguments)),), (Variable("v", 4, 0, b""),))


def test_a_module_as_the_front_end_makes_it() -> None:
    assert check_module(module()) == []
    assert check_module(Module(1, (Entry("k", KERNEL, ()),))) == []
    pointer = Argument(ArgKind.STRUCT, "s", nbytes=16, fields=(Field(0, DType.U64, 0), Field(8, DType.I32, 1)))
    assert check_module(Module(1, (Entry("k", KERNEL, (pointer, GOOD[3])),), (Variable("v", 4, 0, b""),))) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"a0": {"kind": 9}}, "9 is not a kind of argument"),
        ({"a0": {"param": 3}}, "parameter 3 of 3"),
        ({"a0": {"param": -2}}, "parameter -2 of 3"),
        ({"a0": {"param": 1}}, "parameter 1 is not of this kind"),
        ({"a0": {"param": 2}}, "arguments give parameters [1, 2, 2] of 3"),
        ({"a0": {"param": -1}}, "arguments give parameters [1, 2] of 3"),
        ({"a1": {"fields": (Field(5, DType.I32, 1),)}}, "a field at byte 5 of 8"),
        ({"a1": {"fields": (Field(-1, DType.I32, 1),)}}, "a field at byte -1 of 8"),
        ({"a1": {"fields": (Field(0, 99, 1),)}}, "99 is not an element type"),
        ({"a1": {"fields": (Field(0, DType.I32, 0),)}}, "parameter 0 is not of this kind"),
        ({"a1": {"fields": (Field(0, DType.U64, -3),)}}, "parameter -3 of 3"),
        ({"a2": {"dtype": 99}}, "99 is not an element type"),
        ({"a3": {"variable": 1}}, "variable 1 of 1"),
        ({"a3": {"param": -1}}, "parameter -1 of 3"),
    ],
)
def test_every_contradiction_is_named(changes: dict[str, Any], says: str) -> None:
    assert says in "; ".join(finding.text for finding in check_module(module(**changes)))


def test_two_entries_of_one_name() -> None:
    entry = module().entries[0]
    assert "already" in check_module(Module(1, (entry, entry), (Variable("v", 4, 0, b""),)))[0].text
