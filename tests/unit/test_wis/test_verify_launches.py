"""Launches beside what their kernel asks for: one argument changed at a time, at both sides of each boundary."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.builder import Builder
from wis.dtypes import DType
from wis.errors import VerifyError
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.text import parse_kernel
from wis.kernel.verify import VerifiedKernel, verify_kernel
from wis.program import Operand, Scalar
from wis.verify import verify

U8, I32, I64 = DType.U8, DType.I32, DType.I64

KERNEL = verify_kernel(
    parse_kernel(
        "kernel 2 k\nmath strict\nthreads 64\nparam buf f32 r\nparam buf f64 rw\nparam i32\nparam buf u8 w\n"
        "shared f32[4]\nshared u8[0]\ndynamic 1\nregs i64 f32 f64 i32\nblock 0\n"
        " r0 = const(0)\n r1 = ld(p0 f32) r0\n r2 = ld(p1 f64) r0\n st(p1 f64) r0, r2\n r3 = param(p2)\n store(p3 u8) r0, r3\n ret\n"
    )
)
PLAIN = verify_kernel(
    parse_kernel("kernel 2 plain\nmath strict\nthreads 32\nparam buf i16 rw\nparam i64\nregs i64\nblock 0\n r0 = param(p1)\n ret\n")
)
SHARED_FIXED = 16
"""Bytes of the shared array of KERNEL that has a size."""


def region(b: Builder, start: int = 0, nbytes: int = 32, *, dtype: DType = U8, stride: int = 1) -> Operand:
    """``nbytes`` bytes that begin at byte ``start`` of a buffer of their own."""
    return b.external(dtype, (nbytes,), (stride,), start)


def launched(kernel: VerifiedKernel = KERNEL, **changes: Any) -> list[str]:
    """Findings for a launch of KERNEL that is right but for ``changes``."""
    b = Builder()
    starts = {"read": 0, "both": 0, "write": 0} | {k: v for k, v in changes.items() if k in ("read", "both", "write")}
    shape = {"nbytes": changes.get("nbytes", 32), "stride": changes.get("stride", 1)}
    regions = {name: region(b, start, **(shape if name == changes.get("only", name) else {})) for name, start in starts.items()}
    outs: list[Operand] = changes.get("outs", lambda b, r: [r["both"], r["write"]])(b, regions)
    ins: list[Operand | Scalar] = changes.get("ins", lambda b, r: [r["read"], b.const(1, I32)])(b, regions)
    b.launch(kernel.digest, (1, 1, 1), changes.get("block", (32, 1, 1)), outs, ins, changes.get("dynamic", 0))
    program, dims, _ = b.finish()
    try:
        verify(program, dims, kernels=changes.get("kernels", {kernel.digest: kernel}))
    except VerifyError as error:
        return [str(finding) for finding in error.findings]
    return []


def test_a_launch_that_fits() -> None:
    assert KERNEL.aligns == (4, 8, 1, 1)
    assert launched() == []


@pytest.mark.parametrize(("name", "place", "align"), [("read", "in 3", 4), ("both", "out 0", 8), ("write", "out 1", 1)])
def test_regions_start_where_the_accesses_of_the_kernel_need_it(name: str, place: str, align: int) -> None:
    """Every start from 0 to 24 bytes: multiples of the alignment of that parameter are accepted, whether it is read or written."""
    for start in range(25):
        found = launched(**{name: start})
        if start % align:
            assert found == [f"alignment @ code 0 {place}: the region starts at byte {start}, k needs a multiple of {align} here"]
        else:
            assert found == []


@pytest.mark.parametrize(("name", "place"), [("read", "in 3"), ("both", "out 0"), ("write", "out 1")])
def test_regions_have_no_gaps(name: str, place: str) -> None:
    assert launched(only=name, stride=2) == [f"stride @ code 0 {place}: stride 2: a region has stride 1"]
    assert launched(only=name, stride=2, nbytes=0) == [], "what has no bytes has no gaps"
    assert launched(only=name, nbytes=0, **{name: 1}) == [], "and starts anywhere"


@pytest.mark.parametrize(
    ("block", "good"),
    [
        ((1, 1, 1), True), ((64, 1, 1), True), ((65, 1, 1), False), ((4, 4, 4), True), ((4, 4, 5), False), ((5, 13, 1), False),
        ((0, 1, 1), False), ((1, 0, 1), False), ((1, 1, 0), False), ((-1, -1, 1), False), ((1, 64, 1), True), ((1, 1, 64), True),
    ],
)  # fmt: skip
def test_threads_of_a_block(block: tuple[int, int, int], good: bool) -> None:
    found = launched(block=block)
    assert found == ([] if good else [f"limit @ code 0 attr x: {block[0]} x {block[1]} x {block[2]} threads a block, k accepts 1 to 64"])


MOST = KERNEL_LIMITS.dynamic_shared_bytes_max


@pytest.mark.parametrize(
    ("dynamic", "good"), [(0, True), (1, True), (-1, False), (MOST - SHARED_FIXED, True), (MOST - SHARED_FIXED + 1, False)]
)
def test_dynamic_shared_memory_beside_what_the_kernel_declares(dynamic: int, good: bool) -> None:
    found = launched(dynamic=dynamic)
    assert found == (
        [] if good else [f"limit @ code 0 attr dynamic: {dynamic + SHARED_FIXED} bytes of shared memory, at most {MOST} are accepted"]
    )


@pytest.mark.parametrize(("dynamic", "good"), [(0, True), (1, False)])
def test_dynamic_shared_memory_of_a_kernel_that_has_none(dynamic: int, good: bool) -> None:
    found = launched(PLAIN, outs=lambda b, r: [r["both"]], ins=lambda b, r: [b.const(1, I64)], dynamic=dynamic)
    assert found == ([] if good else ["limit @ code 0 attr dynamic: plain has no dynamic shared memory"])


ARITY = "arity @ code 0: k takes 2 writable buffers and 2 other arguments, given are {} and {}"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"outs": lambda b, r: [r["both"]]}, ARITY.format(1, 2)),
        ({"outs": lambda b, r: [r["both"], r["write"], r["read"]]}, ARITY.format(3, 2)),
        ({"ins": lambda b, r: [r["read"]]}, ARITY.format(2, 1)),
        ({"ins": lambda b, r: [r["read"], b.const(1, I32), b.const(1, I32)]}, ARITY.format(2, 3)),
        (
            {"outs": lambda b, r: [r["both"], b.external(DType.I8, (4,))]},
            "type @ code 0 out 1: a buffer parameter takes a region: u8, rank 1",
        ),
        ({"outs": lambda b, r: [b.external(U8, (4, 2)), r["write"]]}, "type @ code 0 out 0: a buffer parameter takes a region: u8, rank 1"),
        (
            {"ins": lambda b, r: [b.external(DType.F32, (4,)), b.const(1, I32)]},
            "type @ code 0 in 3: a buffer parameter takes a region: u8, rank 1",
        ),
        ({"ins": lambda b, r: [b.external(U8, ()), b.const(1, I32)]}, "type @ code 0 in 3: a buffer parameter takes a region: u8, rank 1"),
        ({"ins": lambda b, r: [b.const(1, U8), b.const(1, I32)]}, "type @ code 0 in 3: a buffer parameter takes a region: u8, rank 1"),
        ({"ins": lambda b, r: [r["read"], b.const(1, I64)]}, "type @ code 0 in 4: a scalar parameter takes an immediate of type i32 here"),
        ({"ins": lambda b, r: [r["read"], r["write"]]}, "type @ code 0 in 4: a scalar parameter takes an immediate of type i32 here"),
    ],
)
def test_operands_are_what_the_parameters_take(changes: dict[str, Any], found: str) -> None:
    assert launched(**changes) == [found]


@pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.text)
@pytest.mark.parametrize("param", ["pred", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"])
def test_a_scalar_has_the_type_of_its_parameter(param: str, dtype: DType) -> None:
    kernel = verify_kernel(
        parse_kernel(f"kernel 2 s\nmath strict\nthreads 32\nparam {param}\nregs {param}\nblock 0\n r0 = param(p0)\n ret\n")
    )
    found = launched(kernel, outs=lambda b, r: [], ins=lambda b, r: [b.const(1, dtype)])
    wanted = {"pred": "bool"}.get(param, param)
    assert (found == []) == (dtype.text == wanted)


def test_a_kernel_that_is_not_known_is_named() -> None:
    (found,) = launched(kernels={})
    assert found == f"kernel @ program: kernel 0, {KERNEL.digest[:8].hex()}..., is not known here"


@pytest.mark.parametrize(("number", "good"), [(-1, False), (0, True), (1, False)])
def test_a_launch_names_one_of_the_kernels(number: int, good: bool) -> None:
    b = Builder()
    outs, ins = [region(b), region(b)], [region(b), b.const(1, I32)]
    b.launch(KERNEL.digest, (1, 1, 1), (32, 1, 1), outs, ins)
    program, dims, _ = b.finish()
    instr = msgspec.structs.replace(program.code[0], attrs=(number, *program.code[0].attrs[1:]))
    changed = msgspec.structs.replace(program, code=(instr,))
    if good:
        verify(changed, dims, kernels={KERNEL.digest: KERNEL})
    else:
        with pytest.raises(VerifyError, match=f"reference @ code 0 attr kernel: kernel {number} of 1"):
            verify(changed, dims, kernels={KERNEL.digest: KERNEL})


def test_the_second_launch_of_a_program_is_checked_as_the_first() -> None:
    b = Builder()
    for start in (0, 4):
        b.launch(KERNEL.digest, (1, 1, 1), (32, 1, 1), [region(b, start), region(b)], [region(b), b.const(1, I32)])
    program, dims, _ = b.finish()
    with pytest.raises(VerifyError) as caught:
        verify(program, dims, kernels={KERNEL.digest: KERNEL})
    assert [str(finding) for finding in caught.value.findings] == [
        "alignment @ code 1 out 0: the region starts at byte 4, k needs a multiple of 8 here"
    ]
