"""What must hold for every kernel: round trips, no other error than ours, nothing accepted that cannot run, sound uniformity."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.wis_programs import mutate_bytes
from wis.errors import DecodeError, ParseError, VerifyError
from wis.kernel.interpret import Launch, launch
from wis.kernel.model import (
    Bar,
    Block,
    Br,
    BufferParam,
    Cbr,
    Kernel,
    Op,
    RegType,
    Ret,
    ScalarParam,
    Shared,
    Space,
    decode_kernel,
    encode_kernel,
)
from wis.kernel.ops import KERNEL_OPS, Sig
from wis.kernel.text import parse_kernel, print_kernel
from wis.kernel.verify import MEMORY_TYPES, VerifiedKernel, verify_kernel

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
SMALL = st.integers(0, 4)
REGS = st.lists(SMALL | I64, max_size=3).map(tuple)
OPS = st.builds(Op, st.sampled_from([op.code for op in KERNEL_OPS]) | I64, REGS, REGS, st.lists(SMALL | I64, max_size=3).map(tuple))
ENDS = st.builds(Br, SMALL | I64) | st.builds(Cbr, SMALL, SMALL | I64, SMALL) | st.builds(Ret) | st.builds(Bar, SMALL)
ANY_KERNEL = st.builds(
    Kernel,
    st.just(1),
    st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True),
    SMALL | I64,
    st.integers(1, 64) | I64,
    st.lists(st.builds(BufferParam, SMALL | I64, SMALL | I64) | st.builds(ScalarParam, SMALL | I64), max_size=4).map(tuple),
    st.lists(st.builds(Shared, SMALL | I64, SMALL | I64), max_size=2).map(tuple),
    st.lists(st.integers(0, 7) | I64, max_size=5).map(tuple),
    st.lists(st.builds(Block, st.lists(OPS, max_size=4).map(tuple), ENDS), max_size=4).map(tuple),
)
GOLDEN = [
    parse_kernel(path.read_text())
    for path in sorted((Path(__file__).parents[1] / "golden" / "wis" / "kernels").glob("*.wisk"))
    if not path.stem.startswith("bad_")
]


def accepted(kernel: Kernel) -> VerifiedKernel | None:
    try:
        return verify_kernel(kernel)
    except VerifyError as error:
        print_kernel(kernel, error.findings)
        return None


def runs(verified: VerifiedKernel) -> None:
    """Any launch of an accepted kernel ends by itself or by fuel, and counts what it did."""
    params = [np.arange(64, dtype=np.uint8) if isinstance(p, BufferParam) else 3 for p in verified.kernel.params]
    outcome = launch(verified, Launch((2, 1, 1), (verified.kernel.threads_max, 1, 1)), params, fuel=50_000)
    assert outcome.instructions > 0


@QUICK
@given(ANY_KERNEL)
def test_any_kernel_survives_encoding_and_text_and_is_judged(kernel: Kernel) -> None:
    assert decode_kernel(encode_kernel(kernel)) == kernel
    assert parse_kernel(print_kernel(kernel)) == kernel
    verified = accepted(kernel)
    if verified is not None:
        runs(verified)


@QUICK
@given(st.sampled_from(GOLDEN), st.data())
def test_changed_kernels_are_refused_or_run(kernel: Kernel, data: st.DataObject) -> None:
    b = data.draw(st.integers(0, len(kernel.blocks) - 1))
    block = kernel.blocks[b]
    register, target = st.integers(0, len(kernel.regs) - 1), st.integers(0, len(kernel.blocks) - 1)
    if data.draw(st.booleans()) and block.code:
        i = data.draw(st.integers(0, len(block.code) - 1))
        op = block.code[i]
        op = msgspec.structs.replace(
            op, ins=tuple(data.draw(register | st.just(r)) for r in op.ins), outs=tuple(data.draw(st.just(r) | register) for r in op.outs)
        )
        block = Block((*block.code[:i], op, *block.code[i + 1 :]), block.end)
    else:
        end = data.draw(st.builds(Br, target) | st.builds(Cbr, register, target, target) | st.builds(Ret) | st.builds(Bar, target))
        block = Block(block.code, end)
    verified = accepted(msgspec.structs.replace(kernel, blocks=(*kernel.blocks[:b], block, *kernel.blocks[b + 1 :])))
    if verified is not None:
        runs(verified)


@QUICK
@given(st.sampled_from(GOLDEN), st.data())
def test_changed_bytes_and_text_are_refused_or_read(kernel: Kernel, data: st.DataObject) -> None:
    def pick(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    try:
        verified = accepted(decode_kernel(mutate_bytes(pick, encode_kernel(kernel))))
        if verified is not None:
            runs(verified)
    except DecodeError:
        pass
    text = mutate_bytes(pick, print_kernel(kernel).encode()).decode("utf-8", "replace")
    try:
        parsed = parse_kernel(text)
    except ParseError:
        return
    assert parse_kernel(print_kernel(parsed)) == parsed


@st.composite
def branching_kernels(draw: st.DrawFn) -> Kernel:
    """Kernels that always verify: a chain of diamonds and loops over i32 registers, each register written at the start."""
    regs = (RegType.I32, RegType.I32, RegType.I32, RegType.I32, RegType.PRED, RegType.I64)
    number = {op.name: op.code for op in KERNEL_OPS}
    start = [Op(number["special"], (r,), (), (draw(st.sampled_from([0, 6, 12])),)) for r in range(4)]
    blocks = [Block((*start, Op(number["lt_s"], (4,), (0, 1)), Op(number["sext"], (5,), (0,))), Br(1))]
    integer = [op for op in KERNEL_OPS if op.sig is Sig.INT or op.name in ("add", "sub", "mul", "neg")]

    def body() -> tuple[Op, ...]:
        chosen = draw(st.lists(st.sampled_from(integer), max_size=3))
        reg = st.integers(0, 3)
        return tuple(Op(op.code, (draw(reg),), tuple(draw(reg) for _ in range(op.n_ins))) for op in chosen)

    for _ in range(draw(st.integers(1, 4))):
        at = len(blocks)
        compare = Op(number["lt_s"], (4,), (draw(st.integers(0, 3)), draw(st.integers(0, 3))))
        blocks += [Block((*body(), compare), Cbr(4, at + 1, at + 2)), Block(body(), Br(at + 3)), Block(body(), Br(at + 3))]
    store = Op(number["st"], (), (5, 0), (Space.GLOBAL, 0, 4))
    blocks.append(Block((store,), Ret()))
    return Kernel(1, "k", 0, 64, (BufferParam(4, 2),), (), tuple(int(r) for r in regs), tuple(blocks))


@QUICK
@given(branching_kernels())
def test_uniform_registers_are_equal_in_all_threads(kernel: Kernel) -> None:
    """Cut the kernel at its end: a register called uniform there holds one value in all threads of the block."""
    verified = verify_kernel(kernel)
    last = len(kernel.blocks) - 1
    code = {op.name: op.code for op in KERNEL_OPS}
    for r in range(4):
        if r in verified.uniformity.varying[last]:
            continue
        # Store register r at the thread's number instead.
        free = 3 if r != 3 else 2
        code_end = (Op(code["special"], (free,), (), (0,)), Op(code["sext"], (5,), (free,)), Op(code["st"], (), (5, r), (0, 0, 4)))
        end = Block(code_end, Ret())
        probe = verify_kernel(msgspec.structs.replace(kernel, blocks=(*kernel.blocks[:last], end)))
        out = np.zeros(4 * 40, np.uint8)
        launch(probe, Launch((3, 1, 1), (40, 1, 1), 2, 1), [out])
        assert len(set(out.view(np.int32).tolist())) == 1


def test_memory_types_are_complete() -> None:
    assert {t for registers in MEMORY_TYPES.values() for t in registers} == set(RegType)
