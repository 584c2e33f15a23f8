"""torch.cuda.jiterator: functions of one element over tensors of any form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.cuda.jiterator import _create_jit_fn, _create_multi_output_jit_fn

from wooly.errors import CompileError, KernelArgumentError

scaled: Any = _create_jit_fn("template <typename T> T scaled(T x, T y, T alpha) { return -x + alpha * y; }", alpha=1.0)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.complex64]
)
def test_every_type_computes_what_torch_does(dtype: torch.dtype) -> None:
    x, y = torch.arange(600).remainder(7).to(dtype), torch.arange(600).remainder(5).to(dtype)
    if dtype.is_complex:
        x, y = x * (1 + 2j), y * (3 - 1j)
    for alpha in (1.0, 3.0):
        got = scaled(x.cuda(), y.cuda(), alpha=alpha)
        assert got.dtype == dtype
        torch.testing.assert_close(got.cpu(), -x + int(alpha) * y, rtol=0, atol=0)


def test_tensors_are_broadcast_promoted_and_read_by_their_strides() -> None:
    x, y = torch.arange(6).view(2, 3), torch.arange(3.0).view(3, 1)
    torch.testing.assert_close(scaled(x.cuda().t(), y.cuda()).cpu(), -x.t() + y)
    torch.testing.assert_close(scaled(torch._neg_view(x.cuda()), x.cuda()).cpu(), x * 2)
    with pytest.raises(RuntimeError, match="broadcast"):
        scaled(x.cuda(), torch.ones(4, device="cuda"))
    assert scaled(torch.ones((), device="cuda"), torch.ones((), device="cuda")).shape == ()
    assert scaled(torch.ones(0, device="cuda"), torch.ones(1, device="cuda")).shape == (0,)


def test_several_functions_and_several_results() -> None:
    two = "template <typename T> T half(T x) { return x / 2; } template <typename T> T twice(T x, T y) { return half(x) * 4 + y; }"
    x = torch.arange(5.0, device="cuda")
    assert torch.equal(_create_jit_fn(two)(x, x), x * 3)
    both: Any = _create_multi_output_jit_fn("template <typename T> void f(T x, T k, T& a, T& b) { a = x + k; b = x * k; }", 2, k=2)
    total, product = both(x)
    assert torch.equal(total, x + 2) and torch.equal(product, x * 2)


def test_what_cannot_be_is_refused_by_name() -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(KernelArgumentError, match=r"uint16.*RawKernel"):
        scaled(x.to(torch.uint16), x.to(torch.uint16))
    for other in (torch.ones(3), x.to_sparse()):
        with pytest.raises(KernelArgumentError, match="dense tensors on the device"):
            scaled(other, x)
    with pytest.raises(CompileError, match="undefined"):
        _create_jit_fn("template <typename T> T f(T x) { return unknown(x); }")(x)
    with pytest.raises(KeyError):
        scaled(x, x, beta=2)
