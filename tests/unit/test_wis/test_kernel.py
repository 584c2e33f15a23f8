"""The kernel tier: golden kernels run right, rules hold, analyses say what a reader would say."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from tests.support.wis_run import apply
from wis.dtypes import DType
from wis.errors import DecodeError, ParseError, VerifyError
from wis.kernel.interpret import Launch, launch
from wis.kernel.limits import KernelLimits
from wis.kernel.model import Access, Block, BufferParam, Kernel, Op, RegType, Ret, ScalarParam, Space, Special, decode_kernel, encode_kernel
from wis.kernel.ops import BY_NAME, KERNEL_OPS, Sig
from wis.kernel.text import parse_kernel, print_kernel
from wis.kernel.verify import VerifiedKernel, verify_kernel

FOLDER = Path(__file__).parents[2] / "golden" / "wis" / "kernels"
FILES = sorted(FOLDER.glob("*.wisk"))
Array = np.ndarray[Any, Any]


def golden(name: str) -> VerifiedKernel:
    return verify_kernel(parse_kernel((FOLDER / f"{name}.wisk").read_text()))


def raw(x: Array) -> Array:
    return np.frombuffer(bytearray(x.tobytes()), np.uint8)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_golden(path: Path) -> None:
    comment, _, text = path.read_text().partition("\n")
    assert comment.startswith("; "), "the first line says what the file is about"
    kernel = parse_kernel(text)
    assert decode_kernel(encode_kernel(kernel)) == kernel
    try:
        verify_kernel(kernel)
    except VerifyError as error:
        assert path.stem.startswith("bad_")
        assert print_kernel(kernel, error.findings) == text
        return
    assert not path.stem.startswith("bad_")
    assert print_kernel(kernel) == text


@pytest.mark.parametrize("n", [1, 255, 256, 1000])
def test_vadd_with_a_ragged_grid(n: int) -> None:
    a, b = (np.random.default_rng(i).standard_normal(n).astype(np.float32) for i in (1, 2))
    c = raw(np.zeros(n, np.float32))
    blocks = -(-n // 256)
    outcome = launch(golden("vadd"), Launch((blocks, 1, 1), (256, 1, 1)), [raw(a), raw(b), c, n])
    assert (c.view(np.float32) == a + b).all()
    # Every thread: 10 ops and a branch, and ret; those inside: 4 more and a branch.
    assert outcome.instructions == blocks * 256 * (11 + 1) + n * 5
    assert not outcome.trapped and not outcome.out_of_fuel


def test_out_of_bounds_loads_give_zero_stores_are_dropped_and_both_trap() -> None:
    a, b = np.arange(4, dtype=np.float32), np.arange(10, dtype=np.float32)
    c = raw(np.zeros(6, np.float32))
    outcome = launch(golden("vadd"), Launch((1, 1, 1), (32, 1, 1)), [raw(a), raw(b), c, 10])
    assert outcome.trapped
    assert c.view(np.float32).tolist() == [0, 2, 4, 6, 4, 5]


def test_bias_gelu_is_what_the_tensor_ops_say() -> None:
    rows, columns = 37, 24
    x = np.random.default_rng(3).standard_normal((rows, columns)).astype(ml_dtypes.bfloat16)
    bias = np.random.default_rng(4).standard_normal(columns).astype(ml_dtypes.bfloat16)
    y = raw(np.zeros_like(x))
    launch(golden("bias_gelu"), Launch((2, 1, 1), (64, 1, 1)), [raw(x), raw(bias), y, x.size, columns])
    total = x.astype(np.float32) + bias.astype(np.float32)
    (want,), _ = apply("gelu", [(DType.F32, x.shape)], [total], (0,))
    got = y.view(ml_dtypes.bfloat16).reshape(x.shape).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("columns", [1, 7, 64])
def test_row_softmax(columns: int) -> None:
    x = np.random.default_rng(columns).standard_normal((9, columns)).astype(np.float32) * 5
    y = raw(np.zeros_like(x))
    outcome = launch(golden("row_softmax"), Launch((9, 1, 1), (64, 1, 1)), [raw(x), y, columns])
    (want,), _ = apply("softmax", [(DType.F32, x.shape)], [x])
    np.testing.assert_allclose(y.view(np.float32).reshape(x.shape), want, rtol=1e-6)
    assert not outcome.trapped


@pytest.mark.parametrize("name", ["vadd", "bias_gelu", "row_softmax"])
def test_a_grid_in_slices_gives_the_same_bytes_and_count(name: str) -> None:
    verified = golden(name)
    assert verified.certificate.sliceable
    rng = np.random.default_rng(5)
    sizes = {"vadd": (400, 400), "bias_gelu": (200, 20), "row_softmax": (400, 400)}[name]
    numbers = {"vadd": [400], "bias_gelu": [400, 10], "row_softmax": [40]}[name]

    def run(cuts: list[int]) -> tuple[bytes, int]:
        buffers = [raw(np.random.default_rng(6).standard_normal(n).astype(np.float32)) for n in sizes]
        if name == "row_softmax":
            buffers = buffers[:1]
        out, total = raw(np.zeros(400, np.float32)), 0
        for first, end in pairwise(cuts):
            where = Launch((10, 1, 1), (64, 1, 1), first, end - first)
            total += launch(verified, where, [*buffers, out, *numbers]).instructions
        return out.tobytes(), total

    assert run([0, 10]) == run([0, 1, 4, 9, 10]) == run([0, *sorted(rng.integers(0, 10, 3).tolist()), 10])


def test_fuel_ends_an_endless_run() -> None:
    kernel = parse_kernel(
        "kernel 1 spin\nmath strict\nthreads 8\nparam i32\nregs i32 i32 pred\n"
        "block 0\n r0 = param(p0)\n r1 = const(0)\n r2 = eq r0, r1\n br 1\nblock 1\n cbr r2, 1, 2\nblock 2\n ret"
    )
    outcome = launch(verify_kernel(kernel), Launch((1, 1, 1), (8, 1, 1)), [0], fuel=1000)
    assert outcome.out_of_fuel and 1000 <= outcome.instructions < 1000 + 8 * 4
    assert not launch(verify_kernel(kernel), Launch((1, 1, 1), (8, 1, 1)), [1], fuel=1000).out_of_fuel


def test_specials_number_threads_and_blocks_x_fastest() -> None:
    specials = [Special.TID_X, Special.TID_Y, Special.TID_Z, Special.CTAID_X, Special.CTAID_Y, Special.CTAID_Z, Special.NTID_Y,
                Special.NCTAID_Z, Special.LANE]  # fmt: skip
    text = "kernel 1 who\nmath strict\nthreads 64\nparam buf i32 w\nparam buf i64 rw\nregs i32 i64 i64 i64 i32\nblock 0\n"
    text += " r0 = special(ctaid.x)\n r1 = sext r0\n r0 = special(tid.x)\n r2 = sext r0\n r1 = add r1, r2\n r2 = const(0)\n"
    text += "".join(f" r4 = special({s.text})\n st(p0 i32) r2, r4\n r3 = const(1)\n r2 = add r2, r3\n" for s in specials) + " ret\n"
    verified = verify_kernel(parse_kernel(text))
    out = raw(np.zeros(len(specials), np.int32))
    # One block of the grid, the last: all threads store, and the last thread's values stay.
    launch(verified, Launch((2, 3, 4), (2, 3, 5), 23, 1), [out, raw(np.zeros(1, np.int64))])
    assert out.view(np.int32).tolist() == [1, 2, 4, 1, 2, 3, 3, 4, 29]


def one_op(name: str, out: RegType, ins: list[RegType], attrs: tuple[int, ...] = ()) -> VerifiedKernel:
    """A kernel that loads one element for each input, applies the op, stores the result."""
    memory = {RegType.PRED: DType.BOOL, RegType.I16: DType.I16, RegType.I32: DType.I32, RegType.I64: DType.I64, RegType.F16: DType.F16,
              RegType.BF16: DType.BF16, RegType.F32: DType.F32, RegType.F64: DType.F64}  # fmt: skip
    n = len(ins)
    regs = [RegType.I32, RegType.I64, *ins, out]
    code = [Op(BY_NAME["special"].code, (0,), (), (Special.TID_X,)), Op(BY_NAME["sext"].code, (1,), (0,))]
    code += [Op(BY_NAME["ld"].code, (2 + i,), (1,), (Space.GLOBAL, i, memory[t])) for i, t in enumerate(ins)]
    code.append(Op(BY_NAME[name].code, (2 + n,), tuple(range(2, 2 + n)), attrs))
    code.append(Op(BY_NAME["st"].code, (), (1, 2 + n), (Space.GLOBAL, n, memory[out])))
    params = [*(BufferParam(memory[t], Access.READ) for t in ins), BufferParam(memory[out], Access.WRITE)]
    return verify_kernel(Kernel(1, "one", 1, 1024, tuple(params), (), tuple(regs), (Block(tuple(code), Ret()),)))


def results(verified: VerifiedKernel, ins: list[Array], dtype: DType) -> Array:
    out = raw(np.zeros(len(ins[0]), dtype.numpy))
    launch(verified, Launch((1, 1, 1), (len(ins[0]), 1, 1)), [*map(raw, ins), out])
    return out.view(dtype.numpy)


INTS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div_s": lambda a, b: int(math.copysign(1, a) * math.copysign(1, b)) * (abs(a) // abs(b)) if b else 0,
    "rem_s": lambda a, b: int(math.copysign(1, a)) * (abs(a) % abs(b)) if b else 0,
    "div_u": lambda a, b: (a & M) // (b & M) if b else 0,
    "rem_u": lambda a, b: (a & M) % (b & M) if b else 0,
    "min_s": min,
    "max_s": max,
    "min_u": lambda a, b: min(a & M, b & M),
    "max_u": lambda a, b: max(a & M, b & M),
    "shl": lambda a, b: a << b if 0 <= b < 32 else 0,
    "shr_s": lambda a, b: a >> (b if 0 <= b < 32 else 31),
    "shr_u": lambda a, b: (a & M) >> b if 0 <= b < 32 else 0,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
M = (1 << 32) - 1
VALUES = [0, 1, -1, 2, -2, 7, -7, 31, 32, 33, 1000, -1000, 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("name", sorted(INTS))
def test_integer_ops(name: str) -> None:
    a, b = (np.array(v, np.int32) for v in zip(*[(x, y) for x in VALUES for y in VALUES], strict=True))
    got = results(one_op(name, RegType.I32, [RegType.I32] * 2), [a, b], DType.I32)
    want = [(INTS[name](int(x), int(y)) + 2**31) % 2**32 - 2**31 for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want


@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("eq", lambda a, b: a == b),
        ("ne", lambda a, b: a != b),
        ("lt_s", lambda a, b: a < b),
        ("le_s", lambda a, b: a <= b),
        ("lt_u", lambda a, b: a & M < b & M),
        ("le_u", lambda a, b: a & M <= b & M),
    ],
)
def test_integer_comparisons(name: str, f: Callable[[int, int], bool]) -> None:
    a, b = (np.array(v, np.int32) for v in zip(*[(x, y) for x in VALUES for y in VALUES], strict=True))
    got = results(one_op(name, RegType.PRED, [RegType.I32] * 2), [a, b], DType.BOOL)
    assert got.tolist() == [f(int(x), int(y)) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize(
    ("name", "out", "source", "values", "want"),
    [
        ("sext", RegType.I64, RegType.I16, [-1, 300], [-1, 300]),
        ("zext", RegType.I64, RegType.I16, [-1, 300], [65535, 300]),
        ("narrow", RegType.I16, RegType.I64, [65537, -1], [1, -1]),
        ("s2f", RegType.F32, RegType.I32, [-1, 16777217], [-1.0, 16777216.0]),
        ("u2f", RegType.F64, RegType.I32, [-1, 5], [4294967295.0, 5.0]),
        ("f2s", RegType.I32, RegType.F32, [-2.9, 1e20, -1e20, math.nan], [-2, 2**31 - 1, -(2**31), 0]),
        ("f2u", RegType.I32, RegType.F32, [-2.9, 1e20, 3e9, math.nan], [0, -1, 3000000000 - 2**32, 0]),
        ("cvt", RegType.BF16, RegType.F64, [1.00390625, 1e40, -0.0], [1.0, math.inf, -0.0]),
        ("cvt", RegType.F64, RegType.F16, [0.5, 65504.0], [0.5, 65504.0]),
        ("reinterpret", RegType.I32, RegType.F32, [1.0, -0.0], [0x3F800000, -(2**31)]),
        ("reinterpret", RegType.BF16, RegType.I16, [0x3F80, -32768], [1.0, -0.0]),
        ("neg", RegType.I16, RegType.I16, [5, -32768], [-5, -32768]),
        ("abs", RegType.I16, RegType.I16, [-5, -32768], [5, -32768]),
        ("not", RegType.I32, RegType.I32, [0, 5], [-1, -6]),
        ("not", RegType.PRED, RegType.PRED, [True, False], [False, True]),
        ("rint", RegType.F32, RegType.F32, [0.5, 1.5, -2.5], [0.0, 2.0, -2.0]),
        ("trunc", RegType.F64, RegType.F64, [-1.5, 1.5], [-1.0, 1.0]),
        ("mov", RegType.F16, RegType.F16, [0.25, 3.0], [0.25, 3.0]),
    ],
)
def test_conversions(name: str, out: RegType, source: RegType, values: list[float], want: list[float]) -> None:
    types = {t: DType.parse(t.text if t is not RegType.PRED else "bool") for t in RegType}
    got = results(one_op(name, out, [source]), [np.array(values).astype(types[source].numpy)], types[out])
    assert [float(v) for v in got] == [float(v) for v in want]


def test_loads_extend_by_the_element_type_and_stores_cut() -> None:
    text = (
        "kernel 1 copy\nmath strict\nthreads 8\nparam buf i8 r\nparam buf u8 w\nparam buf u16 r\nparam buf bool rw\n"
        "regs i64 i32 i32 pred\nblock 0\n r0 = const(0)\n r1 = ld(p0 i8) r0\n r2 = ld(p2 u16) r0\n r1 = add r1, r2\n st(p1 u8) r0, r1\n"
        " r3 = ld(p3 bool) r0\n st(p3 bool) r0, r3\n ret"
    )
    out, flag = raw(np.zeros(1, np.uint8)), np.array([77], np.uint8)
    verified = verify_kernel(parse_kernel(text))
    launch(verified, Launch((1, 1, 1), (1, 1, 1)), [raw(np.array([-2], np.int8)), out, raw(np.array([65535], np.uint16)), flag])
    assert out.tolist() == [(65533) & 255] and flag.tolist() == [1]
    assert not verified.certificate.sliceable and verified.certificate.in_out == (3,)


def test_every_op_is_known_to_the_interpreter() -> None:
    floats = [op for op in KERNEL_OPS if op.sig is Sig.FLOAT and op.name != "exp10"]  # no tensor op has that name
    x = np.array([0.3, 0.7, 0.99], np.float32)
    for op in floats:
        got = results(one_op(op.name, RegType.F32, [RegType.F32] * op.n_ins), [x] * op.n_ins, DType.F32)
        tensor = {"rint": "round", "rem": "fmod"}.get(op.name, op.name)
        (want,), _ = apply(tensor, [(DType.F32, x.shape)], [x] * op.n_ins)
        assert got.tolist() == want.tolist() or np.isnan(want).all(), op.name


def test_uniformity_of_the_softmax_kernel() -> None:
    verified = golden("row_softmax")
    assert verified.uniformity.split == {0, 3, 13}
    assert verified.uniformity.divergent == {1, 4, 5, 6, 7, 14}
    assert verified.flow.ipdom[0] == 2 and verified.flow.ipdom[3] == 8 and verified.flow.ipdom[15] is None
    assert 7 not in verified.uniformity.varying[9], "the tree's width is the same for all threads"


def test_a_loop_that_threads_leave_at_different_times_is_divergent() -> None:
    kernel = parse_kernel(
        "kernel 1 loop\nmath strict\nthreads 8\nregs i32 i32 i32 pred\nblock 0\n r0 = special(tid.x)\n"
        " r1 = const(0)\n r2 = const(1)\n br 1\nblock 1\n r3 = lt_s r1, r0\n cbr r3, 2, 3\nblock 2\n r1 = add r1, r2\n br 1\nblock 3\n ret"
    )
    same = verify_kernel(kernel).uniformity
    assert same.divergent == {1, 2}
    assert 1 in same.varying[3], "the counter is uniform inside, but threads take different values out"


def spoiled(**changes: Any) -> Kernel:
    return msgspec.structs.replace(golden("vadd").kernel, **changes)


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        (spoiled(version=3), "version 3"),
        (spoiled(name="not a name"), "is not a name"),
        (spoiled(name=""), "0 characters"),
        (spoiled(threads_max=0), "0 threads"),
        (spoiled(blocks=()), "0 blocks"),
        (spoiled(params=(ScalarParam(3),)), "no memory 0"),
    ],
)
def test_sizes_and_references(kernel: Kernel, says: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_kernel(kernel)
    assert says in " ".join(map(str, caught.value.findings))


def test_limits() -> None:
    with pytest.raises(VerifyError, match="ops"):
        verify_kernel(golden("vadd").kernel, KernelLimits(ops_max=3))
    with pytest.raises(DecodeError, match="at most 10"):
        decode_kernel(encode_kernel(golden("vadd").kernel), KernelLimits(bytes_max=10))


@pytest.mark.parametrize("spoil", [lambda d: d[:-1], lambda d: d + b"\0", lambda d: b"\xc0", lambda d: b"\x98\x02" + d[2:], lambda d: b""])
def test_only_canonical_bytes_decode(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DecodeError):
        decode_kernel(spoil(encode_kernel(golden("vadd").kernel)))


@pytest.mark.parametrize(
    ("where", "params", "says"),
    [
        (Launch((1, 1, 1), (512, 1, 1)), None, "512 threads"),
        (Launch((0, 1, 1), (1, 1, 1)), None, "at least one"),
        (Launch((2, 1, 1), (1, 1, 1), 1, 2), None, "blocks 1 to 3 of 2"),
        (Launch((1, 1, 1), (1, 1, 1)), [], "4 parameters"),
        (Launch((1, 1, 1), (1, 1, 1)), [1, 2, 3, 4], "1-D u8"),
        (Launch((1, 1, 1), (1, 1, 1)), [np.zeros(4, np.uint8)] * 4, "must be a number"),
    ],
)
def test_launches_that_do_not_fit(where: Launch, params: list[Any] | None, says: str) -> None:
    fitting = [np.zeros(4, np.uint8)] * 3 + [1]
    with pytest.raises(ValueError, match=says):
        launch(golden("vadd"), where, fitting if params is None else params)


HEAD = "kernel 1 k\nmath strict\nthreads 8\nregs i32 f32\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 0, "ends without"),
        (HEAD, 4, ""),
        (HEAD + "block 1\n ret", 5, "expected 0"),
        (HEAD + "block 0\n r0 = const(1)", 6, "end of a block"),
        (HEAD + "block 0\n r0 = frob\n ret", 6, "no op called"),
        (HEAD + "block 0\n r7 = const(1)\n ret", 6, "known type"),
        (HEAD + "block 0\n r1 = const(one)\n ret", 6, "not a number"),
        (HEAD + "block 0\n r0 = special(tid.w)\n ret", 6, "special value"),
        (HEAD + "block 0\n r1 = ld(q0 f32) r0\n ret", 6, "'q0' is not pN"),
        (HEAD + "block 0\n r0 = mov(3) r0\n ret", 6, "no attributes"),
        (HEAD + "block 0\n cbr r0, 1\n", 6, "cbr rP"),
        (HEAD + "regs i32\n", 5, "not expected"),
        (HEAD + "param buf f32\n", 5, "buf TYPE"),
        ("kernel 1 k\nmath exact\nthreads 8\nregs\n", 4, "math policy"),
    ],
)
def test_parse_errors_name_the_line(text: str, line: int, says: str) -> None:
    if not says:
        assert parse_kernel(text).blocks == ()
        return
    with pytest.raises(ParseError) as caught:
        parse_kernel(text)
    assert caught.value.line == line and says in caught.value.text


@pytest.mark.parametrize(
    ("kind", "bits"), [("f32", 0x7FC00001), ("f32", -1), ("f64", 0x7FF8 << 48), ("f32", 0x00000001), ("bf16", -128), ("f16", 0x3C01)]
)
def test_constants_keep_their_bits_in_text(kind: str, bits: int) -> None:
    register = RegType[kind.upper()]
    kernel = Kernel(1, "k", 0, 1, (), (), (register,), (Block((Op(BY_NAME["const"].code, (0,), (), (bits,)),), Ret()),))
    assert parse_kernel(print_kernel(kernel)) == kernel
    verify_kernel(kernel)
