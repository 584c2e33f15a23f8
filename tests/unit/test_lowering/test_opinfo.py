"""Breadth: torch's own operator database, each aten call mirrored through its lowering and compared with torch on the CPU.

What has no lowering goes through torch's decompositions, as on the device; what has neither is not judged here, but counted.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch

from tests.support.lowering_run import Mirror
from tests.support.op_db import op_db

_ELSEWHERE = ("jiterator", "sparse", "to_sparse")
"""Operators that need a real GPU's compiler, or another layout."""

_OPS = [op for op in op_db if not any(part in op.name for part in _ELSEWHERE)]


@cache
def mirror(number: int, dtype: torch.dtype, n_samples: int, *, backward: bool = False) -> Mirror:
    """Run some samples of operator ``number`` under a mirror."""
    op = _OPS[number]
    torch.manual_seed(0)
    mode = Mirror()
    # Not op.sample_inputs: it walks the stack for every sample, to name it in failures.
    for sample in itertools.islice(op.sample_inputs_func(op, "cpu", dtype, backward), n_samples):
        if sum(t.numel() for t in tensors((sample.input, sample.args, sample.kwargs))) > 4096:
            continue  # the interpreter is slow, and size adds nothing here
        with mode:
            result = op(sample.input, *sample.args, **sample.kwargs)
            if backward:
                differentiate(result, sample)
    return mode


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def differentiate(result: Any, sample: Any) -> None:
    outs = [t for t in tensors(result) if t.requires_grad]
    ins = [t for t in tensors((sample.input, sample.args, sample.kwargs)) if t.requires_grad]
    if outs and ins:
        torch.autograd.grad([t.abs().sum() if t.is_complex() else t.sum() for t in outs], ins, allow_unused=True)


def cases(dtype: torch.dtype, *, backward: bool = False) -> list[Any]:
    """The numbers of operators that take ``dtype``, as named test cases."""
    return [
        pytest.param(number, id=op.formatted_name)
        for number, op in enumerate(_OPS)
        if dtype in op.supported_dtypes("cpu") and (op.supports_autograd or not backward)
    ]


@pytest.mark.parametrize("number", cases(torch.float32, backward=True))
def test_float32_with_gradients(number: int) -> None:
    assert mirror(number, torch.float32, 2, backward=True).wrong == []


@pytest.mark.parametrize("number", [case for case in cases(torch.float32) if not _OPS[case.values[0]].supports_autograd])
def test_float32_without_gradients(number: int) -> None:
    assert mirror(number, torch.float32, 2).wrong == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_other_types(dtype: torch.dtype) -> None:
    """One sample an operator; one test a type, because there is little to say about each."""
    wrong = {}
    for case in cases(dtype):
        if found := mirror(case.values[0], dtype, 1).wrong:
            wrong[case.id] = found
    assert wrong == {}


def test_most_operators_need_no_cpu() -> None:
    """A floor under coverage: lowerings and decompositions together carry four of five operators, with their gradients."""
    covered = [not mirror(case.values[0], torch.float32, 2, backward=True).missing for case in cases(torch.float32, backward=True)]
    assert sum(covered) / len(covered) > 0.8
