"""Products of matrices: the definition beside plain matrices, in its order of sums, and every kernel device beside the definition."""

from __future__ import annotations

import importlib.util
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

from jit.kernels.cfamily import CUDA, Form, emit
from jit.kernels.launch import KernelLaunch
from tests.support.cuda_driver import Driver, cupy_on_host
from tests.support.kernel_devices import KernelDevice, ReferenceKernels, cuda_kernels
from tests.support.kernel_ops import edge_values, one_op, run_op
from wis.kernel.interpret import Launch, launch
from wis.kernel.matrix import ELEMENTS, INTEGERS, SIGNED
from wis.kernel.model import Matrix, RegType
from wis.kernel.text import parse_kernel, print_kernel
from wis.kernel.verify import verify_kernel
from wis.reference.numeric import fma

Array = npt.NDArray[Any]
_I32, _F32, _F64 = RegType.I32, RegType.F32, RegType.F64
_FORMS: Final = list(Matrix)


def signature(form: Matrix) -> tuple[list[RegType], list[RegType]]:
    sums = [_I32 if form in INTEGERS else _F32] * 4
    return sums, [_I32] * 3 + sums


def raw_elements(form: Matrix, rng: np.random.Generator, shape: tuple[int, int], signed: bool) -> tuple[Array, Array]:
    """Random elements: as numbers, and as the bits that a register holds."""
    if form in INTEGERS:
        values = rng.integers(-128, 128, shape) if signed else rng.integers(0, 256, shape)
        return values.astype(np.int32), values.astype(np.uint8)
    values = rng.standard_normal(shape).astype(np.float32)
    if form is Matrix.F16:
        half = values.astype(np.float16)
        return half.astype(np.float32), half.view(np.uint16)
    kept = np.uint32(0xFFFF0000 if form is Matrix.BF16 else 0xFFFFE000)
    exact = (values.view(np.uint32) & kept).view(np.float32)
    if form is Matrix.BF16:
        return exact, (exact.view(np.uint32) >> 16).astype(np.uint16)
    return exact, exact.view(np.uint32) | rng.integers(0, 1 << 13, shape).astype(np.uint32)  # bits that do not count


def chained(a: Array, b: Array, c: Array) -> Array:
    """C + A B, each element a chain of fused multiply-adds with ascending k."""
    for k in range(a.shape[1]):
        x, y = np.broadcast_arrays(a[:, k : k + 1], b[k : k + 1, :])
        c = c + x * y if c.dtype == np.int32 else fma(x, y, c)
    return c


