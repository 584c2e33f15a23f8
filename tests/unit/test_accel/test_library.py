"""Library kernels, by the definition of kernels: random instructions of every family on odd layouts agree with the reference."""

from __future__ import annotations

import numpy as np
import pytest

from jit.accel.engine import AccelEngine
from jit.accel.library import LOWER, conv
from jit.library import order
from tests.property.fuzz_backends import one_round
from tests.support.builder import Builder
from tests.unit.test_jit.conftest import Check, run
from wis.dtypes import DType
from wis.ops import OPS
from wis.verify import verify

F = DType.F32


@pytest.mark.parametrize("name", sorted(LOWER))
def test_random_instructions_agree_with_the_reference(interpreted: AccelEngine, name: str) -> None:
    ops = [op for op in OPS if op.name == name]
    for seed in range(25):
        assert one_round(interpreted, ops, seed)[1] == ""


@pytest.mark.parametrize("name", ["gelu", "softmax", "log_softmax_dx", "layer_norm", "layer_norm_dwb", "sdpa", "sdpa_dx", "adamw"])
def test_coarse_instructions_are_taken_apart(interpreted: AccelEngine, name: str) -> None:
    ops = [op for op in OPS if op.name == name]
    for seed in range(15):
        assert one_round(interpreted, ops, seed)[1] == ""


@pytest.mark.parametrize("down", [0, 1])
@pytest.mark.parametrize("kept", [130, 7])
def test_long_lines_are_sorted_by_a_network(check: Check, monkeypatch: pytest.MonkeyPatch, down: int, kept: int) -> None:
    monkeypatch.setattr(order, "COUNTED_MAX", 64)
    b = Builder()
    x = b.external(F, (3, 130))
    outs = [b.created(F, (3, kept)), b.created(DType.I64, (3, kept))]
    b.emit("sort" if kept == 130 else "topk", outs, [x], (1, down))
    values = np.random.default_rng(down).integers(-9, 9, (3, 130)).astype(np.float32)
    values[1, 5:9] = np.nan
    check(b, {x.buffer: values})


@pytest.mark.parametrize("name", ["conv", "conv_dx", "conv_dw"])
def test_images_are_taken_some_at_a_time(check: Check, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(conv, "COLUMNS_BYTES", 20_000)
    b, rng = Builder(), np.random.default_rng(1)
    x, w, y = (5, 4, 7, 6), (6, 2, 3, 3), (5, 6, 7, 6)
    shapes = {"conv": (x, w, y), "conv_dx": (y, w, x), "conv_dw": (y, x, w)}[name]
    first, second, out = b.external(F, shapes[0]), b.external(F, shapes[1]), b.created(F, shapes[2])
    b.emit(name, out, [first, second], (2, 1, 1, 1, 1, 1, 1))
    check(b, {v.buffer: rng.random(v.shape).astype(np.float32) for v in (first, second)}, [(out, 64.0)])


def test_a_group_with_more_operands_than_parameters_fit_has_its_strides_in_the_kernel(interpreted: AccelEngine, check: Check) -> None:
    """28 operands that lie differently in seven dimensions: 9 numbers each."""
    b, rng = Builder(), np.random.default_rng(2)
    shape = (2, 3, 2, 3, 2, 3, 2)

    def strides() -> list[int]:
        return [int(s) for s in rng.permutation([1, 3, 10, 31, 94, 283, 850])]

    sources = [b.external(F, shape, strides()) for _ in range(16)]
    total = sources[0]
    for x in sources[1:]:
        out = b.created(F, shape, strides())
        b.emit("max", out, [total, x])
        total = out
    check(b, {x.buffer: rng.standard_normal(3000).astype(np.float32) for x in sources})
    assert any(fixed for _, fixed, _ in interpreted._lowering._fused)


def test_what_writes_nothing_is_no_step(interpreted: AccelEngine) -> None:
    b = Builder()
    x, y = b.external(F, (0, 4)), b.created(F, (0, 4))
    b.emit("neg", y, [x])
    run(interpreted, b, {})
    program, dims, _ = b.finish()
    assert interpreted.prepare(verify(program, dims)).plan.steps == []
