"""What the verifier of kernels says of each kind of mistake: rule, place and words; and what stands just inside of a limit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from wis.dtypes import DType
from wis.errors import VerifyError
from wis.kernel.limits import KernelLimits
from wis.kernel.model import (
    Access,
    Block,
    Br,
    BufferParam,
    Call,
    Cbr,
    Function,
    Kernel,
    Op,
    RegType,
    Ret,
    ScalarParam,
    Shared,
    Space,
    Switch,
    Sync,
)
from wis.kernel.ops import BY_NAME
from wis.kernel.verify import verify_kernel

I16, I32, I64, F16, F32, F64, PRED = (RegType[name] for name in ("I16", "I32", "I64", "F16", "F32", "F64", "PRED"))
END = Block((), Ret())


def kernel(**changes: Any) -> Kernel:
    """A kernel that does nothing, but for ``changes``."""
    return msgspec.structs.replace(Kernel(2, "k", 0, 32, (), (), (), (END,)), **changes)


def findings(given: Kernel, **limits: int) -> list[tuple[str, str, str]]:
    try:
        verify_kernel(given, KernelLimits(**limits))
    except VerifyError as error:
        return [tuple(finding) for finding in error.findings]  # type: ignore[misc]  # three texts
    return []


def op(name: str, out: RegType | None, *ins: RegType, attrs: tuple[int, ...] = (), **more: Any) -> Kernel:
    """One op with registers of these types, each set before."""
    regs = (*((out,) if out is not None else ()), *ins)
    code = tuple(Op(BY_NAME["const"].code, (i,), (), (1 if type_ is PRED else 0,)) for i, type_ in enumerate(regs))
    first = len(regs) - len(ins)
    used = Op(BY_NAME[name].code, tuple(range(first)), tuple(range(first, len(regs))), attrs)
    return kernel(regs=regs, blocks=(Block((*code, used), Ret()),), **more)


SAME = Function("f", ins=(0,), outs=(0,), regs=(I32,), blocks=(END,))
MISTAKES: dict[str, tuple[Kernel, list[tuple[str, str, str]]]] = {
    "fields of version 2": (
        kernel(version=1, local_bytes=4, file="f"), [("version", "kernel", "version 1 has no local_bytes, file")]
    ),
    "lines of no ops": (kernel(lines=(1,)), [("limit", "lines", "1 source lines for 0 ops")]),
    "a line beyond": (
        msgspec.structs.replace(op("neg", I32, I32), lines=(0, 0, 1 << 31)), [("limit", "lines", "source lines are 0 to 2147483647")]
    ),
    "dynamic of nothing": (
        kernel(dynamic=1), [("reference", "kernel", "dynamic shared memory is a last shared array of u8")]
    ),
    "dynamic of floats": (
        kernel(dynamic=1, shared=(Shared(DType.F32, 4),)),
        [("reference", "kernel", "dynamic shared memory is a last shared array of u8")],
    ),
    "dynamic 2": (kernel(dynamic=2), [("reference", "kernel", "dynamic is 2, expected 0 or 1")]),
    "shared arrays": (
        kernel(shared=(Shared(DType.F32, 0), Shared(DType.C64, 1))),
        [("type", "shared 0", "0 elements of type 8"), ("type", "shared 1", "1 elements of type 10")],
    ),
    "arrival without a count": (
        kernel(blocks=(Block((), Sync(0, 0, -1, 1)),)),
        [("reference", "block 0 end", "who arrives without waiting says how many threads complete the barrier")],
    ),
    "barrier, count and arrival": (
        kernel(blocks=(Block((), Sync(0, 16, -2, 2)),)),
        [
            ("reference", "block 0 end", "barrier 16 of 16"),
            ("reference", "block 0 end", "count r-2, arrive 2: expected a register or -1, and 0 or 1"),
        ],
    ),
    "switch": (
        kernel(regs=(I32,), blocks=(Block((), Switch(1, (), 2)), END)),
        [
            ("register", "block 0 end", "register 1 of 1"),
            ("reference", "block 0 end", "block 2 of 2"),
            ("limit", "block 0 end", "0 targets, accepted is 1 to 1024"),
        ],
    ),
    "call": (
        kernel(blocks=(Block((), Call(0, (0,), (1,), 1)), END)),
        [
            ("register", "block 0 end", "register 0 of 0"),
            ("register", "block 0 end", "register 1 of 0"),
            ("reference", "block 0 end", "function 0 of 0"),
        ],
    ),
    "function": (
        kernel(functions=(msgspec.structs.replace(SAME, name="no name", ins=(0, 0), outs=(1,), blocks=()),)),
        [
            ("limit", "function 0", "'no name' is not a name: at most 200 letters, digits and underscores"),
            ("limit", "function 0", "a function has at least one block"),
            ("register", "function 0", "register 1 of 1"),
            ("reference", "function 0", "two arguments go into one register"),
        ],
    ),
    "recursion": (
        kernel(functions=(Function("f", (), (), (), (Block((), Call(0, (), (), 1)), END)),)),
        [("call", "function 0", "calls itself, or a function that does: recursion is not supported")],
    ),
    "too large after calls": (
        kernel(blocks=(Block((), Call(0, (), (), 1)), Block((), Call(0, (), (), 2)), END), functions=(Function("f", (), (), (), (END,)),)),
        [("limit", "kernel", "7 blocks after calls became code, at most 4 are accepted")],
    ),
    "type of a register": (kernel(regs=(99,)), [("type", "reg 0", "99 is not a register type")]),
    "parameters": (
        kernel(params=(ScalarParam(99), BufferParam(DType.C64, 9))),
        [
            ("type", "param 0", "99 is not a register type"),
            ("type", "param 1", "10 is not an element type of memory"),
            ("reference", "param 1", "9 is not a kind of access"),
        ],
    ),
    "op": (kernel(blocks=(Block((Op(9999, (), (), ()),), Ret()),)), [("op", "block 0 op 0", "there is no op with code 9999")]),
    "math": (kernel(math=9), [("reference", "kernel", "9 is not a math policy")]),
    "branch": (
        kernel(blocks=(Block((), Cbr(0, 1, 2)),)),
        [
            ("register", "block 0 end", "register 0 of 0"),
            ("reference", "block 0 end", "block 1 of 1"),
            ("reference", "block 0 end", "block 2 of 1"),
        ],
    ),
    "read before it is written": (
        kernel(regs=(PRED,), blocks=(Block((), Cbr(0, 1, 1)), END)),
        [("undefined", "block 0 end", "register 0 is not written on every path to here")],
    ),
    "endless": (kernel(blocks=(Block((), Br(0)),)), [("flow", "block 0 end", "a thread that arrives here can never end")]),
    "not reached": (kernel(blocks=(END, END)), [("flow", "block 1 end", "no thread can reach this block")]),
    "shared array of a load": (
        op("ld", I32, I64, attrs=(Space.SHARED, 1, DType.I32), shared=(Shared(DType.I32, 4),)),
        [("type", "block 0 op 2", "ld: there is no shared array 1")],
    ),
    "shared array as another type": (
        op("ld", I32, I64, attrs=(Space.SHARED, 0, DType.U32), shared=(Shared(DType.I32, 4),)),
        [("type", "block 0 op 2", "ld: a shared array is accessed as its own element type")],
    ),
    "space without elements": (
        op("ld", I32, I64, attrs=(Space.CONST, 0, DType.I32)),
        [("type", "block 0 op 2", "ld: there is no memory 0 in space const")],
    ),
    "too many ops after calls": (
        kernel(blocks=(Block((), Call(0, (), (), 1)), END), functions=(Function("f", (), (), (), (END,)),)),
        [("limit", "kernel", "4 ops after calls became code, at most 2 are accepted")],
    ),
    "store to what is only read": (
        op("st", None, I64, I32, attrs=(Space.GLOBAL, 0, DType.I32), params=(BufferParam(DType.I32, Access.READ),)),
        [("access", "block 0 op 2", "st: buffer parameter 0 is not declared for this")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_named_with_its_place(name: str) -> None:
    given, expected = MISTAKES[name]
    limits = {"too large after calls": {"inlined_blocks_max": 4}, "too many ops after calls": {"inlined_ops_max": 2}}
    assert findings(given, **limits.get(name, {})) == expected


@pytest.mark.parametrize(
    ("name", "out", "ins"),
    [
        ("sel", I32, (I32, I32, I32)), ("sel", I32, (PRED, I64, I32)), ("sel", I32, (PRED, I32, I64)), ("sel", I64, (PRED, I32, I32)),
        ("sext", I32, (I32,)), ("sext", I16, (I32,)), ("narrow", I32, (I32,)), ("narrow", I64, (I32,)), ("cvt", F32, (F32,)),
        ("reinterpret", I32, (I32,)), ("reinterpret", I64, (F32,)), ("add", I32, (I32, I64)), ("eq", I32, (I32, I32)),
        ("lt_s", PRED, (F32, F32)),
    ],
)  # fmt: skip
def test_types_that_an_op_does_not_take(name: str, out: RegType, ins: tuple[RegType, ...]) -> None:
    (found,) = findings(op(name, out, *ins))
    assert found[:2] == ("type", f"block 0 op {1 + len(ins)}")


@pytest.mark.parametrize(
    "given",
    [
        msgspec.structs.replace(op("neg", I32, I32), lines=(0, 0, (1 << 31) - 1)),
        kernel(regs=(I32,), blocks=(Block((Op(BY_NAME["const"].code, (0,), (), (32,)),), Sync(1, 15, 0, 1)), END)),
        kernel(name="k" * 200),
        kernel(threads_max=1024),
        kernel(functions=(SAME,) * 256),
        op("sel", I32, PRED, I32, I32),
        op("sext", I64, I32),
        op("narrow", I32, I64),
        op("cvt", F64, F32),
        op("reinterpret", I32, F32),
    ],
)
def test_what_stands_just_inside_of_a_rule(given: Kernel) -> None:
    assert findings(given) == []


def test_no_more_findings_are_made_than_asked_for() -> None:
    many = kernel(regs=(99,) * 7)
    assert [place for _, place, _ in findings(many, findings_max=3)] == ["reg 0", "reg 1", "reg 2"]
    assert len(findings(many, findings_max=7)) == 7