@pytest.mark.parametrize("form", _FORMS, ids=lambda form: form.name)
def test_a_warp_multiplies_matrices_in_the_fragments_of_ptx(form: Matrix) -> None:
    """The places are written as PTX writes them: groupID, threadID_in_group, and i, the element's number in the fragment."""
    rng = np.random.default_rng(int(form))
    each, (a_signed, b_signed) = ELEMENTS[form], SIGNED.get(form, (False, False))
    depth = 4 * each
    a, a_raw = raw_elements(form, rng, (16, depth), a_signed)
    b, b_raw = raw_elements(form, rng, (depth, 8), b_signed)
    c = (rng.integers(-99, 99, (16, 8)) if form in INTEGERS else rng.standard_normal((16, 8))).astype(
        np.int32 if form in INTEGERS else np.float32
    )
    a_words, b_words = np.zeros((2, 32, each), a_raw.dtype), np.zeros((32, each), b_raw.dtype)
    c_words = np.zeros((4, 32), c.dtype)
    for lane in range(32):
        group, inside = lane >> 2, lane % 4
        for i in range(2 * each):
            a_words[i // each, lane, i % each] = a_raw[group if i < each else group + 8, inside * each + i % each]
        for i in range(each):
            b_words[lane, i] = b_raw[inside * each + i, group]
        for i in range(4):
            c_words[i, lane] = c[group if i < 2 else group + 8, inside * 2 + (i & 1)]
    outs, ins = signature(form)
    words = [*a_words.reshape(2, -1), b_words.reshape(-1)]
    given = [*(np.ascontiguousarray(w).view(np.int32) for w in words), *c_words]
    found = run_op(one_op("mma", outs, ins, (int(form),)), outs, given)
    want = chained(a, b, c)
    for lane in range(32):
        group, inside = lane >> 2, lane % 4
        for i in range(4):
            assert found[i][lane] == want[group if i < 2 else group + 8, inside * 2 + (i & 1)], (lane, i)


def test_a_warp_multiplies_doubles() -> None:
    rng = np.random.default_rng(9)
    a, b, c = (rng.standard_normal(shape) for shape in ((8, 4), (4, 8), (8, 8)))
    lanes = np.arange(32)
    given = [a[lanes >> 2, lanes % 4], b[lanes % 4, lanes >> 2], c[lanes >> 2, lanes % 4 * 2], c[lanes >> 2, lanes % 4 * 2 + 1]]
    found = run_op(one_op("mma_f64", [_F64] * 2, [_F64] * 4), [_F64] * 2, given)
    want = chained(a, b, c)
    assert np.array_equal(found[0], want[lanes >> 2, lanes % 4 * 2])
    assert np.array_equal(found[1], want[lanes >> 2, lanes % 4 * 2 + 1])


def kernel_text(form: Matrix | None, math: str = "strict", *, parted: bool = True) -> str:
    """Two products in a row in all lanes, with results in the registers of operands; then one in the lanes whose number a mask has, or in
    all (``parted`` False).

    Parameters: i32 words (24 a thread), the mask, results (8 words a thread, f64: 4 doubles).
    """
    head = f"kernel 2 k\nmath {math}\nthreads 1024\nparam buf {{0}} r\nparam i32\nparam buf {{0}} w\n"
    start = [
        "block 0", "r0 = special(ctaid.x)", "r1 = special(ntid.x)", "r2 = mul r0, r1", "r0 = special(tid.x)", "r2 = add r2, r0",
    ]  # fmt: skip
    if form is None:
        size, n_in, n_out, name, kinds, dtype = 8, 4, 2, "mma_f64", "f64 " * 4, "f64"
    else:
        size, n_in, n_out, name, dtype = 4, 7, 4, f"mma({form.name.lower()})", "u32"
        kinds = "i32 " * 3 + ("i32 " if form in INTEGERS else "f32 ") * 4
    floats = kinds.split()[-1] == "f32"
    ins = [f"r{10 + i}" for i in range(n_in)]
    sums = ins[-n_out:]
    load = [f"r3 = const({n_in * size})", "r3 = mul r2, r3"]
    for i, register in enumerate(ins):
        kind = "f32" if kinds.split()[i] == "f32" else dtype
        load.append(f"{register} = load(p0 {kind} +{i * size}) r3")
    call = f"{', '.join(sums)} = {name} {', '.join(ins)}"
    store = [f"r3 = const({2 * n_out * size})", "r3 = mul r2, r3"]
    kind = "f32" if floats else dtype
    first = [f"store(p2 {kind} +{i * size}) r3, {register}" for i, register in enumerate(sums)]
    second = [f"store(p2 {kind} +{(n_out + i) * size}) r3, {register}" for i, register in enumerate(sums)]
    lanes = [
        "r4 = special(lane)",
        "r5 = param(p1)",
        "r5 = shr_u r5, r4",
        "r6 = const(1)",
        "r5 = and r5, r6",
        "r7 = eq r5, r6",
        "cbr r7, 1, 2",
    ]
    third = [*lanes, "block 1", call, "br 2", "block 2"] if parted else ["r5 = param(p1)", call]
    lines = [*start, *load, call, call, *store, *first, *third, *second, "ret"]
    unit = "f64" if form is None else "u32"
    return head.format(unit) + f"regs {'i32 ' * 7}pred i32 i32 {kinds}\n" + "\n".join(lines) + "\n"


def operands(form: Matrix | None, n: int) -> tuple[Array, Array]:
    """What ``n`` threads multiply, and room for the results. A part is random numbers, so that not all results are NaN."""
    rng = np.random.default_rng(4)
    if form is None:
        given = edge_values(_F64, n * 4, 3).reshape(n, 4)
        given[n // 2 :] = rng.standard_normal((n - n // 2, 4))
        return given, np.zeros((n, 4))
    given = edge_values(_I32, n * 7, int(form)).reshape(n, 7)
    if form in INTEGERS:
        return given, np.zeros((n, 8), np.int32)
    given[n // 2 :, :3] = rng.standard_normal((n - n // 2, 3)).astype(np.float32).view(np.int32)
    given[:, 3:] = rng.standard_normal((n, 4)).astype(np.float32).view(np.int32)
    return given, np.zeros((n, 8), np.float32)


def in_bytes(x: Array) -> Array:
    return x.reshape(-1).view(np.uint8)


@pytest.mark.parametrize("form", [*_FORMS, None], ids=lambda form: form.name if form is not None else "F64")
@pytest.mark.parametrize("threads", [128, 40])
def test_a_device_multiplies_as_defined_also_where_lanes_are_missing(device: KernelDevice, form: Matrix | None, threads: int) -> None:
    verified = verify_kernel(parse_kernel(kernel_text(form)))
    assert parse_kernel(print_kernel(verified.kernel)) == verified.kernel
    blocks, mask = 3, 0x5A5AFF0F if form is not Matrix.F16 else 0xDA5AFF0F - (1 << 32)
    given, want = operands(form, blocks * threads)
    out = want.copy()
    shape = Launch((blocks, 1, 1), (threads, 1, 1))
    launch(verified, shape, [in_bytes(given), mask, in_bytes(want)])
    prepared = device.prepare(verified, (threads, 1, 1))
    outcome = device.run(prepared, KernelLaunch(shape.grid, shape.block), [in_bytes(given).copy(), mask, in_bytes(out)])
    assert outcome.trap is None
    assert np.isfinite(want).sum() > want.size // 4
    assert np.array_equal(out, want, equal_nan=True)


@pytest.mark.skipif(importlib.util.find_spec("nvidia") is None, reason="the CUDA compiler's wheel is not installed")
@pytest.mark.parametrize("math", ["strict", "native"])
@pytest.mark.parametrize("form", [*_FORMS, None], ids=lambda form: form.name if form is not None else "F64")
def test_cuda_multiplies_by_shuffles_or_by_its_instruction(form: Matrix | None, math: str) -> None:
    """Executed without a GPU: the emitted text through NVRTC and the importer. All lanes are there, as CUDA's thread form requires."""
    verified = verify_kernel(parse_kernel(kernel_text(form, math, parted=False)))
    assert emit(verified, CUDA, (64, 1, 1)).form is Form.THREAD
    given, want = operands(form, 64)
    out, mask = want.copy(), -1
    launch(verified, Launch((1, 1, 1), (64, 1, 1)), [in_bytes(given), mask, in_bytes(want)])
    with cupy_on_host(Driver(device=ReferenceKernels())):
        device = cuda_kernels()
        prepared = device.prepare(verified, (64, 1, 1))
        outcome = device.run(prepared, KernelLaunch((1, 1, 1), (64, 1, 1)), [in_bytes(given).copy(), mask, in_bytes(out)])
        device.close()
    assert outcome.trap is None
    assert np.array_equal(out, want, equal_nan=True)
